"""Candidate stages: one of them is the memory peak, one the slowest."""

import numpy as np

from planner.cost.arrays import Float, Int, Mask, distinct
from planner.cost.shards.layouts import Layouts
from planner.cost.shards.partial_recompute import (
    chunk_block_counts,
    distinct_stage_layouts,
    enumerate_stages,
)
from planner.describe.framework.framework import Framework
from planner.describe.model.block import Block


def candidate_stages(blocks: tuple[Block, ...], layouts: Layouts, framework: Framework) -> Int:
    """Stages that include the memory peak and the slowest. Shape (..., stages) [1].

    Counted: all but those dominated by an earlier stage, which has at least as many blocks of each
    kind in each chunk and has more micro-batches in flight, or as many and receives too; in a V the
    first and last of stages with equal blocks, and stage pp - 2, the last one that sends both ways.
    Left out: that the last stage sends nothing. pipeline.md#pipeline.
    """
    decreases = _in_flight_decreases(layouts)
    unique, num_in_flight, index = distinct_stage_layouts(blocks, layouts, ~decreases * 1)
    row, stage = enumerate_stages(unique)
    receives = np.where(stage > 0, num_in_flight[row], 0)
    counts = chunk_block_counts(blocks, unique.take(row), stage, framework)
    contents = np.concatenate([*counts, receives[None]])
    selected = _first_of_each(contents, row)
    turned = unique.v_shaped[row]
    if np.any(turned):
        last = _first_of_each(contents[:, ::-1], row[::-1])[::-1]
        selected = selected | (turned & (last | (stage == unique.pp[row] - 2)))
    places, present = _rows(np.where(selected)[0], row, len(unique))
    present &= unique.v_shaped[:, None] | ~_dominated(contents[:, places], present)
    stages = np.where(present, stage[places], 0)
    return _packed(stages, present).take(index, axis=0)


def _in_flight_decreases(layouts: Layouts) -> Mask:
    """True if every stage has fewer micro-batches in flight than the stage before it."""
    m, pp = layouts.num_microbatches, layouts.pp
    interleaved = layouts.uses_schedule("interleaved-1f1b")
    return (layouts.uses_schedule("1f1b") & (m >= pp)) | (interleaved & (m >= 2 * pp))


def _first_of_each(contents: Float, row: Int) -> Mask:
    """True for the first stage of its layout with these contents."""
    first, _ = distinct(row, *contents.astype(np.int64))
    is_first = np.zeros(len(row), dtype=np.bool_)
    is_first[first] = True
    return is_first


def _rows(places: Int, row: Int, count: int) -> tuple[Int, Mask]:
    """Padded table (L, S) of the places of each layout, and a mask of its valid entries."""
    of = row[places]
    each = np.bincount(of, minlength=count)
    number = np.arange(len(of)) - np.repeat(np.cumsum(each) - each, each)
    table = np.zeros((count, int(np.max(each, initial=1))), dtype=np.int64)
    table[of, number] = places
    return table, np.arange(table.shape[1]) < each[:, None]


def _dominated(contents: Float, present: Mask) -> Mask:
    """True if an earlier stage of the layout (L, S) has at least as much of all K contents."""
    dominated = np.zeros_like(present)
    for later in range(1, present.shape[1]):
        for earlier in range(later):
            covers = np.all(contents[:, :, earlier] >= contents[:, :, later], axis=0)
            dominated[:, later] |= covers & present[:, earlier]
    return dominated


def _packed(stages: Int, present: Mask) -> Int:
    """Move present stages to the first columns; fill the rest with stage 0."""
    order = np.argsort(~present, axis=1, kind="stable")
    width = int(np.max(np.sum(present, axis=1), initial=1))
    return np.take_along_axis(stages, order, axis=1)[:, :width]
