"""Micro-batch: the fastest that fits, for a layout that states a global batch without one."""

from collections.abc import Iterator, Sequence

import numpy as np

from planner.choose.jobs.job_spec import JobSpec
from planner.choose.planning import scenario_for
from planner.choose.preferences import preferences
from planner.cost.estimate import Estimate, estimate_layouts
from planner.cost.shards.layouts import Layouts
from planner.describe.layout import Layout
from planner.errors import LayoutError
from planner.units import format_seconds


def micro_batch_options(layout: Layout) -> Iterator[Layout]:
    """Layouts with each micro-batch of a power of two that divides the sequences of a replica."""
    per_replica, size = layout.micro_batch * layout.grad_accumulation, 1
    while per_replica % size == 0:
        yield layout.replaced(micro_batch=size, grad_accumulation=per_replica // size)
        size *= 2


def best_micro_batch(results: Sequence[Estimate | LayoutError]) -> Estimate:
    """Return the shortest step among estimates that differ in the micro-batch; those that fit come
    first, then safe ones; if none fits, the one that takes the least memory.

    Raises the first LayoutError if all layouts are refused.
    """
    estimates = [each for each in results if isinstance(each, Estimate)]
    if not estimates:
        raise next(each for each in results if isinstance(each, LayoutError))
    return min(estimates, key=_rank)


def micro_batch_note(job: JobSpec, layout: Layout) -> str:
    """State the micro-batch that is assumed, and the fastest larger one that is safe in memory."""
    layouts = [layout.replaced(micro_batch=2**power) for power in range(9)]
    tried = estimate_layouts(scenario_for(job, layout), Layouts.stack(layouts))
    safe = tried.fits & (tried.out_of_memory_probability <= preferences().risk)
    rates = tried.layouts.micro_batch / tried.step_time_s
    best = int(np.argmax(np.where(safe, rates, 0)))
    note = f"micro-batch {layout.micro_batch}, as none is stated"
    if not best:
        return note
    return (
        f"{note}; {2**best} gives {rates[best] / rates[0]:.1f} times the throughput, "
        f"{format_seconds(tried.step_time_s[best])} a step of {layouts[best].global_batch:,} "
        f"{job.workload.batch_unit}"
    )


def _rank(estimate: Estimate) -> tuple[bool, bool, float, int]:
    """Sort key: layouts that fit first, then safe ones, then the shortest step or least memory."""
    is_risky = estimate.out_of_memory_probability > preferences().risk
    cost = estimate.step_time_s if estimate.fits else estimate.memory_bytes["total"]
    return not estimate.fits, is_risky, round(cost, 9), estimate.layout.micro_batch
