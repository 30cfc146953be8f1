"""ZeRO: which stage and which offload, and why each faster one fails."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Unpack

import numpy as np

from planner.ask.answer import Answer, Row
from planner.ask.asked import Asked, JobFields, asked_of
from planner.ask.option import Nodes, Option, checked
from planner.ask.point import between, estimate_row, largest_parts
from planner.choose.job_search import JobCandidates
from planner.choose.preferences import preferences
from planner.choose.recommendation import recommend
from planner.choose.search import Candidates
from planner.choose.verdicts.fixes import closest_to_fitting, shortage_sentence
from planner.cost.estimate import Estimate, timed
from planner.cost.shards.layouts import Layouts
from planner.describe.layout import OFFLOAD
from planner.describe.machine import Machine
from planner.describe.model.model import Model
from planner.units import counted, either, format_seconds, joined

__all__ = ["zero"]

_STAGES = (0, 1, 2, 3)


@dataclass(frozen=True, slots=True)
class _Kind:
    """A ZeRO stage and an offload, with the layout that one would run of it."""

    stage: int
    offload: str
    best: Estimate
    why: str

    @property
    def safe(self) -> bool:
        """Whether it fits, and runs out of memory as seldom as is taken."""
        return self.best.fits and self.best.out_of_memory_probability <= preferences().risk

    @property
    def name(self) -> str:
        """What it is called."""
        return f"ZeRO-{self.stage}" + (f" offload {self.offload}" * (self.offload != "none"))


@checked
def zero(
    model: str | Model,
    machine: str | Machine,
    *,
    nodes: Nodes = 1,
    alone: Annotated[
        bool, Option("Whether only data parallelism counts, without tensor, pipeline and others.")
    ] = False,
    **job: Unpack[JobFields],
) -> Answer:
    """Every ZeRO stage with every offload, fastest first, and by how much those that fail do.

    Of each kind the layout that one would run of it, of any framework; where none fits, the one
    nearest to fitting, whose step time is what it would take. Where ranks do not share the batch
    evenly it is of the nearest that they share, and says so.

    >>> import planner
    >>> job = planner.Workload(sequence_length=1024, global_batch=64)
    >>> answer = planner.ask.zero("gpt2-xl", "polaris", workload=job, frameworks="deepspeed")
    >>> answer.rows[0]["zero_stage"] < 3            # it fits without sharding weights
    True
    """
    asked = asked_of(model, machine, job)
    done = (_shared(asked, nodes) if alone else asked).searched(nodes, whole=True)
    kinds = sorted(
        _kinds(list(done.by_framework.values()), asked, alone), key=lambda k: k.best.step_time_s
    )
    first = next((kind for kind in kinds if kind.safe), None)
    return asked.answer(
        "zero",
        _verdict(asked, kinds, first, nodes, alone) + _other_batch(asked, done, nodes, kinds),
        [_row(kind) for kind in kinds],
        found=first is not None,
        notes=["What does not fit is the layout of its kind that is nearest to fitting."],
        nodes=nodes,
        alone=alone,
    )


def _shared(asked: Asked, nodes: int) -> Asked:
    """The job with the nearest batch that all its ranks share, where one is near."""
    batch = asked.workload.global_batch
    change = preferences().offers.batch_change.value * batch
    near = [n for n in _sharing(asked, nodes) if abs(n - batch) <= change]
    if not near or asked.workload.ramp:
        return asked
    nearest = min(near, key=lambda n: (abs(n - batch), n))
    return asked.at(workload=asked.workload.replaced(global_batch=nearest))


def _sharing(asked: Asked, nodes: int) -> list[int]:
    """The multiples of the ranks on both sides of the batch."""
    world, batch = nodes * asked.per_node, asked.workload.global_batch
    return sorted({n for n in (batch // world * world, -(-batch // world) * world) if n})


def _other_batch(asked: Asked, done: JobCandidates, nodes: int, kinds: list[_Kind]) -> str:
    """The batch that is answered, where it is not the one asked for."""
    batch, taken = asked.workload.global_batch, done.workload.global_batch
    if batch == taken or not kinds:
        return ""
    ranks = counted(nodes * asked.per_node, "rank")
    return f" All with a batch of {taken:,}: {ranks} do not share {batch:,} sequences evenly."


def _kinds(found: list[Candidates], asked: Asked, alone: bool) -> Iterator[_Kind]:
    """The kinds of which there is a legal layout."""
    for stage in _STAGES:
        for code, offload in enumerate(OFFLOAD):

            def holds(x: Layouts, stage: int = stage, code: int = code) -> np.ndarray:
                kind = (x.zero_stage == stage) & (x.offload == code)
                return np.asarray(kind & ((x.tp * x.pp * x.cp * x.ep == 1) | (not alone)))

            parts = [part for each in found if len((part := each.only(holds)).footprints)]
            best = recommend(parts, asked.tolerance)
            if best is not None:
                yield _Kind(stage, offload, best, f"fits; {largest_parts(best)}")
            elif parts:
                closest = [(*closest_to_fitting(part), part.scenario) for part in parts]
                _, taken, scenario = min(closest, key=lambda each: each[0])
                one = timed(scenario, taken)[0]
                yield _Kind(stage, offload, one, shortage_sentence(one, taken))


def _row(kind: _Kind) -> Row:
    return {
        "zero_stage": kind.stage,
        "offload": kind.offload,
        "fits": kind.best.fits,
        **estimate_row(kind.best),
        "reason": kind.why,
    }


def _verdict(asked: Asked, kinds: list[_Kind], first: _Kind | None, nodes: int, alone: bool) -> str:
    where = f"{counted(nodes, 'node')} of {asked.machine.name}"
    if not kinds:
        return (
            f"{asked.model.name} has no legal layout on {where}; {_instead(asked, nodes, alone)}."
        )
    if first is None:
        nearer = min(kinds, key=lambda kind: kind.best.memory_bytes["total"])
        return f"No ZeRO stage with any offload is safe on {where}; {nearer.name} {nearer.why}."
    faster = kinds[: kinds.index(first)]
    said = (
        f"{first.name} is the fastest that is safe on {where}: {first.best.layout} "
        f"[{first.best.framework}], {between(first.best)}"
    )
    said += _alike(kinds, first)
    if not faster:
        return f"{said}."
    return f"{said}. Faster would be {'; '.join(f'{k.name}, which {_fails(k)}' for k in faster)}."


def _alike(kinds: list[_Kind], first: _Kind) -> str:
    """Safe kinds whose estimate differs by less than estimates can tell."""
    limit = (1 + preferences().tolerance) * first.best.step_time_s
    near = [k for k in kinds if k.safe and k is not first and k.best.step_time_s <= limit]
    if not near:
        return ""
    listed = joined(f"{k.name} ({format_seconds(k.best.step_time_s)})" for k in near)
    percent = f"{100 * preferences().tolerance:.0f} %"
    return (
        f"; {listed} {'is' if len(near) == 1 else 'are'} within {percent} of that, "
        "which estimates cannot tell apart"
    )


def _instead(asked: Asked, nodes: int, alone: bool) -> str:
    """What to try where no layout is legal."""
    world, batch = nodes * asked.per_node, asked.workload.global_batch
    if not alone or batch % world == 0:
        return "try another batch or framework"
    return (
        f"its {counted(world, 'rank')} do not share {batch:,} sequences: "
        f"try --global-batch {either(map(str, _sharing(asked, nodes)))}"
    )


def _fails(kind: _Kind) -> str:
    if kind.best.fits:
        return f"runs out of memory with {100 * kind.best.out_of_memory_probability:.0f} %"
    return kind.why
