"""Refine: options that are tried only on what the plain candidates leave to try.

Each function takes what was found so far and gives the layouts that are tried besides.
"""

from collections.abc import Callable

from planner.choose.search.candidates import Candidates
from planner.choose.search.refine.embedding_head_stages import with_ends
from planner.choose.search.refine.last_resorts import TILES, in_tiles, on_the_host
from planner.choose.search.refine.rank_groups import by_heads, in_groups, kept_near
from planner.choose.search.refine.recompute import with_less_recompute
from planner.cost.shards.layouts import Layouts

__all__ = ["FURTHER", "TILES"]

FURTHER: tuple[Callable[[Candidates], Layouts], ...] = (
    with_ends,
    in_groups,
    with_less_recompute,
    on_the_host,
    kept_near,
    by_heads,
    in_tiles,
)
"""What is tried besides, in this order: each sees what was found before it."""
