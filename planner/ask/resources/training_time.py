"""Training time: the fewest nodes for a deadline, and the node count that costs least."""

from __future__ import annotations

from collections.abc import Sequence
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
    first_in_sections,
    sections,
)
from planner.ask.resources.node_counts import node_limit
from planner.ask.rules import doublings, smallest
from planner.ask.scan import Scan, scan
from planner.ask.sentences import percent, verb, within_days
from planner.choose.job import JobSpec
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
    """The tokens or steps that a duration is for."""
    if workload.all_tokens:
        return f"{format_amount(workload.all_tokens)} tokens"
    return f"{NO_TOKENS_STEPS:,} steps"


@question("The fewest nodes that finish a training in time")
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

    def fewest(risk: float) -> int | None:
        def in_time(count: int) -> bool:
            chain = chain_of(points[count])
            return (
                chain is not None
                and chain.slot.jobs <= most_jobs
                and chain.late_probability(days) <= risk
            )

        return first_in_sections(sections(job, counts), lambda part: smallest(part, in_time))

    likely = fewest(_EVEN)
    sure = likely and fewest(late / 100)
    sentence = _DeadlineSentence(job, points, counts, days, late, most_jobs)
    return Findings(
        sentence.text(likely, sure),
        [
            chain.row(days) if (chain := chain_of(point)) else point.row()
            for _, point in points.by_value()
        ],
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


@dataclass(frozen=True, slots=True)
class _DeadlineSentence:
    """The verdict on a deadline."""

    job: JobSpec
    points: Scan[int]
    counts: Sequence[int]
    days: float
    late: float
    most_jobs: int

    def text(self, likely: int | None, sure: int | None) -> str:
        """Node counts that are surely in time, and that are in time at even odds."""
        if likely is None:
            return self._infeasible()
        chain = self._chain(sure or likely)
        nodes = chain.point.nodes
        sentence = (
            f"{chain.point.place} {verb(nodes, 'are', 'is')} the fewest that "
            f"{verb(nodes, 'train')} {self._amount} in {within_days(self.days)}: "
            f"{chain.describe_days()}, {chain.describe_jobs()}, late with "
            f"{percent(chain.late_probability(self.days))}"
        )
        if sure is None:
            sentence += f"; no node count that was planned is late with {self.late:g} % or less"
        elif sure != likely:
            chain = self._chain(likely)
            sentence += (
                f"; {counted(likely, 'node')} {verb(likely, 'take')} {chain.describe_days()}, "
                f"late with {percent(chain.late_probability(self.days))}"
            )
        return f"{sentence}{self._with_more_jobs(likely)}."

    def _chain(self, count: int) -> JobChain:
        chain = chain_of(self.points[count])
        assert chain is not None
        return chain

    @property
    def _amount(self) -> str:
        return f"{amount_of_training(self.job.workload)} of {self.job.model.name}"

    def _with_more_jobs(self, likely: int | None) -> str:
        """Name fewer nodes that are in time with too many jobs; empty if there are none."""
        fewer = [
            chain
            for chain in _chains(self.points)
            if chain.late_probability(self.days) <= _EVEN
            and chain.slot.jobs > self.most_jobs
            and (likely is None or chain.point.nodes < likely)
        ]
        if not fewer:
            return ""
        chain = min(fewer, key=lambda chain: chain.point.nodes)
        return f"; {chain.point.place} would, {chain.describe_jobs()}, more than most_jobs"

    def _infeasible(self) -> str:
        """Say why no node count is in time."""
        chains = _chains(self.points)
        if not chains:
            counts = self.counts
            reason = self.points[counts[-1]].reason if counts else "no queue admits any"
            return f"{self._amount} cannot be trained on {self.job.machine.name}: {reason}."
        accepted = [chain for chain in chains if chain.slot.jobs <= self.most_jobs]
        fastest = min(accepted or chains, key=lambda chain: chain.days[0])
        return (
            f"No node count that was planned trains {self._amount} in {within_days(self.days)} "
            f"with at most {counted(self.most_jobs, 'job')} in a row: the fastest, "
            f"{fastest.point.place}, takes {fastest.describe_days()}, {fastest.describe_jobs()}"
            f"{self._with_more_jobs(None)}."
        )


def _chains(points: Scan[int]) -> list[JobChain]:
    """Jobs in a row of every point where something fits."""
    return [chain for point in points.fitting() if (chain := chain_of(point))]


@question("The node count with the fewest node-hours, and its cost and energy")
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
    terms = _Terms(price_per_node_hour, _watts(node_power), days, most_jobs)
    counts = admitted_counts(job.machine, node_limit(job, most_nodes))
    points = scan(job, "nodes")
    for part in sections(job, counts):
        points.plan_all(doublings(part))
    for _round in range(_REFINEMENTS):
        _refine(points, counts, terms.cheapest(points))
    best = terms.cheapest(points)
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
        _cheapest_verdict(job, points, best, terms),
        [terms.row(point) for _, point in points.by_value()],
        notes,
        success=best is not None,
    )


@dataclass(frozen=True, slots=True)
class _Terms:
    """Price and power of a node, and which node counts are accepted."""

    price: float | None
    watts: float | None
    days: float | None
    most_jobs: int

    def row(self, point: PlanPoint) -> Row:
        """A record of the table."""
        chain = chain_of(point) if point.workload.all_tokens else None
        row = point.row() if chain is None else chain.row(self.days)
        reason = row.pop("reason")
        if point.fits and self.price is not None:
            row["price"] = point.node_hours * self.price
        if point.fits and self.watts is not None:
            row["energy_kWh"] = point.node_hours * self.watts / 1000
        return {**row, "reason": reason}

    def accepts(self, point: PlanPoint) -> bool:
        """True if the training is in time, in few enough jobs."""
        chain = chain_of(point)
        if chain is None or (point.workload.all_tokens and chain.slot.jobs > self.most_jobs):
            return False
        return self.days is None or chain.late_probability(self.days) <= _EVEN

    def cheapest(self, points: Scan[int]) -> PlanPoint | None:
        """The accepted point with the fewest node-hours, safe ones first; ties take fewer nodes."""
        accepted = [point for point in points.fitting() if self.accepts(point)]
        safe = [point for point in accepted if point.safe] or accepted
        return min(safe, key=lambda point: (point.node_hours, point.nodes), default=None)


def _watts(power: str | None) -> float | None:
    """Parse a power [W]."""
    try:
        return None if power is None else parse_power(power)
    except DescriptionError as error:
        raise LayoutError(f"node_power = {error}") from None


def _refine(points: Scan[int], counts: Sequence[int], best: PlanPoint | None) -> None:
    """Plan halfway between the cheapest count and each of its planned neighbours."""
    if best is None:
        return
    planned = sorted(points.points)
    place = planned.index(best.nodes)
    for other in planned[max(place - 1, 0) : place + 2]:
        between = [n for n in counts if min(other, best.nodes) < n < max(other, best.nodes)]
        if between:
            points.plan_all([between[len(between) // 2]])


def _cheapest_verdict(
    job: JobSpec, points: Scan[int], best: PlanPoint | None, terms: _Terms
) -> str:
    if best is None:
        return _none_accepted(job, points, terms)
    row = terms.row(best)
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
        if terms.days is not None:
            late = percent(chain.late_probability(terms.days))
            sentence += f", later than {within_days(terms.days)} with {late}"
    return f"{sentence}; {best.describe()}.{_about_as_cheap(points, best, terms)}"


def _about_as_cheap(points: Scan[int], best: PlanPoint, terms: _Terms) -> str:
    """Name other node counts that cost about as much; empty if there are none."""
    near = [
        point
        for point in points.fitting()
        if point is not best
        and terms.accepts(point)
        and (point.safe or not best.safe)
        and point.node_hours <= (1 + preferences().tolerance) * best.node_hours
    ]
    if not near:
        return ""
    most = format_amount(max(point.node_hours for point in near))
    listed = joined(f"{point.nodes:,}" for point in near)
    subject = "node takes" if [point.nodes for point in near] == [1] else "nodes take"
    return (
        f" {listed} {subject} {'up to ' * (len(near) > 1)}{most}, within "
        f"{100 * preferences().tolerance:.0f} % of it: too close for estimates to rank."
    )


def _none_accepted(job: JobSpec, points: Scan[int], terms: _Terms) -> str:
    """Say why no node count is accepted."""
    chains = _chains(points)
    if not chains:
        reason = points[max(points.points)].reason if len(points) else "no queue admits any"
        return f"{job.model.name} fits on no node count of {job.machine.name}: {reason}."
    in_time = "" if terms.days is None else f" in {within_days(terms.days)}"
    accepted = [chain for chain in chains if chain.slot.jobs <= terms.most_jobs]
    if not accepted:
        fewest = min(chains, key=lambda chain: chain.slot.jobs)
        return (
            f"No node count finishes{in_time} in at most {counted(terms.most_jobs, 'job')} in a "
            f"row: the fewest are {fewest.slot.jobs:,}, on {fewest.point.place}."
        )
    fastest = min(accepted, key=lambda chain: chain.days[0])
    return (
        f"No node count finishes{in_time}: the fastest, {fastest.point.place}, takes "
        f"{fastest.describe_days()}, {fastest.describe_jobs()}."
    )
