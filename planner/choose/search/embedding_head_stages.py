"""Embedding and head stages: count the embedding and the head as a layer each where it helps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from planner.choose.legality import legal_layouts
from planner.choose.preferences import preferences
from planner.choose.search.candidates import Candidates
from planner.cost.arrays import Float, Int, Mask
from planner.cost.memory.footprint import Footprints
from planner.cost.operators.blocks import blocks_of
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.cost.shards.partial_recompute import stage_block_counts
from planner.describe.layout import SCHEDULES

__all__ = ["count_embedding_and_head"]


_HEAD_WEIGHTS = (0.5, 1.0, 2.0)
"""Time of the head over its share of a layer's parameters: its time is not known here."""


def count_embedding_and_head(candidates: Candidates) -> Layouts:
    """Give the embedding and the head a slot each in the pipeline."""
    scenario, framework = candidates.scenario, candidates.scenario.framework
    has_slots = framework.custom_pipeline_split and framework.balance == "layers"
    layouts = candidates.footprints.layouts
    is_tried = layouts.piped & bool(has_slots and len(layouts))
    footprints = candidates.footprints.take(np.flatnonzero(is_tried))
    piped = footprints.layouts
    if not len(piped):
        return piped
    helps = _is_lighter(scenario, piped, _with_slots(piped)) | _nearly_fits(scenario, footprints)
    is_even = (piped.vpp == 1) | _is_even(piped.pp * piped.vpp, scenario.model.depth + 2)
    helped = piped.take(np.flatnonzero(helps & is_even))
    layouts = Layouts.joined([_with_slots(helped), *_interleaved(scenario, piped)])
    return legal_layouts(scenario, layouts)


def _with_slots(layouts: Layouts) -> Layouts:
    """The layouts with a slot for the embedding and one for the head."""
    slots = np.ones_like(layouts.pp)
    return replace(layouts, embedding_slots=slots, head_slots=slots)


def _is_lighter(scenario: Scenario, plain: Layouts, with_slots: Layouts) -> Mask:
    """Whether the slowest stage has less work with slots, for any weight of the head."""
    shapes, rows = plain.distinct("pp", "schedule")
    slotted, _ = with_slots.distinct("pp", "schedule")
    head = _head_in_layers(scenario)
    before, after = (_slowest_stage(scenario, each, head) for each in (shapes, slotted))
    return np.any(after < before, axis=0)[rows]


def _slowest_stage(scenario: Scenario, layouts: Layouts, head: float) -> Float:
    """Work of the slowest stage in layers. Shape (weights of the head, layouts)."""
    blocks = blocks_of(scenario)
    stages = np.arange(int(np.max(layouts.pp)))
    counts = stage_block_counts(blocks, layouts.take((..., None)), stages, scenario.framework)
    pairs = list(zip(blocks, counts, strict=True))
    layers = np.sum([count for block, count in pairs if block.kind == "layer"], axis=0)
    heads = np.sum([count for block, count in pairs if block.kind == "head"], axis=0)
    work = layers + np.reshape(_HEAD_WEIGHTS, (-1, 1, 1)) * head * heads
    return np.max(np.where(stages < layouts.pp[:, None], work, 0.0), axis=-1)


def _head_in_layers(scenario: Scenario) -> float:
    """Parameters of the head over those of a layer that one token uses."""
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


def _nearly_fits(scenario: Scenario, footprints: Footprints) -> Mask:
    """Whether layouts fit the device without one layer of each stage, but not with it."""
    layers = np.maximum(scenario.model.depth // footprints.layouts.pp, 1)
    without_layer = footprints.memory_bytes * (1 - 1 / layers)
    return ~footprints.fits & (without_layer <= footprints.device_limit_bytes)


def _is_even(chunks: Int, slots: int) -> Mask:
    """Whether no chunk is much fuller than the others."""
    fullest = -(-slots // chunks) * chunks
    return fullest <= preferences().search.fullest_chunk.value * slots


def _interleaved(scenario: Scenario, piped: Layouts) -> list[Layouts]:
    """Interleaved layouts whose chunks are even only with slots."""
    layers, schedule = scenario.model.depth, SCHEDULES.index("interleaved-1f1b")
    if "interleaved-1f1b" not in scenario.framework.schedules:
        return []
    layouts = piped.take(np.flatnonzero(piped.scheduled("1f1b")))
    by_chunks = []
    for chunks in range(2, layers // 2 + 2):
        places = layouts.pp * chunks
        is_gained = _is_even(places, layers + 2) & ~_is_even(places, layers)
        gained = layouts.take(np.flatnonzero(is_gained))
        vpp, schedules = np.full(len(gained), chunks), np.full(len(gained), schedule)
        by_chunks.append(_with_slots(replace(gained, vpp=vpp, schedule=schedules)))
    return [each for each in by_chunks if len(each)]
