"""Refine: options that are tried only on candidates that can gain by them.

Each function takes the candidates so far and returns more layouts to try.
"""

from collections.abc import Callable

from planner.choose.search.candidates import Candidates
from planner.choose.search.refine.embedding_head_stages import count_embedding_and_head
from planner.choose.search.refine.last_resorts import TILES, offload_activations, tile_matrices
from planner.choose.search.refine.rank_groups import (
    exchange_heads,
    keep_weights_near,
    shard_in_groups,
)
from planner.choose.search.refine.recompute import reduce_recompute
from planner.cost.shards.layouts import Layouts

__all__ = ["REFINEMENTS", "TILES"]

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
