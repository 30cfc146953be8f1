"""Rules: choose one of several values where each takes a plan to look at.

A property that holds for one value need not hold for the next: a batch may not divide, a layout may
change. Bisection is therefore followed by a look at neighbours, and small ranges are looked at in
full.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence

__all__ = ["doublings", "largest", "nearest_as_good", "smallest"]

_FULL_RANGE = 16
_NEIGHBOURS = 3
_PARTS = 64
"""Bisection ends at this part of the value."""


def doublings(values: Sequence[int]) -> list[int]:
    """Pick the values next above each power of two, and the last.

    >>> doublings(range(1, 12)), doublings([10, 11, 24, 100])
    ([1, 2, 4, 8, 11], [10, 24, 100])
    """
    picked, power = set(values[-1:]), 1
    while values and power <= values[-1]:
        picked.add(values[bisect_left(values, power)])
        power *= 2
    return sorted(picked)


def smallest(values: Sequence[int], holds: Callable[[int], bool]) -> int | None:
    """Find the smallest of rising values for which a property holds; None if none was found.

    Doublings are tried first. Below the first that holds, up to 16 values are all tried; larger
    ranges are bisected, and three neighbours below the result are tried.

    >>> smallest(range(1, 100), lambda n: n >= 37), smallest(range(1, 9), lambda n: n in (3, 4, 8))
    (37, 3)
    """
    first = next((value for value in doublings(values) if holds(value)), None)
    if first is None:
        return None
    high = values.index(first)
    if high <= _FULL_RANGE:
        return next((value for value in values[:high] if holds(value)), first)
    low = bisect_left(values, (first + 1) // 2)
    while high > low:
        middle = (low + high) // 2
        if holds(values[middle]):
            high = middle
        else:
            low = middle + 1
    below = values[max(high - _NEIGHBOURS, 0) : high]
    # all of them are tried, as an answer shows every value that was planned
    smaller = [value for value in below if holds(value)]
    return smaller[0] if smaller else values[high]


def largest(start: int, limit: int, grain: int, holds: Callable[[int], bool]) -> int | None:
    """Find the largest multiple of `grain` up to `limit` for which a property holds.

    Doublings up from `start` or halvings down, bisection to a 64th, then two neighbours above.
    None where the property does not hold for `grain` itself.

    >>> largest(1024, 10**6, 1024, lambda n: n <= 37_000), largest(8, 100, 1, lambda n: n < 4)
    (36864, 3)
    """
    limit = limit // grain
    low = max(min(start // grain, limit), 1)
    while not holds(low * grain):
        if low == 1:
            return None
        low //= 2
    high = low
    while high < limit and holds(high * grain):
        low, high = high, min(2 * high, limit)
    if holds(high * grain):
        return high * grain
    while high - low > max(low // _PARTS, 1):
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle * grain) else (low, middle)
    above = [n for n in (low + 2, low + 3) if n <= limit and holds(n * grain)]
    return max([low, *above]) * grain


def nearest_as_good(rates: Mapping[int, float], target: int, tolerance: float) -> int | None:
    """Find the value nearest to `target` whose rate is within `tolerance` of the highest.

    >>> nearest_as_good({60: 98.0, 64: 100.0, 72: 101.0}, 60, 0.05), nearest_as_good({}, 60, 0.05)
    (60, None)
    """
    good_rate = max(rates.values(), default=0.0) / (1 + tolerance)
    good = [value for value, rate in rates.items() if rate >= good_rate]
    return min(good, key=lambda value: (abs(value - target), value), default=None)
