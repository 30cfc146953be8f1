"""Last resorts where nothing fits: activations in host memory, the largest matrix in tiles."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from planner.choose.legality import legal_layouts
from planner.choose.search.candidates import Candidates
from planner.cost.arrays import is_in
from planner.cost.shards.layouts import Layouts
from planner.describe.layout import RECOMPUTE

__all__ = ["TILES", "offload_activations", "tile_matrices"]

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
