"""Faults: every command under every fault; what is lost, what is said, and the exit code.

    python benchmarks/faults.py                        # prints the table, about two minutes
    python benchmarks/faults.py --write                # and writes docs/reference/faults.md
    python benchmarks/faults.py --only sweep --only emit

A command that writes runs again after the fault: its files must then hold the same bytes as
without one, and before that either nothing or all of them. Messages are at most one line. The exit
code is 1 if anything is lost, a message is longer, or a traceback is printed.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "reference" / "faults.md"
_JOB = "gpt2 -m laptop -n 1 --global-batch 8 --seq-length 128"
_PR_CAPBSET_DROP, _CAP_DAC_OVERRIDE = 24, 1
_LIMIT_S = 120
_DASK = "sweep sweep.toml --into out.csv --backend dask --address "


@dataclass(frozen=True)
class Command:
    """A command, and the file or folder that it writes."""

    words: str
    output: str = ""
    warm: bool = True
    """Whether it is fast enough to be stopped at several moments."""


COMMANDS: dict[str, Command] = {
    "plan": Command(f"plan {_JOB} --report out.html", "out.html"),
    "estimate": Command(f"estimate {_JOB}"),
    "simulate": Command(f"simulate {_JOB} --trace out.json", "out.json"),
    "sweep": Command("sweep sweep.toml --into out.csv --backend sequential", "out.csv"),
    "models": Command("models"),
    "machines": Command("machines"),
    "frameworks": Command("frameworks"),
    "datasets": Command("datasets"),
    "show": Command("show polaris"),
    "emit": Command("emit gpt2 -m polaris -n 1 --seq-length 1024 -f ddp -o out", "out"),
    "check": Command("check job/job.sh -m polaris --model gpt2"),
    "backtest": Command("backtest runs.csv"),
    "calibrate": Command("calibrate --from-runs runs.csv -m selene -o out.toml", "out.toml"),
    "collectives": Command("collectives polaris -n 2"),
    "compare": Command("compare run.log -m polaris --layout job.json"),
    "ask": Command(f"ask batch {_JOB}"),
    "config": Command("config"),
    "validate": Command("validate trace gpt2 --world 2", warm=False),
}


@dataclass(frozen=True)
class End:
    """How a command ended."""

    code: int
    message: str
    seconds: float
    printed: str = ""


# --- faults --------------------------------------------------------------------------------------


def _small_files() -> None:
    """Let no file grow beyond 100 bytes: a write fails as on a full disk."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))


def run(
    words: str,
    folder: Path,
    *,
    variables: Mapping[str, str | None] | None = None,
    prepare: Callable[[], None] | None = None,
    stdout: Any = subprocess.PIPE,
    stop: tuple[signal.Signals, float] | None = None,
) -> End:
    """Run a command in a folder, and stop it by a signal after some seconds."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    for name, value in (variables or {}).items():
        environment.pop(name, None)
        environment |= {name: value} if value is not None else {}
    begin = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "planner", *words.split()],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=subprocess.PIPE,
        preexec_fn=prepare,
        text=True,
        errors="replace",
    )
    try:
        if stop is not None:
            time.sleep(stop[1])
            process.send_signal(stop[0])
        printed, message = process.communicate(timeout=_LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return End(124, f"no end within {_LIMIT_S} s", _LIMIT_S)
    code = process.returncode if process.returncode >= 0 else 128 - process.returncode
    return End(code, message, time.monotonic() - begin, printed or "")


def _closed(words: str, folder: Path) -> End:
    """Run a command whose reader takes one line and goes."""
    read, write = os.pipe()
    os.close(read)
    try:
        return run(words, folder, stdout=write)
    finally:
        os.close(write)


def _full_output(words: str, folder: Path) -> End:
    with open("/dev/full", "w") as full:
        return run(words, folder, stdout=full)


def _read_only(words: str, folder: Path) -> End:
    """Run a command in a folder that its user must not change."""
    folder.chmod(0o555)
    try:
        return run(words, folder, prepare=_keep_permissions)
    finally:
        folder.chmod(0o755)


def _keep_permissions() -> None:
    """Take from root the right to write everywhere."""
    if os.getuid() == 0:
        ctypes.CDLL(None).prctl(_PR_CAPBSET_DROP, _CAP_DAC_OVERRIDE, 0, 0, 0)


_NO_HOME = {"HOME": None, "XDG_CONFIG_HOME": None, "XDG_CACHE_HOME": None}
_C = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}

FAULTS: dict[str, Callable[[str, Path], End]] = {
    "disk full (output)": _full_output,
    "disk full (files)": lambda words, folder: run(words, folder, prepare=_small_files),
    "read-only folder": _read_only,
    "no HOME": lambda words, folder: run(words, folder, variables=_NO_HOME),
    "LC_ALL=C": lambda words, folder: run(words, folder, variables=_C),
    "reader gone": _closed,
}
STOPS = {"kill -9": signal.SIGKILL, "SIGTERM": signal.SIGTERM, "Ctrl-C": signal.SIGINT}
MOMENTS = (0.3, 0.6, 0.9)
"""When a command that writes is stopped, in parts of its undisturbed time."""


# --- inputs and outputs --------------------------------------------------------------------------


def write_inputs(folder: Path) -> None:
    """Write the files that the commands read."""
    question = {"models": ["gpt2"], "machines": ["laptop", "polaris"], "nodes": [1]}
    workload = {"sequence_length": [128, 256], "global_batch": [8, 16]}
    (folder / "sweep.toml").write_text(
        "".join(f"{key} = {json.dumps(value)}\n" for key, value in question.items())
        + "[workload]\n"
        + "".join(f"{key} = {json.dumps(value)}\n" for key, value in workload.items())
    )
    example = ROOT / "planner" / "app" / "views" / "runs" / "example_runs.csv"
    shutil.copy(example, folder / "runs.csv")
    log = "step,time_s,loss\n" + "".join(f"{i},0.28{i % 3},2.5\n" for i in range(1, 9))
    (folder / "run.log").write_text(log)
    layout = {"dp": 4, "micro_batch": 16, "grad_accumulation": 4}
    workload = {"sequence_length": 1024, "global_batch": 256}
    job = {"model": "gpt2", "framework": "ddp", "layout": layout, "workload": workload}
    (folder / "job.json").write_text(json.dumps(job))
    end = run("emit gpt2 -m polaris -n 1 --seq-length 1024 -f ddp -o job", folder)
    assert end.code == 0, end.message


def contents(folder: Path, name: str) -> dict[str, bytes]:
    """Return the bytes of the file or of every file of the folder; empty if there is none."""
    path = folder / name
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


@contextmanager
def copy_of(inputs: Path) -> Iterator[Path]:
    """Yield a folder of its own with the inputs."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copytree(inputs, folder, dirs_exist_ok=True)
        folder.chmod(0o755)
        yield folder


# --- one cell of the table -----------------------------------------------------------------------


@dataclass(frozen=True)
class Cell:
    """What became of a command under a fault."""

    command: str
    fault: str
    code: int
    message: str
    wrong: str = ""
    """What was lost or badly said; empty: nothing."""


def said(message: str) -> list[str]:
    """Return the program's own lines, without the progress of a sweep."""
    lines = [line for line in message.splitlines() if line.startswith("planner:")]
    return [line for line in lines if "answered in" not in line]


def judge(command: Command, fault: str, end: End, folder: Path, whole: Mapping[str, bytes]) -> str:
    """Return what is wrong after a fault; empty if nothing is."""
    if "Traceback" in end.message or "Exception ignored" in end.message:
        return "a traceback"
    lines = said(end.message)
    if len(lines) > 1 or (end.code in (2, 130) and not lines):
        return f"{len(lines)} messages"
    if end.code in (70, 124) or (fault == "reader gone" and end.code):
        return f"exit code {end.code}"
    if not command.output:
        return ""
    kept = contents(folder, command.output)
    if kept and kept != whole:
        return "half of the output is there"
    if end.code == 0 and not kept:
        return "no output, and exit code 0"
    if not kept:
        again = run(command.words, folder)
        if again.code or contents(folder, command.output) != whole:
            return f"the same command again: exit code {again.code}, {again.message[:80]}"
    return ""


def cells_of(name: str, inputs: Path) -> list[Cell]:
    """Run a command without a fault, and then under each."""
    command = COMMANDS[name]
    with copy_of(inputs) as folder:
        plain = run(command.words, folder)
        whole = contents(folder, command.output) if command.output else {}
    if plain.code not in (0, 1, 3):
        return [Cell(name, "none", plain.code, plain.message, "fails without a fault")]
    cells = [Cell(name, "none", plain.code, "")]
    for fault, number in STOPS.items():
        for moment in MOMENTS if command.output and command.warm else MOMENTS[1:2]:
            with copy_of(inputs) as folder:
                end = run(command.words, folder, stop=(number, moment * plain.seconds))
                wrong = judge(command, fault, end, folder, whole)
            cells.append(Cell(name, fault, end.code, end.message.strip(), wrong))
    for fault, cause in FAULTS.items():
        if fault == "disk full (files)" and not command.output:
            continue
        with copy_of(inputs) as folder:
            end = cause(command.words, folder)
            wrong = judge(command, fault, end, folder, whole)
        if not wrong and end.code == 0 and fault in ("no HOME", "LC_ALL=C"):
            wrong = "" if end.printed.count("\n") == plain.printed.count("\n") else "other output"
        cells.append(Cell(name, fault, end.code, end.message.strip(), wrong))
    return cells


def app_cells() -> list[Cell]:
    """Start the explorer, stop it, and see that no server is left."""
    cells = []
    for fault, number in STOPS.items():
        for wait in (0.4, 5.0):
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                port = probe.getsockname()[1]
            with tempfile.TemporaryDirectory() as folder:
                words = f"app --headless --port {port}"
                end = run(words, Path(folder), stop=(number, wait))
            with socket.socket() as probe:
                left = probe.connect_ex(("127.0.0.1", port)) == 0
            lines = [line for line in end.message.splitlines() if "Uvicorn" not in line]
            wrong = (
                "the server goes on"
                if left
                else "a traceback"
                if "Traceback" in end.message
                else ""
            )
            cells.append(Cell("app", fault, end.code, "\n".join(lines), wrong))
    return cells


def dask_cells(inputs: Path) -> list[Cell]:
    """Sweep with the address of a scheduler that is not there."""
    with copy_of(inputs) as folder:
        end = run(f"{_DASK}tcp://127.0.0.1:1", folder)
        wrong = "" if end.code == 2 else f"exit code {end.code}"
        wrong = wrong or ("" if end.seconds < 45 else f"after {end.seconds:.0f} s")
        wrong = wrong or ("" if len(end.message.splitlines()) == 1 else "several lines")
        if contents(folder, COMMANDS["sweep"].output):
            wrong = "a table of nothing"
    return [Cell("sweep", "dead Dask", end.code, end.message.strip(), wrong)]


# --- report --------------------------------------------------------------------------------------


def table(cells: list[Cell]) -> str:
    """Return exit codes by command and fault."""
    faults = ["none", *STOPS, *FAULTS, "dead Dask"]
    lines = ["| command | " + " | ".join(faults) + " |", "|---|" + "---:|" * len(faults)]
    for name in dict.fromkeys(cell.command for cell in cells):
        row = []
        for fault in faults:
            codes = {c.code for c in cells if (c.command, c.fault) == (name, fault)}
            row.append(" or ".join(str(code) for code in sorted(codes)))
        lines.append(f"| `{name}` | " + " | ".join(row) + " |")
    return "\n".join(lines)


def sentences(cells: list[Cell]) -> str:
    """Return one message of every fault and exit code, with how many commands end so."""
    lines = ["| fault | exit code | commands | what is said |", "|---|---:|---:|---|"]
    keys = dict.fromkeys((c.fault, c.code) for c in cells if c.fault != "none")
    for fault, code in keys:
        same = [cell for cell in cells if (cell.fault, cell.code) == (fault, code)]
        told = [line for c in same for line in said(c.message) if "/tmp" not in line]
        count = len({cell.command for cell in same})
        lines.append(f"| {fault} | {code} | {count} | {told[0] if told else 'nothing'} |")
    return "\n".join(lines)


_INTRODUCTION = """\
# Faults

Every command under every fault, as `python benchmarks/faults.py --write` finds it. Nothing is lost:
an output file holds all of an answer or is not there, and the same command then writes the same
bytes. Commands that write are stopped at three moments, the explorer while it starts and while it
serves. A sweep goes on from its journal.

Exit codes: 0 the answer is complete, 1 nothing fits, 2 refused or not written, 3 doubts or refused
rows, 130 interrupted, 137 killed, 143 ended by SIGTERM. A command that was done before the signal
keeps its own code.

Not covered: a Dask address at which something listens and never answers; `distributed` waits for it
until Ctrl-C.
"""


def main(
    only: Annotated[list[str] | None, typer.Option(help="Commands.")] = None,
    write: Annotated[bool, typer.Option(help="Write the page.")] = False,
    processes: Annotated[int, typer.Option(help="Commands at a time.")] = 2,
) -> None:
    """Run the matrix; print it, and what is wrong."""
    chosen = only or [*COMMANDS, "app"]
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(processes) as pool:
        inputs = Path(name)
        write_inputs(inputs)
        tasks = [pool.submit(cells_of, word, inputs) for word in chosen if word != "app"]
        tasks += [pool.submit(app_cells)] if "app" in chosen else []
        tasks += [pool.submit(dask_cells, inputs)] if "sweep" in chosen else []
        cells = [cell for task in tasks for cell in task.result()]
    page = f"{_INTRODUCTION}\n{table(cells)}\n\n## What is said\n\n{sentences(cells)}\n"
    print(page)
    wrong = [cell for cell in cells if cell.wrong]
    for cell in wrong:
        print(f"WRONG {cell.command}, {cell.fault}: {cell.wrong} ({cell.message[:300]!r})")
    print(f"{len(cells)} runs, {len(wrong)} wrong")
    if write and not wrong:
        PAGE.write_text(page)
    raise typer.Exit(1 if wrong else 0)


if __name__ == "__main__":
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(main)
    app()
