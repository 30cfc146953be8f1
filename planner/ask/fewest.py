"""Fewest: the first and the last number for which something holds, where looking is dear.

What holds on some nodes need not hold on more: a batch may not divide, a layout may change. So
neighbours of what bisection finds are looked at as well, and small numbers all.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence

__all__ = ["doublings", "fewest", "largest"]

_ALL = 16
# up to so many are looked at one by one
_NEIGHBOURS = 3
_PARTS = 64


def doublings(values: Sequence[int]) -> list[int]:
    """The values nearest above the powers of two, and the last [1].

    Counted: each once, rising. Left out: all others. Definition.

    >>> doublings(range(1, 12)), doublings([10, 11, 24, 100])
    ([1, 2, 4, 8, 11], [10, 24, 100])
    """
    found, power = [], 1
    while values and power <= values[-1]:
        found.append(values[bisect_left(values, power)])
        power *= 2
    return sorted({*found, *values[-1:]})


def fewest(values: Sequence[int], holds: Callable[[int], bool]) -> int | None:
    """The smallest of rising values for which something holds; None where none was found [1].

    Counted: the doublings; below the first of them that holds all of up to sixteen values, of more
    those that bisection asks for and three neighbours. Left out: values between doublings where
    none of those holds. Definition.

    >>> fewest(range(1, 100), lambda n: n >= 37), fewest(range(1, 9), lambda n: n in (3, 4, 8))
    (37, 3)
    """
    first = next((value for value in doublings(values) if holds(value)), None)
    if first is None:
        return None
    end = values.index(first)
    if end <= _ALL:
        return next((value for value in values[:end] if holds(value)), first)
    low = bisect_left(values, (first + 1) // 2)
    while end > low:
        middle = (low + end) // 2
        if holds(values[middle]):
            end = middle
        else:
            low = middle + 1
    below = [value for value in values[max(end - _NEIGHBOURS, 0) : end] if holds(value)]
    return below[0] if below else values[end]


def largest(start: int, limit: int, grain: int, holds: Callable[[int], bool]) -> int | None:
    """The largest multiple of a grain up to a limit for which something holds [1].

    Counted: doublings of `start` up and halvings down, bisection between to a 64th, two neighbours
    above. Left out: larger ones beyond those. None where the grain itself does not hold.
    Definition.

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
