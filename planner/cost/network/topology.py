"""Topology: the machine as a graph, and what a group of ranks sees of it.

The graph has one node per device, interface, switch and host, with rates per direction on the
edges. Groups are described by their size and the stride between their ranks; what such a group
can use inside a node is read off the graph once, what it can use between nodes follows from
how many groups share the interfaces.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from planner.cost.arrays import Arrays, Float, Int
from planner.describe.machine import Machine

if TYPE_CHECKING:
    import networkx

__all__ = ["GroupView", "build_graph", "group_view", "node_rate", "unit_view"]

_MESSAGE = 1.4
# NCCL's own constants give a ring step of the Simple protocol between nodes 14 us against 10 us
# for one level of the LL tree, up and down (NVIDIA/nccl src/graph/tuning.cc)


def build_graph(machine: Machine) -> networkx.Graph:
    """One node of the machine and its way out, as a networkx graph.

    Vertices: ("device", i), ("nic", j), ("host",), ("switch",), ("network",). Edges carry
    `bytes_per_s` per direction.

    >>> from planner.describe.catalogue import load_machine
    >>> graph = build_graph(load_machine("polaris"))
    >>> graph.edges[("device", 0), ("device", 1)]["bytes_per_s"]
    100000000000.0
    """
    import networkx

    node, graph = machine.node, networkx.Graph()
    fabric = node.fabric
    devices = [("device", i) for i in range(node.num_devices)]
    graph.add_nodes_from(devices)
    host = ("host",)
    for device in devices:
        graph.add_edge(device, host, bytes_per_s=node.host_link_bytes_per_s.value, link="host")
    if fabric.kind == "mesh":
        assert fabric.pair_bytes_per_s is not None
        for i, a in enumerate(devices):
            for b in devices[i + 1 :]:
                graph.add_edge(a, b, bytes_per_s=fabric.pair_bytes_per_s.value, link="fabric")
    elif fabric.kind == "switch":
        rate = fabric.device_bytes_per_s or fabric.pair_bytes_per_s
        assert rate is not None
        for device in devices:
            graph.add_edge(device, ("switch",), bytes_per_s=rate.value, link="fabric")
    elif fabric.kind == "wires":
        for wire in fabric.wires:
            a, b = (devices[i] for i in wire.devices)
            graph.add_edge(a, b, bytes_per_s=wire.bytes_per_s, link="fabric")
    for nic in range(node.num_nics):
        assert node.nic_bytes_per_s is not None
        rate_of_nic = node.nic_bytes_per_s.value
        graph.add_edge(("nic", nic), ("network",), bytes_per_s=rate_of_nic, link="network")
        for i, owner in enumerate(node.nic_of_device):
            if owner == nic:
                graph.add_edge(devices[i], ("nic", nic), bytes_per_s=rate_of_nic, link="nic")
    return graph


def node_rate(machine: Machine, size: int, stride: int) -> float:
    """What each of `size` devices of a node, `stride` apart, can send inside the group [B/s].

    A ring or a mesh of rings can use all links that stay inside the group: the smallest sum of
    such links over the members, capped by what one device can send in all.
    """
    node, fabric = machine.node, machine.node.fabric
    if size <= 1:
        return np.inf
    members = [i * stride % node.num_devices for i in range(size)]
    cap = fabric.device_bytes_per_s.value if fabric.device_bytes_per_s else np.inf
    if fabric.kind == "switch":
        pair = fabric.pair_bytes_per_s.value if fabric.pair_bytes_per_s else np.inf
        return min(cap, pair)
    if fabric.kind == "mesh":
        assert fabric.pair_bytes_per_s is not None
        return min(cap, fabric.pair_bytes_per_s.value * (size - 1))
    if fabric.kind == "wires":
        inside = set(members)
        sums = dict.fromkeys(members, 0.0)
        for wire in fabric.wires:
            a, b = wire.devices
            if a in inside and b in inside:
                sums[a] += wire.bytes_per_s
                sums[b] += wire.bytes_per_s
        weakest = min(sums.values())
        return min(cap, weakest) if weakest else node.host_link_bytes_per_s.value
    if fabric.kind == "host" and fabric.pair_bytes_per_s is not None:
        return min(cap, fabric.pair_bytes_per_s.value)
    return node.host_link_bytes_per_s.value


@dataclass(frozen=True, slots=True)
class GroupView(Arrays):
    """What groups of ranks see: sizes, rates per rank and direction, latencies."""

    size: Float
    """Ranks of the group."""
    local: Float
    """Ranks of the group on one node."""
    nodes: Float
    """Nodes the group spans."""
    local_bytes_per_s: Float
    """Rate of one rank inside its node, efficiency included [B/s]."""
    network_bytes_per_s: Float
    """Rate of the group's share of one node's interfaces, efficiency included [B/s]."""
    local_latency_s: Float
    """Latency of one step inside the node [s]."""
    pairwise_bytes_per_s: Float
    """The same where every rank sends to every other [B/s]."""
    network_latency_s: Float
    """What a doubling of the nodes adds to a small all-reduce [s]."""
    network_message_s: Float
    """Latency of one large message from node to node [s]."""
    neighbour_bytes_per_s: Float
    """Rate between two neighbours of the group inside a node, efficiency included [B/s]."""


def unit_view(size: ArrayLike) -> GroupView:
    """Groups across nodes whose ranks send one byte per second and wait for nothing."""
    ranks = np.asarray(size, dtype=np.float64)
    one, none = np.ones(ranks.shape), np.zeros(ranks.shape)
    return GroupView(
        size=ranks,
        local=one,
        nodes=ranks,
        local_bytes_per_s=one,
        network_bytes_per_s=one,
        local_latency_s=none,
        pairwise_bytes_per_s=one,
        network_latency_s=none,
        network_message_s=none,
        neighbour_bytes_per_s=one,
    )


def group_view(machine: Machine, size: ArrayLike, stride: ArrayLike) -> GroupView:
    """What a group of `size` ranks, `stride` apart, sees when all such groups are busy.

    All groups of the axis run the same collective at once, so the groups that pass through one
    node share its interfaces. Groups that straddle a node boundary are taken at their worst.

    >>> from planner.describe.catalogue import load_machine
    >>> view = group_view(load_machine("polaris"), 8, 4)     # one rank on each of 8 nodes
    >>> float(view.nodes), float(view.local)
    (8.0, 1.0)
    """
    per_node = machine.node.num_devices
    size, stride = np.broadcast_arrays(
        np.asarray(size, dtype=np.int64), np.asarray(stride, dtype=np.int64)
    )
    span = size * stride
    inside = np.where(per_node % np.maximum(span, 1) == 0, size, np.gcd(span, per_node) // stride)
    across = np.where(per_node % stride == 0, per_node // stride, per_node // np.maximum(stride, 1))
    local = np.clip(np.where(span <= per_node, inside, across), 1, size)
    nodes = -(-size // local)
    local_rate, neighbour_rate = _local_rates(machine, local, stride)
    network = _network(machine, size, stride, local, nodes)
    return GroupView(
        size=size.astype(float),
        local=local.astype(float),
        nodes=nodes.astype(float),
        local_bytes_per_s=local_rate,
        neighbour_bytes_per_s=neighbour_rate,
        local_latency_s=np.full(local.shape, machine.node.fabric.latency_s.value),
        **network,
    )


def _local_rates(machine: Machine, local: Int, stride: Int) -> tuple[Float, Float]:
    """Rate of one rank inside its node, and between two neighbours there [B/s]."""
    per_node, fabric = machine.node.num_devices, machine.node.fabric
    key = local * (per_node + 1) + np.minimum(stride, per_node)
    table, pairs = np.full((2, (per_node + 1) * (per_node + 1)), np.inf)
    # few pairs of size and stride differ, however many groups there are
    for present in np.flatnonzero(np.bincount(np.ravel(key))):
        members, step = map(int, divmod(present, per_node + 1))
        table[present] = node_rate(machine, members, step)
        pairs[present] = node_rate(machine, min(members, 2), step)
    return table[key] * fabric.efficiency.value, pairs[key] * fabric.efficiency.value


def _network(machine: Machine, size: Int, stride: Int, local: Int, nodes: Int) -> dict[str, Float]:
    """What groups see between nodes: rates of their share of the interfaces, latencies."""
    network, per_node = machine.network, machine.node.num_devices
    if network is None:
        none, endless = np.zeros(local.shape), np.full(local.shape, np.inf)
        return {
            "network_bytes_per_s": endless,
            "pairwise_bytes_per_s": endless,
            "network_latency_s": none,
            "network_message_s": none,
        }
    curve, groups_per_node = network.efficiency, np.maximum(per_node // local, 1)
    fraction = np.interp(np.log(np.maximum(nodes, 1)), np.log(curve.num_nodes), curve.fraction)
    rate = machine.node_bytes_per_s * fraction / groups_per_node
    if exit_rate := network.domain_exit_bytes_per_s:
        # a ring through several domains leaves each by the exits of all its members there
        devices = network.domain_nodes * per_node
        exits = np.clip(devices // stride, 1, size) * exit_rate.value * fraction
        rate = np.where(size * stride > devices, np.minimum(rate, exits), rate)
    latency, known = network.latency_s.value, network.message_s
    pairwise = network.pairwise_fraction.value if network.pairwise_fraction else 1.0
    return {
        "network_bytes_per_s": rate,
        "pairwise_bytes_per_s": pairwise * rate,
        "network_latency_s": np.full(local.shape, latency),
        "network_message_s": np.full(local.shape, known.value if known else _MESSAGE * latency),
    }
