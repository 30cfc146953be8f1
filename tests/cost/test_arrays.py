"""Arrays: distinct rows are found whether they are counted or sorted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.cost import arrays
from planner.cost.arrays import Arrays, distinct, map_in_batches

COLUMNS = st.integers(1, 40).flatmap(
    lambda n: st.lists(st.lists(st.integers(0, 30), min_size=n, max_size=n), min_size=1, max_size=4)
)


@given(COLUMNS, st.booleans())
def test_every_row_equals_the_one_it_is_said_to_equal(
    values: list[list[int]], by_sorting: bool
) -> None:
    columns = [np.array(column) for column in values]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrays, "_MAX_COUNTING_RATIO", 0 if by_sorting else 2**40)
        first, which = distinct(*columns)
    rows = list(zip(*values, strict=True))
    assert [rows[first[i]] for i in which] == rows
    assert len({rows[i] for i in first}) == len(first) == len(set(rows))
    # the first of equal rows stands for them
    assert [rows.index(rows[i]) for i in first] == list(first)


def test_shapes_are_kept() -> None:
    first, which = distinct(np.array([[1, 2], [2, 1]]))
    assert (first.tolist(), which.tolist()) == ([0, 1], [[0, 1], [1, 0]])
    first, which = distinct(np.array(3))
    assert (first.tolist(), int(which)) == ([0], 0)


@dataclass(frozen=True, slots=True)
class Rows(Arrays):
    """Rows of one column."""

    values: Any


def test_batches_hold_every_row_once_and_keep_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "_BATCH_ROWS", 4)
    sizes: list[int] = []

    def twice(rows: Rows) -> Rows:
        sizes.append(len(rows.values))
        return Rows(2 * rows.values)

    worked = map_in_batches(twice, Rows(np.arange(11)), 11)
    assert worked.values.tolist() == list(range(0, 22, 2))
    assert (sorted(sizes), len(twice(worked).values)) == ([3, 4, 4], 11)
