"""Rule: a condition on layouts `x` of a scenario `q`, with messages for a single layout `y`."""

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
"""Records the layouts that break a rule in one case; True: yield the case's message."""
Cases = Callable[[Scenario, Layouts, Layout, Breaks], Iterator[str]]

_NONE = Layout()


@dataclass(frozen=True, slots=True)
class Rule:
    """A condition on layouts, and the messages for layouts that break it."""

    reason: str
    """Reason under which rejected layouts are counted."""
    needs: frozenset[str]
    """Columns that the rule reads; it applies once these are set."""
    cases: Cases
    source: str = ""
    """Where the condition was read; empty for arithmetic and for what a framework offers."""

    def holds(self, q: Scenario, x: Layouts) -> Mask:
        """True for layouts that break the rule in no case."""
        broken: list[Mask] = []

        def breaks(mask: Mask) -> bool:
            broken.append(mask)
            return False

        assert not any(self.cases(q, x, _NONE, breaks)), "messages are of single layouts"
        return np.logical_not(functools.reduce(operator.or_, broken))

    def message(self, q: Scenario, y: Layout) -> str:
        """Message of the first case in which a layout breaks the rule."""
        return next(self.cases(q, Layouts.of(y), y, bool))


def rule(reason: str, *needs: str, source: str = "") -> Callable[[Cases], Rule]:
    """Decorate a generator of cases to make it a rule."""
    return lambda cases: Rule(reason, frozenset(needs), cases, source)


def coded(name: str, table: tuple[object, ...], allowed: str) -> Rule:
    """Make a rule that a choice is "none" or in the framework's tuple `allowed`."""

    @rule(f"{name} is not offered by the framework", name)
    def is_offered(q: Scenario, x: Layouts, y: Layout, breaks: Breaks) -> Iterator[str]:
        offered = tuple(dict.fromkeys(("none", *getattr(q.framework, allowed))))
        codes = [code for code, value in enumerate(table) if value in offered]
        if breaks(~is_in(getattr(x, name), codes)):
            problem = f"{name} = {getattr(y, name)} is not offered by {q.framework.name}"
            yield f"{problem}; {choices(name, offered)}"

    return is_offered


def listed(values: list[int], limit: int = 16) -> str:
    """Join the first `limit` allowed values; "none" if the list is empty."""
    first = ", ".join(map(str, values[:limit]))
    return first + (", ..." if len(values) > limit else "") if values else "none"


def one_of(*numbers: int) -> str:
    """Remedy for a value that does not divide all of these numbers: the common divisors."""
    return f"use one of {listed(divisors(math.gcd(*numbers)))}"


def choices(axis: str, allowed: tuple[object, ...]) -> str:
    """Remedy for a value that is not allowed: the allowed ones."""
    return f"use {axis} = {', '.join(map(str, allowed)) or '1'}"
