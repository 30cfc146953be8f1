"""Rules of the pipeline: stages, chunks, schedules."""

from __future__ import annotations

import numpy as np

from planner.choose.legality.job_checks import listed
from planner.choose.legality.rule import Rule, coded
from planner.cost.arrays import Mask, is_in
from planner.cost.scenario import Scenario
from planner.cost.schedules.bubble import defers_weight_gradients, fewest_micro_batches, interleaved
from planner.cost.shards.layers_per_stage import layer_split, layers_on_stage
from planner.cost.shards.layouts import Layouts
from planner.describe.layout import RECOMPUTE, SCHEDULES, STAGE_FIELDS, Layout, divisors
from planner.errors import shorten
from planner.units import either

__all__ = ["SCHEDULED", "STAGES"]


def _num_layers(q: Scenario) -> int:
    return q.model.depth


def _stages(q: Scenario, x: Layouts) -> Mask:
    chunks, layers = x.pp * x.vpp, _num_layers(q)
    even = chunks <= layers if q.framework.uneven_stages else layers % chunks == 0
    return even | x.counts_embedding_or_head | x.has_custom_split


def _custom_split(q: Scenario, x: Layouts) -> Mask:
    is_custom = x.counts_embedding_or_head | x.has_custom_split
    return ~is_custom | (x.piped & q.framework.custom_pipeline_split)


def _custom_split_message(q: Scenario, x: Layout) -> str:
    if x.pp == 1:
        return f"pp = 1 with {_split_options(x)}: one stage holds all layers; leave it out"
    return (
        f"{_split_options(x)}: {q.framework.name} splits layers over stages itself; leave it "
        "out, or use a framework with custom splits, such as megatron-lm"
    )


def _split_options(x: Layout) -> str:
    """The options of a layout that split its layers over stages."""
    options = x.model_dump(include=set(STAGE_FIELDS), exclude_defaults=True)
    return ", ".join(f"{name} = {shorten(str(value))}" for name, value in options.items())


def _filled(q: Scenario, x: Layouts) -> Mask:
    """Every layer lies on a stage, and no chunk but the first and last is empty."""
    is_custom = np.ravel(x.counts_embedding_or_head | x.has_custom_split)
    holds = np.ones(len(is_custom), dtype=np.bool_)
    if np.any(is_custom):
        shapes, rows = x.distinct("pp", "vpp", "schedule", *STAGE_FIELDS)
        fits = [_is_filled(q, shapes[row]) for row in range(len(shapes))]
        holds = ~is_custom | np.array(fits)[np.ravel(rows)]
    return holds.reshape(np.shape(x.pp))


def _is_filled(q: Scenario, x: Layout) -> bool:
    layers, chunks = _num_layers(q), x.pp * x.vpp
    deal = layer_split(layers, x)
    _, counts = layers_on_stage(layers, chunks, np.arange(chunks), deal)
    between = counts[1:-1] if not x.split else counts[:0]
    return bool(counts.sum() == layers and np.all(counts >= 0) and np.all(between >= 1))


def _filled_message(q: Scenario, x: Layout) -> str:
    layers, chunks = _num_layers(q), x.pp * x.vpp
    if x.split:
        return (
            f"split = {shorten(x.split)} holds {sum(x.chunk_layers)} layers, but {q.model.name} "
            f"has {layers}; make them equal"
        )
    return (
        f"{_split_options(x)} leave no layer for one of the pp * vpp = {chunks} chunks of {layers} "
        "layers; use fewer chunks or fewer slots"
    )


def _stages_message(q: Scenario, x: Layout) -> str:
    layers, chunks = _num_layers(q), x.pp * x.vpp
    if q.framework.uneven_stages:
        return f"pp * vpp = {chunks} exceeds the {layers} layers; use at most {layers}"
    return (
        f"pp * vpp = {chunks} does not divide the {layers} layers, which {q.framework.name} "
        f"demands; use one of {listed(divisors(layers))}"
    )


def _schedule(q: Scenario, x: Layouts) -> Mask:
    scheduled = x.piped != x.scheduled("none")
    chunked = np.where(x.v_shaped, x.vpp == 2, (x.vpp > 1) == interleaved(x))
    divided = ~interleaved(x) | (x.grad_accumulation % x.pp == 0)
    return scheduled & chunked & divided & (x.num_microbatches >= fewest_micro_batches(x))


def _schedule_message(q: Scenario, x: Layout) -> str:
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
    fewest = int(fewest_micro_batches(Layouts.of(x)))
    if x.grad_accumulation < fewest:
        return (
            f"grad_accumulation = {x.grad_accumulation} with schedule {x.schedule!r} of {x.pp} "
            f"stages, which needs {fewest} micro-batches; change micro_batch or the schedule"
        )
    return (
        f"grad_accumulation = {x.grad_accumulation} is not a multiple of pp = {x.pp}, which the "
        "interleaved schedule demands; change micro_batch or use 1f1b"
    )


def _deferred(q: Scenario, x: Layouts) -> Mask:
    recompute = [RECOMPUTE.index(mode) for mode in q.framework.deferred_recompute]
    stages = is_in(x.zero_stage, q.framework.deferred_zero_stages)
    return ~defers_weight_gradients(x) | (is_in(x.recompute, recompute) & stages)


def _deferred_message(q: Scenario, x: Layout) -> str:
    recompute, stages = q.framework.deferred_recompute, q.framework.deferred_zero_stages
    return (
        f"schedule {x.schedule!r}, whose weight gradients are passes of their own, with recompute "
        f"{x.recompute!r} and ZeRO stage {x.zero_stage}: {q.framework.name} has it with recompute "
        f"{either(recompute)} and stage {either(map(str, stages))}; use these or another schedule"
    )


STAGES: tuple[Rule, ...] = (
    Rule(
        "the framework takes no custom pipeline split",
        ("pp", *STAGE_FIELDS),
        _custom_split,
        _custom_split_message,
    ),
    Rule("stages do not divide the layers", ("pp", "vpp"), _stages, _stages_message),
    Rule("a stage holds no layer", ("pp", "vpp", *STAGE_FIELDS), _filled, _filled_message),
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
