"""Loader: how a training reads its dataset, with how many workers, in which order, from where."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from planner.describe.base import Description

__all__ = ["Loader", "Staging"]

Staging = Literal["none", "local-disk", "memory"]


class Loader(Description):
    """How a training reads its dataset. The defaults are those of torch's DataLoader and a stripe
    count of one, but for the workers."""

    workers: int = Field(default=4, ge=0, le=1024)
    """Processes or threads of every rank that read and decode; 0: the rank itself does it, between
    its steps."""
    prefetch: int = Field(default=2, ge=0, le=10_000)
    """Batches that every worker has ready beforehand; 0: none, a step waits for its batch."""
    order: Literal["random", "sequential"] | None = None
    """How samples are read inside a file, each by itself or one after the other; as the dataset's
    files are made for where it is not said."""
    sharded: bool = False
    """Whether a node reads the same part of the dataset in every epoch, and not any part of it."""
    staging: Staging = "none"
    """What a node keeps: nothing; the dataset (or its shard) on its own disk, copied there before
    the first step; or in memory what it has read, as the page cache does."""
    stripe_count: int = Field(default=1, ge=1, le=100_000)
    """Storage targets over which every file is spread."""
    file_system: str = Field(default="", max_length=100)
    """Shared file system that the dataset lies on; the machine's first where it is not said."""
