"""Training time: the fewest nodes for a deadline, and the node count that costs least."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Unpack

from planner.ask.answer import Row
from planner.ask.option import MostNodes, Option
from planner.ask.plan_point import NO_TOKENS_STEPS, PlanPoint
from planner.ask.question import Findings, JobFields, needs_tokens, question
from planner.ask.resources.job_chain import (
    JobChain,
    admitted_counts,
    chain_of,
    sections,
)
from planner.ask.resources.node_counts import node_limit
from planner.ask.rules import doublings, smallest
from planner.ask.scan import Scan, scan
from planner.ask.sentences import percent, verb, within_days
from planner.choose.jobs.job_spec import JobSpec
from planner.choose.preferences import preferences
from planner.describe.workload import Workload
from planner.errors import DescriptionError, LayoutError
from planner.units import counted, format_amount, joined, parse_power

__all__ = ["amount_of_training", "cheapest", "deadline"]

MostJobs = Annotated[int, Option("Largest number of jobs in a row.", least=1)]
_MOST_JOBS = 100
# ours: nobody trains in a longer row, though short debug queues would admit it
_EVEN = 0.5
_REFINEMENTS = 2
"""Rounds of looking halfway between the cheapest count and its planned neighbours."""


def amount_of_training(workload: Workload) -> str:
    """Name the tokens or steps that a duration is for."""
    if workload.all_tokens:
        return f"{format_amount(workload.all_tokens)} tokens"
    return f"{NO_TOKENS_STEPS:,} steps"


@dataclass(frozen=True, slots=True)
class _Limits:
    """Limits of a training: days from first job to last, and jobs in a row."""

    days: float
    """Infinite where there is no time limit."""
    most_jobs: int

    def accept(self, point: PlanPoint, risk: float = _EVEN) -> bool:
        """True if a training fits, in few enough jobs, and its risk to be late is low enough."""
        chain = chain_of(point)
        if chain is None or (point.workload.all_tokens and chain.slot.jobs > self.most_jobs):
            return False
        return chain.late_probability(self.days) <= risk

    def risk(self, chain: JobChain) -> str:
        """The risk that jobs in a row are late, for a sentence."""
        return percent(chain.late_probability(self.days))

    def row(self, point: PlanPoint) -> Row:
        """A record, with the jobs in a row where the workload states tokens."""
        chain = chain_of(point) if point.workload.all_tokens else None
        return point.row() if chain is None else chain.row(self.days)


def _chains(points: Scan) -> list[JobChain]:
    """Jobs in a row of every point where something fits, by rising nodes."""
    return [chain for point in points.fitting() if (chain := chain_of(point))]


def _none_accepted(job: JobSpec, points: Scan, limits: _Limits) -> str:
    """Say why no node count is accepted."""
    training = f"{amount_of_training(job.workload)} of {job.model.name}"
    chains = _chains(points)
    if not chains:
        reason = points[max(points.points)].reason if len(points) else "no queue admits any"
        return f"{training} cannot be trained on {job.machine.name}: {reason}."
    in_time = "" if math.isinf(limits.days) else f" in {within_days(limits.days)}"
    accepted = [chain for chain in chains if chain.slot.jobs <= limits.most_jobs]
    fastest = min(accepted or chains, key=lambda chain: chain.days[0])
    return (
        f"No node count that was planned trains {training}{in_time} with at most "
        f"{counted(limits.most_jobs, 'job')} in a row: the fastest, {fastest.point.place}, takes "
        f"{fastest.describe_days()}, {fastest.describe_jobs()}"
        f"{_with_more_jobs(chains, limits, math.inf)}."
    )


@question
def deadline(
    job: JobSpec,
    *,
    days: Annotated[float, Option("Days from the first job to the last.", above=0, metavar="DAYS")],
    late: Annotated[
        float, Option("Accepted risk to be late, in percent.", least=0.1, most=50)
    ] = 5.0,
    most_jobs: MostJobs = _MOST_JOBS,
    most_nodes: MostNodes = None,
    **_: Unpack[JobFields],
) -> Findings:
    """Find the fewest nodes that train the workload's tokens in some days, job after job.

    A job is as long as the shortest queue that holds the training, or the longest queue, allows;
    each takes ten minutes to start. Node counts that need more than `most_jobs` jobs are passed
    over. The risk to be late follows from the interval of the step time.
    """
    needs_tokens(job, "how long it takes")
    counts = admitted_counts(job.machine, node_limit(job, most_nodes))
    points = scan(job, "nodes")
    limits = _Limits(days, most_jobs)

    def fewest(risk: float) -> int | None:
        parts = sections(job.machine, counts)
        results = (smallest(part, lambda n: limits.accept(points[n], risk)) for part in parts)
        return next((count for count in results if count is not None), None)

    likely = fewest(_EVEN)
    sure = likely and fewest(late / 100)
    return Findings(
        _deadline_verdict(job, points, limits, likely, sure, late),
        [limits.row(point) for _, point in points.by_value()],
        notes=[
            "Not counted: waiting in queues, failures, checkpoints, evaluation.",
            f"{len(points)} of {counted(len(counts), 'node count')} planned that queues admit "
            "without a request.",
            f"At most {counted(most_jobs, 'job')} in a row (most_jobs)."
            if job.machine.scheduler.queues
            else f"No queues of {job.machine.name} are known: one job takes all of it.",
        ],
        success=likely is not None,
        values={"fewest": {"likely": likely, "sure": sure}},
    )


def _deadline_verdict(
    job: JobSpec,
    points: Scan,
    limits: _Limits,
    likely: int | None,
    sure: int | None,
    late: float,
) -> str:
    """Name the node counts that are surely in time, and in time at even odds."""
    chains = {chain.point.nodes: chain for chain in _chains(points)}
    if likely is None:
        return _none_accepted(job, points, limits)
    best = chains[sure or likely]
    sentence = (
        f"{best.point.place} {verb(best.point.nodes, 'are the fewest that train', 'trains')} "
        f"{amount_of_training(job.workload)} of {job.model.name} within "
        f"{within_days(limits.days)}: {best.describe_days()}, {best.describe_jobs()}, risk to be "
        f"late {limits.risk(best)}"
    )
    if sure is None:
        sentence += f"; no node count that was planned has a risk of {late:g} % or less"
    elif sure != likely:
        chain = chains[likely]
        sentence += (
            f"; {counted(likely, 'node')} {verb(likely, 'take')} {chain.describe_days()}, risk "
            f"{limits.risk(chain)}"
        )
    return f"{sentence}{_with_more_jobs(chains.values(), limits, likely)}."


def _with_more_jobs(chains: Iterable[JobChain], limits: _Limits, below: float) -> str:
    """Name fewer nodes that are in time with too many jobs; empty if there are none."""
    for chain in chains:
        in_time = chain.late_probability(limits.days) <= _EVEN
        if chain.point.nodes < below and in_time and chain.slot.jobs > limits.most_jobs:
            return f"; {chain.point.place} would, {chain.describe_jobs()}, more than most_jobs"
    return ""


@question
def cheapest(
    job: JobSpec,
    *,
    days: Annotated[
        float | None,
        Option("Time limit in days, kept at even odds.", above=0, metavar="DAYS"),
    ] = None,
    price_per_node_hour: Annotated[
        float | None, Option("Price of a node-hour, in any currency.", least=0)
    ] = None,
    node_power: Annotated[
        str | None, Option("Power draw of a node in training, such as 2.5kW.", metavar="POWER")
    ] = None,
    most_jobs: MostJobs = _MOST_JOBS,
    most_nodes: MostNodes = None,
    **_: Unpack[JobFields],
) -> Findings:
    """Find the node count with the fewest node-hours, and their price and energy.

    Price and energy are node-hours times the user's own figures, so one node count minimises all
    three. With `days`, only node counts that are in time at even odds count. Where the workload
    states tokens, node counts that need more jobs in a row than `most_jobs` are passed over.
    """
    if days is not None:
        needs_tokens(job, "whether it is done in time")
    limits = _Limits(math.inf if days is None else days, most_jobs)
    watts = _watts(node_power)
    counts = admitted_counts(job.machine, node_limit(job, most_nodes))
    points = scan(job, "nodes")
    for part in sections(job.machine, counts):
        points.plan_all(doublings(part))
    for _round in range(_REFINEMENTS):
        _refine(points, counts, _cheapest(points, limits))
    best = _cheapest(points, limits)
    rows = {}
    for count, point in points.by_value():
        rows[count] = row = limits.row(point)
        reason = row.pop("reason")
        if point.fits and price_per_node_hour is not None:
            row["price"] = point.node_hours * price_per_node_hour
        if point.fits and watts is not None:
            row["energy_kWh"] = point.node_hours * watts / 1000
        row["reason"] = reason
    notes = [
        f"{len(points)} of {counted(len(counts), 'node count')} planned: doublings, and between "
        "the cheapest and its neighbours.",
        "Node-hours are of steps alone: no waiting, failures, checkpoints or evaluation.",
    ]
    if job.workload.all_tokens:
        notes.append(
            f"At most {counted(most_jobs, 'job')} in a row (most_jobs); days count ten minutes for "
            "each to start."
        )
    return Findings(
        _none_accepted(job, points, limits)
        if best is None
        else _cheapest_verdict(job, points, limits, best, rows[best.nodes]),
        list(rows.values()),
        notes,
        success=best is not None,
    )


def _watts(power: str | None) -> float | None:
    """Parse a power [W]."""
    try:
        return None if power is None else parse_power(power)
    except DescriptionError as error:
        raise LayoutError(f"node_power = {error}") from None


def _cheapest(points: Scan, limits: _Limits) -> PlanPoint | None:
    """The accepted point with the fewest node-hours, safe ones first; ties take fewer nodes."""
    accepted = [point for point in points.fitting() if limits.accept(point)]
    safe = [point for point in accepted if point.safe] or accepted
    return min(safe, key=lambda point: (point.node_hours, point.nodes), default=None)


def _refine(points: Scan, counts: Sequence[int], best: PlanPoint | None) -> None:
    """Plan halfway between the cheapest count and each of its planned neighbours."""
    if best is None:
        return
    planned = sorted(points.points)
    place = planned.index(best.nodes)
    for neighbour in planned[max(place - 1, 0) : place + 2]:
        low, high = sorted((neighbour, best.nodes))
        between = [n for n in counts if low < n < high]
        points.plan_all(between[len(between) // 2 :][:1])


def _cheapest_verdict(
    job: JobSpec, points: Scan, limits: _Limits, best: PlanPoint, row: Row
) -> str:
    low, high = format_amount(row["node_hours_low"]), format_amount(row["node_hours_high"])
    sentence = (
        f"{best.place} {verb(best.nodes, 'take')} the fewest node-hours for "
        f"{amount_of_training(best.workload)} of {job.model.name}: "
        f"{format_amount(best.node_hours)} (90 % interval {low} to {high})"
    )
    sentence += f", price {format_amount(row['price'])}" if "price" in row else ""
    sentence += f", {format_amount(row['energy_kWh'])} kWh" if "energy_kWh" in row else ""
    chain = chain_of(best)
    if chain is not None and best.workload.all_tokens:
        sentence += f", {chain.describe_jobs()}"
        if not math.isinf(limits.days):
            days = within_days(limits.days)
            sentence += f", risk to take more than {days} {limits.risk(chain)}"
    sentence += f"; {best.describe()}."
    tied = [
        point
        for point in points.fitting()
        if point is not best
        and limits.accept(point)
        and (point.safe or not best.safe)
        and point.node_hours <= (1 + preferences().tolerance) * best.node_hours
    ]
    if not tied:
        return sentence
    most = format_amount(max(point.node_hours for point in tied))
    listed = joined(f"{point.nodes:,}" for point in tied)
    subject = "node takes" if [point.nodes for point in tied] == [1] else "nodes take"
    return (
        f"{sentence} {listed} {subject} {'up to ' * (len(tied) > 1)}{most}, within "
        f"{100 * preferences().tolerance:.0f} % of it: too close for estimates to rank."
    )
