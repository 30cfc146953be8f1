"""Further: knobs that are tried only on what the plain candidates leave to try.

Each function takes the footprints so far and gives the layouts that are tried besides.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from planner.choose.legality import legal
from planner.cost.arrays import Float
from planner.cost.memory.footprint import Footprints
from planner.cost.operators.blocks import blocks_of
from planner.cost.question import Question
from planner.cost.shards.layouts import Layouts
from planner.cost.step.passes import block_passes
from planner.describe.layout import Layout, divisors

__all__ = ["FURTHER", "TILES"]

TILES = (4, 16)
"""Tiles of the largest matrix that are tried."""


def _in_groups(question: Question, taken: Footprints) -> Layouts:
    """Layouts whose weights are sharded inside groups of any size, from those sharded over all.

    A smaller group takes more memory: only what fits over all ranks is tried, and of the rest what
    is closest to it, so that the answer can say by how much it does not fit.
    """
    layouts = taken.layouts
    if not question.framework.hybrid_stages or not len(layouts):
        return layouts.take(np.zeros(0, dtype=np.int64))
    fits = taken.fits.copy()
    fits[np.argmin(taken.memory_bytes)] = True
    whole = layouts.take(np.flatnonzero(fits & layouts.shards_weights & layouts.keeps_states))
    groups = []
    for size in divisors(int(np.max(whole.dp, initial=1)))[1:]:
        some = whole.take(np.flatnonzero((whole.dp % size == 0) & (size < whole.dp)))
        groups.append(replace(some, dp_shard=np.full(len(some), size)))
    joined = Layouts.joined(groups or [whole])
    mask, _ = legal(question, joined, set(Layout.model_fields))
    return joined.take(np.flatnonzero(mask))


def _in_tiles(question: Question, taken: Footprints) -> Layouts:
    """The last resort where nothing fits: the largest matrix in tiles."""
    layouts = taken.layouts
    tried = question.framework.tiling and len(layouts) and not taken.fits.any()
    some = layouts.take(np.flatnonzero(layouts.shards_weights & bool(tried)))
    return Layouts.joined([replace(some, tiles=np.full(len(some), n)) for n in TILES])


def _kept_near(question: Question, taken: Footprints) -> Layouts:
    """Layouts of ZeRO-3 over several nodes whose weights stay sharded over the ranks of one from
    forward to backward, where what they take besides may fit."""
    layouts = taken.layouts
    if not question.framework.second_shards or not len(layouts):
        return layouts.take(np.zeros(0, dtype=np.int64))
    node = question.machine.node.num_devices
    beyond = layouts.shards_weights & (layouts.num_shards > node) & (layouts.num_shards % node == 0)
    some = layouts.take(np.flatnonzero(taken.fits & beyond))
    near = replace(some, reshard=np.full(len(some), node))
    mask, _ = legal(question, near, set(Layout.model_fields))
    return near.take(np.flatnonzero(mask))


def _by_heads(question: Question, taken: Footprints) -> Layouts:
    """Context parallelism that exchanges tokens for heads, where a micro-batch takes less time so.

    The kind changes no memory and nothing but the passes of layers, so the fastest of all is that
    of the fastest passes.
    """
    layouts, blocks = taken.layouts, blocks_of(question)
    other = bool(set(question.framework.context) - {"ring"}) and len(layouts) > 0
    mine = layouts.take(
        np.flatnonzero(taken.fits & (layouts.cp > 1) & (layouts.ulysses == 1) & other)
    )
    if not len(mine):
        return mine

    def seconds(some: Layouts) -> Float:
        passes = block_passes(question, blocks, some)
        return np.sum([b.count * p.total_s for b, p in zip(blocks, passes, strict=True)], axis=0)

    best, least = np.ones_like(mine.cp), seconds(mine)
    for size in divisors(int(np.max(mine.cp)))[1:]:
        rows = np.flatnonzero(mine.cp % size == 0)
        tried = mine.take(rows)
        tried = replace(tried, ulysses=np.full(len(rows), size))
        allowed, _ = legal(question, tried, set(Layout.model_fields))
        rows, tried = rows[allowed], tried.take(np.flatnonzero(allowed))
        time_s = seconds(tried)
        faster = time_s < least[rows]
        best[rows[faster]], least[rows[faster]] = size, time_s[faster]
    changed = np.flatnonzero(best > 1)
    return replace(mine.take(changed), ulysses=best[changed])


FURTHER: tuple[Callable[[Question, Footprints], Layouts], ...] = (
    _in_groups,
    _kept_near,
    _by_heads,
    _in_tiles,
)
"""What is tried besides, in this order: each sees what was found before it."""
