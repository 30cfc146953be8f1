"""Rules of the pipeline: stages, chunks, schedules."""

from collections.abc import Iterator

import numpy as np

from planner.choose.legality.rule import Breaks, coded, one_of, rule
from planner.cost.arrays import is_in
from planner.cost.scenario import Scenario
from planner.cost.schedules.bubble import defers_weight_gradients, fewest_micro_batches, interleaved
from planner.cost.shards.layers_per_stage import layer_split, layers_on_stage
from planner.cost.shards.layouts import Layouts
from planner.describe.layout import RECOMPUTE, SCHEDULES, STAGE_FIELDS, Layout
from planner.errors import shorten
from planner.units import either


@rule("the framework takes no custom pipeline split", "pp", *STAGE_FIELDS)
def _custom_split(q: Scenario, x: Layouts, y: Layout, breaks: Breaks) -> Iterator[str]:
    is_custom = x.counts_embedding_or_head | x.has_custom_split
    if breaks(is_custom & ~x.piped):
        yield f"pp = 1 with {_split_options(y)}: one stage holds all layers; leave it out"
    if breaks(is_custom & (not q.framework.custom_pipeline_split)):
        yield (
            f"{_split_options(y)}: {q.framework.name} splits layers over stages itself; leave it "
            "out, or use a framework with custom splits, such as megatron-lm"
        )


def _split_options(y: Layout) -> str:
    options = y.model_dump(include=set(STAGE_FIELDS), exclude_defaults=True)
    return ", ".join(f"{name} = {shorten(str(value))}" for name, value in options.items())


@rule("stages do not divide the layers", "pp", "vpp")
def _stages(q: Scenario, x: Layouts, y: Layout, breaks: Breaks) -> Iterator[str]:
    layers, uneven, chunks = q.model.depth, q.framework.uneven_stages, y.pp * y.vpp
    is_dealt = ~(x.counts_embedding_or_head | x.has_custom_split)
    if breaks(is_dealt & (x.pp * x.vpp > layers) & uneven):
        yield f"pp * vpp = {chunks} exceeds the {layers} layers; use at most {layers}"
    if breaks(is_dealt & (layers % (x.pp * x.vpp) != 0) & (not uneven)):
        yield (
            f"pp * vpp = {chunks} does not divide the {layers} layers, which {q.framework.name} "
            f"requires; {one_of(layers)}"
        )


@rule("a stage holds no layer", "pp", "vpp", *STAGE_FIELDS)
def _filled(q: Scenario, x: Layouts, y: Layout, breaks: Breaks) -> Iterator[str]:
    layers, is_custom = q.model.depth, np.ravel(x.counts_embedding_or_head | x.has_custom_split)
    is_empty = np.zeros(len(is_custom), dtype=np.bool_)
    if np.any(is_custom):
        shapes, rows = x.distinct("pp", "vpp", "schedule", *STAGE_FIELDS)
        empty = [not _is_filled(layers, shapes[row]) for row in range(len(shapes))]
        is_empty = is_custom & np.array(empty)[np.ravel(rows)]
    if breaks(is_empty.reshape(np.shape(x.pp))):
        if y.split:
            yield (
                f"split = {shorten(y.split)} holds {sum(y.chunk_layers)} layers, but "
                f"{q.model.name} has {layers}; make them equal"
            )
        yield (
            f"{_split_options(y)} leave no layer for one of the pp * vpp = {y.pp * y.vpp} "
            f"chunks of {layers} layers; use fewer chunks or fewer slots"
        )


def _is_filled(layers: int, y: Layout) -> bool:
    """True if chunks hold all layers; the first, the last and those of `split` may be empty."""
    chunks = y.pp * y.vpp
    _, counts = layers_on_stage(layers, chunks, np.arange(chunks), layer_split(layers, y))
    between = counts[1:-1] if not y.split else counts[:0]
    return bool(counts.sum() == layers and np.all(counts >= 0) and np.all(between >= 1))


@rule(
    "schedule does not fit the pipeline",
    *("pp", "vpp", "schedule", "grad_accumulation"),
    source="arXiv:2104.04473, section 2.2",
)
def _schedule(q: Scenario, x: Layouts, y: Layout, breaks: Breaks) -> Iterator[str]:
    if breaks(x.piped == x.uses_schedule("none")):
        yield (
            f"pp = {y.pp} with schedule {y.schedule!r}: a pipeline needs a schedule and a "
            "schedule a pipeline; use 1f1b with pp > 1 and none with pp = 1"
        )
    if breaks(x.v_shaped & (x.vpp != 2)):
        yield (
            f"vpp = {y.vpp} with schedule {y.schedule!r}, whose stages hold two chunks each; "
            "set vpp = 2"
        )
    if breaks(~x.v_shaped & ((x.vpp > 1) != interleaved(x))):
        yield (
            f"vpp = {y.vpp} with schedule {y.schedule!r}: only interleaved-1f1b has several "
            "chunks per stage, at least 2; change vpp or the schedule"
        )
    fewest = fewest_micro_batches(x)
    if breaks(x.num_microbatches < fewest):
        yield (
            f"grad_accumulation = {y.grad_accumulation} with schedule {y.schedule!r} of "
            f"{y.pp} stages, which needs {fewest} micro-batches; change micro_batch or the "
            "schedule"
        )
    if breaks(interleaved(x) & (x.grad_accumulation % x.pp != 0)):
        yield (
            f"grad_accumulation = {y.grad_accumulation} is not a multiple of pp = {y.pp}, "
            "which the interleaved schedule requires; change global_batch or use 1f1b"
        )


@rule("schedule does not support recompute or ZeRO stage", "schedule", "recompute", "zero_stage")
def _deferred(q: Scenario, x: Layouts, y: Layout, breaks: Breaks) -> Iterator[str]:
    recompute, stages = q.framework.deferred_recompute, q.framework.deferred_zero_stages
    codes = [RECOMPUTE.index(mode) for mode in recompute]
    goes = is_in(x.recompute, codes) & is_in(x.zero_stage, stages)
    if breaks(defers_weight_gradients(x) & ~goes):
        yield (
            f"schedule {y.schedule!r}, which defers weight gradients, with recompute "
            f"{y.recompute!r} and ZeRO stage {y.zero_stage}: {q.framework.name} supports it only "
            f"with recompute {either(recompute)} and stage {either(map(str, stages))}; use these "
            "or another schedule"
        )


STAGES = (_custom_split, _stages, _filled)
SCHEDULED = (coded("schedule", SCHEDULES, "schedules"), _schedule, _deferred)
