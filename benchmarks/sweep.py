"""Sweep: ten thousand questions on cores, on a Dask cluster, and in a sweep killed half way.

    python benchmarks/sweep.py                      # some minutes on two cores
    python benchmarks/sweep.py --questions 1000     # the first of them

Three tables of the same questions are written and compared byte by byte: on two cores, on a Dask
cluster of two workers (processes of this machine), and on two cores by a sweep that is killed with
SIGKILL once half of the answers are recorded, then restarted. A sweep of plans follows; each plan
takes longer.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

import planner

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
def dask_cluster(folder: Path, workers: int) -> Any:
    """Start a scheduler and workers as local processes; yield the scheduler's file."""
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
            process.wait()


def report(what: str, said: str, took: float, questions: int) -> None:
    print(f"{what}: {took:.1f} s, {1000 * took / questions:.1f} ms a question: {said}", flush=True)


def main(
    questions: Annotated[int, typer.Option(min=10, help="How many of the 10,000.")] = 10_000,
    jobs: Annotated[int, typer.Option(min=1, help="Cores, and workers of the cluster.")] = 2,
    plans: Annotated[bool, typer.Option(help="Ask some plans, too.")] = True,
) -> None:
    """Ask the same questions three times, and compare the tables."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
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
