"""Refine: options that are tried only on candidates that can gain by them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from planner.choose.legality import legal, legal_layouts
from planner.choose.search.candidates import Candidates
from planner.choose.search.embedding_head_stages import count_embedding_and_head
from planner.choose.search.recompute import reduce_recompute
from planner.cost.arrays import Float, is_in
from planner.cost.operators.blocks import blocks_of
from planner.cost.shards.layouts import Layouts
from planner.cost.step.block_pass import block_passes
from planner.describe.layout import RECOMPUTE, Layout, divisors

__all__ = ["REFINEMENTS", "TILES"]


def shard_in_groups(candidates: Candidates) -> Layouts:
    """Shard weights inside groups of every size, where they are sharded over all ranks."""
    scenario, footprints = candidates.scenario, candidates.footprints
    layouts = footprints.layouts
    if not scenario.framework.hybrid_stages or not len(layouts):
        return layouts.take(np.zeros(0, dtype=np.int64))
    fits = footprints.fits.copy()
    fits[np.argmin(footprints.memory_bytes)] = True
    sharded = layouts.take(np.flatnonzero(fits & layouts.shards_weights & layouts.keeps_states))
    groups = []
    for size in divisors(int(np.max(sharded.dp, initial=1)))[1:]:
        divided = sharded.take(np.flatnonzero((sharded.dp % size == 0) & (size < sharded.dp)))
        groups.append(replace(divided, dp_shard=np.full(len(divided), size)))
    return legal_layouts(scenario, Layouts.joined(groups or [sharded]))


def keep_weights_near(candidates: Candidates) -> Layouts:
    """Keep ZeRO-3 weights sharded over one node between forward and backward."""
    scenario, footprints = candidates.scenario, candidates.footprints
    layouts = footprints.layouts
    if not scenario.framework.second_shards or not len(layouts):
        return layouts.take(np.zeros(0, dtype=np.int64))
    node, shards = scenario.machine.node.num_devices, layouts.num_shards
    spans_nodes = layouts.shards_weights & (shards > node) & (shards % node == 0)
    layouts = layouts.take(np.flatnonzero(footprints.fits & spans_nodes))
    return legal_layouts(scenario, replace(layouts, reshard=np.full(len(layouts), node)))


def exchange_heads(candidates: Candidates) -> Layouts:
    """Exchange tokens for heads in context parallelism, where that makes a micro-batch faster."""
    scenario, footprints = candidates.scenario, candidates.footprints
    layouts, blocks = footprints.layouts, blocks_of(scenario)
    has_kinds = bool(set(scenario.framework.context) - {"ring"}) and len(layouts) > 0
    is_ring = (layouts.cp > 1) & (layouts.ulysses == 1)
    rings = layouts.take(np.flatnonzero(footprints.fits & is_ring & has_kinds))
    if not len(rings):
        return rings

    def layers_s(layouts: Layouts) -> Float:
        passes = block_passes(scenario, blocks, layouts)
        return np.sum([b.count * p.total_s for b, p in zip(blocks, passes, strict=True)], axis=0)

    best_size, least_s = np.ones_like(rings.cp), layers_s(rings)
    for size in divisors(int(np.max(rings.cp)))[1:]:
        rows = np.flatnonzero(rings.cp % size == 0)
        exchanged = replace(rings.take(rows), ulysses=np.full(len(rows), size))
        is_legal, _ = legal(scenario, exchanged, set(Layout.model_fields))
        rows = rows[is_legal]
        time_s = layers_s(exchanged.take(np.flatnonzero(is_legal)))
        is_faster = time_s < least_s[rows]
        best_size[rows[is_faster]], least_s[rows[is_faster]] = size, time_s[is_faster]
    changed = np.flatnonzero(best_size > 1)
    return replace(rings.take(changed), ulysses=best_size[changed])


TILES = (4, 16)
"""Tiles of the largest matrix to try."""


def offload_activations(candidates: Candidates) -> Layouts:
    """Keep activations in host memory between forward and backward."""
    layouts, modes = (
        candidates.footprints.layouts,
        candidates.scenario.framework.offload_activations,
    )
    if not modes or not len(layouts) or candidates.footprints.fits.any():
        return layouts.take(np.zeros(0, dtype=np.int64))
    codes = [RECOMPUTE.index(mode) for mode in modes]
    layouts = layouts.take(np.flatnonzero(is_in(layouts.recompute, codes)))
    offloaded = replace(layouts, offload_activations=np.ones_like(layouts.recompute))
    return legal_layouts(candidates.scenario, offloaded)


def tile_matrices(candidates: Candidates) -> Layouts:
    """Compute the largest matrix in tiles, with sharded weights."""
    footprints, layouts = candidates.footprints, candidates.footprints.layouts
    is_tried = candidates.scenario.framework.tiling and not footprints.fits.any()
    sharded = layouts.take(np.flatnonzero(layouts.shards_weights & is_tried))
    return Layouts.joined([replace(sharded, tiles=np.full(len(sharded), n)) for n in TILES])


REFINEMENTS: tuple[Callable[[Candidates], Layouts], ...] = (
    count_embedding_and_head,
    shard_in_groups,
    reduce_recompute,
    offload_activations,
    keep_weights_near,
    exchange_heads,
    tile_matrices,
)
"""In this order: each sees the layouts that earlier ones added."""
