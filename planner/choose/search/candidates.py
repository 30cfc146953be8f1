"""Candidates: the layouts of one framework with memory and step time, and their order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from planner.choose.preferences import preferences
from planner.cost.arrays import Float, Int, Mask, distinct
from planner.cost.estimate import Estimate, Estimates, estimate_times
from planner.cost.memory.footprint import Footprints
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.cost.uncertainty import exceeding_probability
from planner.errors import LayoutError


@dataclass(frozen=True, slots=True)
class Candidates:
    """Layouts of one framework, with the memory of all and the step time of those that fit."""

    scenario: Scenario
    footprints: Footprints
    estimates: Estimates
    """Estimates of the layouts that fit, in the same order."""
    dropped: dict[str, int]
    """Number of rejected combinations, by reason."""
    too_large: int = 0
    """Further candidates, whose lower bound of memory exceeds the device."""
    too_slow: int = 0
    """Further candidates, slower than others of their class by a lower bound of step time."""
    top_time_s: float = np.inf
    """Step time of the slowest strategy that an answer lists; infinite without pruning [s]."""

    @property
    def num_decided(self) -> int:
        """Candidates that were estimated in full or ruled out by a bound."""
        return len(self.footprints) + self.too_large + self.too_slow

    @classmethod
    def joined(cls, parts: Sequence[Candidates]) -> Candidates:
        """Join the layouts of one framework's candidates; other fields come from the first part."""
        if len(parts) == 1:
            return parts[0]
        return replace(
            parts[0],
            footprints=Footprints.joined([part.footprints for part in parts]),
            estimates=Estimates.joined([part.estimates for part in parts]),
        )

    def reordered(self, rows: Int) -> Candidates:
        """Put the layouts in another order."""
        place = np.cumsum(self.footprints.fits) - 1
        fitting = place[rows[self.footprints.fits[rows]]]
        return replace(
            self, footprints=self.footprints.take(rows), estimates=self.estimates.take(fitting)
        )

    def rows(self, rows: Int) -> list[Estimate]:
        """Estimates of the layouts at `rows`, whether they fit or not."""
        fits, place = self.footprints.fits, np.cumsum(self.footprints.fits) - 1
        unfitting = self.footprints.take(rows[~fits[rows]])
        timed = estimate_times(self.scenario, unfitting) if len(unfitting) else self.estimates
        fitting = iter(self.estimates.rows(place[rows[fits[rows]]]))
        timed_rows = iter(timed.rows(range(len(unfitting))))
        return [next(fitting if each else timed_rows) for each in fits[rows].tolist()]

    def only(self, holds: Callable[[Layouts], Mask]) -> Candidates:
        """Keep the candidates whose layouts meet a condition."""
        rows, fitting = (
            np.flatnonzero(holds(part.layouts)) for part in (self.footprints, self.estimates)
        )
        return replace(
            self, footprints=self.footprints.take(rows), estimates=self.estimates.take(fitting)
        )

    def of_job(self, scenario: Scenario, world: int) -> Candidates:
        """Keep the candidates of one of several jobs that were searched together."""
        batch = scenario.workload.global_batch
        part = self.only(lambda x: (x.world == world) & (x.global_batch == batch))
        estimates = part.estimates.of_scenario(scenario)
        return replace(part, scenario=scenario, estimates=estimates, dropped={})

    def least_of_each_job(self, values: Float) -> Float:
        """For each candidate, the least value among the candidates of its job."""
        first, job = _job_numbers(self.footprints.layouts)
        return _least(values, job, len(first))[job]

    def fastest_s(self, fits: Mask, layouts: Layouts) -> Float:
        """For each layout, the shortest step time of estimates of its job that `fits` [s]."""
        jobs = Layouts.joined([self.estimates.layouts, layouts])
        first, job = _job_numbers(jobs)
        times_s = np.where(fits, self.estimates.step_time_s, np.inf)
        return _least(times_s, job[: len(times_s)], len(first))[job[len(times_s) :]]

    def nothing_fits(self) -> Mask:
        """True for the candidates of jobs without a layout that fits."""
        fits = self.footprints.fits
        return self.least_of_each_job(np.where(fits, 0.0, 1.0)) > 0


def _job_numbers(layouts: Layouts) -> tuple[Int, Int]:
    """Number the jobs: those that are searched together differ in ranks or batch."""
    return distinct(layouts.world, layouts.global_batch)


def _least(values: Float, groups: Int, count: int) -> Float:
    least: Float = np.full(count, np.inf)
    np.minimum.at(least, groups, values)
    return least


def fits_safely(scenario: Scenario, footprints: Footprints) -> Mask:
    """True for layouts that fit and are unlikely to run out of memory."""
    room = footprints.device_limit_bytes / np.maximum(footprints.memory_bytes, 1.0)
    risk = exceeding_probability(scenario, footprints.layouts, room)
    return np.asarray(footprints.fits & (risk <= preferences().risk))


def rank_fastest(estimates: Estimates, count: int | None = None) -> Int:
    """Indices of the `count` fastest that fit, by time (rounded to 1 ns), memory, then degrees."""
    if count is not None and count < 0:
        raise LayoutError(f"top = {count} must not be negative; give 0 or more")
    fitting = np.flatnonzero(estimates.fits)
    time = np.round(estimates.step_time_s[fitting], 9)
    if count and len(fitting) > count:
        # nothing slower than the count-th fastest can be among the first
        is_first = time <= np.partition(time, count - 1)[count - 1]
        fitting, time = fitting[is_first], time[is_first]
    layouts = estimates.layouts
    degrees = [getattr(layouts, field.name)[fitting] for field in reversed(fields(layouts))]
    ranked = np.lexsort([*degrees, np.round(estimates.memory_bytes[fitting]), time])
    return fitting[ranked][:count]
