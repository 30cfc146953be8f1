"""Scan: a job planned for several values of one field, and rules that choose a value."""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from planner.ask.answer import Row
from planner.ask.plan_point import PlanPoint, plan_or_reason
from planner.choose.jobs.job_spec import JobSpec
from planner.errors import LayoutError

_FULL_RANGE = 16
_NEIGHBOURS = 3
_PARTS = 64
"""Bisection in `largest` stops at 1/64 of the value."""


@dataclass(frozen=True, slots=True)
class Scan:
    """Plan points of a job by value; each is planned once, on first access."""

    job: JobSpec
    plan: Callable[[int], PlanPoint]
    points: dict[int, PlanPoint] = field(default_factory=dict)

    def __getitem__(self, value: int) -> PlanPoint:
        """Return the plan point of a value."""
        if value not in self.points:
            self.points[value] = self.plan(value)
        return self.points[value]

    def __len__(self) -> int:
        """Number of planned values."""
        return len(self.points)

    def plan_all(self, values: Iterable[int]) -> None:
        """Plan several values."""
        for value in values:
            self[value]

    def by_value(self) -> list[tuple[int, PlanPoint]]:
        """Return values and plan points in ascending order."""
        return sorted(self.points.items())

    def fitting(self) -> list[PlanPoint]:
        """Return the plan points where something fits, by ascending value."""
        return [point for _, point in self.by_value() if point.fits]

    def values_where(self, holds: Callable[[PlanPoint], bool]) -> list[int]:
        """Return the planned values whose points satisfy a predicate, in ascending order."""
        return [value for value, point in self.by_value() if holds(point)]

    def rows(self, axis: str = "") -> list[Row]:
        """Return one row per point by ascending value; `axis` names a column for the value."""
        return [{axis: value, **p.row()} if axis else p.row() for value, p in self.by_value()]


def scan(job: JobSpec, axis: str, values: Iterable[int] = ()) -> Scan:
    """Plan a job for values of one job or workload field; an error becomes the reason."""
    points = Scan(job, lambda value: plan_or_reason(job, **{axis: value}))
    points.plan_all(values)
    return points


def node_limit(job: JobSpec, most_nodes: int | None) -> int:
    """Return the largest node count to plan; LayoutError if the machine has fewer nodes."""
    available = int(job.machine.num_nodes.value)
    if most_nodes is not None and most_nodes > available:
        raise LayoutError(
            f"most_nodes = {most_nodes} exceeds the {available} nodes of {job.machine.name}; use "
            "fewer"
        )
    return most_nodes or available


def count_range(job: JobSpec, nodes: int, most_nodes: int | None) -> range:
    """Return the node counts from `nodes` to the limit; LayoutError if there are none."""
    limit = node_limit(job, most_nodes)
    if nodes > limit:
        raise LayoutError(f"nodes = {nodes} exceeds most_nodes = {limit}; change one of them")
    return range(nodes, limit + 1)


def first_common(points: Sequence[PlanPoint]) -> PlanPoint | None:
    """Return the first point with a layout in common use, else the first; None if empty."""
    return next((point for point in points if point.common), points[0] if points else None)


def doublings(values: Sequence[int]) -> list[int]:
    """Pick the first value at or above each power of two, and the last value."""
    picked, power = set(values[-1:]), 1
    while values and power <= values[-1]:
        picked.add(values[bisect_left(values, power)])
        power *= 2
    return sorted(picked)


def smallest(values: Sequence[int], holds: Callable[[int], bool]) -> int | None:
    """Find the smallest of ascending values that satisfies a predicate; None if none was found."""
    # the predicate is not monotonic: small ranges and neighbours are tried in full
    first = next((value for value in doublings(values) if holds(value)), None)
    if first is None:
        return None
    high = values.index(first)
    if high <= _FULL_RANGE:
        return next((value for value in values[:high] if holds(value)), first)
    low = bisect_left(values, (first + 1) // 2)
    while high > low:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(values[middle]) else (middle + 1, high)
    # try all of them, because an answer shows every planned value
    below = [value for value in values[max(high - _NEIGHBOURS, 0) : high] if holds(value)]
    return below[0] if below else values[high]


def largest(start: int, limit: int, grain: int, holds: Callable[[int], bool]) -> int | None:
    """Find the largest multiple of `grain` up to `limit` that holds, by doubling and bisection."""
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
    """Find the value nearest to `target` whose rate is within `tolerance` of the highest."""
    good_rate = max(rates.values(), default=0.0) / (1 + tolerance)
    good = [value for value, rate in rates.items() if rate >= good_rate]
    return min(good, key=lambda value: (abs(value - target), value), default=None)
