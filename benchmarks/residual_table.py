"""Residual table: the residuals in the package, with the traits that a prior learns from."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

import numpy as np

from planner.cost.scenario.experience import MeasuredRuns
from planner.cost.scenario.prior import Traits
from planner.evidence.residuals import PATH, Residual, residuals

Figure = Literal["step_time", "memory"]
"""Measured figures."""

TRAITS = tuple(field.name for field in fields(Traits))
_COLUMNS = [
    "row",
    "source",
    "site",
    "seen",
    "doubtful",
    "step_time",
    "memory",
    "memory_kind",
    "told_by_memory",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class TeachingResidual(Residual):
    """The ratios of a run, with its traits."""

    doubtful: bool
    """True if the run is marked low, cannot be right, or stalled for an unknown cause."""
    memory_kind: str
    """How memory was measured; empty without a measurement."""
    told_by_memory: bool
    """True if the measured memory was used to guess the build; it cannot test the estimate."""
    traits: Traits
    """Traits of this run alone (n = 1)."""

    @property
    def guessed(self) -> bool:
        """True if model, software, devices or layout had to be guessed."""
        return bool(self.traits.guessed[0])

    def teaches(self, figure: Figure) -> bool:
        """True if a prior may learn from this run's step time, or from its memory."""
        if figure == "memory":
            return self.memory is not None and not self.doubtful and not self.told_by_memory
        return self.step_time is not None and not self.doubtful and not self.seen


def read_table() -> tuple[TeachingResidual, ...]:
    """Read every row of the table in the package."""
    with PATH.open(encoding="utf-8", newline="") as file:
        return tuple(
            TeachingResidual(
                **asdict(residual),
                doubtful=cells["doubtful"] == "1",
                memory_kind=cells["memory_kind"],
                told_by_memory=cells["told_by_memory"] == "1",
                traits=_traits(cells),
            )
            for residual, cells in zip(residuals(), csv.DictReader(file), strict=True)
        )


def _traits(cells: dict[str, str]) -> Traits:
    names = {name: np.array([cells[name]]) for name in ("machine", "architecture", "framework")}
    numbers = {
        name: np.array([float(value) for value in cells[name].split()])
        for name in TRAITS
        if name not in names
    }
    tables = ("shares", "size", "shape")
    return Traits(
        **names, **{name: row[None] if name in tables else row for name, row in numbers.items()}
    )


def experience_of(rows: Sequence[TeachingResidual], figure: Figure = "step_time") -> MeasuredRuns:
    """Make experience from runs; at least one run must have the figure."""
    pairs = [(row.traits, value) for row in rows if (value := getattr(row, figure))]
    traits = Traits.joined([traits for traits, _ in pairs])
    if figure == "memory":  # shares of the step time do not matter for memory
        traits = replace(traits, shares=np.zeros_like(traits.shares))
    return MeasuredRuns(traits, np.log([value for _, value in pairs]))


def write_table(rows: Iterable[TeachingResidual]) -> None:
    """Replace the table in the package."""
    lines = [_cells(row) for row in sorted(rows, key=lambda row: (row.source, row.row))]
    with PATH.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(lines[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)


def _cells(row: TeachingResidual) -> dict[str, object]:
    plain = {name: _cell(getattr(row, name)) for name in _COLUMNS}
    traits = {name: _joined(getattr(row.traits, name)) for name in TRAITS}
    return {**plain, **traits}


def _joined(values: Any) -> str:
    return " ".join(str(_cell(value)) for value in np.ravel(values).tolist())


def _cell(value: object) -> object:
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, float):
        return f"{value:.4g}"
    return "" if value is None else value
