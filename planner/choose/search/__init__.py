"""Search: every legal layout of a world size, evaluated by the one implementation, ranked."""

from planner.choose.search.candidates import Candidates, rank_fastest
from planner.choose.search.enumeration import enumerate_layouts
from planner.choose.search.layout_classes import is_common, is_deep_pipeline
from planner.choose.search.pruning import SearchScope
from planner.choose.search.search import TILES, search, search_together

__all__ = [
    "TILES", "Candidates", "SearchScope", "enumerate_layouts", "is_common", "is_deep_pipeline",
    "rank_fastest", "search", "search_together",
]  # fmt: skip
