"""Rooted collectives: broadcast and scatter, whose mirrors are reduce and gather."""

import functools

import numpy as np
from numpy.typing import ArrayLike

from planner.cost.arrays import Float
from planner.cost.constants import SIMPLE, Protocol, network_constants
from planner.cost.network.topology import GroupView, inter_node_latency_s


def chain_broadcast_s(
    group: GroupView, size_bytes: ArrayLike, protocol: Protocol = SIMPLE
) -> Float:
    """Chain broadcast: the buffer in pieces through all ranks, at the rate of the slowest link [s].

    Counted: the base latency, the latency of n - 1 hops (nodes - 1 of them over the network), and
    the buffer at the rate of the slowest link (in phases: inside the nodes, then between them).
    Left out: the first piece's own time over each hop, congestion. NVIDIA/nccl,
    src/graph/tuning.cc; network.md#rooted-collectives.
    """
    size_bytes, m = np.asarray(size_bytes, dtype=float), group.nodes
    hops = (group.size - m) * protocol.ring_inside * group.local_latency_s
    hops = hops + (m - 1) * inter_node_latency_s(group, size_bytes)
    inside = np.where(group.local > 1, size_bytes / group.local_bytes_per_s, 0.0)
    between = np.where(m > 1, size_bytes / group.network_bytes_per_s, 0.0)
    once = np.where(group.in_phases > 0, inside + between, np.maximum(inside, between))
    return protocol.base_s + hops + once / protocol.rate


def tree_broadcast_s(group: GroupView, size_bytes: ArrayLike, protocol: Protocol = SIMPLE) -> Float:
    """Tree broadcast: in pieces down a binary tree of nodes, and along a chain in each [s].

    Counted: base latency, latency of levels and chain, and the buffer, which an inner node sends
    twice from three nodes on. Left out: scatter and gather of large buffers (MPI). NCCL has no
    broadcast tree. Thakur et al. 2005; network.md#rooted-collectives.
    """
    size_bytes, m = np.asarray(size_bytes, dtype=float), group.nodes
    piece = size_bytes / network_constants().inter_node.tree_pieces.value
    levels = np.ceil(np.log2(np.maximum(m, 1))) * inter_node_latency_s(group, piece)
    chain = (group.local - 1) * protocol.tree_inside * group.local_latency_s
    inside = np.where(group.local > 1, size_bytes / group.local_bytes_per_s, 0.0)
    children = np.where(m > 2, 2.0, m - 1)
    between = children * size_bytes / group.network_bytes_per_s
    once = np.where(group.in_phases > 0, inside + between, np.maximum(inside, between))
    return protocol.base_s + levels + chain + once / protocol.rate


def broadcast_s(group: GroupView, size_bytes: ArrayLike) -> Float:
    """Chain broadcast with the faster protocol, the only algorithm of NCCL and RCCL [s].

    Counted: as `chain_broadcast_s`; 0 for one rank. Left out: trees of MPI and oneCCL.
    NVIDIA/nccl, src/graph/tuning.cc; network.md#rooted-collectives.
    """
    best = functools.reduce(
        np.minimum, (chain_broadcast_s(group, size_bytes, each) for each in group.protocols)
    )
    return np.where(group.size > 1, best, 0.0)


def scatter_s(group: GroupView, size_bytes: ArrayLike) -> Float:
    """Scatter: the root sends 1/n of the buffer to every other rank; a gather is its mirror [s].

    Counted: one message per peer, in sequence, and the slower of the transfers inside the node and
    those through the root's interface, or its share of one. Left out: neighbours' interfaces over
    NVLink (PXN); protocols. As nccl-tests does it; network.md#rooted-collectives.
    """
    size_bytes = np.asarray(size_bytes, dtype=float)
    n, g = group.size, group.local
    inside = np.where(g > 1, (g - 1) / n * size_bytes / group.local_pairwise_bytes_per_s, 0.0)
    between = (n - g) / n * size_bytes / group.hop_bytes_per_s
    latency = (g - 1) * group.local_latency_s + (n - g) * group.network_latency_s
    return np.where(n > 1, latency + np.maximum(inside, between), 0.0)
