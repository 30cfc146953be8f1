"""Sweep: ten thousand questions on cores, on a Dask cluster, and in a sweep killed half way.

    python benchmarks/sweep.py                      # some minutes on two cores
    python benchmarks/sweep.py --questions 1000     # the first of them
    python benchmarks/sweep.py --growth 100000      # what 1,000 questions and more take

Three tables of the same questions are written and compared byte by byte: on two cores, on a Dask
cluster of two workers (processes of this machine), and on two cores by a sweep that is killed with
SIGKILL once half of the answers are recorded, then restarted. A sweep of plans follows; each plan
takes longer.

`--growth` measures sweeps of 1,000 stated layouts, ten times as many, and so on: models x machines
x nodes x layouts. Processor time is of all processes, memory the peak of the one that asks.
"""

from __future__ import annotations

import json
import math
import os
import re
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

import planner
from planner.describe.catalogue import load_machine, load_model, names

LAYOUTS: dict[str, Any] = {
    "kind": "estimate",
    "models": ["llama-3-8b", "mistral-7b", "llama-2-13b", "qwen2.5-7b", "phi-3-mini"],
    "machines": ["polaris", "leonardo", "juwels-booster", "perlmutter", "dgx-h100"],
    "nodes": [4, 8, 12, 16],
    "workload": {"sequence_length": 1024, "global_batch": 1024},
    "layout": {
        "tp": [1, 2, 4, 8, 16],
        "zero_stage": [0, 1, 2, 3],
        "micro_batch": [1, 2, 4, 8, 16],
    },
}
"""Sweep of 10,000 stated layouts, some of them impossible."""

PLANS: dict[str, Any] = {
    "models": ["gpt2-xl", "llama-3-8b"],
    "machines": ["polaris", "leonardo"],
    "nodes": [1, 2, 4],
    "sets": [[], ["device.memory_bytes=80GB"]],
    "workload": {"sequence_length": 1024, "global_batch": 512},
}
"""Sweep of 24 plans."""

PAIRS: dict[int, tuple[int, int]] = {
    1000: (1, 1),
    10_000: (2, 5),
    100_000: (10, 10),
    1_000_000: (40, 25),
}
"""Models and machines by number of questions: 25 node counts of 40 layouts for each pair."""


def grown(questions: int) -> dict[str, Any]:
    """State a sweep of so many layouts."""
    models, machines = PAIRS[questions]
    text = [n for n in names("model") if load_model(n).default_sequence_length >= 1024]
    large = [n for n in names("machine") if load_machine(n).num_nodes.value >= 25]
    return {
        "kind": "estimate",
        "models": text[:models],
        "machines": large[:machines],
        "nodes": list(range(1, 26)),
        "workload": {"sequence_length": 1024},
        "layout": {
            "tp": [1, 2, 4, 8],
            "zero_stage": [1, 3],
            "micro_batch": [1, 2, 4, 8, 16],
            "grad_accumulation": 8,
        },
    }


def ended(process: subprocess.Popen[Any]) -> tuple[float, float]:
    """Wait for a process; return its processor time [s] and its peak of memory [MB]."""
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return used.ru_utime + used.ru_stime, used.ru_maxrss / 1e3


def growth(folder: Path, most: int, workers: int) -> None:
    """Sweep more and more questions, in one process or by workers of a Dask cluster."""
    before: tuple[float, ...] = ()
    for questions in (n for n in PAIRS if n <= most):
        sweep, table = folder / f"{questions}.json", folder / f"{questions}.parquet"
        sweep.write_text(json.dumps(grown(questions)))
        of_workers: list[tuple[float, float]] = []
        with dask_cluster(folder, workers, of_workers) if workers else nullcontext() as file:
            where = ("--backend", "dask", "--address", str(file)) if file else ()
            line = [sys.executable, "-m", "planner", "sweep", sweep, "--into", table]
            began = time.monotonic()
            process = subprocess.Popen([*line, *(where or ("--backend", "sequential"))])
            used_s, peak_mb = ended(process)
            took = time.monotonic() - began
        if process.returncode:
            sys.exit(f"the sweep of {questions:,} questions failed")
        used_s += sum(worker_s for worker_s, _ in of_workers)
        sizes = [path.stat().st_size for path in (table, Path(f"{table}.journal"))]
        figures = (used_s, peak_mb, *map(float, sizes))
        powers = [math.log10(now / old) for now, old in zip(figures, before, strict=False)]
        before = figures
        print(
            f"{questions:,} questions, {workers or 'no'} workers: {took:.0f} s, {used_s:.1f} s of "
            f"processors, peak {peak_mb:.0f} MB (workers {[round(mb) for _, mb in of_workers]}), "
            f"table {sizes[0]:,} B, journal {sizes[1]:,} B; powers {[f'{p:.2f}' for p in powers]}",
            flush=True,
        )


def swept(sweep: Path, table: Path, *options: str) -> tuple[str, float]:
    """Run a sweep; return its final message and the duration."""
    began = time.monotonic()
    line = [sys.executable, "-m", "planner", "sweep", sweep, "--into", table, *options]
    ran = subprocess.run(line, capture_output=True, text=True, check=False)
    if ran.returncode:
        sys.exit(ran.stderr)
    return ran.stdout.splitlines()[0].partition(": ")[2], time.monotonic() - began


def recorded(table: Path) -> list[str]:
    """Return the keys of the recorded answers, in order."""
    name = f"file:{table}.journal?immutable=1"
    try:
        with closing(sqlite3.connect(name, uri=True)) as database:
            return [key for (key,) in database.execute("SELECT key FROM answers ORDER BY rowid")]
    except sqlite3.DatabaseError:
        return []  # the table does not exist yet, or is being written


def killed(sweep: Path, table: Path, at: int, *options: str) -> list[str]:
    """Kill a sweep after `at` answers; return the keys that it had recorded."""
    line = [sys.executable, "-m", "planner", "sweep", sweep, "--into", table, *options]
    process = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while len(recorded(table)) < at and process.poll() is None:
        time.sleep(0.5)
    process.send_signal(signal.SIGKILL)
    process.wait()
    return recorded(table)


@contextmanager
def dask_cluster(
    folder: Path, workers: int, used: list[tuple[float, float]] | None = None
) -> Iterator[Path]:
    """Start a scheduler and workers as local processes; yield the scheduler's file.

    `used` takes the processor time and the peak of memory of each process.
    """
    file = folder / "scheduler.json"
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": folder}
    here = os.pathsep.join(map(os.path.abspath, sys.path))
    both = ["--host", "127.0.0.1", "--no-dashboard", "--scheduler-file", str(file)]
    scheduler, worker = ["scheduler", "--port", "0"], ["worker", "--nthreads", "1", "--no-nanny"]
    started = [
        subprocess.Popen(
            [sys.executable, "-m", f"distributed.cli.dask_{kind}", *options],
            env={**os.environ, "PYTHONPATH": here},
            **quiet,
        )
        for kind, *options in ([*scheduler, *both], *[[*worker, *both]] * workers)
    ]
    try:
        while not file.exists():
            time.sleep(0.1)
        yield file
    finally:
        for process in reversed(started):
            process.terminate()
            each = ended(process)
            if used is not None:
                used.append(each)
        file.unlink(missing_ok=True)


def report(what: str, said: str, took: float, questions: int) -> None:
    print(f"{what}: {took:.1f} s, {1000 * took / questions:.1f} ms a question: {said}", flush=True)


def main(
    questions: Annotated[int, typer.Option(min=10, help="How many of the 10,000.")] = 10_000,
    jobs: Annotated[int, typer.Option(min=1, help="Cores, and workers of the cluster.")] = 2,
    plans: Annotated[bool, typer.Option(help="Ask some plans, too.")] = True,
    growth_to: Annotated[int, typer.Option("--growth", help="Measure growth instead.")] = 0,
    workers: Annotated[int, typer.Option(help="Dask workers for --growth; 0: none.")] = 0,
) -> None:
    """Ask the same questions three times, and compare the tables."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        if growth_to:
            growth(folder, growth_to, workers)
            return
        sweep = folder / "layouts.json"
        sweep.write_text(json.dumps(LAYOUTS))
        cores, cluster, again = (folder / f"{n}.parquet" for n in ("cores", "cluster", "again"))
        some = ("--limit", str(questions))
        local = ("--jobs", str(jobs))
        said, took = swept(sweep, cores, *local, *some)
        report(f"{jobs} cores", said, took, questions)
        with dask_cluster(folder, jobs) as file:
            options = ("--backend", "dask", "--address", str(file))
            said, took = swept(sweep, cluster, *options, *some)
        report(f"Dask, {jobs} workers", said, took, questions)
        print(f"the same bytes: {cluster.read_bytes() == cores.read_bytes()}", flush=True)
        before = killed(sweep, again, questions // 2, *local, *some)
        rest = questions - len(before)
        said, took = swept(sweep, again, *local, "--limit", str(rest))
        report(f"killed after {len(before):,} answers, and again", said, took, rest)
        after = recorded(again)
        print(f"lost: {len(set(before) - set(after))}", flush=True)
        print(f"asked twice: {len(after) - len(set(after))}", flush=True)
        print(f"the same bytes: {again.read_bytes() == cores.read_bytes()}", flush=True)
        sizes = [path.stat().st_size / 1e6 for path in (cores, Path(f"{cores}.journal"))]
        print(f"table {sizes[0]:.1f} MB, journal {sizes[1]:.1f} MB", flush=True)
        if plans:
            asked = folder / "plans.json"
            asked.write_text(json.dumps(PLANS))
            said, took = swept(asked, folder / "plans.parquet", *local)
            number = int(re.match(r"[\d,]+", said)[0].replace(",", ""))  # type: ignore[index]
            report(f"plans, {jobs} cores", said, took, number)
        print(f"planner {planner.__version__}, Python {sys.version.split()[0]}")


if __name__ == "__main__":
    typer.run(main)
