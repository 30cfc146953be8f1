"""Rule: cases in which layouts `x` of a scenario `q` break it, with a message for a layout `y`."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from planner.cost.arrays import Mask, is_in
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.describe.layout import Layout, divisors

Breaks = Callable[[Mask], bool]
"""Notes the layouts that break a rule in one case; says whether to yield the case's message."""
Cases = Callable[[Scenario, Layouts, Layout, Breaks], Iterator[str]]

_NONE = Layout()


@dataclass(frozen=True, slots=True)
class Rule:
    """A condition on layouts, and the messages for layouts that break it."""

    reason: str
    """Reason by which rejected layouts are counted."""
    needs: frozenset[str]
    """Columns that the rule reads; it applies once these are set."""
    cases: Cases

    def holds(self, q: Scenario, x: Layouts) -> Mask:
        """The layouts that keep the rule in every case."""
        broken: list[Mask] = []

        def breaks(mask: Mask) -> bool:
            broken.append(mask)
            return False

        assert not any(self.cases(q, x, _NONE, breaks)), "messages are of single layouts"
        return np.logical_not(functools.reduce(operator.or_, broken))

    def message(self, q: Scenario, y: Layout) -> str:
        """The message of the first case in which a layout breaks the rule."""
        return next(self.cases(q, Layouts.of(y), y, bool))


def rule(reason: str, *needs: str) -> Callable[[Cases], Rule]:
    """Make a rule of its cases."""
    return lambda cases: Rule(reason, frozenset(needs), cases)


def coded(name: str, table: tuple[object, ...], allowed: str) -> Rule:
    """A rule that a choice is in the framework's tuple `allowed`, or is "none"."""

    @rule(f"{name} is not offered by the framework", name)
    def is_offered(q: Scenario, x: Layouts, y: Layout, breaks: Breaks) -> Iterator[str]:
        offered = ("none", *getattr(q.framework, allowed))
        codes = [code for code, value in enumerate(table) if value in offered]
        if breaks(~is_in(getattr(x, name), codes)):
            problem = f"{name} = {getattr(y, name)} is not offered by {q.framework.name}"
            yield f"{problem}; {choices(name, offered)}"

    return is_offered


def listed(values: list[int], limit: int = 16) -> str:
    """The first of the allowed values."""
    first = ", ".join(map(str, values[:limit]))
    return first + (", ..." if len(values) > limit else "") if values else "none"


def one_of(*numbers: int) -> str:
    """What to use in place of a number that does not divide all of these."""
    return f"use one of {listed(divisors(math.gcd(*numbers)))}"


def choices(axis: str, allowed: tuple[object, ...]) -> str:
    """What to use in place of a value that is not allowed."""
    return f"use {axis} = {', '.join(map(str, allowed)) or '1'}"
