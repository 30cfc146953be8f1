"""Read measured runs from a user's file: a table, a log, or a result of `planner compare`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner.cost.parts import MemoryKind
from planner.describe.catalogue import load_framework, load_machine, load_model
from planner.describe.files import read_text
from planner.describe.layout import Layout
from planner.describe.machine import Machine
from planner.describe.model.model import Model
from planner.describe.workload import Workload
from planner.errors import CatalogueError, DescriptionError, PlannerError, shorten, shorten_path
from planner.evidence.runs.csv_runs import is_table_of_runs, read_runs
from planner.evidence.runs.run import RefusedRun, Run

if TYPE_CHECKING:
    from planner.evidence.logs.comparison import Comparison

__all__ = ["read_measured", "run_compared"]

_PROBE = 65_536
_SMALL = 1_000_000
"""Bytes above which a JSON file is no result of `compare`."""
_WAYS = (
    "give a CSV of runs (docs/runs.md), LOG=JOB.json for a log, or what `planner compare --json` "
    "printed"
)
_KINDS: dict[str, MemoryKind] = {"reserved_bytes": "reserved", "allocated_bytes": "allocated"}


def read_measured(
    file: str | Path, own_machine: Machine | None = None, model: Model | None = None
) -> list[Run | RefusedRun]:
    """Read a file of runs: a CSV, a log as LOG or LOG=JOB.json, or a printed comparison.

    `own_machine` and `model` are those of the job: a log ran there, and files may name them.
    Raises PlannerError where the file holds no run.
    """
    text = str(file)
    log, _, job = text.rpartition("=")
    if log and not Path(text).expanduser().exists():
        return [_of_log(log, job, own_machine, model)]
    path = Path(text).expanduser()
    if path.is_dir():
        return [_of_log(text, None, own_machine, model)]
    head = _head(path)
    if is_table_of_runs(head.split("\n", 1)[0]):
        return list(read_runs(path, own_machine))
    if (printed := _printed(path, head)) is not None:
        return [run_compared(printed, path.name, own_machine, model)]
    return [_of_log(text, None, own_machine, model)]


def _head(path: Path) -> str:
    where = shorten_path(path)
    try:
        if path.exists() and not path.is_file():
            raise CatalogueError(f"{where} is not a regular file; {_WAYS}")
        with path.open("rb") as file:
            return file.read(_PROBE).decode("utf-8-sig", errors="replace")
    except OSError as error:
        raise CatalogueError(f"cannot read {where}: {error.strerror}; {_WAYS}") from None
    except CatalogueError:
        raise
    except ValueError as error:  # a null byte in the path
        raise CatalogueError(f"cannot read {where}: {error}; {_WAYS}") from None


def _printed(path: Path, head: str) -> dict[str, Any] | None:
    """Read a result of `compare --json`; None for other files."""
    if not head.lstrip().startswith("{") or path.stat().st_size > _SMALL:
        return None
    try:
        data = json.loads(read_text(path))
    except (ValueError, RecursionError):
        return None
    fields = {"layout", "workload", "model", "machine", "framework", "step_time_s"}
    return data if isinstance(data, dict) and fields <= data.keys() else None


def _of_log(
    log: str, job: str | None, own_machine: Machine | None, model: Model | None
) -> Run | RefusedRun:
    from planner.evidence.logs.comparison import compare_log
    from planner.evidence.logs.steps import LogError

    name = shorten(Path(log).name)
    if own_machine is None:
        raise PlannerError(
            f"{name} does not say on which machine it ran; name it, or give what `planner compare "
            "--json` printed of it"
        )
    try:
        result = compare_log(log, own_machine, job, model=_model_name(job) or model)
    except LogError:
        raise  # it names the file, and no job would mend it
    except PlannerError as error:
        remedy = "" if job else f"; state its job: {log}=JOB.json (`planner compare --help`)"
        raise CatalogueError(f"{name}: {error}{remedy}") from None
    return _of_comparison(result, name)


def _model_name(job: str | None) -> str | None:
    """Name of the model in the file of a job."""
    try:
        data = json.loads(read_text(Path(job).expanduser())) if job else {}
    except (ValueError, RecursionError, PlannerError):
        return None  # who reads the job says what is wrong
    name = data.get("model") if isinstance(data, dict) else None
    return name if isinstance(name, str) else None


def _of_comparison(comparison: Comparison, name: str) -> Run | RefusedRun:
    scenario = comparison.job.scenario
    if comparison.doubts:
        return RefusedRun(name, comparison.log.source, comparison.doubts[0])
    figures = {figure.name: figure.measured for figure in comparison.figures}
    memory, kind = _memory(figures)
    return Run(
        name,
        comparison.log.source,
        scenario.machine,
        scenario.machine.name,
        scenario.framework,
        scenario.model,
        scenario.workload,
        comparison.job.layout,
        comparison.step_time_s,
        memory,
        kind,
        True,
        comparison.job.assumptions,
    )


def _memory(figures: dict[str, float]) -> tuple[float | None, MemoryKind]:
    for name, kind in _KINDS.items():
        if name in figures:
            return figures[name], kind
    return None, "allocated"


def run_compared(
    printed: dict[str, Any],
    name: str,
    own_machine: Machine | None = None,
    model: Model | None = None,
) -> Run | RefusedRun:
    """Read the run of a comparison that `planner compare --json` printed.

    Raises PlannerError where a name is in no catalogue, or a figure is none.
    """
    try:
        if printed.get("doubts"):
            return RefusedRun(name, str(printed.get("log", name)), str(printed["doubts"][0]))
        figures = {f["name"]: float(f["measured"]) for f in printed.get("figures", ())}
        step = float(printed["step_time_s"])
        machine_name, model_name = str(printed["machine"]), str(printed["model"])
        framework = load_framework(str(printed["framework"]))
        memory, kind = _memory(figures)
        if not 0 < step < float("inf") or not (memory is None or 0 < memory < float("inf")):
            raise DescriptionError(f"{name}: step_time_s = {step:g} or memory is no size; {_WAYS}")
        is_own = own_machine is not None and own_machine.name == machine_name
        machine = own_machine if own_machine and is_own else load_machine(machine_name)
        return Run(
            name,
            str(printed.get("log", name)),
            machine,
            machine.name,
            framework,
            model
            if model is not None and model.name == model_name
            else load_model(model_name, run=False),
            Workload.described(printed["workload"], where="workload"),
            Layout.described(printed["layout"], where="layout"),
            step,
            memory,
            kind,
            True,
            tuple(map(str, printed.get("assumptions", ()))),
        )
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, PlannerError):
            raise
        raise DescriptionError(
            f"{name} is no result of `planner compare`: {error}; {_WAYS}"
        ) from None
