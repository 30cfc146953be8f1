"""Constants of collectives: what holds for every machine, read from `collective_constants.toml`."""

from __future__ import annotations

import functools
from pathlib import Path

from planner.cost.constants import load
from planner.describe.base import Description, Quantity

__all__ = [
    "InNetwork",
    "InSwitch",
    "InterNode",
    "NetworkConstants",
    "ProtocolConstants",
    "constants",
]


class ProtocolConstants(Description):
    """Protocol that moves the pieces of a collective: latency against bandwidth."""

    ring_step_s: Quantity
    """One step of a ring inside a node, where `reference_step_s` is the fabric's latency [s]."""
    tree_step_s: Quantity
    """One step of a tree there [s]."""
    rate_fraction: Quantity
    """Part of the bandwidth it reaches."""
    base_s: Quantity
    """Base latency of every operation [s]."""


class InterNode(Description):
    """Latency of one message of a collective from node to node."""

    large_message_bytes: Quantity
    """Messages from here on take the latency of a large one; smaller ones less, by the cube root
    of their size [B]."""
    large_message_ratio: Quantity
    """Latency of a large message over the network's, where a profile does not state it."""
    tree_pieces: Quantity
    """Pieces in which a tree passes a buffer on."""


class InSwitch(Description):
    """All-reduces by the switch of a node."""

    step_s: Quantity
    """Latency of one [s]."""
    ahead_bytes: Quantity
    """What each device copies in and the switch adds before the first sum is copied out [B]."""
    part_of_two: Quantity
    """Part of the switch's rate that is reached beside a tree of two nodes."""
    part_of_several: Quantity
    """The same beside a tree of more."""


class InNetwork(Description):
    """All-reduces by the switches of a network."""

    switch_s: Quantity
    """Latency where the switch of each node adds up too [s]."""
    chain_s: Quantity
    """Latency where the devices of a node form a chain [s]."""
    chain_step_s: Quantity
    """One step of that chain, where `reference_step_s` is the fabric's latency [s]."""


class NetworkConstants(Description):
    """Everything that `collective_constants.toml` states."""

    reference_step_s: Quantity
    """The step inside a node that a profile's `fabric.latency_s` stands for [s]."""
    low_latency: ProtocolConstants
    simple: ProtocolConstants
    inter_node: InterNode
    in_switch: InSwitch
    in_network: InNetwork


@functools.cache
def constants() -> NetworkConstants:
    """The constants of collectives, with kind and source."""
    return load(Path(__file__).with_name("collective_constants.toml"), NetworkConstants)
