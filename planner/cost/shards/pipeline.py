"""Pipeline: how layers are dealt to stages."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from planner.cost.arrays import Float, Int, distinct
from planner.cost.shards.layouts import Layouts
from planner.describe.framework.framework import Framework
from planner.describe.model.block import Block

__all__ = [
    "EndLayers",
    "candidate_stages",
    "chunk_counts",
    "layers_on_stage",
    "model_counts",
    "parted",
    "parts_columns",
    "repeated_of",
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
    Where the model turns at the last stage, those of both chunks. Left out: chunks that go round,
    which share their stage. method.md#pipeline.

    >>> from planner import Layout, Workload, load_framework, load_model
    >>> from planner.cost.operators.blocks import blocks
    >>> megatron = load_framework("megatron-lm")
    >>> llama = blocks(load_model("llama-3-8b"), Workload(), megatron)      # 32 layers
    >>> [int(n) for n in stage_counts(llama, Layouts.of(Layout(pp=4)), 0, megatron)]
    [1, 8, 0]
    """
    if any(block.kept_whole for block in blocks):
        return _parted_counts(blocks, layouts, np.asarray(stage), framework)
    total, ends = _total_and_ends(blocks, framework)
    pp, turned, stage = np.broadcast_arrays(layouts.pp, layouts.v_shaped, np.asarray(stage))
    # few pairs of pp and stage differ, however many layouts there are
    first, which = distinct(pp, stage, turned)
    pp, turned, stage = (np.ravel(column)[first] for column in (pp, turned, stage))
    few = _counts_of(blocks, pp, stage, total, ends)
    if np.any(turned):
        down = _counts_of(blocks, 2 * pp, stage, total, ends)
        up = _counts_of(blocks, 2 * pp, 2 * pp - 1 - stage, total, ends)
        both = zip(few, down, up, strict=True)
        few = [np.where(turned, ahead + back, plain) for plain, ahead, back in both]
    return [count[which] for count in few]


def _parted_counts(
    blocks: tuple[Block, ...], layouts: Layouts, stage: Int, framework: Framework
) -> list[Float]:
    """The same with the layers that a partial recompute repeats and leaves, chunk by chunk."""
    columns = (layouts.pp, layouts.vpp, layouts.schedule, *parts_columns(layouts), stage)
    shape = np.broadcast_shapes(*(np.shape(column) for column in columns))
    spread = [np.broadcast_to(column, shape) for column in columns]
    first, which = distinct(*spread)
    few = layouts.map(lambda values: np.broadcast_to(values, shape).ravel()[first])
    counts = chunk_counts(blocks, few, spread[-1].ravel()[first], framework)
    return [np.sum(count, axis=0)[which] for count in counts]


def model_counts(blocks: tuple[Block, ...], layouts: Layouts, framework: Framework) -> list[Float]:
    """How many of each block the model holds [1].

    Counted: layers that a partial recompute repeats and leaves, chunk by chunk. Left out: nothing.
    method.md#recompute.

    >>> from planner import Layout, Workload, load_framework, load_model
    >>> from planner.cost.operators.blocks import blocks
    >>> megatron = load_framework("megatron-lm")
    >>> llama = parted(blocks(load_model("llama-3-8b"), Workload(), megatron))
    >>> two = Layouts.of(Layout(pp=4, recompute="full", recompute_layers=2))
    >>> [float(count) for count in model_counts(llama, two, megatron)]
    [1.0, 8.0, 24.0, 1.0]
    """
    if not any(block.kept_whole for block in blocks):
        return [np.asarray(float(block.count)) for block in blocks]
    total, ends = _total_and_ends(blocks, framework)
    columns = np.broadcast_arrays(layouts.pp, layouts.vpp, *parts_columns(layouts))
    first, which = distinct(*columns)
    few = layouts.map(lambda values: np.broadcast_to(values, np.shape(which)).ravel()[first])
    chunks = few.pp * few.vpp
    row = np.repeat(np.arange(len(first)), chunks)
    chunk = np.arange(len(row)) - np.repeat(np.cumsum(chunks) - chunks, chunks)
    found = _counts_of(blocks, chunks[row], chunk, total, ends, few.take(row))
    sums = [np.bincount(row, count, len(first)).astype(float) for count in found]
    return [count[which] for count in sums]


def parted(blocks: tuple[Block, ...]) -> tuple[Block, ...]:
    """Blocks with every kind of layer twice: as it is repeated, and as a partial recompute leaves
    it, which counts with the one before it.

    >>> from planner import Workload, load_framework, load_model
    >>> from planner.cost.operators.blocks import blocks
    >>> llama = blocks(load_model("llama-3-8b"), Workload(), load_framework("megatron-lm"))
    >>> [(block.kind, block.kept_whole, block.count) for block in parted(llama)][1:3]
    [('layer', False, 32), ('layer', True, 0)]
    """
    pairs = (
        (block, replace(block, kept_whole=True, count=0)) if block.kind == "layer" else (block,)
        for block in blocks
    )
    return tuple(block for pair in pairs for block in pair)


def parts_columns(layouts: Layouts) -> tuple[Int, Int]:
    """What tells which layers of a chunk a partial recompute repeats."""
    partly = layouts.recomputes_partly
    layers = np.where(partly, layouts.recompute_layers, 0)
    return layers, np.where(partly, layouts.recompute_every, 1)


def repeated_of(layouts: Layouts, layers: Float) -> Float:
    """How many of the first `layers` layers of a chunk are repeated [1].

    Counted: the first ones (Megatron's block method), or every n-th, from the n-th on. Left out:
    nothing; all of them with full recompute of all. method.md#recompute.

    >>> from planner import Layout
    >>> some = Layouts.of(Layout(recompute="full", recompute_every=2))
    >>> float(repeated_of(some, np.asarray(5.0)))
    2.0
    """
    most = np.where(layouts.recompute_layers > 0, layouts.recompute_layers, np.inf)
    some = np.floor(np.minimum(layers, most) / layouts.recompute_every)
    return np.where(layouts.recomputes_partly, some, layers)


def chunk_counts(
    blocks: tuple[Block, ...], layouts: Layouts, stage: Int, framework: Framework
) -> list[Float]:
    """How many of each block every chunk of a pipeline stage holds. Shape (chunks, ...) [1].

    Counted: chunks dealt as the stages of a pipeline as long as all of them. Left out: nothing;
    what a layout has fewer chunks of stands at 0. method.md#pipeline.

    >>> from planner import Layout, Workload, load_framework, load_model
    >>> from planner.cost.operators.blocks import blocks
    >>> titan = load_framework("fsdp2")
    >>> llama = blocks(load_model("llama-3-8b"), Workload(), titan)         # 32 layers and 2 ends
    >>> counts = chunk_counts(llama, Layouts.of(Layout(pp=4, vpp=2)), np.asarray(0), titan)
    >>> [count.tolist() for count in counts]
    [[1.0, 0.0], [4.0, 4.0], [0.0, 0.0]]
    """
    total, ends = _total_and_ends(blocks, framework)
    most = int(np.max(layouts.vpp, initial=1))
    number = np.arange(most).reshape(-1, *[1] * np.ndim(stage))
    pp = np.broadcast_to(layouts.pp * layouts.vpp, (most, *np.shape(stage)))
    there = number < layouts.vpp
    chunk = np.where(there, layouts.chunk(stage, number), 0)
    if any(block.kept_whole for block in blocks):
        wide = layouts.map(lambda values: np.broadcast_to(values, pp.shape).ravel())
        found = _counts_of(blocks, pp.ravel(), chunk.ravel(), total, ends, wide)
    else:
        found = _counts_of(blocks, pp.ravel(), chunk.ravel(), total, ends)
    return [np.where(there, count.reshape(pp.shape), 0.0) for count in found]


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
    layer ends, the stage that mixes two kinds, the one after it and the fullest after it; where
    the model turns at the last stage, of its chunks, the last fuller one and the stage before the
    turn. Left out: those between, which hold ever fewer layers and micro-batches.
    method.md#pipeline.

    >>> from planner import Layout, Workload, load_framework, load_model
    >>> from planner.cost.operators.blocks import blocks
    >>> megatron = load_framework("megatron-lm")
    >>> llama = blocks(load_model("llama-3-8b"), Workload(), megatron)
    >>> candidate_stages(llama, Layouts.of(Layout(pp=8)), megatron).tolist()
    [0, 7]
    """
    total, ends = _total_and_ends(blocks, framework)
    turns = bool(np.any(layouts.v_shaped))
    pp = np.where(layouts.v_shaped, 2, 1) * layouts.pp
    stages = [np.zeros_like(pp), layouts.pp - 1]
    if ends.first or turns:
        stages.append(np.minimum(1, layouts.pp - 1))
    if turns:
        # the last that sends both ways, and of the chunks with one layer more the last
        fuller = (total + int(ends.first) + int(ends.last)) % pp
        further = (layouts.pp - 2, fuller - 1)
        stages += [np.where(layouts.v_shaped, np.maximum(chunk, 0), 0) for chunk in further]
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
    return np.stack([layouts.stage_of(chunk) for chunk in stages], axis=-1)


def _counts_of(
    blocks: tuple[Block, ...],
    pp: Int,
    stage: Int,
    total: int,
    ends: EndLayers,
    partly: Layouts | None = None,
) -> list[Float]:
    """Blocks on the stages of distinct pairs of pp and stage; with the layouts of a partial
    recompute, layers apart that it repeats and that it leaves."""
    start, count = layers_on_stage(total, pp, stage, ends)
    counts, before, passed = [], 0, 0
    for block in blocks:
        if block.kind == "embedding":
            counts.append(np.where(stage == 0, 1.0, 0.0))
        elif block.kind == "head":
            counts.append(np.where(stage == pp - 1, 1.0, 0.0))
        elif block.kept_whole and partly is not None:
            first, last = (np.clip(at - start, 0.0, count) for at in (before, passed))
            again = repeated_of(partly, last) - repeated_of(partly, first)
            counts.append(counts[-1] - again)
            counts[-2] = again
        else:
            below = np.minimum(start + count, passed + block.count)
            counts.append(np.maximum(below - np.maximum(start, passed), 0.0))
            before, passed = passed, passed + block.count
    return counts
