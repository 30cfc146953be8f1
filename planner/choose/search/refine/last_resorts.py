"""Last resorts where nothing fits: activations in host memory, the largest matrix in tiles."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from planner.choose.legality import legal
from planner.choose.search.candidates import Candidates
from planner.cost.arrays import among
from planner.cost.shards.layouts import Layouts
from planner.describe.layout import RECOMPUTE, Layout

__all__ = ["TILES", "offload_activations", "tile_matrices"]

TILES = (4, 16)
"""Tiles of the largest matrix that are tried."""


def tile_matrices(found: Candidates) -> Layouts:
    """The last resort where nothing fits: the largest matrix in tiles."""
    scenario, taken = found.scenario, found.footprints
    layouts = taken.layouts
    tried = scenario.framework.tiling and len(layouts) and not taken.fits.any()
    some = layouts.take(np.flatnonzero(layouts.shards_weights & bool(tried)))
    return Layouts.joined([replace(some, tiles=np.full(len(some), n)) for n in TILES])


def offload_activations(found: Candidates) -> Layouts:
    """Where nothing fits: activations wait for their backward in host memory."""
    scenario, taken = found.scenario, found.footprints
    layouts, modes = taken.layouts, scenario.framework.offload_activations
    if not modes or not len(layouts) or taken.fits.any():
        return layouts.take(np.zeros(0, dtype=np.int64))
    coded = [RECOMPUTE.index(mode) for mode in modes]
    some = layouts.take(np.flatnonzero(among(layouts.recompute, coded)))
    moved = replace(some, offload_activations=np.ones_like(some.recompute))
    return moved.take(np.flatnonzero(legal(scenario, moved, set(Layout.model_fields))[0]))
