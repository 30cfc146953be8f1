"""Batch sizes: the best batch nearby, and the largest one that fits."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Unpack

from planner.ask.answer import Row
from planner.ask.option import Nodes, Option
from planner.ask.plan_point import (
    Infeasible,
    PlanPoint,
    estimate_row,
    is_safe,
    plan_or_reason,
    plan_point,
)
from planner.ask.question import Findings, JobFields, question
from planner.ask.rules import largest, nearest_as_good
from planner.ask.scan import Scan
from planner.ask.sentences import nodes_of, step_time
from planner.choose.jobs.job_spec import JobSpec
from planner.choose.legality import broken
from planner.choose.preferences import preferences
from planner.cost.estimate import Estimate, estimate_layouts
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.describe.layout import Layout, Recompute
from planner.errors import PlannerError
from planner.units import counted

__all__ = ["batch", "largest_batch", "nearby_batches"]

_MOST_BATCHES = 12
_MOST_MICRO_BATCH = 4096
_ALL_LAYERS = {
    name: Layout.model_fields[name].default
    for name in ("recompute_layers", "recompute_every", "recompute_span", "recompute_modules")
}
"""Recompute of all layers and modules that its mode covers."""


@question
def batch(
    job: JobSpec,
    *,
    nodes: Nodes = 1,
    within: Annotated[
        float, Option("Factor by which the batch may be larger or smaller.", least=1, most=64)
    ] = 1.25,
    **_: Unpack[JobFields],
) -> Findings:
    """Find the nearest global batch whose tokens per second are about the most within a factor.

    About: within the tolerance of the most (5 % by default). The batch itself is planned, and the
    nearest that all devices, half of them, and so on, share evenly. Larger batches are faster a
    token, but a training may learn less from each.
    """
    job = job.replaced(nodes=nodes)
    target = job.workload.global_batch

    def plan(size: int) -> PlanPoint:
        return _of_batch(plan_or_reason(job, global_batch=size), size)

    points = Scan(plan, {target: _of_batch(plan_point(job), target)})
    points.plan_all(nearby_batches(target, job.num_devices, within))
    rates = {size: points[size].tokens_per_s for size in points.values_where(lambda p: p.safe)}
    best = nearest_as_good(rates, target, job.tolerance)
    return Findings(
        _batch_verdict(job, points, best),
        [_batch_row(size, point, points[target]) for size, point in points.by_value()],
        notes=[
            f"The nearest batch whose tokens/s are within {100 * job.tolerance:g} % of the most is "
            "chosen, not the fastest.",
            f"{counted(len(points), 'size')} of the batch planned, within a factor of {within:g}.",
            "How much a step of another size learns is not estimated; "
            "learning rates are scaled with it.",
        ],
        success=best is not None,
        values={"best": best},
    )


def nearby_batches(batch: int, ranks: int, within: float) -> list[int]:
    """List batches within a factor of one that all ranks, or half of them ..., share evenly.

    The batch itself and up to eleven others: first those that more ranks share, then nearer ones.

    >>> nearby_batches(100, 16, 1.25)
    [80, 84, 88, 92, 96, 100, 104, 108, 112, 116, 120, 124]
    """
    low, high = batch / within, batch * within
    sizes = [batch]
    while ranks >= 1 and len(sizes) <= _MOST_BATCHES:
        multiples = range(-int(-low // ranks) * ranks, int(high) + 1, ranks)
        if len(multiples) > _MOST_BATCHES and len(sizes) > 1:
            break
        new = (n for n in multiples if n and n not in sizes)
        sizes += sorted(new, key=lambda n: abs(n - batch))
        if ranks % 2:
            break
        ranks //= 2
    return sorted(sizes[:_MOST_BATCHES])


def _of_batch(point: PlanPoint, batch: int) -> PlanPoint:
    """The point of a batch; infeasible where the plan had to take another batch."""
    planned_batch = point.workload.global_batch
    if not point.fits or planned_batch == batch:
        return point
    reason = f"no common layout divides it; {planned_batch:,} is near"
    return PlanPoint(point.nodes, point.machine, point.workload, reason)


def _batch_row(batch: int, point: PlanPoint, target: PlanPoint) -> Row:
    columns = {}
    if point.fits:
        columns["tokens_per_s_per_device"] = point.tokens_per_s / point.devices
    if point.fits and target.fits:
        columns["gain"] = point.tokens_per_s / target.tokens_per_s - 1
    return {"global_batch": batch, **point.row(**columns)}


def _batch_verdict(job: JobSpec, points: Scan, best: int | None) -> str:
    batch = job.workload.global_batch
    target = points[batch]
    if best is None:
        return f"No batch near {batch:,} is safe in memory on {target.place}: {target.reason}."
    point = points[best]
    rate = f"{point.tokens_per_s / point.devices:,.0f} tokens/s per device"
    if best == batch:
        return f"A batch of {batch:,} is about as fast as any nearby: {rate}, {point.describe()}."
    if not target.fits:
        reason = f"{batch:,} does not fit: {target.reason}"
    else:
        gain = 100 * (point.tokens_per_s / target.tokens_per_s - 1)
        reason = (
            f"{gain:.1f} % more than the {target.tokens_per_s / target.devices:,.0f} of {batch:,}"
        )
    return f"Use a batch of {best:,}: {rate}, {reason}; {point.describe()}."


@question
def largest_batch(job: JobSpec, *, nodes: Nodes = 1, **_: Unpack[JobFields]) -> Findings:
    """Find the largest safe micro-batch of the recommended layout, for each recompute mode.

    Degrees, sharding and framework stay. The global batch is that of one pass of all replicas: one
    micro-batch each, with a pipeline as many as stages. More micro-batches a step allow any larger
    global batch.
    """
    point = plan_point(job.replaced(nodes=nodes))
    if point.best is None or point.scenario is None:
        raise Infeasible(point)
    scenario, layout = point.scenario, point.best.layout
    modes = scenario.framework.recompute
    estimates = [each for mode in modes if (each := _largest(scenario, layout, mode))]
    return Findings(
        _largest_verdict(job, point, estimates),
        [_largest_row(each) for each in estimates],
        notes=[
            f"Degrees are those recommended for a batch of {point.workload.global_batch:,}: "
            f"{layout} [{point.best.framework}].",
            f"Safe: an out-of-memory risk of at most {100 * preferences().risk:.0f} %.",
        ],
        success=bool(estimates),
    )


def _largest(scenario: Scenario, layout: Layout, mode: Recompute) -> Estimate | None:
    """Estimate a layout with the largest micro-batch that is safe under a recompute mode."""

    def holds(size: int) -> bool:
        estimate = _in_one_pass(scenario, layout, size, mode)
        return estimate is not None and is_safe(estimate)

    size = largest(layout.micro_batch, _MOST_MICRO_BATCH, 1, holds)
    return None if size is None else _in_one_pass(scenario, layout, size, mode)


def _in_one_pass(scenario: Scenario, layout: Layout, size: int, mode: Recompute) -> Estimate | None:
    """Estimate one pass with another micro-batch; None where the layout is not legal."""
    passes = max(layout.pp, 1)
    try:
        changed = layout.replaced(
            **_ALL_LAYERS, recompute=mode, micro_batch=size, grad_accumulation=passes
        )
        workload = scenario.workload.replaced(global_batch=changed.global_batch, ramp="")
    except PlannerError:
        return None
    scenario = replace(scenario, workload=workload)
    if any(True for _ in broken(scenario, changed)):
        return None
    return estimate_layouts(scenario, Layouts.stack([changed]))[0]


def _largest_row(estimate: Estimate) -> Row:
    layout = estimate.layout
    return {
        "recompute": layout.recompute,
        "micro_batch": layout.micro_batch,
        "global_batch": layout.global_batch,
        **estimate_row(estimate),
        "reason": "the largest micro-batch that is safe"
        if layout.micro_batch < _MOST_MICRO_BATCH
        else "no larger one was tried",
    }


def _largest_verdict(job: JobSpec, point: PlanPoint, estimates: list[Estimate]) -> str:
    place = nodes_of(job.machine, point.nodes)
    if not estimates:
        return f"No micro-batch of {job.model.name} is safe on {place}: {point.reason}."
    fastest = max(estimates, key=lambda each: each.tokens_per_s)
    most = max(estimates, key=lambda each: each.layout.micro_batch)
    sentence = (
        f"{most.layout.micro_batch} is the largest micro-batch of {job.model.name} on {place}, "
        f"with {_recompute(most)}, a global batch of "
        f"{most.layout.global_batch:,} in one pass: {most.layout} [{most.framework}], "
        f"{step_time(most)}"
    )
    if fastest is not most:
        sentence += (
            f"; micro-batch {fastest.layout.micro_batch} with {_recompute(fastest)} has "
            f"{fastest.tokens_per_s / most.tokens_per_s - 1:.0%} more tokens/s"
        )
    return f"{sentence}."


def _recompute(estimate: Estimate) -> str:
    mode = estimate.layout.recompute
    return "no recompute" if mode == "none" else f"{mode} recompute"
