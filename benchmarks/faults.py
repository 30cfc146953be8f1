"""Faults: every command under every fault; what is lost, what is said, and the exit code.

    python benchmarks/faults.py                        # prints the tables, about twenty minutes
    python benchmarks/faults.py --write                # and writes docs/reference/faults.md
    python benchmarks/faults.py --only sweep --only emit

A command is stopped when it reaches a state (`fault_states.py`), not after a time. A command that
writes runs again after the fault: its files must then hold the same bytes as without one, and
before that either nothing or all of them. Nothing may be left running. The exit code is 1 if a run
loses anything, says more than one sentence, or ends with an exit code that is not the fault's.
"""

from __future__ import annotations

import json
import re
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from fault_page import page
from fault_runs import (
    COUNT,
    FAULTS,
    ROOT,
    STOPS,
    End,
    Run,
    closed_port,
    free_port,
    is_served,
    run_in_copy,
    silent_port,
)

KEPT = ROOT / "build" / "faults.json"
"""Rows that have run."""
PAGE = ROOT / "docs" / "reference" / "faults.md"
_JOB = "gpt2 -m laptop -n 1 --global-batch 8 --seq-length 128"
_EMIT = "emit gpt2 -m polaris -n 1 --seq-length 1024 -o"
_DASK = "sweep sweep.toml --into out.csv --backend dask --address tcp://127.0.0.1:{port}"
_RUN = "validate run --world 2 --strategy ddp --steps 2 --attempts 1 --cpu -o out.json"


CACHE = "torchinductor"
"""Folder that torch keeps from run to run."""
OF_OUTPUT = ("output on a full disk", "files on a full disk", "read-only folder")


@dataclass(frozen=True)
class Command:
    """A command, what it writes, and the states in which it is stopped besides at writes."""

    words: str
    output: str = ""
    states: tuple[str, ...] = ()
    """Empty: when half of its calls are made."""
    is_fixed: bool = True
    """Whether its output has the same bytes every time: times that are measured have not."""
    is_slow: bool = False
    """Whether it starts torch: its signals come in one state, its faults are of files."""


COMMANDS: dict[str, Command] = {
    "plan": Command(f"plan {_JOB} --report out.html", "out.html"),
    "estimate": Command(f"estimate {_JOB}"),
    "simulate": Command(f"simulate {_JOB} --trace out.json", "out.json"),
    "sweep": Command("sweep sweep.toml --into out.csv -j 2", "out.csv", ("record:1", "record:2")),
    "models": Command("models"),
    "machines": Command("machines"),
    "frameworks": Command("frameworks"),
    "datasets": Command("datasets"),
    "show": Command("show polaris"),
    "emit": Command(f"{_EMIT} out -f ddp", "out"),
    "check": Command("check job/job.sh -m polaris --model gpt2"),
    "backtest": Command("backtest runs.csv"),
    "calibrate": Command("calibrate --from-runs runs.csv -m selene -o out.toml", "out.toml"),
    "collectives": Command("collectives polaris -n 2"),
    "compare": Command("compare run.log -m polaris --layout job.json"),
    "ask": Command(f"ask batch {_JOB}"),
    "config": Command("config"),
    "validate trace": Command("validate trace gpt2 --world 2", is_slow=True),
    "validate run": Command(_RUN, "out.json", ("_read:3",), False, True),
    "validate collectives": Command(
        "validate collectives --operation all_reduce --largest 1MiB", "", ("_read:3",), is_slow=True
    ),
    # it refuses to measure beside other work: stopped before
    "validate calibrate": Command("validate calibrate -o out.toml", "", ("_read:3",), is_slow=True),
}


@dataclass(frozen=True)
class Cell:
    """What became of a command under a fault; an empty string: nothing is wrong."""

    command: str
    fault: str
    state: str
    code: int
    said: tuple[str, ...] = ()
    lost: str = ""
    message_fault: str = ""
    code_fault: str = ""

    @property
    def wrong(self) -> str:
        """Everything that is wrong."""
        return "; ".join(filter(None, (self.lost, self.message_fault, self.code_fault)))


# --- inputs and outputs --------------------------------------------------------------------------


def write_inputs(folder: Path) -> None:
    """Write the files that the commands read."""
    workload = {"sequence_length": [128, 256], "global_batch": [8, 16]}
    (folder / "sweep.toml").write_text(
        'models = ["gpt2"]\nmachines = ["laptop", "polaris"]\nnodes = [1]\n[workload]\n'
        + "".join(f"{key} = {json.dumps(value)}\n" for key, value in workload.items())
    )
    example = ROOT / "planner" / "app" / "views" / "runs" / "example_runs.csv"
    shutil.copy(example, folder / "runs.csv")
    log = "step,time_s,loss\n" + "".join(f"{i},0.28{i % 3},2.5\n" for i in range(1, 9))
    (folder / "run.log").write_text(log)
    layout = {"dp": 4, "micro_batch": 16, "grad_accumulation": 4}
    stated = {"sequence_length": 1024, "global_batch": 256}
    job = {"model": "gpt2", "framework": "ddp", "layout": layout, "workload": stated}
    (folder / "job.json").write_text(json.dumps(job))
    with run_in_copy(folder) as run:
        end = run(f"{_EMIT} job -f ddp")
        assert end.code == 0, end.message
        shutil.copytree(run.work / "job", folder / "job")


def contents(folder: Path, name: str) -> dict[str, bytes]:
    """Return the bytes of the file or of every file of the folder; empty if there is none."""
    path = folder / name
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


# --- what is wrong -------------------------------------------------------------------------------

_PROGRESS = re.compile(r"planner: [\d,]+ of [\d,]+ questions answered in .*|\[\d+/\d+\] .*|\s*")


def own_codes(fault: str, command: Command, plain: int) -> set[int]:
    """Return the exit codes that belong to a fault."""
    stops = {"kill -9": 137, "SIGTERM": 143, "Ctrl-C": 130}
    refused = {"output on a full disk": 2, "old package": 2}
    writes = command.output or " -o " in command.words
    written = {"files on a full disk": 2, "read-only folder": 2} if writes else {}
    own = {**stops, **refused, **written}.get(fault, plain)
    return {own, 0} if fault == "reader gone" else {own}


def judge_message(end: End, plain: End) -> tuple[tuple[str, ...], str]:
    """Return what was said beyond progress, and what is wrong with it."""
    usual = set(plain.message.splitlines())
    lines = [x for x in end.message.splitlines() if x not in usual and not _PROGRESS.fullmatch(x)]
    told = tuple(line for line in lines if line.startswith("planner: "))
    if any("Traceback" in line or "Exception ignored" in line for line in lines):
        return told, "a traceback"
    if len(lines) > 1:
        return told, f"{len(lines)} lines: {lines[:2]}"
    if end.code in (2, 70, 124, 130) and end.code != plain.code and not told:
        return told, "nothing is said"
    return told, ""


def judge_output(command: Command, end: End, run: Run, whole: Mapping[str, bytes]) -> str:
    """Return what a run lost; run the command again if it wrote nothing."""
    if end.left:
        return f"still running: {', '.join(end.left)}"
    left = [path.name for path in (run.base / "tmp").iterdir() if not path.name.startswith(CACHE)]
    if left and end.code not in (137, 143):
        return f"temporary files: {left[0]}"
    if not command.output:
        return ""
    run.work.chmod(0o777)
    kept = contents(run.work, command.output)
    same = kept == whole if command.is_fixed else kept.keys() == whole.keys()
    if kept and not same:
        return "half of the output is there"
    if end.code == 0 and not kept:
        return "no output, and exit code 0"
    again = run(command.words)
    if kept and again.code == 0 and command.is_fixed:
        same = contents(run.work, command.output) == whole
    elif not kept:
        second = contents(run.work, command.output)
        same = second == whole if command.is_fixed else second.keys() == whole.keys()
    if again.code or not same:
        return f"the same command again: exit code {again.code}, {again.message[-200:]}"
    return ""


def judge(
    name: str, fault: str, state: str, end: End, run: Run, plain: End, whole: Mapping[str, bytes]
) -> Cell:
    """Judge a run of a command under a fault."""
    command = COMMANDS[name]
    said, message_fault = judge_message(end, plain)
    own = own_codes(fault, command, plain.code)
    code_fault = "" if end.code in own else f"exit code {end.code}, not {min(own)}"
    lost = judge_output(command, end, run, whole)
    silent = fault in ("no HOME, no account", "ASCII locale") and command.is_fixed
    if silent and not code_fault and not lost and not name.startswith("validate"):
        # a locale may change a letter, not a line
        lost = "" if end.printed.count("\n") == plain.printed.count("\n") else "other output"
    return Cell(name, fault, state, end.code, said, lost, message_fault, code_fault)


# --- cells ---------------------------------------------------------------------------------------


def states_of(command: Command, plain: End, fault: str) -> list[str]:
    """List the states in which a command is stopped, from its first import to its last write."""
    states = [*(command.states or (f"calls:{plain.counts['calls'] // 2}",))]
    if not command.output or command.is_slow:
        return states
    last = plain.counts.get("writes", 0)
    places = sorted({1, (1 + last) // 2, last} if fault == "kill -9" else {last})
    return ["loads:1", *states, *(f"writes:{place}" for place in places)]


def cells_of(name: str, inputs: Path) -> Iterator[Cell]:
    """Run a command without a fault, and then under each."""
    command = COMMANDS[name]
    with run_in_copy(inputs) as run:
        plain = run(command.words, COUNT)
        whole = contents(run.work, command.output) if command.output else {}
    answers = plain.code in (0, 1, 3) or "measure on idle cores" in plain.message
    fails = not answers or (command.output and not whole)
    wrong = f"fails without a fault: {plain.message}" if fails else ""
    yield Cell(name, "none", "", plain.code, lost=wrong)
    if fails:
        return
    for fault, number in STOPS.items():
        for state in states_of(command, plain, fault):
            with run_in_copy(inputs) as run:
                end = run(command.words, state, int(number))
                yield judge(name, fault, state, end, run, plain, whole)
    for fault, cause in FAULTS.items():
        is_moot = fault == "files on a full disk" and not command.output
        if is_moot or (command.is_slow and fault not in OF_OUTPUT):
            continue
        with run_in_copy(inputs) as run:
            yield judge(name, fault, "", cause(run, command.words), run, plain, whole)


def app_cells(inputs: Path) -> Iterator[Cell]:
    """Start the explorer, stop it while it loads and while it serves; no server may be left."""
    for fault, number in STOPS.items():
        with run_in_copy(inputs) as run:
            end = run(f"app --headless --port {free_port()}", "loads:1", int(number))
            yield _app_cell(fault, "loads:1", end, served=False)
    environments: dict[str, dict[str, Any]] = {
        "none": {},
        **{fault: {} for fault in STOPS},
        "read-only folder": {},
        "no HOME, no account": {"variables": {"HOME": None}},
        "ASCII locale": {"variables": {"LC_ALL": "C", "PYTHONUTF8": "0"}},
    }
    for fault, options in environments.items():
        with run_in_copy(inputs) as run:
            run.work.chmod(0o555 if fault == "read-only folder" else 0o777)
            port = free_port()
            process = run.start(f"app --headless --port {port}", **options)
            while process.poll() is None and not is_served(port):
                time.sleep(0.2)
            process.send_signal(STOPS.get(fault, signal.SIGTERM))
            end = run.end(process)
            yield _app_cell(fault, "serves", end, served=is_served(port))
    with run_in_copy(inputs) as run, silent_port() as port:
        yield _app_cell("port taken", "", run(f"app --headless --port {port}"), served=False)


def _app_cell(fault: str, state: str, end: End, *, served: bool) -> Cell:
    served_codes = {"kill -9": 137, "port taken": 2}
    loading_codes = {"kill -9": 137, "SIGTERM": 143, "Ctrl-C": 130}
    own = loading_codes[fault] if state.startswith("loads") else served_codes.get(fault, 0)
    lines = [line for line in end.message.splitlines() if "Uvicorn" not in line and line.strip()]
    wrong = "a traceback" if "Traceback" in end.message else ""
    wrong = wrong or (f"{len(lines)} lines: {lines}" if len(lines) > 1 else "")
    left = f"still running: {', '.join(end.left)}" if end.left else ""
    left = left or ("the server goes on" if served else "")
    code_fault = "" if end.code == own else f"exit code {end.code}, not {own}"
    told = (line for line in lines if line.startswith("planner: "))
    said = tuple(re.sub(r"port \d+", "port 8501", line) for line in told)
    return Cell("app", fault, state, end.code, said, left, wrong, code_fault)


def address_cells(inputs: Path) -> Iterator[Cell]:
    """Ask a Dask scheduler and the Hugging Face hub that are not there, or never answer."""
    hub = "plan nobody/none -m laptop -n 1"
    for fault, port_of in (("dead address", closed_port), ("silent address", silent_port)):
        for name, words in (("sweep on Dask", _DASK), ("plan from the hub", hub)):
            with run_in_copy(inputs) as run, port_of() as port:
                endpoint = f"http://127.0.0.1:{port}"
                variables = {"HF_ENDPOINT": endpoint, "HF_HUB_OFFLINE": "0", "NO_PROXY": "*"}
                end = run(words.format(port=port), variables=variables)
                said, wrong = judge_message(end, End(0))
                lost = f"still running: {end.left}" if end.left else ""
                lost = lost or ("a table of nothing" if contents(run.work, "out.csv") else "")
                code_fault = "" if end.code == 2 else f"exit code {end.code}, not 2"
                said = tuple(line.replace(str(port), "8786") for line in said)
                yield Cell(name, fault, "", end.code, said, lost, wrong, code_fault)


def read_kept() -> dict[str, list[Cell]]:
    """Read the rows of earlier runs."""
    rows = json.loads(KEPT.read_text(encoding="utf-8")) if KEPT.is_file() else {}
    return {name: [Cell(**fields) for fields in cells] for name, cells in rows.items()}


def run_row(name: str, inputs: Path) -> list[Cell]:
    """Run a row of the matrix, and print its cells as they come."""
    makers = {"app": app_cells, "addresses": address_cells}
    cells = []
    for cell in makers[name](inputs) if name in makers else cells_of(name, inputs):
        cells.append(cell)
        note = f"WRONG: {cell.wrong}; {cell.said}" if cell.wrong else "as it should"
        print(f"{cell.command}, {cell.fault} {cell.state}: {cell.code}, {note}", flush=True)
    return cells


def main(
    only: Annotated[
        list[str] | None, typer.Option(help="Rows to run; the others are kept.")
    ] = None,
    write: Annotated[bool, typer.Option(help="Write the page.")] = False,
    processes: Annotated[int, typer.Option(help="Rows at a time.")] = 2,
) -> None:
    """Run the matrix; print it, and what is wrong."""
    names = [*COMMANDS, "app", "addresses"]
    rows = read_kept() if only else {}
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(processes) as pool:
        inputs = Path(folder)
        write_inputs(inputs)
        tasks = {pool.submit(run_row, name, inputs): name for name in only or names}
        for task in as_completed(tasks):
            rows[tasks[task]] = task.result()
            KEPT.parent.mkdir(exist_ok=True)
            kept = {name: [asdict(cell) for cell in cells] for name, cells in rows.items()}
            KEPT.write_text(json.dumps(kept, indent=1), encoding="utf-8")
    cells = [cell for name in names for cell in rows.get(name, ())]
    print(text := page(cells, [name for name in names if name not in rows]))
    if write:
        PAGE.write_text(text, encoding="utf-8")
    raise typer.Exit(1 if any(cell.wrong for cell in cells) else 0)


if __name__ == "__main__":
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(main)
    app()
