"""Arrays: distinct rows are found whether they are counted or sorted."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.cost import arrays
from planner.cost.arrays import distinct

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
