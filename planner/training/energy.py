"""Energy: the power of nodes in training, and the energy that follows from it."""

import functools
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from planner.cost.arrays import Float
from planner.cost.constants import load
from planner.describe.base import Description, Quantity
from planner.describe.machine import Machine

_METER_ERROR = 0.1
# own assumption: relative error of a stated power; meters of nodes and racks differ by as much


class EnergyConstants(Description):
    """Power of nodes in training, relative to their rated power."""

    drawn_fraction: Quantity
    """Mean power of a node in training / its rated power."""
    drawn_fraction_low: Quantity
    """Mean power of a node / its rated power if devices wait much of the time."""
    drawn_fraction_high: Quantity
    """Highest measured power of a node / its rated power."""
    node_over_devices: Quantity
    """Rated power of a node / that of its devices, for nodes without a stated power."""


@functools.cache
def constants() -> EnergyConstants:
    """Constants of energy, from `energy.toml`."""
    return load(Path(__file__).with_name("energy.toml"), EnergyConstants)


@dataclass(frozen=True, slots=True)
class NodePower:
    """Power of a node in training, its interval, and its origin as text for messages."""

    watts: float
    low_watts: float
    high_watts: float
    how: str


def node_power(machine: Machine, stated_watts: float | None = None) -> NodePower | None:
    """Power of a node, arXiv:2506.14551, arXiv:2412.08602; None if no rating is stated [W]."""
    if stated_watts is not None:
        low, high = (1 - _METER_ERROR) * stated_watts, (1 + _METER_ERROR) * stated_watts
        return NodePower(stated_watts, low, high, "as stated")
    fractions = constants()
    mean, high = fractions.drawn_fraction.value, fractions.drawn_fraction_high.value
    node, device = machine.node.power_watts, machine.device.power_watts
    if node is not None:
        rated, origin = node.value, f"of the node's rated {node.value:,.0f} W ({node.kind})"
    elif device is not None:
        devices, ratio = machine.node.num_devices * device.value, fractions.node_over_devices.value
        rated = devices * ratio
        origin = (
            f"of {rated:,.0f} W: {ratio:g} times the {devices:,.0f} W of its devices "
            f"({device.kind})"
        )
        high = 1.0  # the rating itself is a guess
    else:
        return None
    low = fractions.drawn_fraction_low.value
    return NodePower(mean * rated, low * rated, high * rated, f"{100 * mean:.0f} % {origin}")


def energy_kwh(node_hours: ArrayLike, node_watts: ArrayLike, pue: ArrayLike = 1.0) -> Float:
    """Energy of node-hours, the centre's overhead included (ISO/IEC 30134-2) [kWh]."""
    return np.asarray(node_hours, dtype=float) * np.asarray(node_watts) / 1000 * np.asarray(pue)
