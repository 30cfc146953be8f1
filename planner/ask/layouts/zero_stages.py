"""ZeRO stages: which stage and offload to use, and why faster ones fail."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Unpack

import numpy as np

from planner.ask import plan_point
from planner.ask.answer import Row
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
from planner.cost.estimate import Estimate
from planner.cost.shards.layouts import Layouts
from planner.describe.layout import OFFLOAD
from planner.units import counted, either, format_seconds, joined

_STAGES = (0, 1, 2, 3)


@dataclass(frozen=True, slots=True)
class _StageAndOffload:
    """A ZeRO stage and offload, with its recommended layout, else the one closest to fitting."""

    stage: int
    offload: str
    best: Estimate
    reason: str

    @property
    def safe(self) -> bool:
        return plan_point.is_safe(self.best)

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
        return {**columns, **plan_point.estimate_row(self.best), "reason": self.reason}


@question
def zero(job: JobSpec, *, nodes: int = 1, alone: bool = False, **_: Unpack[JobFields]) -> Findings:
    """Compare every ZeRO stage with every offload, fastest first, and explain which ones fail.

    Each row is the recommended layout of its kind, over all frameworks. If none fits, it is the one
    closest to fitting, with the step time that it would have. If the ranks cannot share the batch
    evenly, the nearest batch that they can share is used, and the answer states it.
    """
    job = job.replaced(nodes=nodes)
    chosen, candidates = plan_point.search_every_layout(_with_shared_batch(job) if alone else job)
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
            elif closest := plan_point.closest_layout(of_kind):
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
    place = plan_point.nodes_of(job.machine, job.nodes)
    return f"{job.model.name} has no legal layout on {place}; {remedy}."


def _fastest_kind(
    job: JobSpec, kinds: list[_StageAndOffload], first: _StageAndOffload | None
) -> str:
    """Name the fastest safe kind, those about as fast, and why faster ones fail."""
    place = plan_point.nodes_of(job.machine, job.nodes)
    if first is None:
        closest = min(kinds, key=lambda kind: kind.best.memory_bytes["total"])
        return (
            f"No ZeRO stage with any offload is safe on {place}; {closest.name} {closest.failure}."
        )
    best, tolerance = first.best, preferences().tolerance
    sentence = (
        f"{first.name} is the fastest that is safe on {place}: {estimate_words(best)}, "
        f"{plan_point.step_time(best)}"
    )
    within = [k for k in kinds if k.best.step_time_s <= (1 + tolerance) * best.step_time_s]
    if tied := [kind for kind in within if kind.safe and kind is not first]:
        listed = joined(f"{kind.name} ({format_seconds(kind.best.step_time_s)})" for kind in tied)
        sentence += (
            f"; {listed} {plan_point.verb(len(tied), 'are', 'is')} within "
            f"{100 * tolerance:.0f} % of it: too close for estimates to rank"
        )
    faster = [f"{kind.name}, which {kind.failure}" for kind in kinds[: kinds.index(first)]]
    return f"{sentence}." + (f" Faster would be {'; '.join(faster)}." if faster else "")
