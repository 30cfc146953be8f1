"""Wiring: the graph of a node, and the cuts that rate a group inside it."""

from __future__ import annotations

import networkx
import numpy as np
import pytest

from planner.cost.network.wiring import build_graph, group_rate, wiring
from planner.describe.catalogue import load_machine, names
from planner.describe.machine import Fabric, Machine
from planner.errors import DescriptionError


def rate(machine: Machine, size: int, stride: int) -> float:
    return group_rate(wiring(machine.node), size, stride)


def groups(machine: Machine) -> list[tuple[int, int]]:
    """Sizes and strides of all groups that a node can hold."""
    devices = machine.node.num_devices
    return [
        (size, stride)
        for size in range(1, devices + 1)
        for stride in range(1, devices + 1)
        if (size - 1) * stride < devices
    ]


def by_the_rule(machine: Machine, size: int, stride: int) -> float:
    """The rule in words of each kind of node: which links one device has inside the group."""
    fabric, host = machine.node.fabric, machine.node.host_link_bytes_per_s.value
    pair = fabric.pair_bytes_per_s.value if fabric.pair_bytes_per_s else np.inf
    port = fabric.device_bytes_per_s.value if fabric.device_bytes_per_s else np.inf
    members = range(0, size * stride, stride)
    own = {
        "none": host,
        "mesh": pair * (size - 1),  # a link to every other member
        "switch": min(pair, port),  # one link, whoever the others are
        "host": pair,
        "wires": min(
            sum(
                w.bytes_per_s for w in fabric.wires if i in w.devices and {*w.devices} <= {*members}
            )
            for i in members
        ),
    }[fabric.kind]
    cards = {i // machine.node.devices_per_card for i in members}
    if fabric.card_bytes_per_s and len(cards) > 1:
        # what leaves a card takes the device's one link to every other card of the group
        own = min(own, fabric.card_bytes_per_s.value * (len(cards) - 1))
    return min(own, port) if own else host


@pytest.mark.parametrize("name", names("machine"))
def test_rates_follow_the_rule_to_the_digit(name: str) -> None:
    machine = load_machine(name)
    for size, stride in groups(machine):
        expected = by_the_rule(machine, size, stride) if size > 1 else np.inf
        assert rate(machine, size, stride) == expected, (size, stride)


def by_networkx(machine: Machine, size: int, stride: int) -> float:
    """The smallest minimum cut in the picture's own graph, ports and joined receivers as edges."""
    graph = build_graph(machine)
    members = [("device", i) for i in range(0, size * stride, stride)]
    for kind in ("fabric", "host"):
        flows = networkx.Graph()
        for a, b, data in graph.edges(data=True):
            inside = all(end in members or end[0] in ("switch", "pcie", "host") for end in (a, b))
            if data["link"] == kind and inside:
                flows.add_edge(a, b, capacity=data["bytes_per_s"])
        flows.add_nodes_from(members)
        cuts = []
        for sender in members:
            directed = flows.to_directed()
            # an edge without a capacity takes everything
            port = graph.nodes[sender].get("bytes_per_s") if kind == "fabric" else None
            directed.add_edge("port", sender, **({"capacity": port} if port else {}))
            directed.add_edges_from((other, "others") for other in members if other != sender)
            cuts.append(networkx.maximum_flow_value(directed, "port", "others"))
        if min(cuts):
            return float(min(cuts))
    raise AssertionError("every device reaches the host")


def one_of_each_node() -> list[str]:
    """Machines whose nodes differ in what rates are read from."""
    found = {}
    for name in names("machine"):
        node = load_machine(name).node
        found.setdefault((node.num_devices, node.host_link_bytes_per_s, node.fabric), name)
    return list(found.values())


@pytest.mark.parametrize("name", one_of_each_node())
def test_cuts_are_those_of_the_graph_that_is_drawn(name: str) -> None:
    machine = load_machine(name)
    for size, stride in groups(machine):
        if size > 1:
            drawn = by_networkx(machine, size, stride)
            if link := machine.node.fabric.card_bytes_per_s:
                per_card = machine.node.devices_per_card
                cards = len({i // per_card for i in range(0, size * stride, stride)})
                drawn = min(drawn, link.value * (cards - 1)) if cards > 1 else drawn
            assert rate(machine, size, stride) == drawn, (size, stride)


def test_graph_of_polaris() -> None:
    # ALCF: NV4 between every pair (100 GB/s a direction), two Slingshot interfaces, two GPUs each
    graph = build_graph(load_machine("polaris"))
    assert graph.edges[("device", 0), ("device", 3)]["bytes_per_s"] == 100e9
    assert sum(edge["link"] == "fabric" for *_, edge in graph.edges(data=True)) == 6
    owners = [sorted(d[1] for d in graph[("nic", nic)] if d[0] == "device") for nic in (0, 1)]
    assert owners == [[2, 3], [0, 1]]


@pytest.mark.parametrize("name", names("machine"))
def test_every_device_reaches_every_other(name: str) -> None:
    machine = load_machine(name)
    graph = build_graph(machine)
    assert networkx.is_connected(graph)
    assert sum(vertex[0] == "device" for vertex in graph) == machine.node.num_devices


def test_mesh_rate_grows_with_the_group() -> None:
    # a group of n on a full mesh uses n - 1 links of 100 GB/s, capped at 300 GB/s per device
    polaris = load_machine("polaris")
    assert [rate(polaris, n, 1) for n in (2, 3, 4)] == [100e9, 200e9, 300e9]
    assert rate(polaris, 1, 1) == np.inf


def test_what_leaves_a_card_does_not_fit_through_the_link_inside_it() -> None:
    # ALCF: MDFI 158.5 GB/s between the tiles of a card, one Xe Link of 15.8 to each other card
    aurora = load_machine("aurora")
    assert rate(aurora, 2, 1) == 158.5e9
    assert [rate(aurora, n, 1) for n in (3, 4, 6, 12)] == [15.8e9, 15.8e9, 2 * 15.8e9, 5 * 15.8e9]
    assert rate(aurora, 6, 2) == 5 * 15.8e9
    # a node that states no such link keeps every link of a device
    lumi = load_machine("lumi-g")
    assert rate(lumi, 8, 1) == 300e9


def test_switch_rate_does_not_depend_on_the_group() -> None:
    selene = load_machine("selene")
    assert rate(selene, 2, 1) == rate(selene, 8, 1) == 300e9


def test_neighbours_without_a_wire_go_through_the_host() -> None:
    # DGX-1: a cube of eight V100 with NVLinks between some pairs, none from 0 to 5
    cube = load_machine("dgx-1v")
    assert rate(cube, 8, 1) > rate(cube, 2, 5)
    assert rate(cube, 2, 5) == cube.node.host_link_bytes_per_s.value


def test_two_wires_between_a_pair_add_up() -> None:
    summit = load_machine("summit")
    fabric = summit.node.fabric
    twice = fabric.replaced(wires=[wire.model_dump() for wire in fabric.wires + fabric.wires])
    doubled = summit.replaced(node={**summit.node.model_dump(), "fabric": twice.model_dump()})
    assert rate(doubled, 2, 1) == 2 * rate(summit, 2, 1)


@pytest.mark.parametrize(
    ("kind", "missing"), [("mesh", "pair_bytes_per_s"), ("switch", "device_bytes_per_s")]
)
def test_a_fabric_without_its_rate_is_refused(kind: str, missing: str) -> None:
    known = {"value": 1.0, "kind": "assumed", "source": "test"}
    with pytest.raises(DescriptionError, match=f"'{kind}' needs {missing}; add it"):
        Fabric.described({"kind": kind, "efficiency": known, "latency_s": known})
