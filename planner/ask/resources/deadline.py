"""Deadline: the nodes with which a training is done in time, under the queues' limits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
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

__all__ = ["Days", "Finished", "admitted", "deadline", "finished"]

Days = Annotated[float, Option("Days from the first job to the last.", above=0, metavar="DAYS")]
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
    if point.best is None or point.question is None:
        return None
    job = BatchJob(point.question, point.best, point.nodes, steps_of(point.workload))
    return Finished(point, slot_of(job))


def admitted(asked: Asked, limit: int) -> Sequence[int]:
    """Node counts that a queue of the machine admits without a request; all where none is known."""
    queues = [q for q in asked.machine.scheduler.queues if not q.on_request]
    counts = range(1, limit + 1)
    if not asked.machine.scheduler.queues:
        return counts
    return [n for n in counts if any(q.min_nodes <= n <= q.max_nodes for q in queues)]


@checked
def deadline(
    model: str | Model,
    machine: str | Machine,
    *,
    days: Days,
    late: Annotated[
        float, Option("Percent of chance to be late that is taken.", least=0.1, most=50)
    ] = _MOST_LATE,
    most_jobs: Annotated[
        int | None,
        Option("Most jobs in a row that are taken; any number where none is given.", least=1),
    ] = None,
    most: MostNodes = None,
    **job: Unpack[JobFields],
) -> Answer:
    """The fewest nodes that train the workload's tokens in some days, job after job.

    Jobs are as long as the shortest queue that holds the run, or the longest one, allows; each
    takes ten minutes to start. The chance to be late is that of the step time's interval.

    >>> import planner
    >>> job = planner.Workload(sequence_length=1024, global_batch=64, tokens=1e9)
    >>> planner.ask.deadline("gpt2", "polaris", days=1, workload=job, most=2).found
    True
    """
    asked = asked_of(model, machine, job)
    asked.needs_tokens("how long it takes")
    counts, points = admitted(asked, up_to(asked, most)), Points(asked)

    def in_time(count: int, chance: float) -> bool:
        run = finished(points(count))
        enough = run is not None and (most_jobs is None or run.slot.jobs <= most_jobs)
        return run is not None and enough and run.late(days) <= chance

    likely = fewest(counts, lambda count: in_time(count, _EVEN))
    sure = likely and fewest(counts, lambda count: in_time(count, late / 100))
    rows = [
        run.row(days) if (run := finished(point)) else point.row()
        for _, point in sorted(points.known.items())
    ]
    return asked.answer(
        "deadline",
        _verdict(points, counts, days, late, likely, sure),
        rows,
        found=likely is not None,
        notes=_notes(asked, len(points.known), len(counts)),
        days=days,
        late=late,
        most_jobs=most_jobs,
        most=most,
        fewest={"likely": likely, "sure": sure},
    )


def _verdict(
    points: Points,
    counts: Sequence[int],
    days: float,
    late: float,
    likely: int | None,
    sure: int | None,
) -> str:
    asked = points.asked
    what = f"{format_amount(asked.workload.all_tokens)} tokens of {asked.model.name}"
    if likely is None:
        runs = [run for point in points.fitting if (run := finished(point))]
        if not runs:
            reason = points(counts[-1]).reason if counts else "no queue admits any"
            return f"{what} cannot be trained on {asked.machine.name}: {reason}."
        best = min(runs, key=lambda run: run.days[0])
        return (
            f"No number of nodes that was searched trains {what} in {in_days(days)}: the fastest, "
            f"{on_nodes(best.point)}, takes {_days(best)}, in {counted(best.slot.jobs, 'job')}."
        )
    run = finished(points(likely))
    assert run is not None
    said = (
        f"{on_nodes(run.point)} train {what} in {_days(run)}, in "
        f"{counted(run.slot.jobs, 'job')} in a row, and are late for {in_days(days)} with a chance "
        f"of {percent(run.late(days))}"
    )
    if sure == likely:
        return f"{said}."
    if sure is None:
        return f"{said}; no number that was searched is late with less than {late:g} %."
    surer = finished(points(sure))
    assert surer is not None
    return f"{said}; {counted(sure, 'node')} ({_days(surer)}) with {percent(surer.late(days))}."


def _days(run: Finished) -> str:
    expected, least, most = (f"{float(f'{value:.3g}'):g}" for value in run.days)
    return f"{expected} days (90 % between {least} and {most})"


def _notes(asked: Asked, tried: int, counts: int) -> list[str]:
    lines = [
        "Not counted: waiting in queues, failures, checkpoints, evaluation.",
        f"{tried} of {counted(counts, 'node count')} searched that queues admit without a request.",
    ]
    if not asked.machine.scheduler.queues:
        lines.append(f"No queues of {asked.machine.name} are known: one job is taken to last.")
    return lines


def searched_all(points: Points, counts: Sequence[int]) -> None:
    """Work out the doublings of some node counts."""
    for count in doublings(counts):
        points(count)
