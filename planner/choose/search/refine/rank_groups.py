"""Groups: weights sharded inside groups of ranks, or over fewer between forward and backward."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from planner.choose.legality import legal
from planner.choose.search.candidates import Candidates
from planner.cost.arrays import Float
from planner.cost.operators.blocks import blocks_of
from planner.cost.shards.layouts import Layouts
from planner.cost.step.block_time import block_passes
from planner.describe.layout import Layout, divisors

__all__ = ["exchange_heads", "keep_weights_near", "shard_in_groups"]


def shard_in_groups(found: Candidates) -> Layouts:
    """Layouts whose weights are sharded inside groups of any size, from those sharded over all.

    A smaller group takes more memory: only what fits over all ranks is tried, and of the rest what
    is closest to it, so that the answer can say by how much it does not fit.
    """
    scenario, taken = found.scenario, found.footprints
    layouts = taken.layouts
    if not scenario.framework.hybrid_stages or not len(layouts):
        return layouts.take(np.zeros(0, dtype=np.int64))
    fits = taken.fits.copy()
    fits[np.argmin(taken.memory_bytes)] = True
    whole = layouts.take(np.flatnonzero(fits & layouts.shards_weights & layouts.keeps_states))
    groups = []
    for size in divisors(int(np.max(whole.dp, initial=1)))[1:]:
        some = whole.take(np.flatnonzero((whole.dp % size == 0) & (size < whole.dp)))
        groups.append(replace(some, dp_shard=np.full(len(some), size)))
    joined = Layouts.joined(groups or [whole])
    mask, _ = legal(scenario, joined, set(Layout.model_fields))
    return joined.take(np.flatnonzero(mask))


def keep_weights_near(found: Candidates) -> Layouts:
    """Layouts of ZeRO-3 over several nodes whose weights stay sharded over the ranks of one from
    forward to backward, where what they take besides may fit."""
    scenario, taken = found.scenario, found.footprints
    layouts = taken.layouts
    if not scenario.framework.second_shards or not len(layouts):
        return layouts.take(np.zeros(0, dtype=np.int64))
    node = scenario.machine.node.num_devices
    beyond = layouts.shards_weights & (layouts.num_shards > node) & (layouts.num_shards % node == 0)
    some = layouts.take(np.flatnonzero(taken.fits & beyond))
    near = replace(some, reshard=np.full(len(some), node))
    mask, _ = legal(scenario, near, set(Layout.model_fields))
    return near.take(np.flatnonzero(mask))


def exchange_heads(found: Candidates) -> Layouts:
    """Context parallelism that exchanges tokens for heads, where a micro-batch takes less time so.

    The kind changes no memory and nothing but the passes of layers, so the fastest of all is that
    of the fastest passes.
    """
    scenario, taken = found.scenario, found.footprints
    layouts, blocks = taken.layouts, blocks_of(scenario)
    other = bool(set(scenario.framework.context) - {"ring"}) and len(layouts) > 0
    mine = layouts.take(
        np.flatnonzero(taken.fits & (layouts.cp > 1) & (layouts.ulysses == 1) & other)
    )
    if not len(mine):
        return mine

    def seconds(some: Layouts) -> Float:
        passes = block_passes(scenario, blocks, some)
        return np.sum([b.count * p.total_s for b, p in zip(blocks, passes, strict=True)], axis=0)

    best, least = np.ones_like(mine.cp), seconds(mine)
    for size in divisors(int(np.max(mine.cp)))[1:]:
        rows = np.flatnonzero(mine.cp % size == 0)
        tried = mine.take(rows)
        tried = replace(tried, ulysses=np.full(len(rows), size))
        allowed, _ = legal(scenario, tried, set(Layout.model_fields))
        rows, tried = rows[allowed], tried.take(np.flatnonzero(allowed))
        time_s = seconds(tried)
        faster = time_s < least[rows]
        best[rows[faster]], least[rows[faster]] = size, time_s[faster]
    changed = np.flatnonzero(best > 1)
    return replace(mine.take(changed), ulysses=best[changed])
