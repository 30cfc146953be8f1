"""Pipeline: how layers are dealt to stages, what is in flight, and how long the bubble is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from planner.cost.arrays import Float, Int, Mask, distinct
from planner.cost.schedules.known import KNOWN
from planner.cost.shards.layouts import Layouts
from planner.describe.framework import Framework
from planner.describe.model.block import Block

__all__ = [
    "EndLayers",
    "bubble_s",
    "candidate_stages",
    "in_flight",
    "interleaved",
    "layers_on_stage",
    "runs_forward_ahead",
    "stage_counts",
]


@dataclass(frozen=True, slots=True)
class EndLayers:
    """What embedding and head weigh in layers when stages are dealt."""

    first: float = 0.0
    last: float = 0.0
    by_cost: bool = False
    """Dealt in order, each stage closing with the layer that passes its share (nanotron, but the
    head is taken on the last stage, as measured steps of 16 and 32 stages suggest); else ends
    count as whole layers of stages as even as possible (torchtitan)."""


_NO_ENDS = EndLayers()


def layers_on_stage(
    num_layers: int, pp: ArrayLike, stage: ArrayLike, ends: EndLayers = _NO_ENDS
) -> tuple[Float, Float]:
    """Index of a stage's first layer and its number of layers [1].

    Counted: stages as even as possible; without ends the first num_layers mod pp stages hold one
    layer more. Left out: stages dealt by hand. method.md#pipeline.

    >>> [int(layers_on_stage(32, 4, i)[1]) for i in range(4)]
    [8, 8, 8, 8]
    >>> [int(layers_on_stage(32, 4, i, EndLayers(1, 1))[1]) for i in range(4)]
    [8, 9, 8, 7]
    >>> [int(layers_on_stage(16, 4, i, EndLayers(0, 4.0, by_cost=True))[1]) for i in range(4)]
    [6, 5, 5, 0]
    """
    pp, stage = np.broadcast_arrays(np.asarray(pp), np.asarray(stage))
    if ends.by_cost:
        share = (num_layers + ends.last) / pp
        start = np.where(stage > 0, np.floor(share * stage) + 1, 0)
        end = np.where(stage < pp - 1, np.floor(share * (stage + 1)) + 1, num_layers)
        start, end = np.minimum(start, num_layers), np.minimum(end, num_layers)
        return start.astype(float), (end - start).astype(float)
    # ends count as whole layers: deal them all, then take the ends away
    first, last = int(ends.first), int(ends.last)
    base, extra = np.divmod(num_layers + first + last, pp)
    count = base + (stage < extra) - first * (stage == 0) - last * (stage == pp - 1)
    start = stage * base + np.minimum(stage, extra) - first * (stage > 0)
    return start.astype(float), count.astype(float)


def stage_counts(
    blocks: tuple[Block, ...], layouts: Layouts, stage: ArrayLike, framework: Framework
) -> list[Float]:
    """How many of each block a pipeline stage holds [1].

    Counted: layers in the order of the blocks, the embedding on stage 0, the head on the last.
    Left out: chunks, which share their stage. method.md#pipeline.

    >>> from planner import Layout, Workload, load_framework, load_model
    >>> from planner.cost.operators.blocks import blocks
    >>> megatron = load_framework("megatron-lm")
    >>> llama = blocks(load_model("llama-3-8b"), Workload(), megatron)      # 32 layers
    >>> [int(n) for n in stage_counts(llama, Layouts.of(Layout(pp=4)), 0, megatron)]
    [1, 8, 0]
    """
    total, ends = _total_and_ends(blocks, framework)
    pp, stage = np.broadcast_arrays(layouts.pp, np.asarray(stage))
    # few pairs of pp and stage differ, however many layouts there are
    first, which = distinct(pp, stage)
    few = _counts_of(blocks, np.ravel(pp)[first], np.ravel(stage)[first], total, ends)
    return [count[which] for count in few]


def _total_and_ends(blocks: tuple[Block, ...], framework: Framework) -> tuple[int, EndLayers]:
    """Layers in all, and what embedding and head weigh in layers."""
    layers = [block for block in blocks if block.kind == "layer"]
    total = sum(block.count for block in layers)
    if framework.balance == "ends-as-layers":
        return total, EndLayers(1, 1)
    if framework.balance == "cost":
        head = sum(_cost(b) for b in blocks if b.kind == "head")
        return total, EndLayers(
            0, head * total / sum(b.count * _cost(b) for b in layers), by_cost=True
        )
    return total, _NO_ENDS


def _cost(block: Block) -> int:
    """What nanotron counts when it deals blocks: matrices, keys and values as large as queries."""
    matrices = [w for w in block.weights if w.columns > 1]
    own = [w for w in matrices if w.part == "attention" and not w.adapter]
    query = sum(w.num_params for w in own if w.matrix == "query")
    grouped = [w for w in own if w.matrix in ("key", "value")]
    repeated = len(grouped) * query - sum(w.num_params for w in grouped)
    return sum(w.num_params for w in matrices) + repeated


def candidate_stages(blocks: tuple[Block, ...], layouts: Layouts, framework: Framework) -> Int:
    """Stages of which one is the worst in memory and in time. Shape (..., stages) [1].

    Counted: first and last, and the second where the first holds fewer layers; where a kind of
    layer ends, the stage that mixes two kinds, the one after it and the fullest after it. Left
    out: those between, which hold ever fewer layers and micro-batches. method.md#pipeline.

    >>> from planner import Layout, Workload, load_framework, load_model
    >>> from planner.cost.operators.blocks import blocks
    >>> megatron = load_framework("megatron-lm")
    >>> llama = blocks(load_model("llama-3-8b"), Workload(), megatron)
    >>> candidate_stages(llama, Layouts.of(Layout(pp=8)), megatron).tolist()
    [0, 7]
    """
    total, ends = _total_and_ends(blocks, framework)
    pp = layouts.pp
    stages = [np.zeros_like(pp), pp - 1]
    if ends.first:
        stages.append(np.minimum(1, pp - 1))
    boundaries = np.cumsum([block.count for block in blocks if block.kind == "layer"])[:-1]
    for layer in boundaries:
        mixed = np.zeros(int(np.max(pp, initial=1)) + 1, dtype=np.int64)
        after = np.zeros_like(mixed)
        for degree in np.unique(pp):
            start, count = layers_on_stage(total, degree, np.arange(degree), ends)
            mixed[degree] = stage = int(np.flatnonzero(start + count > layer)[0])
            # of the stages that hold the second kind alone, the first of the fullest
            after[degree] = min(stage + 1, degree - 1) + int(np.argmax([*count[stage + 1 :], 0]))
        stages += [mixed[pp], np.minimum(mixed[pp] + 1, pp - 1), after[pp]]
    return np.stack(stages, axis=-1)


def _counts_of(
    blocks: tuple[Block, ...],
    pp: Int,
    stage: Int,
    total: int,
    ends: EndLayers,
) -> list[Float]:
    """Blocks on the stages of distinct pairs of pp and stage."""
    start, count = layers_on_stage(total, pp, stage, ends)
    counts, passed = [], 0
    for block in blocks:
        if block.kind == "embedding":
            counts.append(np.where(stage == 0, 1.0, 0.0))
        elif block.kind == "head":
            counts.append(np.where(stage == pp - 1, 1.0, 0.0))
        else:
            below = np.minimum(start + count, passed + block.count)
            counts.append(np.maximum(below - np.maximum(start, passed), 0.0))
            passed += block.count
    return counts


def in_flight(layouts: Layouts, stage: ArrayLike) -> Float:
    """Micro-batches whose activations a stage holds at its peak [1].

    Counted: those of each schedule's own closed form. Left out: what receive buffers hold.
    method.md#pipeline.

    >>> float(in_flight(Layouts.broadcast(pp=4, grad_accumulation=8, schedule=2), 1))
    3.0
    """
    p, v, m = layouts.pp, layouts.vpp, layouts.num_microbatches
    first, *others = KNOWN.values()
    stage = np.asarray(stage)
    found = first.in_flight(p, v, m, stage)
    for schedule in others:
        if np.any(here := layouts.scheduled(schedule.name)):
            found = np.where(here, schedule.in_flight(p, v, m, stage), found)
    return np.where(layouts.piped, found, 1.0)


def bubble_s(layouts: Layouts, slowest_s: Float, sum_s: Float, weight_s: Float) -> Float:
    """Idle time of the slowest stage while the pipeline fills and drains [s].

    `slowest_s` and `sum_s` are the time of one micro-batch on the slowest stage and on all
    stages. Counted: with equal stages (p - 1)(t_f + t_b) / v (Narayanan et al. 2021,
    arXiv:2104.04473, section 2.2), less what a schedule does meanwhile. Left out: the optimizer.

    >>> from planner import Layout
    >>> layouts = Layouts.of(Layout(pp=4, schedule="1f1b", grad_accumulation=8))
    >>> float(bubble_s(layouts, np.asarray(3.0), np.asarray(12.0), np.asarray(1.0)))    # 3 * 3 s
    9.0
    """
    idle = np.maximum(sum_s - slowest_s, 0.0) / layouts.vpp
    found = idle
    for schedule in KNOWN.values():
        bubble = schedule.bubble_s(idle, layouts.pp, weight_s)
        found = np.where(layouts.scheduled(schedule.name), bubble, found)
    return found


def interleaved(layouts: Layouts) -> Mask:
    """Stages hold several chunks of the model."""
    return _any_of(layouts, [name for name, known in KNOWN.items() if known.interleaves])


def runs_forward_ahead(layouts: Layouts) -> Mask:
    """The last stage runs forward passes before its first backward pass."""
    return _any_of(layouts, [name for name, known in KNOWN.items() if known.runs_forward_ahead])


def _any_of(layouts: Layouts, names: list[str]) -> Mask:
    return np.any([layouts.scheduled(name) for name in names], axis=0)
