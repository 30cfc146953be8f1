"""Training time: the fewest nodes for a deadline, the cheapest node count, chains of jobs."""

import math
from collections.abc import Sequence
from dataclasses import astuple
from itertools import groupby
from statistics import NormalDist
from typing import Any, Unpack

from planner.ask.answer import Row
from planner.ask.plan_point import PlanPoint, amount_of_training, needs_tokens, verb, within_days
from planner.ask.question import Findings, JobFields, question
from planner.ask.scan import doublings, node_limit, scan, smallest
from planner.choose.jobs.job_spec import JobSpec
from planner.choose.preferences import preferences
from planner.choose.verdicts.answer_lines import percent_chance
from planner.describe.machine import Machine, Queue
from planner.errors import DescriptionError, LayoutError
from planner.training.whole_training import Amount, WholeTraining
from planner.units import counted, format_amount, format_seconds, joined, parse_power

_MOST_JOBS = 100
# our choice: nobody trains in a longer chain, though short debug queues would admit it
_EVEN = 0.5
_REFINEMENTS = 2
"""Rounds of planning halfway between the cheapest node count and its planned neighbours."""
_NORMAL = NormalDist()


def late_probability(time: Amount, limit: float) -> float:
    """Probability that a log-normal time, with a side's 90 % interval, exceeds a limit [1]."""
    if math.isinf(limit):
        return 0.0
    spread = time.high / time.expected if limit > time.expected else time.expected / time.low
    deviations = math.log(limit / time.expected) / math.log(spread)
    return 1 - _NORMAL.cdf(deviations * _NORMAL.inv_cdf(0.95))


def _jobs(training: WholeTraining) -> str:
    queue = f" in {training.queue}" if training.queue else ""
    return f"in {counted(training.jobs, 'job')}{queue}"


def _time(training: WholeTraining) -> str:
    expected, low, high = map(format_seconds, astuple(training.time))
    return f"{expected} (90 % interval {low} to {high})"


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
    """Split node counts into runs with the same longest allowed job, which can slow larger ones."""
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
    def planned(self) -> str:
        return f"{len(self.points)} of {counted(len(self.counts), 'node count')} planned"

    @property
    def limit(self) -> str:
        return f"Rows that need more than {counted(self.most_jobs, 'job')} in a row are no answer."

    def accept(self, point: PlanPoint, risk: float = _EVEN) -> bool:
        """True if a training fits, in at most `most_jobs` jobs, and is late with at most `risk`."""
        if point.training is None:
            return point.fits
        return point.training.jobs <= self.most_jobs and self._late(point.training) <= risk

    def _late(self, training: WholeTraining) -> float:
        return late_probability(training.days, self.days)

    def accepted(self) -> list[PlanPoint]:
        return [point for point in self.points.fitting() if self.accept(point)]

    def fewest(self, risk: float) -> int | None:
        """Return the fewest nodes whose risk of being late is at most `risk`; None without any."""
        parts = sections(self.points.job.machine, self.counts)
        results = (smallest(part, lambda n: self.accept(self.points[n], risk)) for part in parts)
        return next((count for count in results if count is not None), None)

    def trained(self) -> dict[int, WholeTraining]:
        """Return the whole training on every planned node count where something fits."""
        return {point.nodes: point.training for point in self.points.fitting() if point.training}

    def risk(self, training: WholeTraining) -> str:
        return percent_chance(self._late(training))

    def row(self, point: PlanPoint, **columns: Any) -> Row:
        """Return a table row, with jobs and the risk to be late if the workload states tokens."""
        if (training := point.training) is None:
            return point.row(**columns)
        row: Row = {"jobs": training.jobs, "queue": training.queue}
        if not math.isinf(self.days):
            row["late_probability"] = self._late(training)
        too_many = f"{training.jobs} jobs, too many; " * (training.jobs > self.most_jobs)
        return point.row(f"{too_many}{point.reason}", **row, **columns)

    def with_more_jobs(self, below: float) -> str:
        """Name a smaller node count that is in time but needs too many jobs; empty if none."""
        for nodes, training in self.trained().items():
            is_late = self._late(training) > _EVEN
            if nodes < below and not is_late and training.jobs > self.most_jobs:
                return f"; {self.points[nodes].place} would, {_jobs(training)}, which is too many"
        return ""

    def none_accepted(self) -> str:
        """Explain why no node count is accepted."""
        trained, points = self.trained(), self.points
        if not trained:
            reason = points[max(points.points)].reason if len(points) else "no queue admits any"
            return f"{self.name} cannot be trained on {points.job.machine.name}: {reason}."
        in_time = "" if math.isinf(self.days) else f" in {within_days(self.days)}"
        short = [nodes for nodes, each in trained.items() if each.jobs <= self.most_jobs]
        fastest = min(short or trained, key=lambda nodes: trained[nodes].time.expected)
        return (
            f"No node count that was planned trains {self.name}{in_time} with at most "
            f"{counted(self.most_jobs, 'job')} in a row: the fastest, {points[fastest].place}, "
            f"takes {_time(trained[fastest])}, {_jobs(trained[fastest])}"
            f"{self.with_more_jobs(math.inf)}."
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

    Days and jobs are those of a plan: steps, starts, checkpoints and failures, in the queue
    of the longest jobs. Node counts that need too many jobs are skipped. The risk of being late
    follows from the interval of the days.
    """
    needs_tokens(job, "how long it takes")
    trainings = _Trainings(job, days, most_jobs, most_nodes)
    likely = trainings.fewest(_EVEN)
    sure = likely and trainings.fewest(late / 100)
    return Findings(
        _deadline_verdict(trainings, likely, sure, late) if likely else trainings.none_accepted(),
        [trainings.row(point) for _, point in trainings.points.by_value()],
        notes=[
            "Counted: steps, starts, checkpoints, failures; not waiting in queues.",
            f"{trainings.planned} that queues admit without a request.",
            trainings.limit
            if job.machine.scheduler.queues
            else f"{job.machine.name} lists no queues: the training is planned as one job.",
        ],
        success=likely is not None,
        values={"fewest": {"likely": likely, "sure": sure}},
    )


def _deadline_verdict(trainings: _Trainings, likely: int, sure: int | None, late: float) -> str:
    """Name the node counts that are in time with low risk, and in time at even odds."""
    trained, nodes = trainings.trained(), sure or likely
    sentence = (
        f"{trainings.points[nodes].place} {verb(nodes, 'are the fewest that train', 'trains')} "
        f"{trainings.name} within {within_days(trainings.days)}: {_time(trained[nodes])}, "
        f"{_jobs(trained[nodes])}, risk to be late {trainings.risk(trained[nodes])}"
    )
    if sure is None:
        sentence += f"; no node count that was planned has a risk of {late:g} % or less"
    elif sure != likely:
        sentence += (
            f"; {counted(likely, 'node')} {verb(likely, 'take')} {_time(trained[likely])}, risk "
            f"{trainings.risk(trained[likely])}"
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
    for part in sections(job.machine, trainings.counts):
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
        "Counted: steps, starts, checkpoints, failures; not waiting in queues."
        if job.workload.all_tokens
        else "Node-hours count steps only.",
    ]
    notes += [trainings.limit] * bool(job.workload.all_tokens)
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
    if best.training is not None:
        sentence += f", {_jobs(best.training)}"
        if not math.isinf(trainings.days):
            days = within_days(trainings.days)
            sentence += f", risk to take more than {days} {trainings.risk(best.training)}"
    sentence += f"; {best.describe()}."
    limit = (1 + preferences().tolerance) * best.node_hours
    close = [p for p in trainings.accepted() if p is not best and p.node_hours <= limit]
    tied = [point for point in close if point.safe or not best.safe]
    if not tied:
        return sentence
    most = format_amount(max(point.node_hours for point in tied))
    subject = "node takes" if [point.nodes for point in tied] == [1] else "nodes take"
    sentence += (
        f" {joined(f'{point.nodes:,}' for point in tied)} {subject} "
        f"{'up to ' * (len(tied) > 1)}{most}, within {100 * preferences().tolerance:.0f} % of it: "
        "too close for estimates to rank"
    )
    first = min(tied, key=lambda point: point.seconds)
    if first.seconds >= best.seconds:
        return f"{sentence}."
    more = 100 * (first.node_hours / best.node_hours - 1)
    return (
        f"{sentence}; {counted(first.nodes, 'node')} {verb(first.nodes, 'finish', 'finishes')} in "
        f"{format_seconds(first.seconds)} instead of {format_seconds(best.seconds)}, for "
        f"{more:.0f} % more node-hours."
    )
