"""Search: every legal layout of a world size, evaluated by the one implementation, ranked."""

from planner.choose.search.candidates import candidates
from planner.choose.search.found import RISK, Found, order
from planner.choose.search.further import TILES
from planner.choose.search.promising import FEW
from planner.choose.search.search import search

__all__ = ["FEW", "RISK", "TILES", "Found", "candidates", "order", "search"]
