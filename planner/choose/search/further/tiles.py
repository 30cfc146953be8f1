"""Tiles: the largest matrix in pieces."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from planner.choose.search.found import Found
from planner.cost.shards.layouts import Layouts

__all__ = ["TILES", "in_tiles"]


TILES = (4, 16)
"""Tiles of the largest matrix that are tried."""


def in_tiles(found: Found) -> Layouts:
    """The last resort where nothing fits: the largest matrix in tiles."""
    scenario, taken = found.scenario, found.footprints
    layouts = taken.layouts
    tried = scenario.framework.tiling and len(layouts) and not taken.fits.any()
    some = layouts.take(np.flatnonzero(layouts.shards_weights & bool(tried)))
    return Layouts.joined([replace(some, tiles=np.full(len(some), n)) for n in TILES])
