"""Constants of the input pipeline for every machine, read from `constants.toml`."""

from __future__ import annotations

import functools
from pathlib import Path

from planner.cost.constants import load
from planner.describe.base import Description, Duration, Fraction, Quantity

__all__ = ["DataConstants", "constants"]


class DataConstants(Description):
    """Everything that `constants.toml` states."""

    page_cache_fraction: Fraction
    """Fraction of a node's memory that the page cache may take."""
    host_copies: Quantity
    """Number of times that the bytes of a sample cross host memory."""
    open_s: Duration
    """Time to open a file of a shared file system [s]."""
    random_read_s: Duration
    """Time of a small read at a random place of an open file there [s]."""
    hand_over_s: Duration
    """Time to fetch a ready batch in a step [s]."""


@functools.cache
def constants() -> DataConstants:
    """Load the constants of the input pipeline."""
    return load(Path(__file__).with_name("constants.toml"), DataConstants)
