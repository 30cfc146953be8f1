"""Topology: what a group of ranks sees of a node and of the network."""

from __future__ import annotations

import numpy as np
import pytest

from planner.cost.network.collectives import all_gather_s, all_reduce_s, all_to_all_s, p2p_s
from planner.cost.network.topology import group_view
from planner.describe.catalogue import load_machine


@pytest.mark.parametrize(
    ("size", "stride", "local", "nodes"),
    [
        (1, 1, 1, 1),
        (2, 1, 2, 1),
        (4, 1, 4, 1),
        (8, 1, 4, 2),
        (2, 2, 2, 1),  # tp 2: the data group of two sits on one node of four
        (4, 2, 2, 2),
        (8, 4, 1, 8),  # tp 4: one rank of the data group on each node
        (2, 8, 1, 2),
        (2, 16, 1, 2),
    ],
)
def test_placement_on_nodes_of_four(size: int, stride: int, local: int, nodes: int) -> None:
    view = group_view(load_machine("polaris"), size, stride)
    assert (float(view.local), float(view.nodes)) == (local, nodes)


def test_a_group_that_ends_within_a_node_passes_with_its_fewest_interfaces() -> None:
    # nodes of six: one group of eight has two ranks on a node, groups of twelve fill two nodes
    summit = load_machine("summit")
    eight, twelve = group_view(summit, 8, 1), group_view(summit, 12, 1)
    assert eight.network_bytes_per_s == pytest.approx(twelve.network_bytes_per_s / 3)
    assert float(eight.local) == float(twelve.local) == 6


def test_groups_that_share_a_node_share_its_interfaces() -> None:
    # four groups of stride 4 leave each Polaris node at once, one group of stride 1 alone
    polaris = load_machine("polaris")
    alone, shared = group_view(polaris, 8, 1), group_view(polaris, 2, 4)
    assert float(alone.network_bytes_per_s) == pytest.approx(4 * float(shared.network_bytes_per_s))
    # 36.1 of 50 GB/s bus bandwidth, 1 GiB all-reduce, 2 nodes: argonne-lcf/alcf-nccl-tests
    assert float(alone.network_bytes_per_s) == pytest.approx(36.1e9, rel=0.01)


def test_measured_decline_with_nodes_is_interpolated_in_log_nodes() -> None:
    polaris = load_machine("polaris")
    assert polaris.network is not None
    curve = polaris.network.efficiency
    rate = [float(group_view(polaris, 4 * n, 1).network_bytes_per_s) for n in curve.num_nodes]
    assert np.array(rate) / polaris.node_bytes_per_s == pytest.approx(curve.fraction)
    between = float(group_view(polaris, 4 * 45, 1).network_bytes_per_s) / polaris.node_bytes_per_s
    assert curve.fraction[2] < between < curve.fraction[1]


@pytest.mark.parametrize("name", ["polaris", "aurora", "vsc-5", "frontier", "laptop", "summit"])
def test_arrays_equal_scalars(name: str) -> None:
    machine = load_machine(name)
    per_node = machine.node.num_devices
    sizes = np.array([1, 2, 3, per_node, 2 * per_node, 8 * per_node])
    strides = np.array([1, 1, 1, 1, per_node, 2])
    many = group_view(machine, sizes, strides)
    for i, (size, stride) in enumerate(zip(sizes, strides, strict=True)):
        one = group_view(machine, int(size), int(stride))
        for part in ("local", "nodes", "local_bytes_per_s", "network_bytes_per_s"):
            assert float(getattr(one, part)) == getattr(many, part)[i]
    assert np.all(many.local * many.nodes >= many.size)
    assert np.all(many.local_bytes_per_s > 0)
    assert np.all(many.network_bytes_per_s > 0)


def test_groups_leave_a_rack_of_nvlink_by_the_adapters_of_their_members() -> None:
    machine = load_machine("dgx-gb200")
    exit_rate = machine.node.nic_bytes_per_s
    assert exit_rate is not None
    inside = group_view(machine, 32, 1)  # eight trays of one rack
    assert inside.network_bytes_per_s == pytest.approx(4 * 900e9 * 0.8)
    apart = group_view(machine, 4, 72)  # one rank in each of four racks
    assert apart.network_bytes_per_s == pytest.approx(exit_rate.value * 0.8)
    several = group_view(machine, 8, 36)  # two ranks in each rack
    assert several.network_bytes_per_s == pytest.approx(2 * exit_rate.value * 0.8)


def test_adapters_matter_only_to_groups_that_leave_the_rack() -> None:
    rack = load_machine("dgx-gb200")
    slower = load_machine("dgx-gb200", ("node.nic_bytes_per_s=12.5GB",))
    narrow = load_machine("dgx-gb200", ("node.num_nics=1", "node.nic_of_device=[0,0,0,0]"))
    for size, stride in ((8, 1), (16, 4), (72, 1), (18, 4)):
        for other in (slower, narrow):
            one, two = group_view(rack, size, stride), group_view(other, size, stride)
            for time in (all_reduce_s, all_gather_s, all_to_all_s, p2p_s):
                assert time(one, 2**28) == time(two, 2**28)
    for size, stride in ((144, 1), (4, 72), (32, 8)):
        fast, slow = group_view(rack, size, stride), group_view(slower, size, stride)
        assert all_to_all_s(slow, 2**30) > 2 * all_to_all_s(fast, 2**30)


def test_a_ring_leaves_parts_of_a_rack_by_all_adapters_of_a_part() -> None:
    # NVIDIA/nccl#1801: rings of three parts in different racks; parts of 4 GPUs reach 196.9 GB/s,
    # parts of 8 reach 393.6
    machine = load_machine("dgx-gb200")
    assert machine.domain is not None
    four = group_view(machine.replaced(domain=None), 12, 1)
    pairs = {**machine.domain.model_dump(), "num_nodes": 2}
    eight = group_view(machine.replaced(domain=pairs), 24, 1)
    ratio = float(eight.network_bytes_per_s / four.network_bytes_per_s)
    assert ratio == pytest.approx(393.6 / 196.9, rel=0.01)


def test_one_port_of_nvlink_sends_to_the_tray_and_to_the_rack() -> None:
    machine = load_machine("dgx-gb200")
    for ranks in (8, 16, 72):
        time_s = float(all_to_all_s(group_view(machine, ranks, 1), 2**34))
        assert (ranks - 1) / ranks * 2**34 / time_s == pytest.approx(0.8 * 900e9, rel=0.03)
    # half of the messages in two racks pass the adapter of their rank
    two = float(all_to_all_s(group_view(machine, 144, 1), 2**34))
    assert 0.5 * 2**34 / two == pytest.approx(0.8 * 50e9, rel=0.03)


def test_a_step_between_racks_takes_longer_than_one_inside() -> None:
    machine = load_machine("dgx-gb200")
    inside, apart, both = (group_view(machine, *place) for place in ((8, 1), (4, 72), (144, 1)))
    assert float(inside.network_latency_s) == 3.4e-6
    assert float(apart.network_latency_s) == 8e-6
    # 2 of the 36 hops of a ring between trays lead to the other rack
    assert float(both.network_latency_s) == pytest.approx((34 * 3.4e-6 + 2 * 8e-6) / 36)


def test_groups_that_span_sockets_share_the_link_between_them() -> None:
    # 4 GPUs on each socket, 25 GB/s of PCIe each at 0.92, 16 GB/s across (NCCL, topo.h)
    node = load_machine("a100-pcie-node")
    inside, across = 0.92 * 25e9, 16e9
    for size, stride, rate in (
        (2, 1, inside),  # tp 2
        (4, 1, inside),  # tp 4 stays on a socket
        (8, 1, across),  # one ring passes
        (4, 2, across / 2),  # dp 4 beside tp 2: two rings pass
        (2, 4, across / 4),  # dp 2 beside tp 4: four pairs
        (2, 2, inside),
    ):
        view = group_view(node, size, stride)
        assert float(view.local_bytes_per_s) == pytest.approx(rate), (size, stride)
    # all to all over both sockets: 4 ranks send half of their buffers to the other side, one way
    group = group_view(node, 8, 1)
    assert float(all_to_all_s(group, 8e9)) == pytest.approx(4 * 4e9 / across, rel=1e-3)
    # a machine whose sockets nothing is said of has no such bound
    assert float(group_view(load_machine("l40s-node"), 8, 1).local_bytes_per_s) == 0.7 * 20e9
