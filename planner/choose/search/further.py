"""Further: knobs that are tried only on what the plain candidates leave to try.

Each function takes the footprints so far and gives the layouts that are tried besides.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from planner.choose.legality import legal
from planner.choose.search.ends import with_ends
from planner.cost.memory.footprint import Footprints
from planner.cost.question import Question
from planner.cost.shards.layouts import Layouts
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
    if not question.framework.hybrid_sharding or not len(layouts):
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


FURTHER: tuple[Callable[[Question, Footprints], Layouts], ...] = (with_ends, _in_groups, _in_tiles)
"""What is tried besides, in this order: each sees what was found before it."""
