"""Scan: the smallest and the largest value that holds, found by doubling and bisection."""

from __future__ import annotations

import pytest

from planner.ask.scan import doublings, largest, smallest


@pytest.mark.parametrize("count", [1, 7, 16, 17, 40, 560])
def test_smallest_finds_any_threshold(count: int) -> None:
    for threshold in range(1, count + 1):
        asked: list[int] = []

        def holds(n: int, least: int = threshold, seen: list[int] = asked) -> bool:
            seen.append(n)
            return n >= least

        assert smallest(range(1, count + 1), holds) == threshold
    assert smallest(range(1, count + 1), lambda n: n > count) is None
    assert smallest([], lambda n: True) is None


def test_smallest_sees_holes_in_small_numbers() -> None:
    for holes in ({3, 8}, {5, 7, 16}, {1}, {9, 16, 12}):
        assert smallest(range(1, 17), lambda n, holes=holes: n in holes) == min(holes)


def test_doublings_are_of_the_values() -> None:
    assert doublings([]) == []
    assert doublings([5, 6, 7]) == [5, 7]


def test_largest_finds_any_threshold() -> None:
    for threshold in range(1, 60):
        for start in (1, 7, 64):
            assert largest(start, 1000, 1, lambda n, most=threshold: n <= most) == threshold
    assert largest(8, 64, 8, lambda n: True) == 64
    assert largest(8, 64, 8, lambda n: False) is None


def test_largest_sees_a_hole_and_stays_within_its_limit() -> None:
    # 11 does not hold, 12 does
    assert largest(8, 64, 1, lambda n: n in {*range(1, 11), 12}) == 12
    assert largest(8, 9, 1, lambda n: True) == 9
    assert largest(1, 1000, 10, lambda n: n <= 475) == 470
