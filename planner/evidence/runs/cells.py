"""Cells: one row of a table of runs, checked, with a note on every default."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from planner.errors import PlannerError, shorten

_MAX_COUNT = 1_000_000_000
_MIN_VALUE, _MAX_VALUE = 1e-9, 1e15
"""Plausible range of every number, in the unit of its column."""
_EMPTY = {"", "-", "n/a", "na", "none stated", "null", "?"}
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Note:
    """An assumption about a run, as a sentence."""

    sentence: str
    guess: bool = False
    """True if it decides what the job is: model shape, software, devices or layout."""


@dataclass(frozen=True, slots=True)
class Cells:
    """The cells of one row by column, and the assumptions so far."""

    row: Mapping[str, str]
    notes: list[Note] = field(default_factory=list)

    def filled(self, **cells: object) -> Cells:
        """Return a copy without notes, with some cells filled in."""
        return Cells({**self.row, **{column: str(value) for column, value in cells.items()}})

    def assume(self, value: T, sentence: str, *, guess: bool = False) -> T:
        """Return a default, and note it."""
        self.notes.append(Note(sentence, guess))
        return value

    def text(self, column: str) -> str:
        """Return the cell without surrounding blanks; empty if it or its column is missing."""
        cell = (self.row.get(column) or "").strip()
        return "" if cell.lower() in _EMPTY else cell

    def number(self, column: str) -> float | None:
        """Return a positive finite number; None if the cell is empty."""
        cell = self.text(column)
        if not cell:
            return None
        assignment = f"{column} = {shorten(cell, 40)!r}"
        try:
            value = float(cell.replace(",", "")) if cell.isascii() else math.nan
        except ValueError:
            raise PlannerError(
                f"{assignment} is not a number; write digits without a unit"
            ) from None
        if not math.isfinite(value) or value <= 0:
            raise PlannerError(f"{assignment} must be positive and finite; correct the cell")
        if not _MIN_VALUE <= value <= _MAX_VALUE:
            raise PlannerError(
                f"{assignment} must lie between {_MIN_VALUE:g} and {_MAX_VALUE:g}; check its unit"
            )
        return value

    def count(self, column: str, *, zero: bool = False) -> int | None:
        """Return a whole number from 1 (or 0) on; None if the cell is empty."""
        if zero and self.text(column) in ("0", "0.0"):
            return 0
        value = self.number(column)
        if value is not None and (value != int(value) or value > _MAX_COUNT):
            raise PlannerError(
                f"{column} = {shorten(self.text(column), 40)!r} must be a whole number "
                f"up to {_MAX_COUNT:,}; correct the cell"
            )
        return None if value is None else int(value)

    def need(self, column: str) -> int:
        """Return a count without a default. Raises PlannerError if the cell is empty."""
        value = self.count(column)
        if value is None:
            raise PlannerError(f"{column} is empty and follows from no other column; fill it in")
        return value

    def flag(self, column: str) -> bool | None:
        """Return False for "no" and its synonyms, else True; None if the cell is empty."""
        cell = self.text(column).lower()
        return cell not in ("no", "false", "0", "off", "eager", "disabled") if cell else None
