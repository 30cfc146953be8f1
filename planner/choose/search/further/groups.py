"""Groups: weights sharded inside groups of ranks, or over fewer between forward and backward."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from planner.choose.legality import legal
from planner.choose.search.found import Found
from planner.cost.shards.layouts import Layouts
from planner.describe.layout import Layout, divisors

__all__ = ["in_groups", "kept_near"]


def in_groups(found: Found) -> Layouts:
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


def kept_near(found: Found) -> Layouts:
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
