"""Gradient buckets: why a higher ZeRO stage may take more memory, and which size helps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Unpack

from planner.ask.answer import Row
from planner.ask.option import Nodes
from planner.ask.question import Findings, JobFields, question
from planner.choose.jobs.job_spec import JobSpec
from planner.cost.estimate import Estimate, estimate_layouts
from planner.cost.parts import part
from planner.cost.shards.layouts import Layouts
from planner.describe.catalogue import load_framework
from planner.describe.framework.framework import Framework
from planner.describe.layout import Layout
from planner.errors import LayoutError
from planner.units import counted, format_bytes, format_count, joined

__all__ = ["buckets"]

_USUAL_FRAMEWORK = "deepspeed"
_BUCKET_ELEMENTS = (5e8, 2e8, 5e7, 2e7)
# DeepSpeed's default, its documents' example (docs/_pages/config-json.md: 2e8), and smaller


@dataclass(frozen=True, slots=True)
class _BucketEstimates:
    """Estimates of a framework by ZeRO stage and bucket size."""

    framework: Framework
    estimates: dict[tuple[int, float], Estimate]

    @property
    def stages(self) -> list[int]:
        """ZeRO stages, rising."""
        return sorted({stage for stage, _ in self.estimates})

    @property
    def sizes(self) -> list[float]:
        """Bucket sizes in elements, falling; the first is the framework's default."""
        return sorted({size for _, size in self.estimates}, reverse=True)

    def memory(self, stage: int, size: float) -> float:
        """Device memory of a stage [B]."""
        return self.estimates[stage, size].memory_bytes["total"]

    def growth(self, stage: int, size: float) -> float:
        """Memory of a stage beyond the stage below it [B]; 0 for the lowest."""
        if (stage - 1, size) not in self.estimates:
            return 0.0
        return self.memory(stage, size) - self.memory(stage - 1, size)


@question
def buckets(job: JobSpec, *, nodes: Nodes = 1, **_: Unpack[JobFields]) -> Findings:
    """Show the memory of every ZeRO stage for several bucket sizes, with data parallelism only.

    Of the first framework named, else DeepSpeed, with micro-batches of one sequence. The answer
    names a stage whose buckets take more than it saves, and the largest bucket size that helps.
    """
    job = job.replaced(nodes=nodes)
    framework = job.frameworks[0] if job.frameworks else load_framework(_USUAL_FRAMEWORK)
    default = framework.buffers.reduce_bucket_elements
    if not default:
        raise LayoutError(
            f"{framework.name} reduces gradients in place or without buckets of a fixed size; name "
            f"another framework, such as {_USUAL_FRAMEWORK}"
        )
    table = _BucketEstimates(
        framework,
        {
            (stage, size): _estimate(job, _with_buckets(framework, size), stage)
            for size in (default, *(size for size in _BUCKET_ELEMENTS if size < default))
            for stage in framework.zero_stages_for(job.workload.precision)
        },
    )
    option = (
        f"-f {framework.name}+bucket=5e7 (reduce_bucket_size and allgather_bucket_size)"
        if "bucket" in framework.switches
        else "the framework's own configuration"
    )
    return Findings(
        f"{job.model.name} with {framework.name} on {counted(job.num_devices, 'device')}: "
        f"{_comparison(table)}.",
        [_row(table, stage, size) for stage, size in table.estimates],
        notes=[
            f"Layouts: {job.num_devices} data-parallel ranks, micro-batches of one sequence, no "
            "recompute, no offload.",
            f"Bucket size is set by {option}.",
        ],
    )


def _with_buckets(framework: Framework, size: float) -> Framework:
    """The framework with buckets of `size` elements."""
    buffers = framework.buffers.model_dump()
    buffers["reduce_bucket_elements"] = size
    buffers["gather_bucket_elements"] = min(buffers["gather_bucket_elements"], size)
    return framework.replaced(buffers=buffers)


def _estimate(job: JobSpec, framework: Framework, stage: int) -> Estimate:
    passes = max(round(job.workload.global_batch / job.num_devices), 1)
    layout = Layout(dp=job.num_devices, zero_stage=stage, grad_accumulation=passes)
    workload = job.workload.replaced(global_batch=layout.global_batch, ramp="")
    scenario = job.replaced(workload=workload).scenario(framework)
    return estimate_layouts(scenario, Layouts.stack([layout]))[0]


def _row(table: _BucketEstimates, stage: int, size: float) -> Row:
    estimate = table.estimates[stage, size]
    parts = estimate.memory_bytes
    reason = "the lowest stage"
    if (stage - 1, size) in table.estimates:
        growth = table.growth(stage, size)
        direction = "more" if growth > 0 else "less"
        reason = f"{format_bytes(abs(growth))} {direction} than ZeRO-{stage - 1}"
    return {
        "framework": table.framework.name,
        "zero_stage": stage,
        "bucket_elements": size,
        "memory_bytes": parts["total"],
        "memory_low_bytes": estimate.interval_memory_bytes[0],
        "memory_high_bytes": estimate.interval_memory_bytes[1],
        "weights_bytes": parts["weights"],
        "gradients_bytes": parts["gradients"],
        "optimizer_states_bytes": parts["optimizer_states"],
        "communication_buffers_bytes": parts["communication_buffers"],
        "peak": estimate.peak_moment,
        "reason": reason,
    }


def _comparison(table: _BucketEstimates) -> str:
    """Which stages take more memory than the stage below, and which bucket size undoes it."""
    default, *smaller = table.sizes
    lowest, *stages = table.stages
    if not stages:
        amounts = joined(
            f"{format_bytes(table.memory(lowest, size))} with buckets of {_elements(size)}"
            for size in table.sizes
        )
        return f"ZeRO-{lowest} is its only stage; a device holds {amounts}"
    larger = [stage for stage in stages if table.growth(stage, default) > 0]
    if larger:
        return ". ".join(_remedy(table, stage) for stage in larger)
    exceptions = "".join(
        f"; with {_elements(size)} ZeRO-{stage} takes {format_bytes(growth)} more than "
        f"ZeRO-{stage - 1}"
        for stage, size in table.estimates
        if size in smaller and (growth := table.growth(stage, size)) > 0
    )
    return (
        f"with buckets of {_elements(default)} every ZeRO stage takes less than the stage below "
        f"it{exceptions}"
    )


def _remedy(table: _BucketEstimates, stage: int) -> str:
    """The largest bucket size with which a stage takes no more memory than the one below."""
    default = table.sizes[0]
    more = format_bytes(table.growth(stage, default))
    growth = f"ZeRO-{stage} takes {more} more than ZeRO-{stage - 1}"
    helping = next((size for size in table.sizes if table.growth(stage, size) <= 0), None)
    if helping:
        return (
            f"{growth} with buckets of {_elements(default)}; buckets of {_elements(helping)} or "
            "less undo that"
        )
    parts, below = (table.estimates[each, default].memory_bytes for each in (stage, stage - 1))
    grown = {name: parts[name] - below.get(name, 0.0) for name in parts if name != "total"}
    largest = max(grown, key=lambda name: grown[name])
    smallest = format_count(table.sizes[-1])
    tried = _elements(default)
    tried = tried if tried.startswith(smallest) else f"{smallest} to {tried}"
    return (
        f"{growth} with every bucket size tried ({tried}): {part(largest).label} "
        f"{format_bytes(grown[largest])} more"
    )


def _elements(size: float) -> str:
    return f"{format_count(size)} elements"
