"""Scan: one job planned for several values of one field."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from planner.ask.answer import Row
from planner.ask.plan_point import PlanPoint, plan_or_reason
from planner.choose.jobs.job_spec import JobSpec

__all__ = ["Scan", "scan"]


@dataclass(frozen=True, slots=True)
class Scan:
    """Plan points by value; each is planned once, when it is first looked at."""

    plan: Callable[[int], PlanPoint]
    points: dict[int, PlanPoint] = field(default_factory=dict)

    def __getitem__(self, value: int) -> PlanPoint:
        """The point of a value."""
        if value not in self.points:
            self.points[value] = self.plan(value)
        return self.points[value]

    def __len__(self) -> int:
        """Number of values that were planned."""
        return len(self.points)

    def plan_all(self, values: Iterable[int]) -> None:
        """Plan several values."""
        for value in values:
            self[value]

    def by_value(self) -> list[tuple[int, PlanPoint]]:
        """Values and points, by rising value."""
        return sorted(self.points.items())

    def fitting(self) -> list[PlanPoint]:
        """Points where something fits, by rising value."""
        return [point for _, point in self.by_value() if point.fits]

    def values_where(self, holds: Callable[[PlanPoint], bool]) -> list[int]:
        """Values that were planned and for whose points something holds, rising."""
        return [value for value, point in self.by_value() if holds(point)]

    def rows(self, axis: str = "") -> list[Row]:
        """A record a point, by rising value; `axis` names a first column for the value."""
        return [{axis: value, **p.row()} if axis else p.row() for value, p in self.by_value()]


def scan(job: JobSpec, axis: str, values: Iterable[int] = ()) -> Scan:
    """Plan a job for values of one field, its own or its workload's.

    Where a plan raises PlannerError, its point has the message as the reason why nothing fits.
    """

    def plan(value: int) -> PlanPoint:
        changes: dict[str, Any] = {axis: value}
        return plan_or_reason(job, **changes)

    points = Scan(plan)
    points.plan_all(values)
    return points
