"""Rule: a condition on layouts, and the message for a layout that breaks it.

Rules write `q` for the scenario and `x` for the layouts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from planner.cost.arrays import Mask, is_in
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.describe.layout import Layout

__all__ = ["Rule", "choices", "coded"]


@dataclass(frozen=True, slots=True)
class Rule:
    """A condition on layouts and the message for a layout that breaks it."""

    reason: str
    """Reason by which rejected layouts are counted."""
    needs: tuple[str, ...]
    """Columns that the rule reads; it applies once these are set."""
    holds: Callable[[Scenario, Layouts], Mask]
    message: Callable[[Scenario, Layout], str]


def choices(axis: str, allowed: tuple[object, ...]) -> str:
    """The allowed values of an axis, for a message."""
    return f"use {axis} = {', '.join(map(str, allowed)) or '1'}"


def coded(name: str, table: tuple[object, ...], allowed: str, implied: object) -> Rule:
    """A rule that a choice is in the framework's tuple `allowed`, or is `implied`."""

    def holds(q: Scenario, x: Layouts) -> Mask:
        offered = {implied, *getattr(q.framework, allowed)}
        codes = [i for i, value in enumerate(table) if value in offered]
        return is_in(getattr(x, name), codes)

    return Rule(
        f"{name} is not offered by the framework",
        (name,),
        holds,
        lambda q, x: (
            f"{name} = {getattr(x, name)} is not offered by {q.framework.name}; "
            + choices(name, (implied, *getattr(q.framework, allowed)))
        ),
    )
