"""Rule: a condition on layouts, and how to say that it is broken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from planner.cost.arrays import Mask, among
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.describe.layout import Layout

__all__ = ["Rule", "choices", "coded"]


@dataclass(frozen=True, slots=True)
class Rule:
    """A condition on layouts and how to say that it is broken."""

    reason: str
    """Short reason, as counted in `dropped`."""
    needs: tuple[str, ...]
    """Columns that the rule looks at; it can be applied once these are known."""
    holds: Callable[[Scenario, Layouts], Mask]
    message: Callable[[Scenario, Layout], str]


def choices(axis: str, allowed: tuple[object, ...]) -> str:
    """What of an axis may be used, for a message."""
    return f"use {axis} = {', '.join(map(str, allowed)) or '1'}"


def coded(name: str, table: tuple[object, ...], allowed: str, implied: object) -> Rule:
    """A choice that the framework's tuple `allowed` must hold."""

    def holds(q: Scenario, x: Layouts) -> Mask:
        offered = {implied, *getattr(q.framework, allowed)}
        codes = [i for i, value in enumerate(table) if value in offered]
        return among(getattr(x, name), codes)

    return Rule(
        f"{name} is not offered by the framework",
        (name,),
        holds,
        lambda q, x: (
            f"{name} = {getattr(x, name)} is not offered by {q.framework.name}; "
            + choices(name, (implied, *getattr(q.framework, allowed)))
        ),
    )
