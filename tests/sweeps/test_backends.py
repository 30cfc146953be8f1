"""Backends: the same table from every one, and from a sweep that was killed and started again."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import planner
from planner.errors import PlannerError
from planner.sweeps import answer_cells, backends, questions
from planner.sweeps.journal import journal_of
from tests.sweeps.samples import FEW, MANY, command, done, written

LIMIT_S = 120
HELD = 3 * 27
"""Answers of a held sweep: tasks are of 27 questions."""


def recorded(table: Path) -> list[str]:
    """Keys in the order in which they were recorded, read while a sweep may write them."""
    path = journal_of(table)
    name = f"file:{path}?immutable=1"
    rollback = path.with_name(f"{path.name}-journal")
    if rollback.exists() and any(rollback.read_bytes()[:28]):
        return []  # its header stands until the transaction is committed
    try:
        with contextlib.closing(sqlite3.connect(name, uri=True)) as database:
            return [key for (key,) in database.execute("SELECT key FROM answers ORDER BY rowid")]
    except sqlite3.DatabaseError:
        return []  # not there yet, or being written


def is_there(group: int) -> bool:
    """Whether any process of a group is left."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@contextlib.contextmanager
def held_sweep(folder: Path, table: Path) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """A sweep of 216 questions in a process group of its own, which cannot end by itself.

    It is entered when both workers wait and every answer that they gave is recorded.
    """
    held = folder / "held"
    held.mkdir()
    sweep = written(folder, MANY)
    line = [sys.executable, "-m", "tests.sweeps.held_sweep", held, "3", sweep, "--into", table]
    process = subprocess.Popen(
        [*map(str, line), "--jobs", "2"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))},
    )
    began = time.monotonic()
    try:
        while len(waiting := list(held.glob("worker-*"))) < 2 or len(recorded(table)) < HELD:
            assert process.poll() is None, process.stderr and process.stderr.read()
            assert time.monotonic() - began < LIMIT_S
            time.sleep(0.02)
        yield process, [int(path.name.removeprefix("worker-")) for path in waiting]
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@contextlib.contextmanager
def ended(*started: subprocess.Popen[bytes]) -> Iterator[None]:
    """Processes of a test, ended with it."""
    try:
        yield
    finally:
        for process in started:
            process.terminate()
        for process in started:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def test_threads_find_the_same(tmp_path: Path) -> None:
    tables = [tmp_path / "a.csv", tmp_path / "b.csv"]
    planner.sweep(**FEW, into=tables[0], backend="sequential")
    planner.sweep(**FEW, into=tables[1], backend="threading", jobs=2)
    assert tables[0].read_bytes() == tables[1].read_bytes()


@pytest.mark.alone
def test_cores_find_the_same_and_a_killed_sweep_goes_on(tmp_path: Path) -> None:
    asked = written(tmp_path, MANY)
    whole, killed = tmp_path / "whole.parquet", tmp_path / "killed.parquet"
    assert done(asked, "--into", whole, "--backend", "sequential").returncode == 0
    with held_sweep(tmp_path, killed) as (process, _):
        process.send_signal(signal.SIGKILL)
        process.wait()
        # its workers end by themselves
        began = time.monotonic()
        while is_there(process.pid):
            assert time.monotonic() - began < LIMIT_S
            time.sleep(0.1)
    before = recorded(killed)
    assert len(before) == HELD
    assert not killed.exists()
    again = done(asked, "--into", killed, "--jobs", "2")
    assert again.returncode == 0, again.stderr
    # nothing is lost or repeated: 216 different keys
    assert recorded(killed)[: len(before)] == before
    assert len(recorded(killed)) == len(set(recorded(killed))) == 216
    said = re.search(r"(\d+) asked now, (\d+) answered before", again.stdout)
    assert said is not None
    assert [int(number) for number in said.groups()] == [216 - len(before), len(before)]
    assert killed.read_bytes() == whole.read_bytes()
    once_more = done(asked, "--into", killed, "--jobs", "2")
    assert "0 asked now, 216 answered before" in once_more.stdout
    assert killed.read_bytes() == whole.read_bytes()


@pytest.mark.alone
def test_a_worker_that_is_killed_ends_a_sweep_in_one_sentence(tmp_path: Path) -> None:
    table = tmp_path / "results.csv"
    with held_sweep(tmp_path, table) as (process, workers):
        os.kill(workers[0], signal.SIGKILL)
        out, err = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, out) == (2, "")
    last = err.strip().splitlines()[-1]
    assert last.startswith("planner: the backend loky failed (A worker process managed by")
    assert last.endswith("finished answers are kept; repeat the call to resume")
    assert "Traceback" not in err
    assert len(recorded(table)) == HELD


@pytest.mark.alone
def test_an_interrupted_sweep_says_how_to_go_on(tmp_path: Path) -> None:
    table = tmp_path / "results.csv"
    with held_sweep(tmp_path, table) as (process, _):
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does, to every process of the group
        out, err = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, out) == (130, "")
    lines = err.strip().splitlines()
    assert lines[-1] == (
        f"planner: interrupted: {HELD} of 216 questions answered are kept, and the same command "
        "continues from there"
    )
    # no other process says anything
    assert all(re.match(r"planner: \d+ of 216 questions answered", line) for line in lines[:-1]), (
        err
    )
    assert len(recorded(table)) == HELD
    rest = done(tmp_path / "sweep.json", "--into", table, "--jobs", "2")
    assert f"{216 - HELD} asked now, {HELD} answered before" in rest.stdout, rest.stderr


def test_a_stop_between_two_answers_is_not_warned_of(
    monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    may_end = threading.Event()

    def answer_first(task: int) -> int:
        return task if task == 0 else may_end.wait(LIMIT_S)

    monkeypatch.setattr(backends, "answer_task", answer_first)
    tasks: Any = [0, 1, 2]
    answers = backends.answer_tasks(tasks, "threading", 2, None)
    assert next(answers) == 0
    threading.Timer(0.1, may_end.set).start()  # joblib waits for its threads when it is closed
    answers.close()
    assert [str(warning.message) for warning in recwarn] == []


@contextlib.contextmanager
def dask_cluster(folder: Path, num_workers: int) -> Iterator[Path]:
    """The scheduler's file of a cluster whose workers have one core each."""
    dask = [sys.executable, "-m", "distributed.cli.dask_scheduler"]
    file, quiet = folder / "scheduler.json", {"stdout": subprocess.DEVNULL}
    place = folder / "worker"  # workers of another folder: they have no file of the asker's
    place.mkdir()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
    scheduler = subprocess.Popen(
        [*dask, "--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", file],
        stderr=subprocess.DEVNULL,
        cwd=place,
        **quiet,
    )
    workers = [
        subprocess.Popen(
            [sys.executable, "-m", "distributed.cli.dask_worker", "--scheduler-file", file,
             "--nthreads", "1", "--no-nanny", "--no-dashboard", "--host", "127.0.0.1"],
            stderr=subprocess.DEVNULL, cwd=place, env=environment, **quiet,
        )
        for _ in range(num_workers)
    ]  # fmt: skip
    with ended(*workers, scheduler):
        began = time.monotonic()
        while not file.exists():
            assert time.monotonic() - began < LIMIT_S
            time.sleep(0.1)
        yield file


@pytest.mark.alone
@pytest.mark.skipif(importlib.util.find_spec("distributed") is None, reason="no Dask here")
def test_a_dask_cluster_finds_the_same(tmp_path: Path) -> None:
    asked = written(tmp_path, MANY)
    here, there = tmp_path / "here.parquet", tmp_path / "there.parquet"
    assert done(asked, "--into", here, "--jobs", "2").returncode == 0
    with dask_cluster(tmp_path, 2) as file:
        address = json.loads(file.read_text())["address"]
        limited = done(asked, "--into", there, "--backend", "dask", "--address", address,
                       "--limit", "100")  # fmt: skip
        assert "100 asked now" in limited.stdout, limited.stderr
        rest = done(asked, "--into", there, "--backend", "dask", "--address", file)
        assert "116 asked now, 100 answered before" in rest.stdout, rest.stderr
    assert there.read_bytes() == here.read_bytes()


@pytest.mark.alone
@pytest.mark.skipif(importlib.util.find_spec("distributed") is None, reason="no Dask here")
def test_a_cluster_of_one_core_answers_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The asker pretends to have other code: its worker must be the one that refuses it."""
    for module in (questions, answer_cells):
        monkeypatch.setattr(module, "fingerprint", lambda: "0" * 32)
    assert planner.sweep(**FEW, backend="sequential").num_asked == 8
    with (
        dask_cluster(tmp_path, 1) as file,
        pytest.raises(PlannerError, match="runs a different planner version"),
    ):
        planner.sweep(**FEW, backend="dask", address=str(file))


# --- what cannot be reached ------------------------------------------------------------------


def test_a_backend_without_its_package_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends.importlib.util, "find_spec", lambda name: None)
    for backend, words in (
        ("loky", r"needs joblib; install it with `pip install 'parallelism-planner\[sweep\]'`"),
        ("dask", r"\[dask\]"),
    ):
        with pytest.raises(PlannerError, match=words):
            planner.sweep(**FEW, backend=backend)
    assert planner.sweep(**FEW, backend="sequential").num_asked == 8


def test_an_unknown_backend_or_no_job_is_one_sentence(tmp_path: Path) -> None:
    table = tmp_path / "results.csv"
    with pytest.raises(
        PlannerError, match=r"the backend slurm is not known; use loky, .*threading"
    ):
        planner.sweep(**FEW, into=table, backend="slurm")
    with pytest.raises(PlannerError, match="jobs = 0 starts no worker; give 1 or more"):
        planner.sweep(**FEW, into=table, jobs=0)
    with pytest.raises(PlannerError, match="limit = -1 must be 0 or more"):
        planner.sweep(**FEW, into=table, limit=-1)
    nothing = planner.sweep(**FEW, backend="sequential", limit=0)
    assert (len(nothing.rows), nothing.num_asked, nothing.num_questions) == (0, 0, 8)
    assert not list(tmp_path.iterdir())


def test_an_address_is_for_clusters() -> None:
    with pytest.raises(PlannerError, match="the backend loky runs on this machine"):
        planner.sweep(**FEW, address="tcp://127.0.0.1:1")


@pytest.mark.skipif(importlib.util.find_spec("distributed") is None, reason="no Dask here")
@pytest.mark.parametrize("listens", [True, False])
def test_an_address_without_a_scheduler_ends(
    listens: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refuses a server that accepts connections and never answers, and a port without one."""
    monkeypatch.setattr(backends, "_CONNECTION_S", 0.5)
    monkeypatch.setattr(backends, "_GREETING_S", 1.0)
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        if listens:
            server.listen()
        address = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        cause = "no greeting within 1 s" if listens else f"Timed out trying to connect to {address}"
        words = rf"no Dask scheduler answers at {address} \({cause}.*\); start one with"
        with pytest.raises(PlannerError, match=words):
            planner.sweep(**FEW, backend="dask", address=address)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("distributed") is None, reason="no Dask here")
def test_a_scheduler_that_does_not_answer_is_one_sentence(tmp_path: Path) -> None:
    table = tmp_path / "results.csv"
    for more, words in (
        (("--address", "tcp://127.0.0.1:1"), "no Dask scheduler answers at tcp://127.0.0.1:1"),
        (("--address", "absent.json"), "no Dask scheduler answers at absent.json"),
        ((), "the backend dask needs the address of its scheduler"),
    ):
        line = command(written(tmp_path, FEW), "--into", table, "--backend", "dask", *more)
        ran = subprocess.run(line, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        assert (ran.returncode, ran.stdout) == (2, "")
        assert ran.stderr.startswith(f"planner: {words}"), ran.stderr
        assert ran.stderr.count("\n") == 1
