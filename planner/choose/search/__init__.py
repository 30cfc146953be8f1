"""Search: every legal layout of a world size, evaluated by the one implementation, ranked."""

from planner.choose.search.candidates import RISK, Candidates, rank_fastest
from planner.choose.search.enumeration import enumerate_layouts
from planner.choose.search.pruning import SearchScope
from planner.choose.search.refine import TILES
from planner.choose.search.search import search

__all__ = [
    "RISK",
    "TILES",
    "Candidates",
    "SearchScope",
    "enumerate_layouts",
    "rank_fastest",
    "search",
]
