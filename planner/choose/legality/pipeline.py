"""Rules of the pipeline: stages, chunks, schedules."""

from __future__ import annotations

import numpy as np

from planner.choose.job import listed
from planner.choose.legality.rule import Rule, coded
from planner.cost.arrays import Mask
from planner.cost.question import Question
from planner.cost.schedules.bubble import defers_weight_gradients, interleaved
from planner.cost.shards.layouts import Layouts
from planner.describe.layout import RECOMPUTE, SCHEDULES, Layout, divisors
from planner.units import either

__all__ = ["SCHEDULED", "STAGES"]


def _num_layers(q: Question) -> int:
    return q.model.num_layers + q.model.num_decoder_layers


def _stages(q: Question, x: Layouts) -> Mask:
    chunks, layers = x.pp * x.vpp, _num_layers(q)
    return chunks <= layers if q.framework.uneven_stages else layers % chunks == 0


def _stages_message(q: Question, x: Layout) -> str:
    layers, chunks = _num_layers(q), x.pp * x.vpp
    if q.framework.uneven_stages:
        return f"pp * vpp = {chunks} exceeds the {layers} layers; use at most {layers}"
    return (
        f"pp * vpp = {chunks} does not divide the {layers} layers, which {q.framework.name} "
        f"demands; use one of {listed(divisors(layers))}"
    )


def _schedule(q: Question, x: Layouts) -> Mask:
    scheduled = x.piped != x.scheduled("none")
    chunked = np.where(x.v_shaped, x.vpp == 2, (x.vpp > 1) == interleaved(x))
    return scheduled & chunked & (~interleaved(x) | (x.grad_accumulation % x.pp == 0))


def _schedule_message(q: Question, x: Layout) -> str:
    if (x.pp > 1) != (x.schedule != "none"):
        return (
            f"pp = {x.pp} with schedule {x.schedule!r}: a pipeline needs a schedule and a schedule "
            "a pipeline; use 1f1b with pp > 1 and none with pp = 1"
        )
    if x.v_shaped and x.vpp != 2:
        return (
            f"vpp = {x.vpp} with schedule {x.schedule!r}, whose stages hold two chunks each; set "
            "vpp = 2"
        )
    if not x.v_shaped and (x.vpp > 1) != (x.schedule == "interleaved-1f1b"):
        return (
            f"vpp = {x.vpp} with schedule {x.schedule!r}: only interleaved-1f1b has several chunks "
            "per stage; set vpp = 1 or that schedule"
        )
    return (
        f"grad_accumulation = {x.grad_accumulation} is not a multiple of pp = {x.pp}, which the "
        "interleaved schedule demands; change micro_batch or use 1f1b"
    )


def _deferred(q: Question, x: Layouts) -> Mask:
    recompute = [RECOMPUTE.index(mode) for mode in q.framework.deferred_recompute]
    stages = np.isin(x.zero_stage, q.framework.deferred_zero_stages)
    return ~defers_weight_gradients(x) | (np.isin(x.recompute, recompute) & stages)


def _deferred_message(q: Question, x: Layout) -> str:
    recompute, stages = q.framework.deferred_recompute, q.framework.deferred_zero_stages
    return (
        f"schedule {x.schedule!r}, whose weight gradients are passes of their own, with recompute "
        f"{x.recompute!r} and ZeRO stage {x.zero_stage}: {q.framework.name} has it with recompute "
        f"{either(recompute)} and stage {either(map(str, stages))}; use these or another schedule"
    )


STAGES: tuple[Rule, ...] = (
    Rule("stages do not divide the layers", ("pp", "vpp"), _stages, _stages_message),
)

SCHEDULED: tuple[Rule, ...] = (
    coded("schedule", SCHEDULES, "schedules", "none"),
    Rule(
        "schedule does not fit the pipeline",
        ("pp", "vpp", "schedule", "grad_accumulation"),
        _schedule,
        _schedule_message,
    ),
    Rule(
        "schedule does not go with recompute or ZeRO stage",
        ("schedule", "recompute", "zero_stage"),
        _deferred,
        _deferred_message,
    ),
)
