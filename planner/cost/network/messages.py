"""Messages: in which protocols a library moves the pieces of a collective, and what one takes from
node to node."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from planner.cost.network.collective_constants import ProtocolConstants, constants
from planner.cost.network.topology import GroupView

__all__ = ["LOW_LATENCY", "PROTOCOLS", "SIMPLE", "Protocol", "inter_node_latency_s"]

Float = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Protocol:
    """Protocol that moves the pieces of a collective: latency against bandwidth.

    Inside a node a step takes a multiple of the fabric's latency, which is one step of a ring
    between devices.
    """

    name: str
    ring_inside: float
    tree_inside: float
    rate: float
    """Part of the bandwidth it reaches."""
    base_s: float
    """Base latency of every operation [s]."""

    @classmethod
    def of(cls, name: str, values: ProtocolConstants) -> Protocol:
        """A protocol from its constants."""
        reference_s = constants().reference_step_s.value
        return cls(
            name,
            ring_inside=values.ring_step_s.value / reference_s,
            tree_inside=values.tree_step_s.value / reference_s,
            rate=values.rate_fraction.value,
            base_s=values.base_s.value,
        )


LOW_LATENCY = Protocol.of("LL", constants().low_latency)
SIMPLE = Protocol.of("Simple", constants().simple)
PROTOCOLS = (LOW_LATENCY, SIMPLE)


def inter_node_latency_s(group: GroupView, message_bytes: ArrayLike) -> Float:
    """Latency of handing one message of a collective from node to node [s].

    Counted: half the latency of a doubling (up and down a tree) for the smallest messages; that of
    a large one, which waits for a rendezvous and for the copy of a whole slice, from 512 KiB on;
    between them the cube root of the size. Left out: the transfer itself. method.md#algorithms;
    fitted as `collective_constants.toml` says.

    >>> pair = group_view(load_machine("polaris"), 8, 1)        # 160 us for a large message
    >>> [round(1e6 * float(inter_node_latency_s(pair, size))) for size in (2**16, 2**19, 2**30)]
    [80, 160, 160]
    """
    large_bytes = constants().inter_node.large_message_bytes.value
    part = np.minimum(np.cbrt(np.asarray(message_bytes) / large_bytes), 1.0)
    return np.maximum(group.large_message_latency_s * part, 0.5 * group.network_latency_s)
