"""Further: knobs that are tried only on what the plain candidates leave to try.

Each function takes what was found so far and gives the layouts that are tried besides.
"""

from collections.abc import Callable

from planner.choose.search.found import Found
from planner.choose.search.further.context import by_heads
from planner.choose.search.further.ends import with_ends
from planner.choose.search.further.groups import in_groups, kept_near
from planner.choose.search.further.recompute import on_the_host, with_less_recompute
from planner.choose.search.further.tiles import TILES, in_tiles
from planner.cost.shards.layouts import Layouts

__all__ = ["FURTHER", "TILES"]

FURTHER: tuple[Callable[[Found], Layouts], ...] = (
    with_ends,
    in_groups,
    with_less_recompute,
    on_the_host,
    kept_near,
    by_heads,
    in_tiles,
)
"""What is tried besides, in this order: each sees what was found before it."""
