"""Known values of functions of `planner.cost.network`."""

from __future__ import annotations

from dataclasses import replace

from planner.cost.network.collective_table import bus_factor, group_of, table, whole_nodes
from planner.cost.network.collectives import (
    all_gather_s,
    all_reduce_s,
    all_to_all_s,
    forwarded_all_to_all_s,
    hierarchical_all_reduce_s,
    p2p_s,
    phased_all_to_all_s,
    reduce_scatter_s,
    ring_all_reduce_s,
    ring_exchange_s,
    tree_all_reduce_s,
)
from planner.cost.network.groups import geometry
from planner.cost.network.in_network_reduction import network_all_reduce_s, switch_all_reduce_s
from planner.cost.network.rooted_collectives import (
    broadcast_s,
    chain_broadcast_s,
    scatter_s,
    tree_broadcast_s,
)
from planner.cost.network.topology import (
    group_view,
    inter_node_latency_s,
    reduction_view,
    unit_view,
)
from planner.cost.network.wiring import group_rate, wiring
from planner.cost.shards.layouts import Layouts
from planner.describe.catalogue import load_machine
from planner.describe.layout import Layout


def test_bus_factor() -> None:
    assert (
        bus_factor("all_reduce", 4),
        bus_factor("all_gather", 4),
        bus_factor("broadcast", 4),
    ) == (1.5, 0.75, 1.0)


def test_whole_nodes() -> None:
    # 2 nodes of 4
    assert float(whole_nodes(load_machine("polaris"), 2).size) == 8.0


def test_group_of() -> None:
    # 5 of the 8 devices of a node
    view = group_of(load_machine("dgx-h200"), 5)
    assert (float(view.local), float(view.nodes)) == (5.0, 1.0)


def test_table() -> None:
    eight = whole_nodes(load_machine("polaris"), 8)
    assert next(row.algorithm for row in table(eight, 2**28) if row.used) == "ring, Simple"


def test_ring_all_reduce_s() -> None:
    # 2 * 7/8 of 8 bytes at 1 B/s
    assert round(float(ring_all_reduce_s(unit_view(8), 8.0)), 3) == 14.0


def test_tree_all_reduce_s() -> None:
    # 8 bytes up and down at 1 B/s
    assert round(float(tree_all_reduce_s(unit_view(8), 8.0)), 3) == 16.0


def test_hierarchical_all_reduce_s() -> None:
    # 222 GB/s per device
    node = group_view(load_machine("polaris"), 4, 1)
    # 2 * 3/4 GiB
    assert round(1e3 * float(hierarchical_all_reduce_s(node, 2**30)), 2) == 7.27


def test_all_reduce_s() -> None:
    # 2 nodes of 4
    pair = group_view(load_machine("polaris"), 8, 1)
    # measured 0.0521 s
    assert 0.045 < float(all_reduce_s(pair, 2**30)) < 0.060


def test_all_gather_s() -> None:
    # 7/8 of 8 bytes at 1 B/s
    assert round(float(all_gather_s(unit_view(8), 8.0)), 3) == 7.0


def test_reduce_scatter_s() -> None:
    # 7/8 of 8 bytes at 1 B/s
    assert round(float(reduce_scatter_s(unit_view(8), 8.0)), 3) == 7.0


def test_all_to_all_s() -> None:
    # 7 of 8 bytes to others at 1 B/s
    assert float(all_to_all_s(unit_view(8), 8.0)) == 7.0


def test_forwarded_all_to_all_s() -> None:
    # as far as the other
    assert float(forwarded_all_to_all_s(unit_view(8), 8.0, 7 / 8)) == 7.0


def test_phased_all_to_all_s() -> None:
    # 7 of 8 bytes to others at 1 B/s
    assert float(phased_all_to_all_s(unit_view(8), 8.0)) == 7.0


def test_ring_exchange_s() -> None:
    # 8 bytes at 1 B/s
    assert float(ring_exchange_s(unit_view(2), 8.0)) == 8.0


def test_p2p_s() -> None:
    # 8 bytes at 1 B/s
    assert float(p2p_s(unit_view(4), 8.0)) == 8.0


def test_geometry() -> None:
    size, stride = geometry(Layouts.of(Layout(tp=4, dp=8, pp=2)))["data"]
    assert (int(size), int(stride)) == (8, 4)


def test_switch_all_reduce_s() -> None:
    # bus bandwidth, measured 482 GB/s
    node = group_view(load_machine("dgx-h200"), 8, 1)
    assert round(2 * 7 / 8 * 2**34 / float(switch_all_reduce_s(node, 2**34)) / 1e9) == 489


def test_network_all_reduce_s() -> None:
    # 8 nodes, 1 B/s
    reducing = replace(unit_view(8), network_part=1.0)
    # 8 kB once, not 2 * 7/8 of it
    assert round(float(network_all_reduce_s(reducing, 8e3))) == 8000


def test_chain_broadcast_s() -> None:
    # the buffer passes every rank once
    assert round(float(chain_broadcast_s(unit_view(8), 8.0)), 3) == 8.0


def test_tree_broadcast_s() -> None:
    # an inner rank sends 8 bytes twice
    assert round(float(tree_broadcast_s(unit_view(8), 8.0)), 3) == 16.0


def test_broadcast_s() -> None:
    # 8 bytes at 1 B/s
    assert round(float(broadcast_s(unit_view(8), 8.0)), 3) == 8.0


def test_scatter_s() -> None:
    # 7 of 8 bytes at 1 B/s
    assert float(scatter_s(unit_view(8), 8.0)) == 7.0


def test_unit_view() -> None:
    view = unit_view(8)
    assert (float(view.nodes), float(view.network_bytes_per_s), float(view.network_latency_s)) == (
        8.0,
        1.0,
        0.0,
    )


def test_group_view() -> None:
    # one rank on each of 8 nodes
    view = group_view(load_machine("polaris"), 8, 4)
    assert (float(view.nodes), float(view.local)) == (8.0, 1.0)
    # a fourth of 2 * 25 GB/s * 0.72
    assert float(view.network_bytes_per_s) / 1e9 == 9.0


def test_reduction_view() -> None:
    # 256 nodes of 12
    both = group_view(load_machine("aurora"), 3072, 1)
    assert (
        round(float(both.network_bytes_per_s / reduction_view(both).network_bytes_per_s), 1) == 13.3
    )


def test_inter_node_latency_s() -> None:
    # 160 us for a large message
    pair = group_view(load_machine("polaris"), 8, 1)
    assert [
        round(1e6 * float(inter_node_latency_s(pair, size))) for size in (2**16, 2**19, 2**30)
    ] == [80, 160, 160]


def test_wiring() -> None:
    # a mesh of 100 GB/s links
    polaris = wiring(load_machine("polaris").node)
    assert polaris.fabric["device", 0]["device", 1] / 1e9 == 100.0


def test_group_rate() -> None:
    # a mesh of 100 GB/s links
    polaris = wiring(load_machine("polaris").node)
    assert [group_rate(polaris, size, 1) / 1e9 for size in (2, 3, 4)] == [100.0, 200.0, 300.0]
