"""JobChain: a training as one or more jobs in a row, under the limits of the machine's queues."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import NormalDist

from planner.ask.answer import Row
from planner.ask.plan_point import DAY_S, PlanPoint
from planner.cost.estimate import Estimate
from planner.describe.machine import Machine
from planner.emitters.batch_job import BatchJob, steps_of
from planner.emitters.queue import START_S, Slot, slot_of
from planner.units import counted

__all__ = ["JobChain", "admitted_counts", "chain_of", "sections"]

_NORMAL = NormalDist()


@dataclass(frozen=True, slots=True)
class JobChain:
    """The jobs in a row that a training takes on some nodes."""

    point: PlanPoint
    estimate: Estimate
    slot: Slot

    @property
    def starting_s(self) -> float:
        """Start-up time of all jobs [s]."""
        return self.slot.jobs * START_S

    @property
    def days(self) -> tuple[float, float, float]:
        """Days of all jobs: the estimate, and the ends of its 90 % interval."""
        seconds = self.estimate.step_time_s
        times = (seconds, *self.estimate.interval_step_time_s)
        expected, low, high = (
            (self.point.seconds * each / seconds + self.starting_s) / DAY_S for each in times
        )
        return expected, low, high

    def late_probability(self, days: float) -> float:
        """Probability that it takes longer than some days [1].

        The logarithm of the step time is normal to either side of the estimate, with the ends of
        the 90 % interval as its 5 % and 95 % quantiles. Waiting in queues and failures are left
        out. method.md#intervals.
        """
        working_s = days * DAY_S - self.starting_s
        if working_s <= 0:
            return 1.0
        if math.isinf(working_s):
            return 0.0
        seconds = self.estimate.step_time_s
        low, high = self.estimate.interval_step_time_s
        margin = math.log(working_s / self.point.seconds)
        spread = math.log(high / seconds) if margin > 0 else math.log(seconds / low)
        return 1 - _NORMAL.cdf(margin / (spread / _NORMAL.inv_cdf(0.95)))

    def describe_jobs(self) -> str:
        """Number and length of the jobs, for a sentence."""
        queue = self.slot.queue.name if self.slot.queue else ""
        if self.slot.jobs == 1:
            return f"in 1 job of {queue}" if queue else "in 1 job"
        hours = f"{self.slot.seconds / 3600:.3g} h"
        jobs = f"in {counted(self.slot.jobs, 'job')} of {hours} in a row"
        return f"{jobs} ({queue})" if queue else jobs

    def describe_days(self) -> str:
        """Days with their interval, for a sentence."""
        expected, low, high = (f"{float(f'{value:.3g}'):g}" for value in self.days)
        return f"{expected} days (90 % interval {low} to {high})"

    def row(self, days: float) -> Row:
        """A record of the table, with the risk to be late where the time limit is finite."""
        expected, low, high = self.days
        queue = self.slot.queue.name if self.slot.queue else ""
        late = {} if math.isinf(days) else {"late_probability": self.late_probability(days)}
        duration = {"days": expected, "days_low": low, "days_high": high}
        return self.point.row(**duration, jobs=self.slot.jobs, queue=queue, **late)


def chain_of(point: PlanPoint) -> JobChain | None:
    """The jobs in a row of a plan point; None where nothing fits."""
    if point.best is None or point.scenario is None:
        return None
    job = BatchJob(point.scenario, point.best, point.nodes, steps_of(point.workload))
    return JobChain(point, point.best, slot_of(job))


def admitted_counts(machine: Machine, limit: int) -> Sequence[int]:
    """Node counts that a queue admits without a request; all where no queues are known."""
    counts = range(1, limit + 1)
    if not machine.scheduler.queues:
        return counts
    queues = [q for q in machine.scheduler.queues if not q.on_request]
    return [n for n in counts if any(q.min_nodes <= n <= q.max_nodes for q in queues)]


def sections(machine: Machine, counts: Sequence[int]) -> list[Sequence[int]]:
    """Split node counts where the longest job that queues allow changes.

    More nodes may be slower to finish where only queues for short jobs admit them.
    """
    queues = [q for q in machine.scheduler.queues if not q.on_request]

    def longest_hours(count: int) -> float:
        hours = (q.max_hours for q in queues if q.min_nodes <= count <= q.max_nodes)
        return max(hours, default=math.inf)

    return [tuple(part) for _, part in groupby(counts, key=longest_hours)]
