"""Legality: which layouts a model, a machine and a framework allow, and why not."""

from planner.choose.legality.check import RULES, broken, check, legal, legal_layouts, legal_refined
from planner.choose.legality.rule import Rule

__all__ = ["RULES", "Rule", "broken", "check", "legal", "legal_layouts", "legal_refined"]
