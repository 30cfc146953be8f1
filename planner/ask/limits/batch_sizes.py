"""Batch sizes: the best batch nearby and the largest safe one."""

from dataclasses import replace
from typing import Any, Unpack

from planner.ask.answer import Row
from planner.ask.plan_point import (
    PlanPoint,
    estimate_row,
    is_safe,
    plan_or_reason,
    plan_point,
    step_time,
)
from planner.ask.question import Findings, JobFields, question
from planner.ask.scan import Scan, largest, nearest_as_good
from planner.choose.jobs.job_spec import JobSpec
from planner.choose.legality import broken
from planner.choose.preferences import preferences
from planner.choose.verdicts.layout_words import estimate_words
from planner.cost.estimate import Estimate, estimate_layouts
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.describe.layout import Layout, Recompute
from planner.errors import PlannerError
from planner.units import counted

_MOST_BATCHES = 12
_MOST_MICRO_BATCH = 4096
_ALL_LAYERS: dict[str, Any] = {
    name: Layout.model_fields[name].default
    for name in ("recompute_layers", "recompute_every", "recompute_span", "recompute_modules")
}
"""Layout fields that make a recompute mode cover all its layers and modules."""


@question
def batch(
    job: JobSpec, *, nodes: int = 1, within: float = 1.25, **_: Unpack[JobFields]
) -> Findings:
    """Find the nearest global batch that is about as fast as the fastest within a factor.

    About as fast: tokens/s within the tolerance of the highest (5 % by default). Plans the batch
    itself, and the nearest batches that all devices, half of them, and so on, share evenly. Larger
    batches are faster per token, but each token may teach less.
    """
    job = job.replaced(nodes=nodes, exact=True)
    size = job.workload.global_batch
    target = plan_point(job)
    points = Scan(job, lambda n: plan_or_reason(job, global_batch=n), {size: target})
    points.plan_all(nearby_batches(size, job.num_devices, within))
    rates = {size: points[size].tokens_per_s for size in points.values_where(lambda p: p.safe)}
    best = nearest_as_good(rates, size, job.tolerance)

    def row(size: int, point: PlanPoint) -> Row:
        columns: Row = {"tokens_per_s_per_device": point.tokens_per_s / point.devices}
        if target.fits:
            columns["gain"] = point.tokens_per_s / target.tokens_per_s - 1
        return {"global_batch": size, **point.row(**(columns if point.fits else {}))}

    return Findings(
        _batch_verdict(points, best, target),
        [row(size, point) for size, point in points.by_value()],
        notes=[
            f"The nearest batch whose tokens/s are within {100 * job.tolerance:g} % of the most is "
            "chosen, not the fastest.",
            f"{counted(len(points), 'size')} of the batch planned, within a factor of {within:g}.",
            "The effect of the batch on convergence is not estimated; scale the learning rate "
            "with it.",
        ],
        success=best is not None,
        values={"best": best},
    )


def nearby_batches(batch: int, ranks: int, within: float) -> list[int]:
    """List up to twelve batches near one: those that most ranks share first, then by distance."""
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


def _batch_verdict(points: Scan, best: int | None, target: PlanPoint) -> str:
    batch = points.job.workload.global_batch
    if best is None:
        return f"No batch near {batch:,} is safe in memory on {target.place}: {target.reason}."
    point = points[best]
    rate = f"{point.tokens_per_s / point.devices:,.0f} tokens/s per device"
    if best == batch:
        return f"A batch of {batch:,} is about as fast as any nearby: {rate}, {point.describe()}."
    reason = f"{batch:,} does not fit: {target.reason}"
    if target.fits:
        gain = 100 * (point.tokens_per_s / target.tokens_per_s - 1)
        target_rate = target.tokens_per_s / target.devices
        reason = f"{gain:.1f} % more than the {target_rate:,.0f} of {batch:,}"
    return f"Use a batch of {best:,}: {rate}, {reason}; {point.describe()}."


@question
def largest_batch(job: JobSpec, *, nodes: int = 1, **_: Unpack[JobFields]) -> Findings:
    """Find the largest safe micro-batch of the recommended layout, for each recompute mode.

    Degrees, sharding and framework are kept. The global batch is one pass of all replicas: one
    micro-batch each, or with a pipeline one micro-batch per stage. Gradient accumulation allows
    any larger global batch.
    """
    point = plan_point(job.replaced(nodes=nodes))
    scenario, best = point.recommended()
    modes = scenario.framework.recompute
    estimates = [each for mode in modes if (each := _largest(scenario, best.layout, mode))]
    reasons = "no larger one was tried", "the largest micro-batch that is safe"
    return Findings(
        _largest_verdict(job, point, estimates),
        [
            {
                "recompute": each.layout.recompute,
                "micro_batch": each.layout.micro_batch,
                "global_batch": each.layout.global_batch,
                **estimate_row(each),
                "reason": reasons[each.layout.micro_batch < _MOST_MICRO_BATCH],
            }
            for each in estimates
        ],
        notes=[
            f"Degrees are those recommended for a batch of {point.workload.global_batch:,}: "
            f"{best.layout} [{best.framework}].",
            f"Safe: an out-of-memory risk of at most {100 * preferences().risk:.0f} %.",
        ],
        success=bool(estimates),
    )


def _largest(scenario: Scenario, layout: Layout, mode: Recompute) -> Estimate | None:
    """Estimate a layout with the largest safe micro-batch under a recompute mode."""

    def in_one_pass(size: int) -> Estimate | None:
        passes = {"micro_batch": size, "grad_accumulation": max(layout.pp, 1)}
        try:
            changed = layout.replaced(**_ALL_LAYERS, **passes, recompute=mode)
            workload = scenario.workload.replaced(global_batch=changed.global_batch, ramp="")
        except PlannerError:
            return None
        changed_scenario = replace(scenario, workload=workload)
        if any(True for _ in broken(changed_scenario, Layouts.of(changed))):
            return None
        return estimate_layouts(changed_scenario, Layouts.stack([changed]))[0]

    def holds(size: int) -> bool:
        estimate = in_one_pass(size)
        return estimate is not None and is_safe(estimate)

    size = largest(layout.micro_batch, _MOST_MICRO_BATCH, 1, holds)
    return None if size is None else in_one_pass(size)


def _largest_verdict(job: JobSpec, point: PlanPoint, estimates: list[Estimate]) -> str:
    if not estimates:
        return f"No micro-batch of {job.model.name} is safe on {point.place}: {point.reason}."
    fastest = max(estimates, key=lambda each: each.tokens_per_s)
    most = max(estimates, key=lambda each: each.layout.micro_batch)
    size, fastest_size = most.layout.micro_batch, fastest.layout.micro_batch
    sentence = (
        f"{size} is the largest micro-batch of {job.model.name} on {point.place}, with "
        f"{_recompute(most)}, a global batch of {most.layout.global_batch:,} in one pass: "
        f"{estimate_words(most)}, {step_time(most)}"
    )
    if fastest is not most:
        sentence += (
            f"; micro-batch {fastest_size} with {_recompute(fastest)} has "
            f"{fastest.tokens_per_s / most.tokens_per_s - 1:.0%} more tokens/s"
        )
    return f"{sentence}."


def _recompute(estimate: Estimate) -> str:
    mode = estimate.layout.recompute
    return "no recompute" if mode == "none" else f"{mode} recompute"
