"""Legality: which layouts a model, a machine and a framework allow, and why not.

One table of rules serves both uses: as masks over many layouts in the search, and as one
sentence with the legal values for a layout that a user asks for.
"""

from planner.choose.legality.check import RULES, broken, check, legal, legal_layouts
from planner.choose.legality.rule import Rule

__all__ = ["RULES", "Rule", "broken", "check", "legal", "legal_layouts"]
