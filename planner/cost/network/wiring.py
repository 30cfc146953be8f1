"""Wiring: one node as a graph of links, and send rates of groups inside it."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from planner.describe.machine import Fabric, Machine, Node

if TYPE_CHECKING:
    import networkx

Vertex = tuple[str] | tuple[str, int]
"""("device", i), ("nic", j), ("switch",), ("pcie",), ("host",) or ("network",)."""
Kind = Literal["fabric", "host", "nic", "network"]
Neighbours = dict[Vertex, dict[Vertex, float]]

HOST: Vertex = ("host",)
NETWORK: Vertex = ("network",)


class Link(NamedTuple):
    """Link between two vertices, with the same rate in both directions."""

    ends: tuple[Vertex, Vertex]
    bytes_per_s: float
    """Rate per direction [B/s]."""
    kind: Kind
    """fabric: between devices; host: to the host; nic: to a NIC; network: from a NIC outwards."""


def links(node: Node) -> Iterator[Link]:
    """Yield every link of a node, one per pair of vertices."""
    devices = [("device", i) for i in range(node.num_devices)]
    for device in devices:
        yield Link((device, HOST), node.host_link_bytes_per_s.value, "host")
    yield from _fabric_links(node.fabric, devices)
    if rate := node.nic_bytes_per_s:
        for nic in range(node.num_nics):
            yield Link((("nic", nic), NETWORK), rate.value, "network")
        for device, nic in zip(devices, node.nic_of_device, strict=False):
            yield Link((device, ("nic", nic)), rate.value, "nic")


def _fabric_links(fabric: Fabric, devices: list[tuple[str, int]]) -> Iterator[Link]:
    pair, port = fabric.pair_bytes_per_s, fabric.device_bytes_per_s
    if fabric.kind == "mesh" and pair:
        for ends in itertools.combinations(devices, 2):
            yield Link(ends, pair.value, "fabric")
    elif fabric.kind == "switch" and (rate := pair or port):
        for device in devices:
            yield Link((device, ("switch",)), rate.value, "fabric")
    elif fabric.kind == "host" and pair:
        for device in devices:
            yield Link((device, ("pcie",)), pair.value, "fabric")
    elif fabric.kind == "wires":
        rates: dict[tuple[int, int], float] = {}
        for wire in fabric.wires:
            key = (min(wire.devices), max(wire.devices))
            rates[key] = rates.get(key, 0.0) + wire.bytes_per_s
        for (a, b), value in rates.items():
            yield Link((devices[a], devices[b]), value, "fabric")


def build_graph(machine: Machine) -> networkx.Graph:
    """Build a networkx graph of one node; edges carry `bytes_per_s` and `link` (the kind)."""
    import networkx  # slow to import

    node, graph = machine.node, networkx.Graph()
    port = node.fabric.device_bytes_per_s
    limit = {"bytes_per_s": port.value} if port else {}
    graph.add_nodes_from((("device", i) for i in range(node.num_devices)), **limit)
    for link in links(node):
        graph.add_edge(*link.ends, bytes_per_s=link.bytes_per_s, link=link.kind)
    return graph


@dataclass(frozen=True, slots=True, eq=False)
class Wiring:
    """Links of a node as adjacency maps; hashed by identity, so that results can be cached."""

    num_devices: int
    port_bytes_per_s: float
    """Send rate of one device into the fabric [B/s]."""
    fabric: Neighbours
    """Rate from vertex to vertex over the fabric [B/s]."""
    host: Neighbours
    """Rate from vertex to vertex over the links to the host [B/s]."""
    devices_per_card: int = 1
    card_bytes_per_s: float | None = None
    """Rate of one device to one other card, if that is a single link [B/s]."""


@functools.lru_cache(maxsize=256)
def wiring(node: Node) -> Wiring:
    """Build the link maps of a node.

    Counted: links of the fabric and to the host, with their rates. Left out: interfaces to the
    network, which groups share (`group_view`). network.md#what-a-group-sees.
    """
    neighbours: dict[Kind, Neighbours] = {"fabric": {}, "host": {}}
    for (a, b), rate, kind in links(node):
        if kind in neighbours:
            neighbours[kind].setdefault(a, {})[b] = rate
            neighbours[kind].setdefault(b, {})[a] = rate
    port, card = node.fabric.device_bytes_per_s, node.fabric.card_bytes_per_s
    return Wiring(
        node.num_devices,
        port.value if port else np.inf,
        **neighbours,
        devices_per_card=node.devices_per_card,
        card_bytes_per_s=card.value if card else None,
    )


@functools.lru_cache(maxsize=4096)
def group_rate(node: Wiring, size: int, stride: int) -> float:
    """Send rate of each of `size` devices of a node, `stride` apart, within their group [B/s].

    Counted: the smallest minimum cut between a member and the others, over links inside the group;
    devices outside do not forward. One link per device between cards (`card_bytes_per_s`) caps it.
    Host links count only if the fabric connects no member. Infinite for one device. Left out: the
    fabric's efficiency, cuts around several members. network.md#what-a-group-sees.
    """
    if size <= 1:
        return np.inf
    assert (size - 1) * stride < node.num_devices, "a group inside a node does not wrap around it"
    members = [("device", i * stride) for i in range(size)]
    fabric = min(_minimum_cut(node.fabric, member, members) for member in members)
    if fabric:
        return min(fabric, node.port_bytes_per_s, _leaving_cards(node, members))
    return min(_minimum_cut(node.host, member, members) for member in members)


def _leaving_cards(node: Wiring, members: list[tuple[str, int]]) -> float:
    """Rate of each device over its links to the group's other cards [B/s]."""
    cards = {device // node.devices_per_card for _, device in members}
    if node.card_bytes_per_s is None or len(cards) == 1:
        return np.inf
    return (len(cards) - 1) * node.card_bytes_per_s


def _minimum_cut(
    neighbours: Neighbours, sender: tuple[str, int], members: list[tuple[str, int]]
) -> float:
    """Minimum cut between a device and the other members of its group [B/s]."""
    switches = [vertex for vertex in neighbours if vertex[0] != "device"]
    cuts = []
    for number in range(len(switches) + 1):
        for sender_side in itertools.combinations(switches, number):
            beyond = {*members, *switches} - {sender, *sender_side}
            cuts.append(
                sum(
                    rate
                    for vertex in (sender, *sender_side)
                    for neighbour, rate in neighbours.get(vertex, {}).items()
                    if neighbour in beyond
                )
            )
    return min(cuts)
