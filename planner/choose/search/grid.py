"""Grid: columns of layouts, crossed group by group and filtered as soon as a rule applies."""

from __future__ import annotations

from collections import Counter

import numpy as np
from numpy.typing import NDArray

from planner.choose.legality import legal
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts

__all__ = ["Grid"]

Int = NDArray[np.int64]


def _crossed(columns: dict[str, Int], name: str, values: list[int]) -> dict[str, Int]:
    """Every row with every value."""
    count = len(values)
    crossed = {key: np.repeat(column, count) for key, column in columns.items()}
    rows = len(next(iter(columns.values())))
    crossed[name] = np.tile(np.asarray(values, dtype=np.int64), rows)
    return crossed


def _kept(columns: dict[str, Int], mask: NDArray[np.bool_] | Int) -> dict[str, Int]:
    return {key: column[mask] for key, column in columns.items()}


class Grid:
    """Columns under construction, with the reasons for what fell."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.columns: dict[str, Int] = {"tp": np.ones(1, dtype=np.int64)}
        self.dropped: Counter[str] = Counter()
        self._applied: set[str] = set()

    def cross(self, name: str, values: list[int]) -> None:
        """Every row with every value of a new column."""
        self.columns = _crossed(self.columns, name, values)

    def filter(self, mask: NDArray[np.bool_], reason: str = "") -> None:
        """Only the rows of a mask; the others are counted under the reason, if there is one."""
        if reason and (fell := int(np.count_nonzero(~mask))):
            self.dropped[reason] += fell
        self.columns = _kept(self.columns, mask)

    def apply(self, *new: str) -> None:
        """Apply the rules that the columns `new` make possible."""
        self._applied |= set(new)
        mask, dropped = legal(self.scenario, self.layouts(), self._applied)
        self.dropped.update(dropped)
        self.columns = _kept(self.columns, mask)

    def layouts(self) -> Layouts:
        """The rows so far; columns that are not crossed yet have a layout's defaults."""
        return Layouts.broadcast(**self.columns)

    def keep(self, rows: Int) -> None:
        """Only these rows, in their order."""
        self.columns = _kept(self.columns, rows)
