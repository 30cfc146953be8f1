"""ZeRO stages: which stage and offload to use, and why each faster one fails."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Unpack

import numpy as np

from planner.ask.answer import Row
from planner.ask.option import Nodes, Option
from planner.ask.plan_point import (
    closest_layout,
    estimate_row,
    is_safe,
    largest_parts,
    search_every_layout,
)
from planner.ask.question import Findings, JobFields, question
from planner.ask.sentences import nodes_of, percent, step_time, verb
from planner.choose.jobs.job_spec import JobSpec
from planner.choose.preferences import preferences
from planner.choose.recommendation import recommend
from planner.choose.search import Candidates
from planner.choose.verdicts.fixes import shortage_sentence
from planner.cost.estimate import Estimate
from planner.cost.shards.layouts import Layouts
from planner.describe.layout import OFFLOAD
from planner.units import counted, either, format_seconds, joined

__all__ = ["zero"]

_STAGES = (0, 1, 2, 3)


@dataclass(frozen=True, slots=True)
class _StageAndOffload:
    """A ZeRO stage with an offload, and its recommended layout or the one closest to fitting."""

    stage: int
    offload: str
    best: Estimate
    reason: str

    @property
    def safe(self) -> bool:
        """True if it fits with an acceptable out-of-memory risk."""
        return is_safe(self.best)

    @property
    def name(self) -> str:
        """Its name in sentences."""
        return f"ZeRO-{self.stage}" + (f" offload {self.offload}" * (self.offload != "none"))

    @property
    def failure(self) -> str:
        """Why it is not safe."""
        if self.best.fits:
            return f"has an out-of-memory risk of {percent(self.best.out_of_memory_probability)}"
        return self.reason

    def row(self) -> Row:
        """A record of the table."""
        columns = {"zero_stage": self.stage, "offload": self.offload, "fits": self.best.fits}
        return {**columns, **estimate_row(self.best), "reason": self.reason}


@question
def zero(
    job: JobSpec,
    *,
    nodes: Nodes = 1,
    alone: Annotated[
        bool, Option("Use data parallelism only, without tensor, pipeline and other axes.")
    ] = False,
    **_: Unpack[JobFields],
) -> Findings:
    """Compare every ZeRO stage with every offload, fastest first, and say why the others fail.

    Each row is the recommended layout of its kind, of any framework. Where none fits, it is the one
    closest to fitting, with the step time that it would have. Where ranks do not share the batch
    evenly, the nearest batch that they share is used, and the answer says so.
    """
    job = job.replaced(nodes=nodes)
    candidates = search_every_layout(_with_shared_batch(job) if alone else job)
    parts = list(candidates.by_framework.values())
    kinds = sorted(_kinds(parts, job, alone), key=lambda kind: kind.best.step_time_s)
    first = next((kind for kind in kinds if kind.safe), None)
    sentence = _verdict(job, kinds, first, alone)
    batch = job.workload.global_batch
    if kinds and candidates.workload.global_batch != batch:
        sentence += (
            f" All with a batch of {candidates.workload.global_batch:,}: "
            f"{counted(job.num_devices, 'rank')} do not share {batch:,} sequences evenly."
        )
    return Findings(
        sentence,
        [kind.row() for kind in kinds],
        notes=["A row that does not fit is the layout of its kind that is closest to fitting."],
        success=first is not None,
    )


def _with_shared_batch(job: JobSpec) -> JobSpec:
    """The job with the nearest batch that all its ranks share, if one is near."""
    batch = job.workload.global_batch
    limit = preferences().offers.batch_change.value * batch
    nearby_batches = [n for n in _shared_batches(job) if abs(n - batch) <= limit]
    if not nearby_batches or job.workload.ramp:
        return job
    nearest = min(nearby_batches, key=lambda n: (abs(n - batch), n))
    return job.replaced(workload=job.workload.replaced(global_batch=nearest))


def _shared_batches(job: JobSpec) -> list[int]:
    """The multiples of the ranks next below and above the batch."""
    ranks, batch = job.num_devices, job.workload.global_batch
    return sorted({n for n in (batch // ranks * ranks, -(-batch // ranks) * ranks) if n})


def _kinds(parts: list[Candidates], job: JobSpec, alone: bool) -> Iterator[_StageAndOffload]:
    """Stages and offloads that have a legal layout."""
    for stage in _STAGES:
        for code, offload in enumerate(OFFLOAD):

            def is_kind(x: Layouts, stage: int = stage, code: int = code) -> np.ndarray:
                kind = (x.zero_stage == stage) & (x.offload == code)
                return np.asarray(kind & ((x.tp * x.pp * x.cp * x.ep == 1) | (not alone)))

            of_kind = [each.only(is_kind) for each in parts]
            of_kind = [each for each in of_kind if len(each.footprints)]
            best = recommend(of_kind, job.tolerance)
            if best is not None:
                yield _StageAndOffload(stage, offload, best, f"fits; {largest_parts(best)}")
            elif closest := closest_layout(of_kind):
                _, estimate, footprints = closest
                yield _StageAndOffload(
                    stage, offload, estimate, shortage_sentence(estimate, footprints)
                )


def _verdict(
    job: JobSpec, kinds: list[_StageAndOffload], first: _StageAndOffload | None, alone: bool
) -> str:
    place = nodes_of(job.machine, job.nodes)
    if not kinds:
        batch = job.workload.global_batch
        remedy = "try another batch or framework"
        if alone and batch % job.num_devices:
            remedy = (
                f"its {counted(job.num_devices, 'rank')} do not share {batch:,} sequences: "
                f"try --global-batch {either(map(str, _shared_batches(job)))}"
            )
        return f"{job.model.name} has no legal layout on {place}; {remedy}."
    if first is None:
        closest = min(kinds, key=lambda kind: kind.best.memory_bytes["total"])
        return (
            f"No ZeRO stage with any offload is safe on {place}; {closest.name} {closest.failure}."
        )
    sentence = (
        f"{first.name} is the fastest that is safe on {place}: {first.best.layout} "
        f"[{first.best.framework}], {step_time(first.best)}{_about_as_fast(kinds, first)}."
    )
    faster = kinds[: kinds.index(first)]
    if faster:
        failures = "; ".join(f"{kind.name}, which {kind.failure}" for kind in faster)
        sentence += f" Faster would be {failures}."
    return sentence


def _about_as_fast(kinds: list[_StageAndOffload], first: _StageAndOffload) -> str:
    """Name safe kinds that are too close for estimates to rank."""
    tolerance = preferences().tolerance
    limit_s = (1 + tolerance) * first.best.step_time_s
    tied = [k for k in kinds if k.safe and k is not first and k.best.step_time_s <= limit_s]
    if not tied:
        return ""
    listed = joined(f"{kind.name} ({format_seconds(kind.best.step_time_s)})" for kind in tied)
    return (
        f"; {listed} {verb(len(tied), 'are', 'is')} within {100 * tolerance:.0f} % of it: "
        "too close for estimates to rank"
    )
