"""ZeRO stages: which stage and offload to use, why faster ones fail, memory of buckets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Unpack

import numpy as np

from planner.ask.answer import Row
from planner.ask.plan_point import (
    closest_layout,
    estimate_row,
    is_safe,
    nodes_of,
    search_every_layout,
    step_time,
    verb,
    with_interval,
)
from planner.ask.question import Findings, JobFields, question
from planner.choose.jobs.job_spec import JobSpec
from planner.choose.jobs.neighbours import nearest_batches, nearest_multiples
from planner.choose.preferences import preferences
from planner.choose.search import Candidates
from planner.choose.search.recommendation import recommend
from planner.choose.verdicts.answer_lines import percent_chance
from planner.choose.verdicts.differences import largest_parts
from planner.choose.verdicts.fixes import shortage_sentence
from planner.choose.verdicts.layout_words import estimate_words
from planner.cost.estimate import Estimate, estimate_layouts
from planner.cost.parts import part
from planner.cost.shards.layouts import Layouts
from planner.describe.catalogue import load_framework
from planner.describe.framework.framework import Framework
from planner.describe.layout import OFFLOAD, Layout
from planner.errors import LayoutError
from planner.units import counted, either, format_bytes, format_count, format_seconds, joined

_STAGES = (0, 1, 2, 3)
_USUAL_FRAMEWORK = "deepspeed"
_BUCKET_ELEMENTS = (5e8, 2e8, 5e7, 2e7)
# DeepSpeed's default, the example of its documents (docs/_pages/config-json.md: 2e8), and smaller


@dataclass(frozen=True, slots=True)
class _StageAndOffload:
    """A ZeRO stage and offload, with its recommended layout, else the one closest to fitting."""

    stage: int
    offload: str
    best: Estimate
    reason: str

    @property
    def safe(self) -> bool:
        return is_safe(self.best)

    @property
    def name(self) -> str:
        return f"ZeRO-{self.stage}" + (f" offload {self.offload}" * (self.offload != "none"))

    @property
    def failure(self) -> str:
        """Reason why the layout is not safe."""
        if self.best.fits:
            risk = percent_chance(self.best.out_of_memory_probability)
            return f"has an out-of-memory risk of {risk}"
        return self.reason

    def row(self) -> Row:
        columns = {"zero_stage": self.stage, "offload": self.offload, "fits": self.best.fits}
        return {**columns, **estimate_row(self.best), "reason": self.reason}


@question
def zero(job: JobSpec, *, nodes: int = 1, alone: bool = False, **_: Unpack[JobFields]) -> Findings:
    """Compare every ZeRO stage with every offload, fastest first, and explain which ones fail.

    Each row is the recommended layout of its kind, over all frameworks. If none fits, it is the one
    closest to fitting, with the step time that it would have. If the ranks cannot share the batch
    evenly, the nearest batch that they can share is used, and the answer states it.
    """
    job = job.replaced(nodes=nodes)
    chosen, candidates = search_every_layout(_with_shared_batch(job) if alone else job)
    kinds = [*_kinds([*candidates.values()], job, alone)]
    kinds.sort(key=lambda kind: kind.best.step_time_s)
    first = next((kind for kind in kinds if kind.safe), None)
    sentence = _fastest_kind(job, kinds, first) if kinds else _no_layout(job, alone)
    batch, planned = job.workload.global_batch, chosen.workload.global_batch
    if kinds and planned != batch:
        sentence += (
            f" All with a batch of {planned:,}: {counted(job.num_devices, 'rank')} do not share "
            f"{batch:,} sequences evenly."
        )
    return Findings(
        sentence,
        [kind.row() for kind in kinds],
        notes=["A row that does not fit is the layout of its kind that is closest to fitting."],
        success=first is not None,
    )


def _with_shared_batch(job: JobSpec) -> JobSpec:
    """Return the job with the nearest batch that its ranks share evenly, if one is near."""
    sizes = nearest_multiples(job.workload.global_batch, job.num_devices)
    if not sizes or job.workload.ramp:
        return job
    return job.replaced(workload=job.workload.replaced(global_batch=sizes[0]))


def _kinds(parts: list[Candidates], job: JobSpec, only_dp: bool) -> Iterator[_StageAndOffload]:
    for stage in _STAGES:
        for code, offload in enumerate(OFFLOAD):

            def is_kind(x: Layouts, stage: int = stage, code: int = code) -> np.ndarray:
                kind = (x.zero_stage == stage) & (x.offload == code)
                return np.asarray(kind & ((x.tp * x.pp * x.cp * x.ep == 1) | (not only_dp)))

            of_kind = [each.only(is_kind) for each in parts]
            of_kind = [each for each in of_kind if len(each.footprints)]
            if best := recommend(of_kind, job.tolerance):
                yield _StageAndOffload(stage, offload, best, f"fits; {largest_parts(best)}")
            elif closest := closest_layout(of_kind):
                _, best, footprints = closest
                reason = shortage_sentence(best, footprints)
                yield _StageAndOffload(stage, offload, best, reason)


def _no_layout(job: JobSpec, is_data_parallel: bool) -> str:
    batch, remedy = job.workload.global_batch, "try another batch or framework"
    if is_data_parallel and batch % job.num_devices:
        remedy = (
            f"its {counted(job.num_devices, 'rank')} do not share {batch:,} sequences: "
            f"try a batch of {either(map(str, nearest_batches(batch, job.num_devices)))}"
        )
    return f"{job.model.name} has no legal layout on {nodes_of(job.machine, job.nodes)}; {remedy}."


def _fastest_kind(
    job: JobSpec, kinds: list[_StageAndOffload], first: _StageAndOffload | None
) -> str:
    """Name the fastest safe kind, those about as fast, and why faster ones fail."""
    place = nodes_of(job.machine, job.nodes)
    if first is None:
        closest = min(kinds, key=lambda kind: kind.best.memory_bytes["total"])
        return (
            f"No ZeRO stage with any offload is safe on {place}; {closest.name} {closest.failure}."
        )
    best, tolerance = first.best, preferences().tolerance
    sentence = (
        f"{first.name} is the fastest that is safe on {place}: {estimate_words(best)}, "
        f"{step_time(best)}"
    )
    within = [k for k in kinds if k.best.step_time_s <= (1 + tolerance) * best.step_time_s]
    if tied := [kind for kind in within if kind.safe and kind is not first]:
        listed = joined(f"{kind.name} ({format_seconds(kind.best.step_time_s)})" for kind in tied)
        sentence += (
            f"; {listed} {verb(len(tied), 'are', 'is')} within {100 * tolerance:.0f} % of it: "
            "too close for estimates to rank"
        )
    faster = [f"{kind.name}, which {kind.failure}" for kind in kinds[: kinds.index(first)]]
    return f"{sentence}." + (f" Faster would be {'; '.join(faster)}." if faster else "")


@dataclass(frozen=True, slots=True)
class _BucketEstimates:
    """Estimates of a framework by ZeRO stage and bucket size."""

    framework: Framework
    estimates: dict[tuple[int, float], Estimate]

    @property
    def sizes(self) -> list[float]:
        """Bucket sizes in elements, descending; the first is the framework's default."""
        return sorted({size for _, size in self.estimates}, reverse=True)

    def growth(self, stage: int, size: float) -> float:
        """Memory of a stage minus that of the stage below it [B]; 0 for the lowest stage."""
        if (stage - 1, size) not in self.estimates:
            return 0.0
        above, below = (self.estimates[each, size].memory_bytes for each in (stage, stage - 1))
        return above["total"] - below["total"]


@question
def buckets(job: JobSpec, *, nodes: int = 1, **_: Unpack[JobFields]) -> Findings:
    """Show the memory of every ZeRO stage for several bucket sizes, with data parallelism only.

    Uses the first framework named, else DeepSpeed, and micro-batches of one sequence. The answer
    names stages whose buckets take more than they save, and the largest bucket size that helps.
    """
    job = job.replaced(nodes=nodes)
    framework = job.frameworks[0] if job.frameworks else load_framework(_USUAL_FRAMEWORK)
    default = framework.buffers.reduce_bucket_elements
    if not default:
        raise LayoutError(
            f"{framework.name} reduces gradients in place or without buckets of a fixed size; name "
            f"another framework, such as {_USUAL_FRAMEWORK}"
        )
    sizes = default, *(size for size in _BUCKET_ELEMENTS if size < default)
    stages = framework.zero_stages_for(job.workload.precision)
    estimates = {
        (z, size): _with_buckets(job, framework, size, z) for size in sizes for z in stages
    }
    table = _BucketEstimates(framework, estimates)
    option = "the framework's own configuration"
    if "bucket" in framework.switches:
        name = framework.name
        option = f"the switch {name}+bucket=5e7 (reduce_bucket_size and allgather_bucket_size)"
    return Findings(
        f"{job.model.name} with {framework.name} on {counted(job.num_devices, 'device')}: "
        f"{_larger_stages(table)}.",
        [_bucket_row(table, stage, size) for stage, size in estimates],
        notes=[
            f"Layouts: {job.num_devices} data-parallel ranks, micro-batches of one sequence, no "
            "recompute, no offload.",
            f"Bucket size is set by {option}.",
        ],
    )


def _with_buckets(job: JobSpec, framework: Framework, size: float, stage: int) -> Estimate:
    buffers = framework.buffers.model_dump()
    buffers["reduce_bucket_elements"] = size
    buffers["gather_bucket_elements"] = min(buffers["gather_bucket_elements"], size)
    passes = max(round(job.workload.global_batch / job.num_devices), 1)
    layout = Layout(dp=job.num_devices, zero_stage=stage, grad_accumulation=passes)
    workload = job.workload.replaced(global_batch=layout.global_batch, ramp="")
    scenario = job.replaced(workload=workload).scenario(framework.replaced(buffers=buffers))
    return estimate_layouts(scenario, Layouts.stack([layout]))[0]


def _bucket_row(table: _BucketEstimates, stage: int, size: float) -> Row:
    estimate, growth = table.estimates[stage, size], table.growth(stage, size)
    parts, reason = estimate.memory_bytes, "the lowest stage"
    if (stage - 1, size) in table.estimates:
        direction = "more" if growth > 0 else "less"
        reason = f"{format_bytes(abs(growth))} {direction} than ZeRO-{stage - 1}"
    names = ("weights", "gradients", "optimizer_states", "communication_buffers")
    return {
        "framework": table.framework.name,
        "zero_stage": stage,
        "bucket_elements": size,
        **with_interval("memory_bytes", parts["total"], estimate.interval_memory_bytes),
        **{f"{name}_bytes": parts[name] for name in names},
        "peak": estimate.peak_moment,
        "reason": reason,
    }


def _larger_stages(table: _BucketEstimates) -> str:
    """Name the stages that take more memory than the stage below, and the remedy."""
    default = table.sizes[0]
    lowest, *stages = sorted({stage for stage, _ in table.estimates})
    if not stages:
        memory = {z: table.estimates[lowest, z].memory_bytes["total"] for z in table.sizes}
        amounts = joined(
            f"{format_bytes(total)} with buckets of {_elements(size)}"
            for size, total in memory.items()
        )
        return f"ZeRO-{lowest} is its only stage; a device holds {amounts}"
    if larger := [stage for stage in stages if table.growth(stage, default) > 0]:
        return ". ".join(_remedy(table, stage) for stage in larger)
    exceptions = "".join(
        f"; with {_elements(size)} ZeRO-{stage} takes {format_bytes(growth)} more than "
        f"ZeRO-{stage - 1}"
        for stage, size in table.estimates
        if size != default and (growth := table.growth(stage, size)) > 0
    )
    return (
        f"with buckets of {_elements(default)} every ZeRO stage takes less than the stage below "
        f"it{exceptions}"
    )


def _remedy(table: _BucketEstimates, stage: int) -> str:
    """Name the largest bucket size with which a stage takes no more than the one below."""
    default, least = table.sizes[0], table.sizes[-1]
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
    tried, smallest = _elements(default), format_count(least)
    tried = tried if tried.startswith(smallest) else f"{smallest} to {tried}"
    return (
        f"{growth} with every bucket size tried ({tried}): {part(largest).label} "
        f"{format_bytes(grown[largest])} more"
    )


def _elements(size: float) -> str:
    return f"{format_count(size)} elements"
