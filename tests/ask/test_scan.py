"""Scan: the smallest and the largest value that holds, found by doubling and bisection."""

from __future__ import annotations

import pytest

from planner.ask.scan import doublings, largest, nearest_as_good, smallest


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


def test_the_nearest_as_good_is_within_the_tolerance_of_the_best() -> None:
    rates = {1: 10.0, 2: 9.6, 6: 9.4, 8: 5.0}
    assert nearest_as_good(rates, 8, 0.05) == 2
    assert nearest_as_good(rates, 8, 0.1) == 6
    assert nearest_as_good(rates, 8, 2.0) == 8
    assert nearest_as_good({2: 1.0, 4: 1.0}, 3, 0.0) == 2
    assert nearest_as_good({}, 8, 0.05) is None


def test_smallest_tries_the_neighbours_below_where_bisection_ends() -> None:
    def holds(n: int) -> bool:
        return n >= 40 or n in (37, 38)

    assert smallest(range(1, 101), holds) == 37
