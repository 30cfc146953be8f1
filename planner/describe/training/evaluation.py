"""Evaluation: what is computed between steps to see how a training goes."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from planner.describe.base import Description

__all__ = ["Evaluation"]


class Evaluation(Description):
    """Forward passes without gradients, and text that is generated, every some steps."""

    every_steps: int = Field(default=0, ge=0, le=10**9)
    """Steps between two evaluations; 0 for none."""
    sequences: int = Field(default=0, ge=0, le=10**12)
    """Sequences (samples) of one evaluation, of all its sets together."""
    ranks: Literal["all", "first"] = "all"
    """Who computes it: all replicas share the sequences, or the first one has them all while the
    others wait (nanoGPT, wordplay)."""
    generated_tokens: int = Field(default=0, ge=0, le=10**9)
    """Tokens generated at each evaluation, one by one, by one rank; 0 for none."""
