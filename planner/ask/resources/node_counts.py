"""Node counts: the fewest nodes for a job, and how it scales on more."""

from __future__ import annotations

from typing import Annotated, Literal, Unpack

from planner.ask.answer import Row
from planner.ask.option import MostNodes, Option
from planner.ask.plan_point import PlanPoint, plan_or_reason
from planner.ask.question import Findings, JobFields, question
from planner.ask.rules import doublings, smallest
from planner.ask.scan import Scan, scan
from planner.ask.sentences import nodes_of, step_time, verb
from planner.choose.jobs.job_spec import JobSpec
from planner.choose.preferences import preferences
from planner.errors import LayoutError
from planner.units import counted

__all__ = ["count_range", "node_limit", "nodes", "scaling"]

_LARGER_ROWS = 3
"""Doublings beyond the smallest node count that the table shows."""


def node_limit(job: JobSpec, most_nodes: int | None) -> int:
    """The largest node count to look at; LayoutError where the machine has fewer nodes."""
    available = int(job.machine.num_nodes.value)
    if most_nodes is not None and most_nodes > available:
        raise LayoutError(
            f"most_nodes = {most_nodes} exceeds the {available} nodes of {job.machine.name}; use "
            "fewer, or set num_nodes to what it has"
        )
    return most_nodes or available


def count_range(job: JobSpec, nodes: int, most_nodes: int | None) -> range:
    """Node counts from `nodes` to the limit; LayoutError where there are none."""
    limit = node_limit(job, most_nodes)
    if nodes > limit:
        raise LayoutError(f"nodes = {nodes} exceeds most_nodes = {limit}; give fewer, or more")
    return range(nodes, limit + 1)


@question
def nodes(job: JobSpec, *, most_nodes: MostNodes = None, **_: Unpack[JobFields]) -> Findings:
    """Find the smallest node counts: where a job fits, is safe, and has a common layout.

    Safe: the out-of-memory risk is at most 5 %. Common: besides, nothing is offloaded, tensor
    parallelism stays among wired devices, no pipeline is deeper than published ones, and context
    parallelism keeps long slices. Rows are the node counts that were planned.
    """
    limit = node_limit(job, most_nodes)
    counts, points = range(1, limit + 1), scan(job, "nodes")
    fits = smallest(counts, lambda count: points[count].fits)
    safe = fits and smallest(counts, lambda count: points[count].safe)
    common = safe and smallest(counts, lambda count: points[count].common)
    best = common or safe or fits
    points.plan_all([n for n in doublings(counts) if n > (best or limit)][:_LARGER_ROWS])
    notes = [f"Safe: an out-of-memory risk of at most {100 * preferences().risk:.0f} %."]
    queues = job.machine.scheduler.queues
    if best and queues:
        admitting = [q.name for q in queues if q.min_nodes <= best <= q.max_nodes]
        listed = ", ".join(admitting) or "none of the machine"
        notes.append(f"Queues that admit {counted(best, 'node')}: {listed}.")
    notes.append(
        f"{len(points)} of {counted(limit, 'node count')} planned: doublings; below the first that "
        "holds all up to 16, or bisection with three neighbours."
    )
    return Findings(
        _fewest_nodes(job, points, limit, fits, safe, common),
        points.rows(),
        notes,
        success=fits is not None,
        values={"fewest": {"fits": fits, "safe": safe, "sensible": common}},
    )


def _fewest_nodes(
    job: JobSpec,
    points: Scan,
    limit: int,
    fits: int | None,
    safe: int | None,
    common: int | None,
) -> str:
    model, machine = job.model.name, job.machine
    if fits is None:
        none = "does not fit on" if limit == 1 else "fits on none of up to"
        return f"{model} {none} {nodes_of(machine, limit)}: {points[limit].reason}."
    if common is None:
        least = points[safe or fits]
        return (
            f"{model} fits on {points[fits].place} or more, but on none of up to "
            f"{nodes_of(machine, limit)} with a layout in common use: {least.describe()}, "
            f"{least.reason}."
        )
    best = points[common]
    sentence = (
        f"{best.place} {verb(common, 'are the fewest', 'suffices')} for {model} with a layout in "
        f"common use: {best.describe()}."
    )
    if fits < common:
        sentence += f" It fits from {counted(fits, 'node')} ({_uncommon(points[fits])})"
        if safe and fits < safe < common:
            sentence += f", and safely from {counted(safe, 'node')} ({_uncommon(points[safe])})"
        sentence += "."
    return sentence


def _uncommon(point: PlanPoint) -> str:
    return "; ".join(point.uncommon_features) or "a common layout"


@question
def scaling(
    job: JobSpec,
    *,
    nodes: Annotated[int, Option("Node count that the batch is stated for.", least=1)] = 1,
    kind: Annotated[
        Literal["strong", "weak"],
        Option("strong keeps the global batch; weak lets it grow with the nodes."),
    ] = "strong",
    efficiency: Annotated[
        float, Option("Least parallel efficiency that pays, in percent.", least=1, most=100)
    ] = 80.0,
    most_nodes: MostNodes = None,
    **_: Unpack[JobFields],
) -> Findings:
    """Plan doublings of the nodes: step time, throughput, parallel efficiency, and the knee.

    Efficiency is tokens per second and node over those of the first node count with a common layout
    (the first that fits if there is none). The knee is the last doubling before efficiency falls
    below the percentage asked for.
    """

    def plan(count: int) -> PlanPoint:
        batch = max(round(job.workload.global_batch * count / nodes), 1)
        changes = {"global_batch": batch} if kind == "weak" else {}
        return plan_or_reason(job, nodes=count, **changes)

    points = Scan(plan)
    points.plan_all(doublings(range(1, node_limit(job, most_nodes) + 1)))
    fitting = points.fitting()
    first = next((point for point in fitting if point.common), fitting[0] if fitting else None)
    rows = [_scaling_row(point, first) for _, point in points.by_value()]
    knee = _knee(rows, first, efficiency / 100)
    reference = "nothing" if first is None else f"those on {counted(first.nodes, 'node')}"
    return Findings(
        _scaling_verdict(job, kind, points, rows, first, knee, efficiency),
        rows,
        notes=[
            f"Efficiency is tokens/s of a node over {reference}.",
            f"The knee is the last doubling before efficiency falls below {efficiency:g} %.",
        ],
        success=first is not None,
        values={"knee": knee},
    )


def _scaling_row(point: PlanPoint, first: PlanPoint | None) -> Row:
    if not point.fits or first is None:
        return point.row()
    efficiency = point.tokens_per_s / point.nodes / (first.tokens_per_s / first.nodes)
    return point.row(global_batch=point.workload.global_batch, efficiency=efficiency)


def _knee(rows: list[Row], first: PlanPoint | None, least: float) -> int | None:
    """The last node count before efficiency falls below the least."""
    knee = None
    for row in rows:
        if first is None or row["nodes"] < first.nodes:
            continue
        if row.get("efficiency", 0.0) < least:
            break
        knee = row["nodes"]
    return knee


def _scaling_verdict(
    job: JobSpec,
    kind: str,
    points: Scan,
    rows: list[Row],
    first: PlanPoint | None,
    knee: int | None,
    efficiency: float,
) -> str:
    if first is None or knee is None:
        return (
            f"{job.model.name} fits on no node count of {job.machine.name} that was planned: "
            f"{rows[-1]['reason']}."
        )
    last, best = next(row for row in rows if row["nodes"] == knee), points[knee].best
    assert best is not None
    sentence = (
        f"{kind.capitalize()} scaling of {job.model.name} pays up to {points[knee].place}: "
        f"{100 * last['efficiency']:.0f} % of the tokens/s per node on "
        f"{counted(first.nodes, 'node')}, {step_time(best)}"
    )
    larger = next((row for row in rows if row["nodes"] > knee), None)
    if larger is None:
        return f"{sentence}; this is the largest node count that was planned."
    sentence += f"; on {counted(larger['nodes'], 'node')}"
    if not larger["fits"]:
        return f"{sentence} it does not fit ({larger['reason']})."
    return f"{sentence} it is {100 * larger['efficiency']:.0f} % ({larger['reason']})."
