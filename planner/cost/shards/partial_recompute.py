"""Parted: layers of a chunk that a partial recompute repeats, and those that it leaves."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from planner.cost.arrays import Float, Int, distinct
from planner.cost.shards.layers_per_stage import chunk_counts, deal_columns
from planner.cost.shards.layouts import Layouts
from planner.describe.framework.framework import Framework
from planner.describe.model.block import Block

__all__ = [
    "around_parts",
    "chunk_parts",
    "distinct_parts",
    "every_stage",
    "model_parts",
    "parted",
    "parts_columns",
    "repeated_of",
    "stage_parts",
]


def parted(blocks: tuple[Block, ...]) -> tuple[Block, ...]:
    """Blocks with every kind of layer twice: as it is repeated, and as a partial recompute leaves
    it, which counts with the one before it.

    Counted: the same layers, none of them left yet. Left out: how many either is, which
    `chunk_parts` says of a stage. method.md#recompute.

    >>> llama = blocks_of(scenario)
    >>> [(block.kind, block.kept_whole, block.count) for block in parted(llama)][1:3]
    [('layer', False, 32), ('layer', True, 0)]
    """
    pairs = (
        (block, replace(block, kept_whole=True, count=0)) if block.kind == "layer" else (block,)
        for block in blocks
    )
    return tuple(block for pair in pairs for block in pair)


def parts_columns(layouts: Layouts) -> tuple[Int, Int]:
    """First layers and stride [1] that tell which layers of a chunk a partial recompute repeats.

    Counted: `recompute_layers` and `recompute_every` where they are told. Left out: layers a
    checkpoint spans, of which all are repeated. method.md#recompute.

    >>> some = Layouts.of(Layout(recompute="full", recompute_layers=2))
    >>> [int(column) for column in parts_columns(some)]
    [2, 1]
    """
    partly = layouts.recomputes_partly
    layers = np.where(partly, layouts.recompute_layers, 0)
    return layers, np.where(partly, layouts.recompute_every, 1)


def repeated_of(layouts: Layouts, layers: Float) -> Float:
    """How many of the first `layers` layers of a chunk are repeated [1].

    Counted: the first ones (Megatron's block method), or every n-th, from the n-th on. Left out:
    nothing; all of them with full recompute of all. method.md#recompute.

    >>> some = Layouts.of(Layout(recompute="full", recompute_every=2))
    >>> float(repeated_of(some, np.asarray(5.0)))
    2.0
    """
    most = np.where(layouts.recompute_layers > 0, layouts.recompute_layers, np.inf)
    some = np.floor(np.minimum(layers, most) / layouts.recompute_every)
    return np.where(layouts.recomputes_partly, some, layers)


def chunk_parts(
    blocks: tuple[Block, ...], layouts: Layouts, stage: Int, framework: Framework
) -> list[Float]:
    """How many of each block every chunk of a pipeline stage holds. Shape (chunks, ...) [1].

    Counted: as `chunk_counts`; where blocks are parted, layers that are repeated and left, in the
    order in which kinds of layers follow each other. Left out: nothing. method.md#recompute.

    >>> from planner.cost.operators.blocks import blocks
    >>> megatron = load_framework("megatron-lm")
    >>> llama = parted(blocks(load_model("llama-3-8b"), Workload(), megatron))
    >>> two = Layouts.of(Layout(pp=4, recompute="full", recompute_layers=2))
    >>> [float(count[0]) for count in chunk_parts(llama, two, np.asarray(0), megatron)]
    [1.0, 2.0, 6.0, 0.0]
    """
    whole = tuple(block for block in blocks if not block.kept_whole)
    counts = chunk_counts(whole, layouts, stage, framework)
    if len(whole) == len(blocks):
        return counts
    found: list[Float] = []
    passed = np.zeros_like(counts[0])
    for block, count in zip(whole, counts, strict=True):
        if block.kind != "layer":
            found.append(count)
            continue
        again = repeated_of(layouts, passed + count) - repeated_of(layouts, passed)
        passed = passed + count
        found += [again, count - again]
    return found


def stage_parts(
    blocks: tuple[Block, ...], layouts: Layouts, stage: ArrayLike, framework: Framework
) -> list[Float]:
    """How many of each block a pipeline stage holds [1].

    Counted: the blocks of its chunks, as `chunk_parts`. Left out: nothing. method.md#pipeline.

    >>> from planner.cost.operators.blocks import blocks
    >>> megatron = load_framework("megatron-lm")
    >>> llama = blocks(load_model("llama-3-8b"), Workload(), megatron)      # 32 layers
    >>> [int(n) for n in stage_parts(llama, Layouts.of(Layout(pp=4)), 0, megatron)]
    [1, 8, 0]
    >>> two = Layouts.of(Layout(pp=2, vpp=2, recompute="full", recompute_layers=2))
    >>> [int(count) for count in stage_parts(parted(llama), two, 0, megatron)]
    [1, 4, 12, 0]
    """
    few, stages, which = distinct_parts(blocks, layouts, stage)
    counts = chunk_parts(blocks, few, stages, framework)
    return [np.sum(count, axis=0)[which] for count in counts]


def distinct_parts(
    blocks: tuple[Block, ...], layouts: Layouts, column: ArrayLike
) -> tuple[Layouts, Int, Int]:
    """Layouts whose stages hold unlike parts of a model or that differ in one column more, such as
    the stage; that column of theirs, and which of them each layout is [1].

    Counted: how layers are dealt, and where blocks are parted, which of them are repeated. Left
    out: all else that layouts differ in. method.md#pipeline.

    >>> llama = blocks_of(scenario)
    >>> some = Layouts.stack([Layout(pp=4, dp=2), Layout(pp=2), Layout(pp=4)])
    >>> few, stages, which = distinct_parts(llama, some, 1)
    >>> few.pp.tolist(), stages.tolist(), which.tolist()
    ([4, 2], [1, 1], [0, 1, 0])
    """
    repeated = parts_columns(layouts) if any(block.kept_whole for block in blocks) else ()
    first, which = distinct(*deal_columns(layouts), *repeated, np.asarray(column))
    return (
        layouts.of_each(first, which.size),
        np.broadcast_to(column, which.shape).ravel()[first],
        which,
    )


def model_parts(blocks: tuple[Block, ...], layouts: Layouts, framework: Framework) -> list[Float]:
    """How many of each block the model holds [1].

    Counted: where blocks are parted, layers that are repeated and left, chunk by chunk. Left out:
    nothing. method.md#recompute.

    >>> from planner.cost.operators.blocks import blocks
    >>> megatron = load_framework("megatron-lm")
    >>> llama = parted(blocks(load_model("llama-3-8b"), Workload(), megatron))
    >>> two = Layouts.of(Layout(pp=4, recompute="full", recompute_layers=2))
    >>> [float(count) for count in model_parts(llama, two, megatron)]
    [1.0, 8.0, 24.0, 1.0]
    """
    if not any(block.kept_whole for block in blocks):
        return [np.asarray(float(block.count)) for block in blocks]
    few, _, which = distinct_parts(blocks, layouts, np.zeros_like(layouts.pp))
    row, stage = every_stage(few)
    counts = stage_parts(blocks, few.take(row), stage, framework)
    sums = [np.bincount(row, count, len(few)).astype(float) for count in counts]
    return [count[which] for count in sums]


def around_parts(
    blocks: tuple[Block, ...], layouts: Layouts, stage: Int, framework: Framework
) -> tuple[Int, list[Float], list[Float]]:
    """The last stage that holds what a stage does, chunk by chunk, and how many of each block lie
    before its first chunk and behind its last one [1].

    Counted: in the order of the model, as `chunk_parts` deals it. Left out: what lies between the
    stage's own chunks. method.md#pipeline.

    >>> from planner.cost.operators.blocks import blocks
    >>> megatron = load_framework("megatron-lm")
    >>> llama = blocks(load_model("llama-3-8b"), Workload(), megatron)      # 32 layers
    >>> last, *around = around_parts(llama, Layouts.of(Layout(pp=4)), np.asarray(1), megatron)
    >>> int(last), [[float(count) for count in side] for side in around]
    (2, [[1.0, 16.0, 0.0], [0.0, 8.0, 1.0]])
    """
    few, _, which = distinct_parts(blocks, layouts, np.zeros_like(layouts.pp))
    row, stages = every_stage(few)
    each = few.take(row)
    counts = chunk_parts(blocks, each, stages, framework)
    number = np.arange(len(counts[0]))[:, None]
    there = number < each.vpp
    place = each.chunk(stages, number)[there] + 1
    rows = np.broadcast_to(row, there.shape)[there]
    _, alike = distinct(row, *np.concatenate(counts).astype(np.int64))
    latest = np.zeros(len(row), dtype=np.int64)
    np.maximum.at(latest, alike, stages)
    table = np.zeros((len(few), int(np.max(few.pp))), dtype=np.int64)
    table[row, stages] = latest[alike]
    stage = table[which, stage]
    first, last = layouts.chunk(stage, 0), layouts.chunk(stage, layouts.vpp - 1)
    before, after = [], []
    for count in counts:
        passed = np.zeros((len(few), int(np.max(few.pp * few.vpp)) + 1))
        passed[rows, place] = count[there]
        passed = np.cumsum(passed, axis=1)
        before.append(passed[which, first])
        after.append(passed[which, -1] - passed[which, last + 1])
    return stage, before, after


def every_stage(layouts: Layouts) -> tuple[Int, Int]:
    """Every stage of some layouts, one after the other: the number of its layout, and its own [1].

    Counted: as many as each layout has. Left out: what they hold. Definition.

    >>> row, stage = every_stage(Layouts.broadcast(pp=[2, 3]))
    >>> row.tolist(), stage.tolist()
    ([0, 0, 1, 1, 1], [0, 1, 0, 1, 2])
    """
    row = np.repeat(np.arange(len(layouts)), layouts.pp)
    return row, np.arange(len(row)) - np.repeat(np.cumsum(layouts.pp) - layouts.pp, layouts.pp)
