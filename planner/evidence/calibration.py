"""Calibration from runs: fit what training sustains on a machine to measured step times.

One figure is fitted, `device.sustained_fraction`: the one in which devices of one kind differ
between sites and software. Rates of networks and memory stay as described; a fit of more
figures to few runs would follow their noise.
"""

from __future__ import annotations

import dataclasses
import datetime
import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tomlkit
from numpy.typing import NDArray
from tomlkit.items import InlineTable

from planner.describe.catalogue import folder, load_machine
from planner.describe.files import write_atomically
from planner.describe.machine import Machine
from planner.errors import CatalogueError, PlannerError
from planner.evidence.backtest import score
from planner.evidence.run_files import read_runs
from planner.evidence.runs.run import Run

__all__ = ["Calibration", "HeldOut", "calibrate", "write_profile"]

_LOWEST, _HIGHEST = 0.02, 1.0


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Errors of the fit on held-out runs."""

    apart: str
    """Attribute that the runs of a fold share: model, workload or layout."""
    num_folds: int
    error_before: float
    """Mean |error| with the profile as it was."""
    error_after: float
    """Mean |error| of the same runs, each estimated by a fit on the others."""

    @property
    def worse(self) -> bool:
        """Whether the profile as it was does better."""
        return self.error_after > self.error_before


@dataclass(frozen=True, slots=True)
class Calibration:
    """The fitted figure, its runs, and its errors on them."""

    machine: str
    sustained_fraction: float
    num_runs: int
    row_ids: tuple[str, ...]
    error_before: float
    """Median of estimated / measured - 1 with the profile as it was."""
    error_after: float
    """Mean |error| on the rows of the fit, after it: no proof."""
    held_out: HeldOut | None
    """None where there are too few runs, or of one layout alone, to tell."""


def _with_fraction(runs: list[Run], fraction: float) -> list[Run]:
    """The runs on machines whose device sustains another fraction."""
    machines: dict[str, Machine] = {}
    changed = []
    for run in runs:
        key = run.machine_label
        if key not in machines:
            device = run.machine.device
            quantity = device.sustained_fraction.replaced(value=fraction, kind="calibrated")
            fields = {**device.model_dump(), "sustained_fraction": quantity.model_dump()}
            machines[key] = run.machine.replaced(device=fields)
        changed.append(dataclasses.replace(run, machine=machines[key]))
    return changed


def _log_ratios(runs: list[Run], fraction: float) -> NDArray[np.float64]:
    scores = score(_with_fraction(runs, fraction)).scores
    return np.array([math.log1p(s.error) for s in scores if s.error is not None])


def _fit(runs: list[Run]) -> float:
    """The fraction at which the median of estimated / measured is one, by bisection."""
    low, high = _LOWEST, _HIGHEST
    for _ in range(30):
        middle = math.sqrt(low * high)
        # a higher fraction means shorter estimates
        if np.median(_log_ratios(runs, middle)) > 0:
            low = middle
        else:
            high = middle
    return math.sqrt(low * high)


def calibrate(path: Path, machine: str) -> Calibration:
    """Fit `sustained_fraction` of a machine to the runs of a CSV that ran on it.

    Raises CatalogueError where the table holds no scorable run of the machine.
    """
    name = load_machine(machine).name
    runs = [
        run
        for run in read_runs(path)
        if isinstance(run, Run)
        and run.machine.name == name
        and run.step_time_s is not None
        # what was guessed of a job must not shape a machine
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
    before = np.array([s.error for s in score(runs).scores if s.error is not None])
    after = np.expm1(_log_ratios(runs, fraction))
    return Calibration(
        machine=name,
        sustained_fraction=fraction,
        num_runs=len(runs),
        row_ids=tuple(run.row_id for run in runs),
        error_before=float(np.median(before)),
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
    """Estimate runs that share an attribute by a fit on the others."""
    attribute = next(
        (name for name, key in _FOLD_KEYS.items() if len(set(map(key, runs))) > 1), None
    )
    if len(runs) < _MIN_RUNS or attribute is None:
        return None
    values = [_FOLD_KEYS[attribute](run) for run in runs]
    distinct = list(dict.fromkeys(values))
    count = min(len(distinct), _MAX_FOLDS)
    folds = [distinct.index(kind) % count for kind in values]
    before, after = [], []
    for number in range(count):
        left_out = [run for run, of_run in zip(runs, folds, strict=True) if of_run == number]
        rest = [run for run, of_run in zip(runs, folds, strict=True) if of_run != number]
        before += [abs(s.error) for s in score(left_out).scores if s.error is not None]
        after += list(np.abs(np.expm1(_log_ratios(left_out, _fit(rest)))))
    return HeldOut(attribute, count, float(np.mean(before)), float(np.mean(after)))


def write_profile(result: Calibration, machine: str, output: Path, source: str) -> None:
    """Write the machine's profile with the fitted figure; refuse to overwrite a catalogue file."""
    original = (
        Path(machine) if machine.endswith(".toml") else folder("machine") / f"{result.machine}.toml"
    )
    if output.resolve() == original.resolve():
        raise CatalogueError(f"{output} is the profile itself; choose another file")
    document = tomlkit.parse(original.read_text("utf-8"))
    device = document.get("device", {})
    if "sustained_fraction" not in device:
        raise CatalogueError(f"{original.name} has no device.sustained_fraction; add it")
    device["sustained_fraction"] = _fitted(result, source)
    text = tomlkit.dumps(document)
    write_atomically(output, text)


def _fitted(result: Calibration, source: str) -> InlineTable:
    """The fitted figure as a profile states it, with kind and source."""
    today = datetime.date.today().isoformat()
    quantity = tomlkit.inline_table()
    quantity["value"] = round(result.sustained_fraction, 4)
    quantity["kind"] = "calibrated"
    quantity["source"] = f"{today}: {result.num_runs} runs of {source}"
    return quantity
