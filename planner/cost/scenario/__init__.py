"""Scenario: what is estimated, and what was measured before."""

from planner.cost.scenario.scenario import Scenario

__all__ = ["Scenario"]
