"""The residuals that the package ships, with the traits that a prior learns from."""

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
    """Whether it is marked low, cannot be right, or stalled for a cause that is not known."""
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


def read_table() -> tuple[TeachingResidual, ...]:
    """Every row of the table that the package ships."""
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


def experience_of(rows: Sequence[TeachingResidual], figure: Figure = "step_time") -> MeasuredRuns:
    """Experience from runs, at least one of which carries the figure."""
    pairs = [(row.traits, value) for row in rows if (value := getattr(row, figure))]
    traits = Traits.joined([traits for traits, _ in pairs])
    if figure == "memory":  # which no part of the time decides
        traits = replace(traits, shares=np.zeros_like(traits.shares))
    return MeasuredRuns(traits, np.log([value for _, value in pairs]))


def write_table(rows: Iterable[TeachingResidual]) -> None:
    """Replace the table that the package ships."""
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
