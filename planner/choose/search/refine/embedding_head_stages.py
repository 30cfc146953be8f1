"""Ends: layouts whose embedding and head count as a layer each, where that can matter.

A layer less on the first and on the last stage makes room there, evens out stages of which the
last computes the head too, and makes chunks even that else are not.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from planner.choose.legality import legal
from planner.choose.preferences import preferences
from planner.choose.search.candidates import Candidates
from planner.cost.arrays import Float, Int, Mask
from planner.cost.memory.footprint import Footprints
from planner.cost.operators.blocks import blocks_of
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.cost.shards.partial_recompute import stage_parts
from planner.describe.layout import SCHEDULES, Layout

__all__ = ["count_embedding_and_head"]

_HEADS = (0.5, 1.0, 2.0)
# what the head may weigh, over the part that its products have of a layer's


def count_embedding_and_head(found: Candidates) -> Layouts:
    """Layouts with ends as layers, of those that were tried.

    Tried are those that have less to do on their slowest stage so, those that miss the device by
    less than a layer of each stage, and interleaved ones of chunks that were uneven.
    """
    scenario, taken = found.scenario, found.footprints
    layouts, framework = taken.layouts, scenario.framework
    told = framework.custom_pipeline_split and framework.balance == "layers" and len(layouts)
    some = taken.take(np.flatnonzero(layouts.piped & bool(told)))
    piped = some.layouts
    if not len(piped):
        return piped
    helps = _is_lighter(scenario, piped, _counting(piped)) | _is_near(scenario, some)
    even = (piped.vpp == 1) | _is_even(piped.pp * piped.vpp, _num_layers(scenario) + 2)
    tried = piped.take(np.flatnonzero(helps & even))
    joined = Layouts.joined([_counting(tried), *_interleaved(scenario, piped)])
    mask, _ = legal(scenario, joined, set(Layout.model_fields))
    return joined.take(np.flatnonzero(mask))


def _counting(layouts: Layouts) -> Layouts:
    """The same with a slot for either end."""
    slots = np.ones_like(layouts.pp)
    return replace(layouts, embedding_slots=slots, head_slots=slots)


def _is_lighter(scenario: Scenario, plain: Layouts, counted: Layouts) -> Mask:
    """The slowest stage has less to do where ends count, whatever the head weighs."""
    few, which = plain.distinct("pp", "schedule")
    pairs = (few, counted.distinct("pp", "schedule")[0])
    part = _head_part(scenario)
    before, after = (_slowest(scenario, some, part) for some in pairs)
    return np.any(after < before, axis=0)[which]


def _slowest(scenario: Scenario, layouts: Layouts, part: float) -> Float:
    """Layers of the slowest stage, the head being some. Shape (weights of the head, layouts)."""
    blocks = blocks_of(scenario)
    stages = np.arange(int(np.max(layouts.pp)))
    counts = stage_parts(blocks, layouts.take((..., None)), stages, scenario.framework)
    pairs = list(zip(blocks, counts, strict=True))
    layers = np.sum([count for block, count in pairs if block.kind == "layer"], axis=0)
    heads = np.sum([count for block, count in pairs if block.kind == "head"], axis=0)
    work = layers + np.reshape(_HEADS, (-1, 1, 1)) * part * heads
    return np.max(np.where(stages < layouts.pp[:, None], work, 0.0), axis=-1)


def _head_part(scenario: Scenario) -> float:
    """Parameters of the head's products over those of a layer's that one token passes."""
    blocks, experts = blocks_of(scenario), scenario.model.experts
    used = experts.top_k / experts.num_experts if experts else 1.0
    weights = {kind: 0.0 for kind in ("embedding", "layer", "head")}
    for block in blocks:
        for weight in block.weights:
            share = used if weight.part == "experts" else 1.0
            weights[block.kind] += share * block.count * weight.num_params
    layers = sum(block.count for block in blocks if block.kind == "layer")
    head = weights["head"] or weights["embedding"]
    return head * layers / max(weights["layer"], 1.0)


def _is_near(scenario: Scenario, taken: Footprints) -> Mask:
    """Fits the device without one layer of its stages, but not with it."""
    layers = np.maximum(_num_layers(scenario) // taken.layouts.pp, 1)
    return ~taken.fits & (taken.memory_bytes * (1 - 1 / layers) <= taken.device_limit_bytes)


def _is_even(chunks: Int, slots: int) -> Mask:
    """No chunk is much fuller than the others."""
    return -(-slots // chunks) * chunks <= preferences().search.fullest_chunk.value * slots


def _num_layers(scenario: Scenario) -> int:
    return scenario.model.depth


def _interleaved(scenario: Scenario, piped: Layouts) -> list[Layouts]:
    """Chunks that are even with ends as layers alone."""
    layers, code = _num_layers(scenario), SCHEDULES.index("interleaved-1f1b")
    if "interleaved-1f1b" not in scenario.framework.schedules:
        return []
    once = piped.take(np.flatnonzero(piped.scheduled("1f1b")))
    found = []
    for chunks in range(2, layers // 2 + 2):
        places = once.pp * chunks
        gained = _is_even(places, layers + 2) & ~_is_even(places, layers)
        some = once.take(np.flatnonzero(gained))
        vpp, schedule = np.full(len(some), chunks), np.full(len(some), code)
        found.append(_counting(replace(some, vpp=vpp, schedule=schedule)))
    return [some for some in found if len(some)]
