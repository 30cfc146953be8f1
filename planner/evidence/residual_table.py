"""Residuals: measured over estimated for every scored run, written by `benchmarks/accuracy.py`.

The table holds ratios and traits by row and source; the measurements stay where they were
published.
"""

from __future__ import annotations

import csv
import functools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from planner.cost.scenario.experience import Known
from planner.cost.scenario.traits import Traits

__all__ = ["Figure", "Residual", "Summary", "experience_of", "residuals", "summary", "write_table"]

_PATH = Path(__file__).with_name("residuals.csv")

Figure = Literal["step_time", "memory"]
"""What was measured."""

_TRAITS = tuple(field.name for field in fields(Traits))


@dataclass(frozen=True, slots=True, kw_only=True)
class Residual:
    """How far one measured run is from its estimate."""

    row: str
    source: str
    site: str
    """Machine, as the row names it."""
    seen: bool
    """Whether a constant was fitted on it."""
    doubtful: bool
    """Whether it is marked low, cannot be right, or stalled for a cause that is not known."""
    step_time: float | None
    """Measured over estimated step time."""
    memory: float | None
    """Measured over estimated memory."""
    memory_kind: str
    """How memory was measured; empty where it was not."""
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


def write_table(rows: Iterable[Residual]) -> None:
    """Replace the table that is shipped."""
    lines = [_cells(row) for row in sorted(rows, key=lambda row: (row.source, row.row))]
    with _PATH.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(lines[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)


def _cells(row: Residual) -> dict[str, object]:
    plain = {f.name: _cell(getattr(row, f.name)) for f in fields(row) if f.name != "traits"}
    traits = {name: _joined(getattr(row.traits, name)) for name in _TRAITS}
    return {**plain, **traits}


def _joined(values: Any) -> str:
    return " ".join(str(_cell(value)) for value in np.ravel(values).tolist())


def _cell(value: object) -> object:
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, float):
        return f"{value:.4g}"
    return "" if value is None else value


def _traits(cells: dict[str, str]) -> Traits:
    names = {name: np.array([cells[name]]) for name in ("machine", "framework")}
    numbers = {
        name: np.array([float(value) for value in cells[name].split()])
        for name in _TRAITS
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

    with _PATH.open(encoding="utf-8", newline="") as file:
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


def experience_of(rows: Sequence[Residual], figure: Figure = "step_time") -> Known:
    """What some runs, at least one that carries the figure, say of it."""
    pairs = [(row.traits, value) for row in rows if (value := getattr(row, figure))]
    traits = Traits.joined([traits for traits, _ in pairs])
    if figure == "memory":  # which no part of the time decides
        traits = replace(traits, shares=np.zeros_like(traits.shares))
    return Known(traits, np.log([value for _, value in pairs]))


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
