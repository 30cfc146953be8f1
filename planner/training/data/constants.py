"""Constants of the input pipeline: what holds for every machine, read from `constants.toml`."""

from __future__ import annotations

import functools
from pathlib import Path

from planner.cost.constants import load
from planner.describe.base import Description, Duration, Fraction, Quantity

__all__ = ["DataConstants", "constants"]


class DataConstants(Description):
    """Everything that `constants.toml` states."""

    page_cache_fraction: Fraction
    """Part of a node's memory that holds files which were read."""
    host_copies: Quantity
    """Times that the bytes of a sample pass the host's memory."""
    open_s: Duration
    """What one worker waits for a file of a shared file system to open [s]."""
    random_read_s: Duration
    """What one worker waits for a small read at a random place of an open file there [s]."""
    hand_over_s: Duration
    """What a step takes to fetch a batch that is ready [s]."""


@functools.cache
def constants() -> DataConstants:
    """The constants of the input pipeline, with kind and source."""
    return load(Path(__file__).with_name("constants.toml"), DataConstants)
