"""Worst: the few stages of a pipeline of which one is the worst, in memory and in time."""

from __future__ import annotations

import numpy as np

from planner.cost.arrays import Float, Int, Mask, distinct
from planner.cost.shards.layouts import Layouts
from planner.cost.shards.partial_recompute import chunk_parts, distinct_parts, every_stage
from planner.describe.framework.framework import Framework
from planner.describe.layout import SCHEDULES
from planner.describe.model.block import Block

__all__ = ["candidate_stages"]


def candidate_stages(blocks: tuple[Block, ...], layouts: Layouts, framework: Framework) -> Int:
    """Stages of which one is the worst in memory and in time. Shape (..., stages) [1].

    Counted: every stage but those of which an earlier one holds as much, chunk by chunk and kind by
    kind, and more micro-batches, or as many and receives them too; where the model turns at the
    last stage, the first and the last of those that hold the same, and the last that sends both
    ways. Left out: what the last stage need not send. method.md#pipeline.

    >>> from planner.cost.operators.blocks import blocks
    >>> megatron = load_framework("megatron-lm")
    >>> llama = blocks(load_model("llama-3-8b"), Workload(), megatron)
    >>> deep = Layouts.of(Layout(pp=8, schedule="1f1b", grad_accumulation=16))
    >>> candidate_stages(llama, deep, megatron).tolist()
    [0, 7]
    """
    few, level, which = distinct_parts(blocks, layouts, ~_falls(layouts) * 1)
    row, stage = every_stage(few)
    receives = np.where(stage > 0, level[row], 0)
    held = np.concatenate([*chunk_parts(blocks, few.take(row), stage, framework), receives[None]])
    taken = _first_of_each(held, row)
    turned = few.v_shaped[row]
    if np.any(turned):
        last = _first_of_each(held[:, ::-1], row[::-1])[::-1]
        taken = taken | (turned & (last | (stage == few.pp[row] - 2)))
    places, there = _rows(np.where(taken)[0], row, len(few))
    there &= few.v_shaped[:, None] | ~_dominated(held[:, places], there)
    stages = np.where(there, stage[places], 0)
    return _packed(stages, there).take(which, axis=0)


def _falls(layouts: Layouts) -> Mask:
    """Whether every stage holds fewer micro-batches than the one before it."""
    plain = layouts.schedule == SCHEDULES.index("1f1b")
    interleaved = layouts.schedule == SCHEDULES.index("interleaved-1f1b")
    return (plain & (layouts.num_microbatches >= layouts.pp)) | (
        interleaved & (layouts.num_microbatches >= 2 * layouts.pp)
    )


def _first_of_each(held: Float, row: Int) -> Mask:
    """Whether no stage of the layout before this one holds the same."""
    first, _ = distinct(row, *held.astype(np.int64))
    found = np.zeros(len(row), dtype=np.bool_)
    found[first] = True
    return found


def _rows(places: Int, row: Int, count: int) -> tuple[Int, Mask]:
    """Places by layout (L, S), each row as long as the longest, and where there is one."""
    of = row[places]
    each = np.bincount(of, minlength=count)
    number = np.arange(len(of)) - np.repeat(np.cumsum(each) - each, each)
    table = np.zeros((count, int(np.max(each, initial=1))), dtype=np.int64)
    table[of, number] = places
    return table, np.arange(table.shape[1]) < each[:, None]


def _dominated(held: Float, there: Mask) -> Mask:
    """Whether an earlier stage of the same layout (L, S) holds as much of everything (K, L, S)."""
    found = np.zeros_like(there)
    for later in range(1, there.shape[1]):
        for earlier in range(later):
            more = np.all(held[:, :, earlier] >= held[:, :, later], axis=0)
            found[:, later] |= more & there[:, earlier]
    return found


def _packed(stages: Int, there: Mask) -> Int:
    """The stages that are there in the first columns; stage 0 stands in those that are left."""
    order = np.argsort(~there, axis=1, kind="stable")
    most = int(np.max(np.sum(there, axis=1), initial=1))
    return np.take_along_axis(stages, order, axis=1)[:, :most]
