"""Reduction: how and when replicas of a model sum up their whole gradients."""

from __future__ import annotations

from pydantic import Field

from planner.describe.base import Description, Elements, ZeroStage

__all__ = ["Reduction"]


class Reduction(Description):
    """What data parallelism does with whole gradients; how wide they are and in which buckets they
    travel stands with the states and the buffers."""

    after_backward: tuple[ZeroStage, ...] = ()
    """ZeRO stages at which gradients are reduced when the backward pass is over, behind nothing,
    where others overlap (DeepSpeed's stage 0)."""
    first_bucket_elements: Elements = 0
    """Elements at which the first bucket of a pass closes, so that its reduction starts early; 0:
    it is as large as others."""
    cycle_s: float = Field(default=0, ge=0, le=1)
    """How often a thread looks which gradients every rank has, before it reduces them (Horovod);
    0: they are sent as they get ready [s]."""
    hierarchical: bool = False
    """Whether gradients are scattered inside the nodes, reduced between them and gathered inside,
    in phases of their own, rather than by the library's all-reduce."""
