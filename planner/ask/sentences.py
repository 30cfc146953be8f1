"""Sentences: phrases that the verdicts of several questions share."""

from __future__ import annotations

from planner.cost.estimate import Estimate
from planner.describe.machine import Machine
from planner.units import counted, format_seconds

__all__ = ["nodes_of", "percent", "step_time", "verb", "within_days"]


def nodes_of(machine: Machine, nodes: int) -> str:
    """Nodes and machine, such as "14 nodes of polaris"."""
    return f"{counted(nodes, 'node')} of {machine.name}"


def step_time(estimate: Estimate) -> str:
    """A step time with its interval."""
    low, high = (format_seconds(end) for end in estimate.interval_step_time_s)
    return f"{format_seconds(estimate.step_time_s)} a step (90 % interval {low} to {high})"


def percent(probability: float) -> str:
    """A probability in percent; never 0 or 100, as no estimate is certain.

    >>> percent(0.0004), percent(0.47), percent(1.0)
    ('less than 1 %', '47 %', 'more than 99 %')
    """
    if 0.01 <= probability <= 0.99:
        return f"{100 * probability:.0f} %"
    return "less than 1 %" if probability < 0.01 else "more than 99 %"


def within_days(days: float) -> str:
    """A time limit.

    >>> within_days(1), within_days(2.5)
    ('1 day', '2.5 days')
    """
    return f"{days:g} {'day' if days == 1 else 'days'}"


def verb(count: int, plural: str, singular: str = "") -> str:
    """The form of a verb that goes with a count.

    >>> verb(1, "train"), verb(2, "train"), verb(1, "are", "is")
    ('trains', 'train', 'is')
    """
    return plural if count != 1 else singular or f"{plural}s"
