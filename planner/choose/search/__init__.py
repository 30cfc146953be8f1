"""Search: every legal layout of a world size, evaluated by the one implementation, ranked."""

from planner.choose.search.candidates import candidates
from planner.choose.search.found import RISK, Found, order
from planner.choose.search.further import TILES
from planner.choose.search.promising import Needed
from planner.choose.search.search import search

__all__ = ["RISK", "TILES", "Found", "Needed", "candidates", "order", "search"]
