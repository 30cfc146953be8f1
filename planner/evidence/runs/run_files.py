"""Files of measured runs: CSV tables, logs, and output of `planner compare --json`."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner.cost.parts import MemoryKind
from planner.cost.scenario import Scenario
from planner.describe.catalogue import load_framework, load_machine, load_model
from planner.describe.files import read_bytes, read_head, read_text
from planner.describe.layout import Layout
from planner.describe.machine import Machine
from planner.describe.model.model import Model
from planner.describe.workload import Workload
from planner.errors import CatalogueError, DescriptionError, PlannerError, shorten, shorten_path
from planner.evidence.runs.cells import Cells
from planner.evidence.runs.run import RefusedRun, Run, run_of

if TYPE_CHECKING:
    from planner.evidence.logs.comparison import Comparison

_MAX_TABLE_BYTES = 20_000_000
_PROBE = 65_536
_SMALL = 1_000_000
"""Largest size [B] of a JSON file that may be output of `compare`."""
COMPARED = frozenset({"layout", "workload", "model", "machine", "framework", "step_time_s"})
"""Keys that output of `compare --json` holds."""
_COLUMNS = (
    "n_gpus", "gpu", "model", "n_layers", "hidden", "seq_len", "framework", "dp", "tp", "pp",
    "micro_batch", "global_batch", "step_time_s", "tokens_per_s_per_gpu", "samples_per_s",
)  # fmt: skip
"""A table of runs has at least two of these columns."""
_WAYS = (
    "give a CSV of runs (docs/howto/own-runs.md), LOG=JOB.json for a log, or what "
    "`planner compare --json` printed"
)


def read_runs(path: str | Path, own_machine: Machine | None = None) -> list[Run | RefusedRun]:
    """Read every row of a CSV of runs; CatalogueError if the file is none."""
    data = read_bytes(Path(path), _MAX_TABLE_BYTES, "split it")
    return runs_from_text(decoded(data), shorten_path(path), own_machine)


def decoded(data: bytes) -> str:
    """Decode a text in UTF-8, in UTF-16, or in the code page of old Windows programs."""
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return data.decode("utf-16", errors="replace")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return data.decode("cp1252", errors="replace")


def runs_from_text(
    text: str, where: str, own_machine: Machine | None = None
) -> list[Run | RefusedRun]:
    """Read every row of the text of a table; `where` names the table in messages."""
    return [_read_row(number, row, own_machine) for number, row in _rows(text, where)]


def is_table_of_runs(first_line: str) -> bool:
    """True if a file with this first line is a table of runs."""
    names = {name.strip().strip('"').lower() for name in re.split("[,;\t]", first_line)}
    return len(names & set(_COLUMNS)) >= 2


def _rows(text: str, where: str) -> Iterator[tuple[int, dict[str, str] | str]]:
    """Yield line number and cells of every row, or the reason why it cannot be read."""
    text = text.replace("\0", "")
    first = text.split("\n", 1)[0]
    delimiter = max(",;\t", key=first.count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    try:
        header = [name.strip().lower() for name in next(reader, [])]
    except csv.Error:
        header = []
    if len(set(header) & set(_COLUMNS)) < 2:
        raise CatalogueError(
            f"{where} is not a table of runs: its first line must name columns such as "
            f"{', '.join(_COLUMNS[:8])}"
        )
    while True:
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield reader.line_num, str(error)
            continue
        if any(cell.strip() for cell in cells):
            # a short row leaves its last columns empty; cells beyond the header are dropped
            yield reader.line_num, dict(zip(header, cells, strict=False))


def _read_row(
    number: int, row: dict[str, str] | str, own_machine: Machine | None
) -> Run | RefusedRun:
    if isinstance(row, str):
        return RefusedRun(f"line {number}", "", f"line {number} is not readable as CSV: {row}")
    cells = Cells(row)
    row_id = shorten(cells.text("row_id") or f"line {number}")
    source = shorten(cells.text("source") or "not stated", 120)
    try:
        return run_of(row_id, source, cells, own_machine)
    except PlannerError as error:
        return RefusedRun(row_id, source, str(error))


def read_measured(
    file: str | Path, own_machine: Machine | None = None, model: Model | None = None
) -> list[Run | RefusedRun]:
    """Read a file of runs of a job's machine and model: CSV, log, comparison or probe's folder."""
    text = str(file)
    log, _, job = text.rpartition("=")
    if log and not os.path.exists(os.path.expanduser(text)):
        return [_of_log(log, job, own_machine, model)]
    path = Path(os.path.expanduser(text))
    is_folder = os.path.isdir(path)  # False for a name that is too long, which `glob` raises
    if is_folder and (jobs := sorted(path.glob("*/layout.json"))):
        return [_of_probe(job, own_machine) for job in jobs]
    head = "" if is_folder else read_head(path, _PROBE).decode("utf-8-sig", "replace")
    if is_table_of_runs(head.split("\n", 1)[0]):
        return read_runs(path, own_machine)
    is_object = head.lstrip().startswith("{") and path.stat().st_size <= _SMALL
    if (printed := _json(path) if is_object else {}).keys() >= COMPARED:
        return [run_compared(printed, path.name, own_machine, model)]
    return [_of_log(text, None, own_machine, model)]


def _json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(read_text(path))
    except (ValueError, RecursionError):  # a PlannerError is a ValueError
        return {}
    return data if isinstance(data, dict) else {}


def _of_probe(job: Path, own_machine: Machine | None) -> Run | RefusedRun:
    """Read one run of a probe's folder; a refused one if it did not come to its steps."""
    log, name = job.with_name("run.log"), f"{job.parent.name}/run.log"
    try:
        run = _of_log(str(log), str(job), own_machine, None)
    except PlannerError as error:
        return RefusedRun(name, str(log), str(error))
    return replace(run, row_id=name)


def _of_log(
    log: str, job: str | None, own_machine: Machine | None, model: Model | None
) -> Run | RefusedRun:
    from planner.evidence.logs.comparison import compare_log
    from planner.evidence.logs.steps import LogError

    name = shorten(Path(log).name)
    if own_machine is None:
        raise PlannerError(
            f"{name} does not state its machine; name it, or give the output of `planner compare "
            "--json`"
        )
    # compare_log reports what is wrong with the job's file
    states_model = job and "model" in _json(Path(os.path.expanduser(job)))
    try:
        result = compare_log(log, own_machine, job, model=None if states_model else model)
    except LogError:
        raise  # its message names the file, and stating a job would not help
    except PlannerError as error:
        remedy = "" if job else f"; state its job: {log}=JOB.json (`planner compare --help`)"
        raise CatalogueError(f"{name}: {error}{remedy}") from None
    return run_of_comparison(result, name)


def run_of_comparison(comparison: Comparison, name: str) -> Run | RefusedRun:
    """Return the run of a log; a refused one if the log cannot belong to its job."""
    scenario, source = comparison.job.scenario, comparison.log.source
    if comparison.doubts:
        return RefusedRun(name, source, comparison.doubts[0])
    figures = {figure.name: figure.measured for figure in comparison.figures}
    measured = (comparison.step_time_s, *_memory(figures))
    return _run(name, source, scenario, comparison.job.layout, measured, comparison.job.assumptions)


def _run(
    name: str,
    source: str,
    scenario: Scenario,
    layout: Layout,
    measured: tuple[float, float | None, MemoryKind],
    assumptions: tuple[str, ...],
) -> Run:
    """Make a run that succeeded; `measured`: step time, memory and its kind."""
    machine, model, workload = scenario.machine, scenario.model, scenario.workload
    job = (machine, machine.name, scenario.framework, model, workload, layout)
    return Run(name, source, *job, *measured, True, assumptions)


def _memory(figures: dict[str, float]) -> tuple[float | None, MemoryKind]:
    if "reserved_bytes" in figures:
        return figures["reserved_bytes"], "reserved"
    return figures.get("allocated_bytes"), "allocated"


def run_compared(
    printed: dict[str, Any],
    name: str,
    own_machine: Machine | None = None,
    model: Model | None = None,
) -> Run | RefusedRun:
    """Read a run from the output of `planner compare --json`; PlannerError if it is invalid."""
    try:
        source = str(printed.get("log", name))
        if printed.get("doubts"):
            return RefusedRun(name, source, "".join(printed["doubts"][:1]))
        figures = {f["name"]: float(f["measured"]) for f in printed.get("figures", ())}
        step = float(printed["step_time_s"])
        machine_name, model_name = str(printed["machine"]), str(printed["model"])
        framework = load_framework(str(printed["framework"]))
        memory, kind = _memory(figures)
        if not 0 < step < math.inf or not (memory is None or 0 < memory < math.inf):
            raise DescriptionError(
                f"{name}: step_time_s = {step:g} and memory must be positive and finite; {_WAYS}"
            )
        is_own = own_machine is not None and own_machine.name == machine_name
        machine = own_machine if own_machine and is_own else load_machine(machine_name)
        if model is None or model.name != model_name:
            model = load_model(model_name, run=False)
        workload = Workload.described(printed["workload"], where="workload")
        layout = Layout.described(printed["layout"], where="layout")
        scenario = Scenario(model, machine, workload, framework)
        assumptions = tuple(map(str, printed.get("assumptions", ())))
        return _run(name, source, scenario, layout, (step, memory, kind), assumptions)
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, PlannerError):
            raise
        raise DescriptionError(
            f"{name} is not a result of `planner compare`: {error}; {_WAYS}"
        ) from None
