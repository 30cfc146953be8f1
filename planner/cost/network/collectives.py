"""Collectives: alpha-beta time of each operation by algorithm; sizes are of the full buffer."""

import functools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from planner.cost.arrays import Float
from planner.cost.constants import SIMPLE, Protocol, network_constants
from planner.cost.network.in_network_reduction import network_all_reduce_s, switch_all_reduce_s
from planner.cost.network.topology import GroupView, inter_node_latency_s, reduction_view


def _ring_rate(group: GroupView) -> Float:
    """Rate of a ring through all ranks: that of its slowest link [B/s]."""
    between = np.where(group.nodes > 1, group.network_bytes_per_s, np.inf)
    inside = np.where(group.local > 1, group.local_bytes_per_s, np.inf)
    return np.minimum(between, inside)


def _once_around_s(group: GroupView, size_bytes: ArrayLike) -> Float:
    """Transfer of a buffer once around a ring; in phases: inside nodes, then between them [s]."""
    size_bytes, g, m = np.asarray(size_bytes, dtype=float), group.local, group.nodes
    ring = (group.size - 1) / group.size * size_bytes / _ring_rate(group)
    inside = np.where(g > 1, (g - 1) / g * size_bytes / group.local_bytes_per_s, 0.0)
    between = np.where(m > 1, (m - 1) / m * size_bytes / group.network_bytes_per_s, 0.0)
    return np.where(group.in_phases > 0, inside + between, ring)


def _ring_s(group: GroupView, size_bytes: ArrayLike, protocols: Sequence[Protocol]) -> list[Float]:
    """Time of n - 1 ring steps, each with 1/n of the buffer, for every protocol [s]."""
    n, phased = group.size, group.in_phases > 0
    piece = np.asarray(size_bytes) / n
    crossings = np.where(group.nodes > 1, np.minimum(group.nodes, n - 1), 0.0)
    crossings = np.where(phased, group.nodes - 1, crossings)
    steps = np.where(phased, group.local - 1, n - 1 - crossings)
    between = np.where(crossings > 0, crossings * inter_node_latency_s(group, piece), 0.0)
    around = _once_around_s(group, size_bytes)
    # latency and transfer overlap in part: combine them as the root of the sum of squares
    return [
        protocol.base_s
        + np.hypot(
            steps * protocol.ring_inside * group.local_latency_s + between, around / protocol.rate
        )
        for protocol in protocols
    ]


def ring_all_reduce_s(
    group: GroupView, size_bytes: ArrayLike, protocol: Protocol = SIMPLE
) -> Float:
    """Ring all-reduce: a reduce-scatter and an all-gather [s].

    Counted: 2 (n - 1)/n of the buffer at the rate of the ring's slowest link (in phases: inside the
    nodes, then between them), overlapped with the latency of 2 (n - 1) steps; the protocol's base
    latency once. Left out: congestion. Thakur et al. 2005; network.md#algorithms.
    """
    (once,) = _ring_s(group, size_bytes, (protocol,))
    return 2 * once - protocol.base_s


def tree_all_reduce_s(
    group: GroupView, size_bytes: ArrayLike, protocol: Protocol = SIMPLE
) -> Float:
    """Tree all-reduce: double binary tree between nodes, chain inside, up and down [s].

    Counted: the buffer twice at the slower of the rates inside and between, the latency of the
    chain and of log2(nodes) levels, the base latency. Left out: LL128, congestion. Sanders et al.
    2009, "Two-tree algorithms for full bandwidth broadcast"; network.md#algorithms.
    """
    (time,) = _tree_s(group, size_bytes, (protocol,))
    return time


def _tree_s(group: GroupView, size_bytes: ArrayLike, protocols: Sequence[Protocol]) -> list[Float]:
    """Time up and down the tree, for every protocol [s]."""
    size_bytes = np.asarray(size_bytes, dtype=float)
    levels = np.log2(np.maximum(group.nodes, 1))
    chain = 2 * (group.local - 1) * group.local_latency_s
    piece = size_bytes / network_constants().inter_node.tree_pieces.value
    between_nodes = 2 * levels * inter_node_latency_s(group, piece)
    inside = np.where(group.local > 1, 2 * size_bytes / group.local_bytes_per_s, 0.0)
    # the buffer passes up and down through every node's interfaces
    between = np.where(group.nodes > 1, 2 * size_bytes / group.network_bytes_per_s, 0.0)
    both = np.where(group.in_phases > 0, inside + between, np.maximum(inside, between))
    return [
        protocol.base_s
        + np.hypot(chain * protocol.tree_inside + between_nodes, both / protocol.rate)
        for protocol in protocols
    ]


def hierarchical_all_reduce_s(group: GroupView, size_bytes: ArrayLike) -> Float:
    """Hierarchical all-reduce: reduce-scatter in nodes, ring between them, all-gather in nodes [s].

    Counted: 2 (g - 1)/g of the buffer inside and 2 (m - 1)/m between the m nodes, with the latency
    of every step. Left out: protocols and their base latency. network.md#algorithms.
    """
    size_bytes = np.asarray(size_bytes, dtype=float)
    g, m = group.local, group.nodes
    inside = 2 * (g - 1) * group.local_latency_s + np.where(
        g > 1, 2 * (g - 1) / g * size_bytes / group.local_bytes_per_s, 0.0
    )
    latency = 2 * (m - 1) * inter_node_latency_s(group, size_bytes / (g * m))
    transfer = 2 * (m - 1) / m * size_bytes / group.network_bytes_per_s
    return inside + np.where(m > 1, np.hypot(latency, transfer), 0.0)


def all_reduce_s(group: GroupView, size_bytes: ArrayLike) -> Float:
    """All-reduce with the fastest of ring, tree (both protocols) and in-switch reduction [s].

    Counted: latency, transfer and base latency of each; 0 for one rank. Left out: LL128,
    congestion. NVIDIA/nccl, src/graph/tuning.cc; network.md#algorithms.
    """
    if not np.any(group.size > 1):
        return _zero_s(group, size_bytes)
    group = reduction_view(group)
    rings = _ring_s(group, size_bytes, group.protocols)
    times = [2 * once - each.base_s for once, each in zip(rings, group.protocols, strict=True)]
    times += _tree_s(group, size_bytes, group.protocols)
    if np.any(group.switch_bytes_per_s):
        times.append(switch_all_reduce_s(group, size_bytes))
    if group.network_part:
        times.append(network_all_reduce_s(group, size_bytes))
    return np.where(group.size > 1, functools.reduce(np.minimum, times), 0.0)


def all_gather_s(group: GroupView, size_bytes: ArrayLike) -> Float:
    """Ring all-gather of a full buffer with the faster protocol [s].

    Counted: (n - 1)/n of the buffer at the node's rate of all-gathers, the latency of n - 1 steps,
    the base latency; 0 for one rank. Left out: trees, congestion. Thakur et al. 2005;
    network.md#algorithms.
    """
    return _one_way_s(group, size_bytes, group.gathering_part)


def reduce_scatter_s(group: GroupView, size_bytes: ArrayLike) -> Float:
    """Ring reduce-scatter of a full buffer; the mirror image of all-gather [s].

    Counted: as `all_gather_s`, at the inter-node rate that reductions reach. Left out: additions
    inside a node. Thakur et al. 2005; network.md#algorithms.
    """
    return _one_way_s(reduction_view(group), size_bytes, group.scattering_part)


def _one_way_s(group: GroupView, size_bytes: ArrayLike, part: float) -> Float:
    """Time of half a ring all-reduce at a part of the node's rate, with the faster protocol [s]."""
    if not np.any(group.size > 1):
        return _zero_s(group, size_bytes)
    if part != 1:
        group = replace(group, local_bytes_per_s=part * group.local_bytes_per_s)
    best = functools.reduce(np.minimum, _ring_s(group, size_bytes, group.protocols))
    return np.where(group.size > 1, best, 0.0)


def _zero_s(group: GroupView, size_bytes: ArrayLike) -> Float:
    """Zero time, for collectives in groups of one rank [s]."""
    return np.zeros(np.broadcast_shapes(np.shape(group.size), np.shape(size_bytes)))


def all_to_all_s(group: GroupView, size_bytes: ArrayLike) -> Float:
    """All-to-all: 1/n of the buffer to every peer, inside and between nodes in parallel [s].

    Counted: the slower of the parts inside and between nodes, whose interfaces ranks share; one
    message per peer, in sequence. Left out: protocols, further congestion. network.md#algorithms.
    """
    size_bytes = np.asarray(size_bytes, dtype=float)
    n, g = group.size, group.local
    inside = np.where(g > 1, (g - 1) / n * size_bytes / group.local_pairwise_bytes_per_s, 0.0)
    rate = group.pairwise_bytes_per_s
    between = np.where(group.nodes > 1, (n - g) / n * size_bytes * g / rate, 0.0)
    latency = (g - 1) * group.local_latency_s + (n - g) * group.network_latency_s
    return np.where(n > 1, latency + np.maximum(inside, between), 0.0)


def forwarded_all_to_all_s(group: GroupView, size_bytes: ArrayLike, crossing: ArrayLike) -> Float:
    """All-to-all in which copies for a node cross the network once and are forwarded there [s].

    `size_bytes`: all copies that a rank sends; `crossing`: the fraction of them that leaves its
    node. Counted: the slower of the network and the links inside nodes, which deliver every copy;
    one message per node and per rank of a node. Left out: as `all_to_all_s`; forwarding that waits
    for the network. DeepEP V1, docs/legacy.md; network.md#algorithms.
    """
    size_bytes = np.asarray(size_bytes, dtype=float)
    n, g, nodes = group.size, group.local, group.nodes
    inside = np.where(g > 1, (g - 1) / g * size_bytes / group.local_pairwise_bytes_per_s, 0.0)
    rate = group.pairwise_bytes_per_s
    between = np.where(nodes > 1, np.asarray(crossing) * size_bytes * g / rate, 0.0)
    latency = (g - 1) * group.local_latency_s + (nodes - 1) * group.network_latency_s
    return np.where(n > 1, latency + np.maximum(inside, between), 0.0)


def phased_all_to_all_s(group: GroupView, size_bytes: ArrayLike) -> Float:
    """Reduction by two all-to-alls: inside nodes, then of the partial sums between nodes [s].

    Counted: both phases in sequence, the second with 1/`local` of the buffer; one message per peer.
    Left out: as `all_to_all_s`; the additions. Wang et al. 2023, arXiv:2306.10209, section 3.3.
    """
    size_bytes = np.asarray(size_bytes, dtype=float)
    g, nodes = group.local, group.nodes
    inside = np.where(g > 1, (g - 1) / g * size_bytes / group.local_pairwise_bytes_per_s, 0.0)
    # each of a node's g ranks sends 1/g of the buffer, through shared interfaces
    between = np.where(
        nodes > 1, (nodes - 1) / nodes * size_bytes / group.pairwise_bytes_per_s, 0.0
    )
    latency = (g - 1) * group.local_latency_s + (nodes - 1) * group.network_latency_s
    return np.where(group.size > 1, latency + inside + between, 0.0)


def _hops_s(group: GroupView, size_bytes: ArrayLike) -> tuple[Float, Float]:
    """Time of a message to the group's next rank, in a node and between nodes; 0 if none [s]."""
    size_bytes = np.asarray(size_bytes, dtype=float)
    inside = group.local_latency_s + size_bytes / group.neighbour_bytes_per_s
    between = inter_node_latency_s(group, size_bytes) + size_bytes / group.hop_bytes_per_s
    several_ranks = group.size > 1
    return (
        np.where(several_ranks & (group.local > 1), inside, 0.0),
        np.where(several_ranks & (group.nodes > 1), between, 0.0),
    )


def ring_exchange_s(group: GroupView, size_bytes: ArrayLike) -> Float:
    """Send a message from every rank of a ring to the next; the slowest hop sets the pace [s].

    Counted: latency and transfer of the slowest hop, inside a node or between nodes. Left out:
    other transfers on the link. Hockney 1994; network.md#algorithms.
    """
    return np.maximum(*_hops_s(group, size_bytes))


def p2p_s(group: GroupView, size_bytes: ArrayLike) -> Float:
    """Send a message to the next rank of a chain; the rank at a node's border sets the pace [s].

    Counted: as `ring_exchange_s`, but the mean of both hops if a node holds several ranks, because
    the rank at its border has one neighbour inside and one outside. Left out: other transfers on
    the same link. Hockney 1994; network.md#algorithms.
    """
    inside, between = _hops_s(group, size_bytes)
    several = (group.local > 1) & (group.nodes > 1)
    return np.where(several, (inside + between) / 2, np.maximum(inside, between))
