"""Energy: what nodes draw while they train, and what that costs and emits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from planner.describe.machine import Machine
from planner.training.constants import constants

__all__ = ["NodePower", "energy_kwh", "node_power"]

Float = NDArray[np.float64]

_STATED = 0.1
# ours: how far a stated draw may be off, both ways; meters of nodes and racks differ by as much


@dataclass(frozen=True, slots=True)
class NodePower:
    """What a node draws while it trains."""

    watts: float
    low_watts: float
    high_watts: float
    how: str
    """Where it comes from, for a sentence."""


def node_power(machine: Machine, stated_watts: float | None = None) -> NodePower | None:
    """What a node draws while it trains [W]; None where nothing is known of its power.

    Counted: the node's rated power, or that of its devices times what a node takes for each of
    them, times the part that nodes in training were measured to draw. Left out: how far the
    devices are busy in this job, switches and storage, cooling (`energy_kwh`).
    arXiv:2506.14551; arXiv:2412.08602; method.md#energy.

    >>> from planner.describe.catalogue import load_machine
    >>> round(node_power(load_machine("dgx-h100")).watts)       # 76 % of 10.2 kW
    7752
    """
    if stated_watts is not None:
        low, high = (1 - _STATED) * stated_watts, (1 + _STATED) * stated_watts
        return NodePower(stated_watts, low, high, "as stated")
    found = constants().energy
    mean, high = found.drawn_fraction.value, found.drawn_fraction_high.value
    node, device = machine.node.power_watts, machine.device.power_watts
    if node is not None:
        rated, how = node.value, f"of {node.value:,.0f} W, what a node is rated ({node.kind})"
    elif device is not None:
        devices = machine.node.num_devices * device.value
        rated = devices * found.node_over_devices.value
        how = f"of {rated:,.0f} W: {found.node_over_devices.value:g} times the {devices:,.0f} W "
        how += f"of its devices ({device.kind})"
        high = 1.0  # the rating itself is a guess
    else:
        return None
    low = found.drawn_fraction_low.value
    return NodePower(mean * rated, low * rated, high * rated, f"{100 * mean:.0f} % {how}")


def energy_kwh(node_hours: ArrayLike, node_watts: ArrayLike, pue: ArrayLike = 1.0) -> Float:
    """Energy of some node-hours, the centre's share included [kWh].

    Counted: what nodes draw, times the power usage effectiveness. Left out: making the hardware,
    other systems of the centre. Definition: ISO/IEC 30134-2.

    >>> float(energy_kwh(1000.0, 2000.0, 1.2))
    2400.0
    """
    return np.asarray(node_hours, dtype=float) * np.asarray(node_watts) / 1000 * np.asarray(pue)
