"""Deadline: the nodes with which a training is done in time, under the queues' limits."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import NormalDist
from typing import Annotated, Unpack

from planner.ask.answer import Answer, Row
from planner.ask.asked import Asked, JobFields, Points, asked_of
from planner.ask.fewest import doublings, fewest
from planner.ask.option import Option, checked
from planner.ask.point import DAY_S, Point, in_days, on_nodes, percent
from planner.ask.resources.nodes import MostNodes, up_to
from planner.describe.machine import Machine
from planner.describe.model.model import Model
from planner.emitters.batch_job import BatchJob, steps_of
from planner.emitters.queue import START_S, Slot, slot_of
from planner.units import counted, format_amount

__all__ = [
    "MOST_JOBS",
    "Days",
    "Finished",
    "MostJobs",
    "admitted",
    "deadline",
    "finished",
    "searched_all",
    "sections",
]

Days = Annotated[float, Option("Days from the first job to the last.", above=0, metavar="DAYS")]
MostJobs = Annotated[int, Option("Most jobs in a row that are taken.", least=1)]
MOST_JOBS = 100
# ours: a row of more is no way to train, though short queues for debugging would admit it
_MOST_LATE = 5.0
_EVEN = 0.5
_NORMAL = NormalDist()


@dataclass(frozen=True, slots=True)
class Finished:
    """A training on some nodes, job after job."""

    point: Point
    slot: Slot

    @property
    def starting_s(self) -> float:
        """What all jobs of the row take to start [s]."""
        return self.slot.jobs * START_S

    @property
    def days(self) -> tuple[float, float, float]:
        """Days of all jobs at the estimate, and between which 90 % of runs are."""
        best = self.point.best
        assert best is not None
        low, high = best.interval_step_time_s
        each = (best.step_time_s, low, high)
        expected, least, most = (
            (self.point.seconds * s / best.step_time_s + self.starting_s) / DAY_S for s in each
        )
        return expected, least, most

    def late(self, days: float) -> float:
        """Chance that it takes longer than some days [1].

        Counted: the interval of the step time, as a normal distribution of its logarithm to either
        side whose 5 % and 95 % quantiles are the interval's ends. Left out: waiting in queues,
        failures. method.md#intervals.
        """
        best, left = self.point.best, days * DAY_S - self.starting_s
        assert best is not None
        if left <= 0:
            return 1.0
        low, high = best.interval_step_time_s
        room = math.log(left / self.point.seconds)
        side = math.log(high / best.step_time_s) if room > 0 else math.log(best.step_time_s / low)
        return 1 - _NORMAL.cdf(room / (side / _NORMAL.inv_cdf(0.95)))

    @property
    def jobs(self) -> str:
        """In how many jobs, for a sentence."""
        queue = f" of {self.slot.queue.name}" if self.slot.queue else ""
        if self.slot.jobs == 1:
            return f"in 1 job{queue}"
        each = f"{self.slot.seconds / 3600:.3g} h"
        return (
            f"in {counted(self.slot.jobs, 'job')} of {each} in a row{queue and f' ({queue[4:]})'}"
        )

    def row(self, days: float | None) -> Row:
        """The record of a table."""
        expected, least, most = self.days
        row = {**self.point.row(), "days": expected, "days_low": least, "days_high": most}
        reason = row.pop("reason")
        queue = self.slot.queue.name if self.slot.queue else ""
        row |= {"jobs": self.slot.jobs, "queue": queue}
        chance = {} if days is None else {"late_probability": self.late(days)}
        return {**row, **chance, "reason": reason}


def finished(point: Point) -> Finished | None:
    """The jobs in a row of a point, where something fits."""
    if point.best is None or point.scenario is None:
        return None
    job = BatchJob(point.scenario, point.best, point.nodes, steps_of(point.workload))
    return Finished(point, slot_of(job))


def admitted(asked: Asked, limit: int) -> Sequence[int]:
    """Node counts that a queue of the machine admits without a request; all where none is known."""
    queues = [q for q in asked.machine.scheduler.queues if not q.on_request]
    counts = range(1, limit + 1)
    if not asked.machine.scheduler.queues:
        return counts
    return [n for n in counts if any(q.min_nodes <= n <= q.max_nodes for q in queues)]


def sections(asked: Asked, counts: Sequence[int]) -> list[Sequence[int]]:
    """Node counts in a row for which the longest job is as long: what is kept in time on some may
    not be on more, where queues for these are shorter.
    """
    queues = [q for q in asked.machine.scheduler.queues if not q.on_request]

    def hours(count: int) -> float:
        admit = (q.max_hours for q in queues if q.min_nodes <= count <= q.max_nodes)
        return max(admit, default=math.inf)

    return [tuple(part) for _, part in groupby(counts, key=hours)]


def _first(parts: Sequence[Sequence[int]], holds: Callable[[int], bool]) -> int | None:
    """The fewest nodes of the first section that has some for which something holds."""
    found = (fewest(part, holds) for part in parts)
    return next((count for count in found if count is not None), None)


@checked
def deadline(
    model: str | Model,
    machine: str | Machine,
    *,
    days: Days,
    late: Annotated[
        float, Option("Percent of chance to be late that is taken.", least=0.1, most=50)
    ] = _MOST_LATE,
    most_jobs: MostJobs = MOST_JOBS,
    most_nodes: MostNodes = None,
    **job: Unpack[JobFields],
) -> Answer:
    """The fewest nodes that train the workload's tokens in some days, job after job.

    Jobs are as long as the shortest queue that holds the run, or the longest one, allows; each
    takes ten minutes to start. Nodes that only queues for short jobs admit may need hundreds of
    them: more than `most_jobs` are not taken. The chance to be late is that of the step time's
    interval.

    >>> import planner
    >>> job = planner.Workload(sequence_length=1024, global_batch=64, tokens=1e9)
    >>> planner.ask.deadline("gpt2", "polaris", days=1, workload=job, most_nodes=2).found
    True
    """
    asked = asked_of(model, machine, job)
    asked.needs_tokens("how long it takes")
    counts, points = admitted(asked, up_to(asked, most_nodes)), Points(asked)

    def in_time(count: int, chance: float) -> bool:
        run = finished(points(count))
        return run is not None and run.slot.jobs <= most_jobs and run.late(days) <= chance

    parts = sections(asked, counts)
    likely = _first(parts, lambda count: in_time(count, _EVEN))
    sure = likely and _first(parts, lambda count: in_time(count, late / 100))
    rows = [
        run.row(days) if (run := finished(point)) else point.row()
        for _, point in sorted(points.known.items())
    ]
    return asked.answer(
        "deadline",
        _Verdict(points, counts, days, late, most_jobs).said(likely, sure),
        rows,
        found=likely is not None,
        notes=_notes(asked, len(points.known), len(counts), most_jobs),
        days=days,
        late=late,
        most_jobs=most_jobs,
        most_nodes=most_nodes,
        fewest={"likely": likely, "sure": sure},
    )


@dataclass(frozen=True, slots=True)
class _Verdict:
    """What is said of a deadline."""

    points: Points
    counts: Sequence[int]
    days: float
    late: float
    most_jobs: int

    def said(self, likely: int | None, sure: int | None) -> str:
        """The answer: the nodes that are surely in time, and those that are as likely as not."""
        if likely is None:
            return self._none()
        said = self._trained(sure or likely)
        if sure is None:
            said += f"; no number that was searched is late with {self.late:g} % or less"
        elif sure != likely:
            run = self._run(likely)
            said += f"; {counted(likely, 'node')} would do in {_days(run)}, late with "
            said += percent(run.late(self.days))
        return f"{said}{self._in_more_jobs(likely)}."

    def _in_more_jobs(self, least: int | None) -> str:
        """Fewer nodes that would do it in more jobs than are taken; empty where none would."""
        runs = [run for point in self.points.fitting if (run := finished(point))]
        able = [run for run in runs if run.late(self.days) <= _EVEN]
        able = [run for run in able if run.slot.jobs > self.most_jobs]
        able = [run for run in able if least is None or run.point.nodes < least]
        if not able:
            return ""
        run = min(able, key=lambda run: run.point.nodes)
        return f"; {on_nodes(run.point)} would, {run.jobs}, more than most_jobs"

    def _run(self, count: int) -> Finished:
        run = finished(self.points(count))
        assert run is not None
        return run

    def _trained(self, count: int) -> str:
        """How a number of nodes does it."""
        run, one = self._run(count), count == 1
        return (
            f"{on_nodes(run.point)} train{'s' * one} {self._what} in {_days(run)}, {run.jobs}, "
            f"and {'is' if one else 'are'} late for {in_days(self.days)} with a chance of "
            f"{percent(run.late(self.days))}"
        )

    @property
    def _what(self) -> str:
        asked = self.points.asked
        return f"{format_amount(asked.workload.all_tokens)} tokens of {asked.model.name}"

    def _none(self) -> str:
        """Why no number of nodes does it."""
        runs = [run for point in self.points.fitting if (run := finished(point))]
        if not runs:
            counts = self.counts
            reason = self.points(counts[-1]).reason if counts else "no queue admits any"
            return f"{self._what} cannot be trained on {self.points.asked.machine.name}: {reason}."
        able = [run for run in runs if run.slot.jobs <= self.most_jobs]
        said = (
            f"No number of nodes that was searched trains {self._what} in {in_days(self.days)}, in "
            f"at most {counted(self.most_jobs, 'job')} in a row"
        )
        best = min(able or runs, key=lambda run: run.days[0])
        said += f": the fastest, {on_nodes(best.point)}, takes {_days(best)}, {best.jobs}"
        return f"{said}{self._in_more_jobs(None)}."


def _days(run: Finished) -> str:
    expected, least, most = (f"{float(f'{value:.3g}'):g}" for value in run.days)
    return f"{expected} days (90 % between {least} and {most})"


def _notes(asked: Asked, tried: int, counts: int, most_jobs: int) -> list[str]:
    lines = [
        "Not counted: waiting in queues, failures, checkpoints, evaluation.",
        f"{tried} of {counted(counts, 'node count')} searched that queues admit without a request.",
    ]
    if not asked.machine.scheduler.queues:
        lines.append(f"No queues of {asked.machine.name} are known: one job is taken to last.")
    else:
        lines.append(f"At most {counted(most_jobs, 'job')} in a row are taken (most_jobs).")
    return lines


def searched_all(points: Points, counts: Sequence[int]) -> None:
    """Work out the doublings of some node counts, section by section."""
    for part in sections(points.asked, counts):
        for count in doublings(part):
            points(count)
