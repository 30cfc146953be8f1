"""Topology: rates and latencies of groups of ranks on a machine, by size and stride."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from planner.cost.arrays import Arrays, Float, Int, distinct
from planner.cost.constants import PROTOCOLS, Protocol, network_constants
from planner.cost.network.wiring import group_rate, wiring
from planner.describe.base import Factor
from planner.describe.machine import Curve, Domain, Machine


@dataclass(frozen=True, slots=True)
class GroupView(Arrays):
    """Network view of groups of ranks: sizes, rates per rank and direction, latencies."""

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
    reducing_part: Float
    """Fraction of `network_bytes_per_s` that reductions reach."""
    hop_bytes_per_s: Float
    """Rate of a rank to its group's next rank on another node, while all ranks send [B/s]."""
    local_latency_s: Float
    """Latency of one step inside the node [s]."""
    pairwise_bytes_per_s: Float
    """Rate of the group's share of one node's interfaces in an all-to-all [B/s]."""
    network_latency_s: Float
    """Latency that each doubling of the nodes adds to a small all-reduce [s]."""
    large_message_latency_s: Float
    """Latency of one large message from node to node [s]."""
    local_pairwise_bytes_per_s: Float
    """Rate of a rank inside its node in an all-to-all, efficiency included [B/s]."""
    neighbour_bytes_per_s: Float
    """Rate between two neighbours of the group inside a node, efficiency included [B/s]."""
    in_phases: Float
    """1 if collectives finish inside nodes before they continue between nodes, else 0."""
    linked: Float
    """Ranks of the group with direct links: those on a node, or in a domain of nodes (NVL72)."""
    islands: Float
    """Nodes, or domains of nodes, that the group spans."""
    gathering_part: float = 1.0
    """Rate of all-gathers inside a node over `local_bytes_per_s`."""
    scattering_part: float = 1.0
    """Rate of reduce-scatters inside a node over `local_bytes_per_s`."""
    protocols: tuple[Protocol, ...] = PROTOCOLS
    """Protocols of the library, of which it takes the fastest."""
    switch_bytes_per_s: float | Float = 0.0
    """Rate of a rank in reductions in the switch of its node or domain; 0 without them [B/s]."""
    network_part: float | Float = 0.0
    """Rate of reductions in network switches over `network_bytes_per_s`; 0 without them."""


def unit_view(size: ArrayLike) -> GroupView:
    """Network view of groups with one rank per node, a rate of 1 B/s and no latency.

    Counted: the transfer alone: seconds are bytes that a rank sends. Left out: latency. Definition.
    """
    ranks = np.asarray(size, dtype=np.float64)
    zeros = ("local_latency_s", "network_latency_s", "large_message_latency_s", "in_phases")
    figures: dict[str, Any] = dict.fromkeys(GroupView.__annotations__, np.ones(ranks.shape))
    figures |= dict.fromkeys(zeros, np.zeros(ranks.shape))
    figures |= dict.fromkeys(("size", "nodes", "islands"), ranks)
    alike = ("gathering_part", "scattering_part", "protocols", "switch_bytes_per_s", "network_part")
    return GroupView(**{name: figures[name] for name in figures if name not in alike})


def group_view(
    machine: Machine, size: ArrayLike, stride: ArrayLike, *, first: bool = False
) -> GroupView:
    """Network view of a group of `size` ranks, `stride` apart, while all groups of its axis send.

    Counted: groups of the axis on one node share its interfaces; a group that straddles a node
    boundary counts at its worst position, or with `first` starts at a node's first device. Left
    out: other jobs, routing, near and far interfaces of a device. network.md#what-a-group-sees.
    """
    per_node = machine.node.num_devices
    size, stride = np.broadcast_arrays(
        np.asarray(size, dtype=np.int64), np.asarray(stride, dtype=np.int64)
    )
    span = size * stride
    aligned = per_node % np.maximum(span, 1) == 0
    inside = np.where(aligned | first, size, np.gcd(span, per_node) // stride)
    across = np.where(per_node % stride == 0, per_node // stride, per_node // np.maximum(stride, 1))
    fits = (size - 1) * stride < per_node if first else span <= per_node
    local = np.clip(np.where(fits, inside, across), 1, size)
    nodes = -(-size // local)
    # a group that ends within a node: its few ranks there carry all of the ring's traffic
    ends = (span > per_node) & (per_node % stride == 0)
    fewest = np.where(ends, np.gcd(span, per_node) // stride, local)
    local_rate, neighbour_rate = _local_rates(machine, local, stride)
    ring, pairwise = _between_sockets(machine, local, stride)
    fewest, local_rate = np.maximum(fewest, 1), np.minimum(local_rate, ring)
    in_node, in_network = _switches(machine)
    start = machine.node.fabric.start_s
    view = GroupView(
        size=size.astype(float),
        local=local.astype(float),
        nodes=nodes.astype(float),
        local_bytes_per_s=local_rate,
        local_pairwise_bytes_per_s=np.minimum(local_rate, pairwise),
        neighbour_bytes_per_s=np.minimum(neighbour_rate, ring),
        local_latency_s=np.full(local.shape, machine.node.fabric.latency_s.value),
        in_phases=np.full(local.shape, float(machine.network.in_phases if machine.network else 0)),
        linked=local.astype(float),
        islands=nodes.astype(float),
        gathering_part=_part(machine.node.fabric.all_gather),
        scattering_part=_part(machine.node.fabric.reduce_scatter),
        protocols=PROTOCOLS if start is None else (Protocol.single(start.value),),
        switch_bytes_per_s=in_node * local_rate if in_node else 0.0,
        network_part=in_network,
        **_network(machine, fewest, nodes),
    )
    domain, members = machine.domain, machine.wired_devices // stride
    return _through_domain(view, domain, members, fewest) if domain else view


def reduction_view(group: GroupView) -> GroupView:
    """Network view of a group during reductions, with their inter-node rate [B/s].

    Counted: the fraction of the inter-node rate that reductions reach. Left out: additions inside a
    node. network.md#algorithms.
    """
    return replace(group, network_bytes_per_s=group.reducing_part * group.network_bytes_per_s)


def inter_node_latency_s(group: GroupView, message_bytes: ArrayLike) -> Float:
    """Latency of one inter-node message of a collective [s].

    Counted: the full latency of a large message (rendezvous and copy of a slice) from 512 KiB on;
    below that it falls with the cube root of the size, down to half of the network's latency. Left
    out: the transfer itself. network.md#algorithms; fitted as `collective_constants.toml` says.
    """
    large_bytes = network_constants().inter_node.large_message_bytes.value
    part = np.minimum(np.cbrt(np.asarray(message_bytes) / large_bytes), 1.0)
    return np.maximum(group.large_message_latency_s * part, 0.5 * group.network_latency_s)


def _switches(machine: Machine) -> tuple[float, float]:
    """Relative rates of in-switch reduction in a node and in the network; 0 without it."""
    fabric, network = machine.node.fabric, machine.network
    of_node, of_network = fabric.switch_reduction, network and network.switch_reduction
    return (
        of_node.value / fabric.efficiency.value if of_node else 0.0,
        of_network.value if of_network else 0.0,
    )


def _local_rates(machine: Machine, local: Int, stride: Int) -> tuple[Float, Float]:
    """Rates of one rank inside its node: in its group, and to one neighbour [B/s]."""
    per_node, graph = machine.node.num_devices, wiring(machine.node)
    stride = np.minimum(stride, per_node)
    # compute each distinct pair of size and stride once
    first, index = distinct(local, stride)
    groups = [(int(np.ravel(local)[i]), int(np.ravel(stride)[i])) for i in first]
    rates = np.array([group_rate(graph, size, step) for size, step in groups])
    pairs = np.array([group_rate(graph, min(size, 2), step) for size, step in groups])
    rates, pairs = rates[index], pairs[index]
    efficiency = machine.node.fabric.efficiency.value
    return rates * efficiency, pairs * efficiency * _part(machine.node.fabric.send_recv)


def _part(factor: Factor | None) -> float:
    return factor.value if factor else 1.0


def _between_sockets(machine: Machine, local: Int, stride: Int) -> tuple[Float, Float]:
    """Rate of a rank over the link between sockets, in a ring and in an all-to-all [B/s]."""
    node, link = machine.node, machine.node.fabric.socket_bytes_per_s
    if link is None or node.num_sockets == 1:
        unlimited = np.full(local.shape, np.inf)
        return unlimited, unlimited
    per_socket = -(-node.num_devices // node.num_sockets)
    ranks_per_socket = np.clip(per_socket // np.maximum(stride, 1), 1, local)
    crosses = (local > 1) & ((local - 1) * stride >= per_socket)
    groups = np.maximum(node.num_devices // np.maximum(local, 1), 1)
    ring = np.where(crosses, link.value / groups, np.inf)
    # messages that cross the link one way, over the messages of each rank
    crossing = np.maximum(ranks_per_socket * (local - ranks_per_socket), 1) / np.maximum(
        local - 1, 1
    )
    return ring, ring / crossing


def _network(machine: Machine, fewest: Int, nodes: Int) -> dict[str, Float]:
    """Rates and latencies between nodes; `fewest`: least ranks of the group on any node."""
    network, per_node = machine.network, machine.node.num_devices
    if network is None:
        rates = ("network_bytes_per_s", "hop_bytes_per_s", "pairwise_bytes_per_s")
        times = ("network_latency_s", "large_message_latency_s")
        none, unlimited = np.zeros(fewest.shape), np.full(fewest.shape, np.inf)
        no_network = dict.fromkeys(rates, unlimited) | dict.fromkeys(times, none)
        return {"reducing_part": np.ones(fewest.shape), **no_network}
    groups_per_node = np.maximum(per_node // fewest, 1)
    fraction = _reached(network.efficiency, nodes)
    share = machine.node_bytes_per_s / groups_per_node
    # a rank reaches the next node over one interface, or several if there are more than ranks
    rank_rate = machine.node_bytes_per_s / min(per_node, max(machine.node.num_nics, 1))
    next_node = _reached(network.efficiency, np.asarray(2))
    latency, large_message_latency = network.latency_s.value, network.large_message_latency_s
    ratio = network_constants().inter_node.large_message_ratio.value
    pairwise = network.pairwise_fraction.value if network.pairwise_fraction else 1.0
    reducing_part = np.ones(fewest.shape)
    if network.reducing:
        reducing_part = np.minimum(_reached(network.reducing, nodes) / fraction, 1.0)
    return {
        "network_bytes_per_s": share * fraction,
        "reducing_part": reducing_part,
        "hop_bytes_per_s": np.minimum(share, rank_rate) * next_node,
        "pairwise_bytes_per_s": pairwise * share * fraction,
        "network_latency_s": np.full(fewest.shape, latency),
        "large_message_latency_s": np.full(
            fewest.shape, large_message_latency.value if large_message_latency else ratio * latency
        ),
    }


def _through_domain(view: GroupView, domain: Domain, members: Int, fewest: Int) -> GroupView:
    """View with a domain's links between nodes: `members`: most ranks in a domain."""
    size, linked = view.size, np.minimum(view.size, np.maximum(members, 1))
    islands, remote = np.ceil(size / linked), np.maximum(size - view.local, 1)
    leaves = islands > 1
    # share of the hops between nodes that leave a domain
    part = np.where(leaves, islands / view.nodes, 0.0)
    latency, link_rate = domain.latency_s.value, domain.device_bytes_per_s.value
    large = latency * network_constants().inter_node.large_message_ratio.value
    rate = domain.efficiency.value * link_rate
    port = np.where(view.nodes > 1, rate, np.inf)
    switch = domain.switch_reduction.value * link_rate if domain.switch_reduction else 0.0

    def least(inside: ArrayLike, across: ArrayLike) -> Float:
        return np.where(leaves, np.minimum(inside, across), inside)

    return replace(
        view,
        linked=linked,
        islands=islands,
        # one port of a device sends to its node and to its domain
        local_bytes_per_s=np.minimum(view.local_bytes_per_s, port),
        # a ring leaves a domain by the interfaces of all members there
        network_bytes_per_s=least(fewest * rate, linked * view.network_bytes_per_s / fewest),
        reducing_part=np.where(leaves, view.reducing_part, 1.0),
        hop_bytes_per_s=least(rate, view.hop_bytes_per_s),
        # interfaces carry what goes to other domains
        pairwise_bytes_per_s=least(
            fewest * rate * remote / np.maximum(size - 1, 1),
            view.pairwise_bytes_per_s * remote / np.maximum(size - linked, 1),
        ),
        network_latency_s=latency + part * (view.network_latency_s - latency),
        large_message_latency_s=large + part * (view.large_message_latency_s - large),
        switch_bytes_per_s=np.where(view.nodes > 1, switch, view.switch_bytes_per_s),
    )


def _reached(curve: Curve, nodes: Int) -> Float:
    """Reached fraction of the node's injection rate, linear in the logarithm of the nodes."""
    fraction = np.interp(np.log(np.maximum(nodes, 1)), np.log(curve.num_nodes), curve.fraction)
    return np.asarray(fraction, dtype=np.float64)
