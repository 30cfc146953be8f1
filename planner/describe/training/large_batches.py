"""Large batches: what published trainings with many samples a step reached."""

from __future__ import annotations

from pydantic import Field

from planner.describe.base import Description

__all__ = ["LargeBatch", "LargeBatches"]


class LargeBatch(Description):
    """A published training with a large batch."""

    model: str = Field(min_length=2)
    """The model, by its name in the catalogue."""
    batch: int = Field(ge=1, le=10**9)
    """Samples a step."""
    optimizer: str = Field(min_length=2)
    """What updated the weights, and what was done to make it work."""
    outcome: str = Field(min_length=8)
    """What was reached, beside a smaller batch where one is stated."""
    source: str = Field(min_length=2)
    """Where that was read."""


class LargeBatches(Description):
    """All of them."""

    published: tuple[LargeBatch, ...] = Field(min_length=1)
    """By model, smaller batches first."""
