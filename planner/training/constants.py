"""Constants of energy and evaluation, which belong to no machine, read from `constants.toml`."""

from __future__ import annotations

import functools
from pathlib import Path

from planner.cost.constants import load
from planner.describe.base import Description, Quantity

__all__ = ["EnergyConstants", "TrainingConstants", "constants"]


class EnergyConstants(Description):
    """What nodes draw while they train."""

    drawn_fraction: Quantity
    """Mean draw of a node that trains, over what it is rated."""
    drawn_fraction_low: Quantity
    """The same where devices wait much."""
    drawn_fraction_high: Quantity
    """The most that was seen."""
    node_over_devices: Quantity
    """Rated power of a node over that of its devices, where the node's own is not known."""


class TrainingConstants(Description):
    """All of them."""

    energy: EnergyConstants


@functools.cache
def constants() -> TrainingConstants:
    """The constants, read once.

    >>> constants().energy.drawn_fraction.value
    0.76
    """
    return load(Path(__file__).with_name("constants.toml"), TrainingConstants)
