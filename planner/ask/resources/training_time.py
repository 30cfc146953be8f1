"""Training time: the fewest nodes for a deadline, the cheapest node count, chains of jobs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import NormalDist
from typing import Any, Unpack

from planner.ask.answer import Row
from planner.ask.plan_point import (
    PlanPoint,
    amount_of_training,
    needs_tokens,
    percent,
    verb,
    with_interval,
    within_days,
)
from planner.ask.question import Findings, JobFields, question
from planner.ask.scan import doublings, node_limit, scan, smallest
from planner.choose.jobs.job_spec import JobSpec
from planner.choose.preferences import preferences
from planner.describe.machine import Machine, Queue
from planner.errors import DescriptionError, LayoutError
from planner.training.job_slot import START_S, Run, Slot, planned_steps, slot_of
from planner.training.whole_training import DAY_S
from planner.units import counted, format_amount, joined, parse_power

_MOST_JOBS = 100
# our choice: nobody trains in a longer chain, though short debug queues would admit it
_EVEN = 0.5
_REFINEMENTS = 2
"""Rounds of planning halfway between the cheapest node count and its planned neighbours."""
_NORMAL = NormalDist()


@dataclass(frozen=True, slots=True)
class JobChain:
    """Consecutive jobs that a training needs on a number of nodes under the queue limits."""

    point: PlanPoint
    slot: Slot

    @property
    def starting_s(self) -> float:
        """Start-up time of all jobs [s]."""
        return self.slot.jobs * START_S

    @property
    def days(self) -> tuple[float, float, float]:
        """Days of all jobs: the estimate, then the ends of its 90 % interval."""
        _, best = self.point.recommended()
        expected, low, high = (
            (self.point.seconds * each / best.step_time_s + self.starting_s) / DAY_S
            for each in (best.step_time_s, *best.interval_step_time_s)
        )
        return expected, low, high

    def late_probability(self, days: float) -> float:
        """Probability that the training takes longer than a number of days [1].

        The logarithm of the step time is taken as normal on each side of the estimate; the ends of
        the 90 % interval are its 5 % and 95 % quantiles. Left out: waiting in queues, failures.
        intervals.md#intervals.
        """
        working_s = days * DAY_S - self.starting_s
        if working_s <= 0 or math.isinf(working_s):
            return float(working_s <= 0)
        _, best = self.point.recommended()
        low, high = best.interval_step_time_s
        margin = math.log(working_s / self.point.seconds)
        spread = math.log(high / best.step_time_s if margin > 0 else best.step_time_s / low)
        return 1 - _NORMAL.cdf(margin / (spread / _NORMAL.inv_cdf(0.95)))

    def describe_jobs(self) -> str:
        """Return number and length of the jobs as a phrase."""
        queue, jobs = self.slot.queue.name if self.slot.queue else "", self.slot.jobs
        if jobs == 1:
            return f"in 1 job of {queue}" if queue else "in 1 job"
        row = f"in {counted(jobs, 'job')} of {self.slot.seconds / 3600:.3g} h in a row"
        return f"{row} ({queue})" if queue else row

    def describe_days(self) -> str:
        """Return the days with their interval as a phrase."""
        expected, low, high = (f"{float(f'{value:.3g}'):g}" for value in self.days)
        return f"{expected} days (90 % interval {low} to {high})"

    def row(self, days: float, **columns: Any) -> Row:
        """Return a table row, with the risk of being late if the time limit is finite."""
        expected, *ends = self.days
        queue = self.slot.queue.name if self.slot.queue else ""
        row = {**with_interval("days", expected, ends), "jobs": self.slot.jobs, "queue": queue}
        if not math.isinf(days):
            row["late_probability"] = self.late_probability(days)
        return self.point.row(**row, **columns)


def chain_of(point: PlanPoint) -> JobChain | None:
    """Return the chain of jobs of a plan point; None if nothing fits."""
    if point.best is None or point.scenario is None:
        return None
    run = Run(
        point.scenario.machine,
        point.nodes,
        planned_steps(point.workload),
        point.best.interval_step_time_s[1],
    )
    return JobChain(point, slot_of(run))


def _training_queues(machine: Machine) -> list[Queue]:
    """Return the queues that a training may use: not on request, and not for debugging."""
    queues = [q for q in machine.scheduler.queues if not q.on_request]
    return [q for q in queues if not q.debug] or queues


def admitted_counts(machine: Machine, limit: int) -> Sequence[int]:
    """Return the node counts that queues for trainings admit; all if no queue is known."""
    counts = range(1, limit + 1)
    if not machine.scheduler.queues:
        return counts
    queues = _training_queues(machine)
    return [n for n in counts if any(q.min_nodes <= n <= q.max_nodes for q in queues)]


def sections(machine: Machine, counts: Sequence[int]) -> list[Sequence[int]]:
    """Split node counts into runs with the same longest allowed job.

    More nodes may take longer to finish if only queues for short jobs admit them.
    """
    queues = _training_queues(machine)

    def longest_hours(count: int) -> float:
        hours = (q.max_hours for q in queues if q.min_nodes <= count <= q.max_nodes)
        return max(hours, default=math.inf)

    return [tuple(part) for _, part in groupby(counts, key=longest_hours)]


class _Trainings:
    """A training planned on several node counts, and its limits."""

    def __init__(
        self, job: JobSpec, days: float | None, most_jobs: int, most_nodes: int | None
    ) -> None:
        self.points, self.most_jobs = scan(job, "nodes"), most_jobs
        self.counts = admitted_counts(job.machine, node_limit(job, most_nodes))
        """Node counts that queues admit."""
        self.days = math.inf if days is None else days
        """Time limit from first job to last; infinite without a limit."""

    @property
    def name(self) -> str:
        job = self.points.job
        return f"{amount_of_training(job.workload)} of {job.model.name}"

    @property
    def sections(self) -> list[Sequence[int]]:
        return sections(self.points.job.machine, self.counts)

    @property
    def planned(self) -> str:
        return f"{len(self.points)} of {counted(len(self.counts), 'node count')} planned"

    def accept(self, point: PlanPoint, risk: float = _EVEN) -> bool:
        """True if a training fits, in at most `most_jobs` jobs, and is late with at most `risk`."""
        chain = chain_of(point)
        if chain is None or (point.workload.all_tokens and chain.slot.jobs > self.most_jobs):
            return False
        return chain.late_probability(self.days) <= risk

    def accepted(self) -> list[PlanPoint]:
        return [point for point in self.points.fitting() if self.accept(point)]

    def fewest(self, risk: float) -> int | None:
        """Return the fewest nodes whose risk of being late is at most `risk`; None without any."""
        results = (
            smallest(part, lambda n: self.accept(self.points[n], risk)) for part in self.sections
        )
        return next((count for count in results if count is not None), None)

    def chains(self) -> list[JobChain]:
        """Return the chain of jobs of every point where something fits, by ascending nodes."""
        return [chain for point in self.points.fitting() if (chain := chain_of(point))]

    def risk(self, chain: JobChain) -> str:
        return percent(chain.late_probability(self.days))

    def row(self, point: PlanPoint, **columns: Any) -> Row:
        """Return a table row, with the chain of jobs if the workload states tokens."""
        chain = chain_of(point) if point.workload.all_tokens else None
        return chain.row(self.days, **columns) if chain else point.row(**columns)

    def with_more_jobs(self, below: float) -> str:
        """Name a smaller node count that is in time but needs too many jobs; empty if none."""
        for chain in self.chains():
            in_time = chain.late_probability(self.days) <= _EVEN
            if chain.point.nodes < below and in_time and chain.slot.jobs > self.most_jobs:
                return f"; {chain.point.place} would, {chain.describe_jobs()}, which is too many"
        return ""

    def none_accepted(self) -> str:
        """Explain why no node count is accepted."""
        chains, points = self.chains(), self.points
        if not chains:
            reason = points[max(points.points)].reason if len(points) else "no queue admits any"
            return f"{self.name} cannot be trained on {points.job.machine.name}: {reason}."
        in_time = "" if math.isinf(self.days) else f" in {within_days(self.days)}"
        short = [chain for chain in chains if chain.slot.jobs <= self.most_jobs]
        fastest = min(short or chains, key=lambda chain: chain.days[0])
        return (
            f"No node count that was planned trains {self.name}{in_time} with at most "
            f"{counted(self.most_jobs, 'job')} in a row: the fastest, {fastest.point.place}, takes "
            f"{fastest.describe_days()}, {fastest.describe_jobs()}{self.with_more_jobs(math.inf)}."
        )


@question
def deadline(
    job: JobSpec,
    *,
    days: float,
    late: float = 5.0,
    most_jobs: int = _MOST_JOBS,
    most_nodes: int | None = None,
    **_: Unpack[JobFields],
) -> Findings:
    """Find the fewest nodes that train the workload's tokens in a number of days, job after job.

    Job length is the limit of the shortest queue that holds the whole training, else of the longest
    queue; each job takes ten minutes to start. Node counts that need too many jobs are skipped. The
    risk of being late follows from the interval of the step time.
    """
    needs_tokens(job, "how long it takes")
    trainings = _Trainings(job, days, most_jobs, most_nodes)
    likely = trainings.fewest(_EVEN)
    sure = likely and trainings.fewest(late / 100)
    return Findings(
        _deadline_verdict(trainings, likely, sure, late) if likely else trainings.none_accepted(),
        [trainings.row(point) for _, point in trainings.points.by_value()],
        notes=[
            "Not counted: waiting in queues, failures, checkpoints, evaluation.",
            f"{trainings.planned} that queues admit without a request.",
            f"At most {counted(most_jobs, 'job')} in a row."
            if job.machine.scheduler.queues
            else f"{job.machine.name} lists no queues: the training is planned as one job.",
        ],
        success=likely is not None,
        values={"fewest": {"likely": likely, "sure": sure}},
    )


def _deadline_verdict(trainings: _Trainings, likely: int, sure: int | None, late: float) -> str:
    """Name the node counts that are in time with low risk, and in time at even odds."""
    chains = {chain.point.nodes: chain for chain in trainings.chains()}
    best, even = chains[sure or likely], chains[likely]
    sentence = (
        f"{best.point.place} {verb(best.point.nodes, 'are the fewest that train', 'trains')} "
        f"{trainings.name} within {within_days(trainings.days)}: {best.describe_days()}, "
        f"{best.describe_jobs()}, risk to be late {trainings.risk(best)}"
    )
    if sure is None:
        sentence += f"; no node count that was planned has a risk of {late:g} % or less"
    elif sure != likely:
        sentence += (
            f"; {counted(likely, 'node')} {verb(likely, 'take')} {even.describe_days()}, risk "
            f"{trainings.risk(even)}"
        )
    return f"{sentence}{trainings.with_more_jobs(likely)}."


@question
def cheapest(
    job: JobSpec,
    *,
    days: float | None = None,
    price_per_node_hour: float | None = None,
    node_power: str | None = None,
    most_jobs: int = _MOST_JOBS,
    most_nodes: int | None = None,
    **_: Unpack[JobFields],
) -> Findings:
    """Find the node count with the fewest node-hours, and their price and energy.

    Price and energy are node-hours times the user's own figures, so one node count minimises all
    three. With a time limit, only node counts that are in time at even odds are considered. If
    the workload states tokens, node counts that need too many jobs are skipped.
    """
    if days is not None:
        needs_tokens(job, "whether it is done in time")
    watts = _watts(node_power)
    trainings = _Trainings(job, days, most_jobs, most_nodes)
    points = trainings.points
    for part in trainings.sections:
        points.plan_all(doublings(part))
    for _round in range(_REFINEMENTS):
        _refine(trainings)
    rows = {}
    for count, point in points.by_value():
        charges = {}
        if point.fits and price_per_node_hour is not None:
            charges["price"] = point.node_hours * price_per_node_hour
        if point.fits and watts is not None:
            charges["energy_kWh"] = point.node_hours * watts / 1000
        rows[count] = trainings.row(point, **charges)
    notes = [
        f"{trainings.planned}: doublings, and between the cheapest and its neighbours.",
        "Node-hours count steps only: no waiting, failures, checkpoints or evaluation.",
    ]
    if job.workload.all_tokens:
        notes.append(
            f"At most {counted(most_jobs, 'job')} in a row; days count ten minutes for "
            "each to start."
        )
    best = _cheapest(trainings)
    return Findings(
        _fewest_hours(trainings, best, rows[best.nodes]) if best else trainings.none_accepted(),
        list(rows.values()),
        notes,
        success=best is not None,
    )


def _watts(power: str | None) -> float | None:
    try:
        return None if power is None else parse_power(power)
    except DescriptionError as error:
        raise LayoutError(f"node_power = {error}") from None


def _cheapest(trainings: _Trainings) -> PlanPoint | None:
    """Pick the accepted point with the fewest node-hours, safe ones first; ties: fewer nodes."""
    accepted = trainings.accepted()
    safe = [point for point in accepted if point.safe] or accepted
    return min(safe, key=lambda point: (point.node_hours, point.nodes), default=None)


def _refine(trainings: _Trainings) -> None:
    """Plan halfway between the cheapest count and each of its planned neighbours."""
    best, planned = _cheapest(trainings), sorted(trainings.points.points)
    if best is None:
        return
    place = planned.index(best.nodes)
    for neighbour in planned[max(place - 1, 0) : place + 2]:
        low, high = sorted((neighbour, best.nodes))
        between = [n for n in trainings.counts if low < n < high]
        trainings.points.plan_all(between[len(between) // 2 :][:1])


def _fewest_hours(trainings: _Trainings, best: PlanPoint, row: Row) -> str:
    """Name the cheapest node count, its cost, and node counts that cost about as much."""
    low, high = format_amount(row["node_hours_low"]), format_amount(row["node_hours_high"])
    sentence = (
        f"{best.place} {verb(best.nodes, 'take')} the fewest node-hours for {trainings.name}: "
        f"{format_amount(best.node_hours)} (90 % interval {low} to {high})"
    )
    sentence += f", price {format_amount(row['price'])}" if "price" in row else ""
    sentence += f", {format_amount(row['energy_kWh'])} kWh" if "energy_kWh" in row else ""
    chain = chain_of(best)
    if chain is not None and best.workload.all_tokens:
        sentence += f", {chain.describe_jobs()}"
        if not math.isinf(trainings.days):
            days = within_days(trainings.days)
            sentence += f", risk to take more than {days} {trainings.risk(chain)}"
    sentence += f"; {best.describe()}."
    limit = (1 + preferences().tolerance) * best.node_hours
    about_as_cheap = [p for p in trainings.accepted() if p is not best and p.node_hours <= limit]
    tied = [point for point in about_as_cheap if point.safe or not best.safe]
    if not tied:
        return sentence
    most = format_amount(max(point.node_hours for point in tied))
    subject = "node takes" if [point.nodes for point in tied] == [1] else "nodes take"
    return (
        f"{sentence} {joined(f'{point.nodes:,}' for point in tied)} {subject} "
        f"{'up to ' * (len(tied) > 1)}{most}, within {100 * preferences().tolerance:.0f} % of it: "
        "too close for estimates to rank."
    )
