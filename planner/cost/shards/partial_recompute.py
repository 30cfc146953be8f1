"""Partial recompute: block counts per chunk, with recomputed and kept layers separate."""

from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from planner.cost.arrays import Float, Int, broadcast_to, distinct
from planner.cost.shards.layers_per_stage import chunk_counts, split_columns
from planner.cost.shards.layouts import Layouts
from planner.describe.framework.framework import Framework
from planner.describe.model.block import Block


def split_for_partial_recompute(blocks: tuple[Block, ...]) -> tuple[Block, ...]:
    """Split every layer block in two: recomputed layers, and layers that keep their activations.

    Counted: all layers, in the first block of each pair. Left out: counts on a stage, which
    `chunk_block_counts` returns. host.md#recompute.
    """
    pairs = (
        (block, replace(block, kept_whole=True, count=0)) if block.kind == "layer" else (block,)
        for block in blocks
    )
    return tuple(block for pair in pairs for block in pair)


def recompute_columns(layouts: Layouts) -> tuple[Int, Int]:
    """Columns that determine which layers of a chunk are recomputed: first layers, stride [1].

    Counted: `recompute_layers` and `recompute_every` under partial recompute, else 0 and 1. Left
    out: `recompute_span`, which recomputes all layers. host.md#recompute.
    """
    partly = layouts.recomputes_partly
    layers = np.where(partly, layouts.recompute_layers, 0)
    return layers, np.where(partly, layouts.recompute_every, 1)


def _recomputed_layers(layouts: Layouts, layers: Float) -> Float:
    """Recomputed layers among the first `layers` of a chunk: the first n, or every n-th."""
    most = np.where(layouts.recompute_layers > 0, layouts.recompute_layers, np.inf)
    recomputed = np.floor(np.minimum(layers, most) / layouts.recompute_every)
    return np.where(layouts.recomputes_partly, recomputed, layers)


def chunk_block_counts(
    blocks: tuple[Block, ...], layouts: Layouts, stage: Int, framework: Framework
) -> list[Float]:
    """Block counts of every chunk, recomputed and kept layers separate. Shape (chunks, ...) [1].

    Counted: as in `chunk_counts`; split layer blocks as recomputed and kept layers. Left
    out: nothing. host.md#recompute.
    """
    unsplit_blocks = tuple(block for block in blocks if not block.kept_whole)
    counts = chunk_counts(unsplit_blocks, layouts, stage, framework)
    if len(unsplit_blocks) == len(blocks):
        return counts
    part_counts: list[Float] = []
    passed = np.zeros_like(counts[0])
    for block, count in zip(unsplit_blocks, counts, strict=True):
        if block.kind != "layer":
            part_counts.append(count)
            continue
        before, passed = passed, passed + count
        recomputed = _recomputed_layers(layouts, passed) - _recomputed_layers(layouts, before)
        part_counts += [recomputed, count - recomputed]
    return part_counts


def stage_block_counts(
    blocks: tuple[Block, ...], layouts: Layouts, stage: ArrayLike, framework: Framework
) -> list[Float]:
    """Block counts of a pipeline stage [1].

    Counted: the blocks of its chunks (`chunk_block_counts`). Left out: their order.
    pipeline.md#pipeline.
    """
    unique_layouts, stages, index = distinct_stage_layouts(blocks, layouts, stage)
    counts = chunk_block_counts(blocks, unique_layouts, stages, framework)
    return [np.sum(count, axis=0)[index] for count in counts]


def distinct_stage_layouts(
    blocks: tuple[Block, ...], layouts: Layouts, column: ArrayLike
) -> tuple[Layouts, Int, Int]:
    """Unique layouts by stage blocks and one more column, that column, and the index to expand [1].

    Counted: the split of layers over chunks and, with split blocks, which layers are recomputed.
    Left out: all other columns of layouts. pipeline.md#pipeline.
    """
    repeated = recompute_columns(layouts) if any(block.kept_whole for block in blocks) else ()
    first, index = distinct(*split_columns(layouts), *repeated, np.asarray(column))
    return (
        layouts.of_each(first, index.size),
        broadcast_to(column, index.shape).ravel()[first],
        index,
    )


def model_block_counts(
    blocks: tuple[Block, ...], layouts: Layouts, framework: Framework
) -> list[Float]:
    """Block counts of the whole model [1].

    Counted: all blocks; split layer blocks as recomputed and kept layers. Left out: nothing.
    host.md#recompute.
    """
    if not any(block.kept_whole for block in blocks):
        return [np.asarray(float(block.count)) for block in blocks]
    unique_layouts, _, index = distinct_stage_layouts(blocks, layouts, np.zeros_like(layouts.pp))
    row, stage = enumerate_stages(unique_layouts)
    counts = stage_block_counts(blocks, unique_layouts.take(row), stage, framework)
    sums = [np.bincount(row, count, len(unique_layouts)).astype(float) for count in counts]
    return [count[index] for count in sums]


def block_counts_around(
    blocks: tuple[Block, ...], layouts: Layouts, stage: Int, framework: Framework
) -> tuple[Int, list[Float], list[Float]]:
    """Last stage with the same blocks, and block counts before its first, after its last chunk [1].

    Counted: blocks in the order of the model. Left out: blocks between the stage's chunks.
    pipeline.md#pipeline.
    """
    unique_layouts, _, index = distinct_stage_layouts(blocks, layouts, np.zeros_like(layouts.pp))
    row, stages = enumerate_stages(unique_layouts)
    each = unique_layouts.take(row)
    counts = chunk_block_counts(blocks, each, stages, framework)
    number = np.arange(len(counts[0]))[:, None]
    exists = number < each.vpp
    place = each.chunk(stages, number)[exists] + 1
    rows = broadcast_to(row, exists.shape)[exists]
    _, group = distinct(row, *np.concatenate(counts).astype(np.int64))
    latest = np.zeros(len(row), dtype=np.int64)
    np.maximum.at(latest, group, stages)
    table = np.zeros((len(unique_layouts), int(np.max(unique_layouts.pp))), dtype=np.int64)
    table[row, stages] = latest[group]
    stage = table[index, stage]
    first, last = layouts.chunk(stage, 0), layouts.chunk(stage, layouts.vpp - 1)
    before, after = [], []
    most_chunks = int(np.max(unique_layouts.pp * unique_layouts.vpp))
    for count in counts:
        passed = np.zeros((len(unique_layouts), most_chunks + 1))
        passed[rows, place] = count[exists]
        passed = np.cumsum(passed, axis=1)
        before.append(passed[index, first])
        after.append(passed[index, -1] - passed[index, last + 1])
    return stage, before, after


def enumerate_stages(layouts: Layouts) -> tuple[Int, Int]:
    """Enumerate the stages of all layouts: index of the layout, index of the stage in it [1].

    Counted: all stages of each layout. Left out: their blocks. Definition.
    """
    row = np.repeat(np.arange(len(layouts)), layouts.pp)
    return row, np.arange(len(row)) - np.repeat(np.cumsum(layouts.pp) - layouts.pp, layouts.pp)
