"""Residuals: measured over estimated for every scored run, written by `benchmarks/accuracy.py`.

The table holds ratios and traits by row and source; the measurements stay where they were
published.
"""

from __future__ import annotations

import csv
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Literal

import numpy as np

from planner.cost.scenario.experience import MeasuredRuns
from planner.cost.scenario.prior import Traits

__all__ = [
    "PATH",
    "TRAITS",
    "Figure",
    "Residual",
    "Summary",
    "experience_of",
    "residuals",
    "summary",
]

PATH = Path(__file__).with_name("residuals.csv")

Figure = Literal["step_time", "memory"]
"""Measured figures."""

TRAITS = tuple(field.name for field in fields(Traits))


@dataclass(frozen=True, slots=True, kw_only=True)
class Residual:
    """Ratios of one measured run to its estimate."""

    row: str
    source: str
    site: str
    """Machine, as the row names it."""
    seen: bool
    """Whether a constant was fitted on the run."""
    doubtful: bool
    """Whether it is marked low, cannot be right, or stalled for a cause that is not known."""
    step_time: float | None
    """Measured over estimated step time."""
    memory: float | None
    """Measured over estimated memory."""
    memory_kind: str
    """Way of measuring memory; empty without a measurement."""
    told_by_memory: bool
    """Whether its memory decided which build ran; it then says nothing of the estimate."""
    traits: Traits
    """Of this run alone (n = 1)."""

    @property
    def guessed(self) -> bool:
        """Whether model, software, devices or layout had to be guessed."""
        return bool(self.traits.guessed[0])

    def teaches(self, figure: Figure) -> bool:
        """Whether a prior may learn from its step time, or from its memory."""
        if figure == "memory":
            return self.memory is not None and not self.doubtful and not self.told_by_memory
        return self.step_time is not None and not self.doubtful and not self.seen


def _traits(cells: dict[str, str]) -> Traits:
    names = {name: np.array([cells[name]]) for name in ("machine", "framework")}
    numbers = {
        name: np.array([float(value) for value in cells[name].split()])
        for name in TRAITS
        if name not in names
    }
    tables = ("shares", "size", "shape")
    return Traits(
        **names, **{name: row[None] if name in tables else row for name, row in numbers.items()}
    )


@functools.cache
def residuals() -> tuple[Residual, ...]:
    """Every scored run of this version."""

    def number(text: str) -> float | None:
        return float(text) if text else None

    with PATH.open(encoding="utf-8", newline="") as file:
        return tuple(
            Residual(
                row=cells["row"],
                source=cells["source"],
                site=cells["site"],
                seen=cells["seen"] == "1",
                doubtful=cells["doubtful"] == "1",
                step_time=number(cells["step_time"]),
                memory=number(cells["memory"]),
                memory_kind=cells["memory_kind"],
                told_by_memory=cells["told_by_memory"] == "1",
                traits=_traits(cells),
            )
            for cells in csv.DictReader(file)
        )


def experience_of(rows: Sequence[Residual], figure: Figure = "step_time") -> MeasuredRuns:
    """Experience from runs, at least one of which carries the figure."""
    pairs = [(row.traits, value) for row in rows if (value := getattr(row, figure))]
    traits = Traits.joined([traits for traits, _ in pairs])
    if figure == "memory":  # which no part of the time decides
        traits = replace(traits, shares=np.zeros_like(traits.shares))
    return MeasuredRuns(traits, np.log([value for _, value in pairs]))


@dataclass(frozen=True, slots=True)
class Summary:
    """How far the estimates of some runs are from what was measured; signed ones are estimate
    over measurement, minus one."""

    num_runs: int
    num_sources: int
    mape: float
    median: float
    bias: float


def summary(rows: Sequence[Residual]) -> Summary | None:
    """Figures over the step times of some runs; None where none carries one."""
    timed = [(row.source, row.step_time) for row in rows if row.step_time]
    if not timed:
        return None
    errors = np.array([1 / ratio - 1 for _, ratio in timed])
    return Summary(
        len(timed),
        len({source for source, _ in timed}),
        float(np.mean(np.abs(errors))),
        float(np.median(np.abs(errors))),
        math.expm1(float(np.mean(np.log1p(errors)))),
    )
