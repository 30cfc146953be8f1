"""Question: what is estimated, and what was measured before."""

from planner.cost.question.question import Question

__all__ = ["Question"]
