"""Calibration from runs: fit a machine's `sustained_fraction` to measured step times."""

import dataclasses
import datetime
import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tomlkit
from numpy.typing import NDArray

from planner.describe.catalogue import folder, load_machine
from planner.describe.files import write_atomically
from planner.describe.machine import Machine
from planner.errors import CatalogueError, PlannerError
from planner.evidence.backtest import score
from planner.evidence.runs.run import Run
from planner.evidence.runs.run_files import read_runs

_LOWEST, _HIGHEST = 0.02, 1.0


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Errors of the fit on held-out runs."""

    apart: str
    """Attribute that the runs of a fold share: model, workload or layout."""
    num_folds: int
    error_before: float
    """Mean |error| with the original profile."""
    error_after: float
    """Mean |error| of the same runs, each fold estimated with a fit to the other folds."""

    @property
    def worse(self) -> bool:
        """True if the error is smaller without the fit."""
        return self.error_after > self.error_before


@dataclass(frozen=True, slots=True)
class Calibration:
    """The fitted fraction, the runs it was fitted to, and the errors on them."""

    machine: str
    sustained_fraction: float
    num_runs: int
    row_ids: tuple[str, ...]
    error_before: float
    """Median of estimated / measured - 1 with the original profile."""
    error_after: float
    """Mean |error| with the fit, on the rows of the fit: not a validation."""
    held_out: HeldOut | None
    """None if there are fewer than three runs, or all of one layout."""


def _with_fraction(runs: list[Run], fraction: float) -> list[Run]:
    machines: dict[str, Machine] = {}
    for run in runs:
        if run.machine_label not in machines:
            device = run.machine.device
            quantity = device.sustained_fraction.replaced(value=fraction, kind="calibrated")
            fields = {**device.model_dump(), "sustained_fraction": quantity.model_dump()}
            machines[run.machine_label] = run.machine.replaced(device=fields)
    return [dataclasses.replace(run, machine=machines[run.machine_label]) for run in runs]


def _errors(runs: list[Run]) -> NDArray[np.float64]:
    return np.array([s.error for s in score(runs).scores if s.error is not None])


def _fit(runs: list[Run]) -> float:
    """Find the fraction at which the median of estimated / measured is one."""

    def is_too_low(fraction: float) -> bool:
        # a higher fraction means shorter estimates
        return bool(np.median(np.log1p(_errors(_with_fraction(runs, fraction)))) > 0)

    return bisected(is_too_low, _LOWEST, _HIGHEST, rounds=30)


def bisected(is_too_low: Callable[[float], bool], low: float, high: float, rounds: int) -> float:
    """Find the positive value at which `is_too_low` turns false, or the nearer bound."""
    for _ in range(rounds):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if is_too_low(middle) else (low, middle)
    return math.sqrt(low * high)


def calibrate(path: Path, machine: str) -> Calibration:
    """Fit `sustained_fraction` to a machine's runs in a CSV. Raises CatalogueError without runs."""
    name = load_machine(machine).name
    runs = [
        run
        for run in read_runs(path)
        if isinstance(run, Run)
        and run.machine.name == name
        and run.step_time_s is not None
        # a guessed job must not influence the machine's profile
        and not run.guessed
    ]
    if not runs:
        raise CatalogueError(
            f"{path.name} holds no run on {name} with a step time and a stated job; check the "
            "columns system, gpu and gpus_per_node, or name another machine"
        )
    fraction = _fit(runs)
    if not _LOWEST * 1.01 < fraction < _HIGHEST * 0.99:
        raise PlannerError(
            f"the runs on {name} fit no sustained_fraction between {_LOWEST} and {_HIGHEST}; "
            "check units and devices of the rows"
        )
    after = _errors(_with_fraction(runs, fraction))
    return Calibration(
        machine=name,
        sustained_fraction=fraction,
        num_runs=len(runs),
        row_ids=tuple(run.row_id for run in runs),
        error_before=float(np.median(_errors(runs))),
        error_after=float(np.mean(np.abs(after))),
        held_out=_held_out(runs),
    )


_FOLD_KEYS: dict[str, Callable[[Run], Hashable]] = {
    "model": lambda run: run.model.name,
    "workload": lambda run: run.workload,
    "layout": lambda run: run.layout,
}
"""Attributes by which runs are divided into folds, the most general first."""
_MIN_RUNS, _MAX_FOLDS = 3, 5


def _held_out(runs: list[Run]) -> HeldOut | None:
    """Estimate the runs of each fold with a fit to the others; None without enough runs."""
    several = (name for name, key in _FOLD_KEYS.items() if len(set(map(key, runs))) > 1)
    attribute = next(several, None)
    if len(runs) < _MIN_RUNS or attribute is None:
        return None
    values = list(map(_FOLD_KEYS[attribute], runs))
    distinct = list(dict.fromkeys(values))
    count = min(len(distinct), _MAX_FOLDS)
    folds = [distinct.index(kind) % count for kind in values]
    before, after = [], []
    for number in range(count):
        left_out = [run for run, fold in zip(runs, folds, strict=True) if fold == number]
        fitted = _fit([run for run, fold in zip(runs, folds, strict=True) if fold != number])
        before += list(np.abs(_errors(left_out)))
        after += list(np.abs(_errors(_with_fraction(left_out, fitted))))
    return HeldOut(attribute, count, float(np.mean(before)), float(np.mean(after)))


def write_profile(result: Calibration, machine: str, output: Path, source: str) -> None:
    """Write the machine's profile with the fit. Raises CatalogueError for the profile itself."""
    document = profile_to_change(machine, result.machine, output)
    device = document.get("device", {})
    if "sustained_fraction" not in device:
        raise CatalogueError(f"{Path(machine).stem}.toml has no device.sustained_fraction; add it")
    fitted = {
        "value": round(result.sustained_fraction, 4),
        "kind": "calibrated",
        "source": f"{datetime.date.today().isoformat()}: {result.num_runs} runs of {source}",
    }
    device["sustained_fraction"] = inline_table(fitted)
    write_atomically(output, tomlkit.dumps(document))


def profile_to_change(machine: str, name: str, output: Path) -> Any:
    """Load a machine's profile for editing. Raises CatalogueError if `output` is the profile."""
    is_file = machine.endswith(".toml")
    original = Path(machine) if is_file else folder("machine") / f"{name}.toml"
    if output.resolve() == original.resolve():
        raise CatalogueError(f"{output} is the profile itself; choose another file")
    return tomlkit.parse(original.read_text("utf-8"))


def inline_table(fields: dict[str, Any]) -> Any:
    """Make a one-line TOML table, as profiles write numbers."""
    table = tomlkit.inline_table()
    table.update({name: list(v) if isinstance(v, tuple) else v for name, v in fields.items()})
    return table
