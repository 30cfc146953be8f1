"""Collectives: alpha-beta time of each operation by algorithm, from what the group sees.

Sizes are those of the full buffer: what every rank holds in an all-reduce, what every rank ends
with in an all-gather, what every rank starts with in a reduce-scatter or an all-to-all. Bus
bandwidth is defined as nccl-tests does.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from planner.cost.network.topology import GroupView

__all__ = [
    "LOW_LATENCY",
    "PROTOCOLS",
    "SIMPLE",
    "Protocol",
    "all_gather_s",
    "all_reduce_s",
    "all_to_all_s",
    "hierarchical_all_reduce_s",
    "hop_s",
    "reduce_scatter_s",
    "ring_all_reduce_s",
    "send_s",
    "tree_all_reduce_s",
]

Float = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Protocol:
    """How a library moves the pieces of a collective: latency against bandwidth.

    Inside a node a step takes a multiple of the fabric's latency (one step of a ring between
    devices). The ratios are those of NCCL's own constants for NVLink (NVIDIA/nccl
    src/graph/tuning.cc: ring 0.6, 1.9 and 3.4 us, tree 0.6 and 4.0 us in LL, LL128, Simple).
    """

    name: str
    ring_inside: float
    tree_inside: float
    rate: float
    """Part of the bandwidth it reaches."""
    base_s: float
    """What every operation costs, however small and few its ranks [s]."""


LOW_LATENCY = Protocol("LL", 0.6 / 1.9, 0.6 / 1.9, 0.12, 6.6e-6)
SIMPLE = Protocol("Simple", 3.4 / 1.9, 4.0 / 1.9, 1.0, 8.4e-6)
PROTOCOLS = (LOW_LATENCY, SIMPLE)

_LARGE_BYTES = 2.0**19
# Messages from here on take `message_s`; smaller ones less by the cube root. On Polaris one law
# holds for 2, 8 and 540 nodes: 30 us per hop at 4 KiB, 120 us at 64 KiB, 200 us from 512 KiB on.
_TREE_PIECES = 16
# pieces in which a tree passes a buffer on; fitted with the law above


def hop_s(group: GroupView, piece_bytes: ArrayLike) -> Float:
    """Handing one message of a collective from node to node: latency, not transfer [s].

    From half the latency of a doubling (up and down a tree) for the smallest messages to
    `message_s` for large ones, which wait for a rendezvous and for the copy of a whole slice.
    """
    part = np.minimum(np.cbrt(np.asarray(piece_bytes) / _LARGE_BYTES), 1.0)
    return np.maximum(group.network_message_s * part, 0.5 * group.network_latency_s)


def _ring_rate(group: GroupView) -> Float:
    """Rate of a ring through all ranks: its slowest part [B/s]."""
    between = np.where(group.nodes > 1, group.network_bytes_per_s, np.inf)
    inside = np.where(group.local > 1, group.local_bytes_per_s, np.inf)
    return np.minimum(between, inside)


def _ring_s(group: GroupView, size_bytes: ArrayLike, protocol: Protocol) -> Float:
    """n - 1 steps around the ring, each passing 1/n of the buffer [s].

    A piece travels the whole ring, hop by hop inside and between nodes; the way and the transfer
    of all pieces run at the same time (added as squares).
    """
    n = group.size
    piece = np.asarray(size_bytes) / n
    hops = np.where(group.nodes > 1, np.minimum(group.nodes, n - 1), 0.0)
    way = (n - 1 - hops) * protocol.ring_inside * group.local_latency_s
    way = way + np.where(hops > 0, hops * hop_s(group, piece), 0.0)
    transfer = (n - 1) * piece / (protocol.rate * _ring_rate(group))
    return protocol.base_s + np.hypot(way, transfer)


def ring_all_reduce_s(
    group: GroupView, size_bytes: ArrayLike, protocol: Protocol = SIMPLE
) -> Float:
    """Ring all-reduce: a reduce-scatter and an all-gather, 2 (n-1)/n of the buffer [s]."""
    return 2 * _ring_s(group, size_bytes, protocol) - protocol.base_s


def tree_all_reduce_s(
    group: GroupView, size_bytes: ArrayLike, protocol: Protocol = SIMPLE
) -> Float:
    """Double binary tree between nodes, chain inside: log2(nodes) levels, up and down [s].

    Sanders et al. 2009, "Two-tree algorithms for full bandwidth broadcast, reduction and scan".
    """
    size_bytes = np.asarray(size_bytes, dtype=float)
    levels = np.log2(np.maximum(group.nodes, 1))
    chain = 2 * (group.local - 1) * protocol.tree_inside * group.local_latency_s
    way = chain + 2 * levels * hop_s(group, size_bytes / _TREE_PIECES)
    inside = np.where(group.local > 1, 2 * size_bytes / group.local_bytes_per_s, 0.0)
    # the buffer passes up and down through every node's interfaces
    between = np.where(group.nodes > 1, 2 * size_bytes / group.network_bytes_per_s, 0.0)
    return protocol.base_s + np.hypot(way, np.maximum(inside, between) / protocol.rate)


def hierarchical_all_reduce_s(group: GroupView, size_bytes: ArrayLike) -> Float:
    """Reduce-scatter inside the node, ring between nodes, all-gather inside [s]."""
    size_bytes = np.asarray(size_bytes, dtype=float)
    g, m = group.local, group.nodes
    inside = 2 * (g - 1) * group.local_latency_s + np.where(
        g > 1, 2 * (g - 1) / g * size_bytes / group.local_bytes_per_s, 0.0
    )
    way = 2 * (m - 1) * hop_s(group, size_bytes / (g * m))
    transfer = 2 * (m - 1) / m * size_bytes / group.network_bytes_per_s
    return inside + np.where(m > 1, np.hypot(way, transfer), 0.0)


def all_reduce_s(group: GroupView, size_bytes: ArrayLike) -> Float:
    """All-reduce by the fastest of ring and tree in either protocol, as NCCL chooses [s].

    0 for one rank.

    >>> from planner.describe.catalogue import load_machine
    >>> from planner.cost.network.topology import group_view
    >>> pair = group_view(load_machine("polaris"), 8, 1)        # 2 nodes of 4
    >>> 0.045 < float(all_reduce_s(pair, 2**30)) < 0.060        # measured 0.0521 s
    True
    """
    best = np.minimum.reduce(
        [
            algorithm(group, size_bytes, protocol)
            for algorithm in (ring_all_reduce_s, tree_all_reduce_s)
            for protocol in PROTOCOLS
        ]
    )
    return np.where(group.size > 1, best, 0.0)


def all_gather_s(group: GroupView, size_bytes: ArrayLike) -> Float:
    """Ring all-gather of a full buffer in the faster protocol [s]; 0 for one rank."""
    best = np.minimum.reduce([_ring_s(group, size_bytes, protocol) for protocol in PROTOCOLS])
    return np.where(group.size > 1, best, 0.0)


def reduce_scatter_s(group: GroupView, size_bytes: ArrayLike) -> Float:
    """Ring reduce-scatter of a full buffer; the mirror image of all-gather [s]."""
    return all_gather_s(group, size_bytes)


def all_to_all_s(group: GroupView, size_bytes: ArrayLike) -> Float:
    """Every rank sends 1/n of its buffer to every other; links inside and between work at once [s].

    The part for other nodes leaves through the node's interfaces together with that of the
    group's other ranks on the node, one message per peer after the other.
    """
    size_bytes = np.asarray(size_bytes, dtype=float)
    n, g = group.size, group.local
    inside = np.where(g > 1, (g - 1) / n * size_bytes / group.local_bytes_per_s, 0.0)
    rate = group.pairwise_bytes_per_s
    between = np.where(group.nodes > 1, (n - g) / n * size_bytes * g / rate, 0.0)
    latency = (g - 1) * group.local_latency_s + (n - g) * group.network_latency_s
    return np.where(n > 1, latency + np.maximum(inside, between), 0.0)


def send_s(group: GroupView, size_bytes: ArrayLike) -> Float:
    """Point-to-point transfer between neighbours of a group of two or more [s]."""
    crosses = group.local < 2
    rate = np.where(crosses, group.network_bytes_per_s, group.neighbour_bytes_per_s)
    latency = np.where(crosses, hop_s(group, size_bytes), group.local_latency_s)
    time = latency + np.asarray(size_bytes) / rate
    return np.where(group.size > 1, time, 0.0)
