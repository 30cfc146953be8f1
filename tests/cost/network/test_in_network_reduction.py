"""Switches that add up: published bus bandwidths, and orders that must hold.

No figure of this file was fitted: rates are NCCL's constants, or those of rings.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from planner.cost.network.collective_table import bus_factor, group_of, whole_nodes
from planner.cost.network.collectives import (
    all_gather_s,
    all_reduce_s,
    reduce_scatter_s,
    ring_all_reduce_s,
)
from planner.cost.network.in_network_reduction import network_all_reduce_s, switch_all_reduce_s
from planner.cost.network.topology import GroupView, group_view
from planner.describe.catalogue import load_machine
from planner.describe.machine import Machine
from planner.errors import DescriptionError

GIB = 2**30


def bus_gb_s(group: GroupView, size: float, time: Any = all_reduce_s) -> float:
    """Bus bandwidth of an all-reduce as nccl-tests prints it [GB/s]."""
    factor = bus_factor("all_reduce", float(group.size))
    return factor * size / float(time(group, size)) / 1e9


@pytest.mark.parametrize(
    ("name", "ranks", "size", "measured"),
    [
        # stas00/ml-engineering @744d01e1, network/README.md, 8 GiB, NCCL's choice: a ring up to
        # four H200 and five B200, NVLS from there on
        ("dgx-h200", 4, 8 * GIB, 363.3),
        ("dgx-h200", 5, 8 * GIB, 414.2),
        ("dgx-h200", 6, 8 * GIB, 435.6),
        ("dgx-h200", 7, 8 * GIB, 460.0),
        ("dgx-h200", 8, 8 * GIB, 473.1),
        ("dgx-b200", 4, 8 * GIB, 673.2),
        ("dgx-b200", 5, 8 * GIB, 677.8),
        ("dgx-b200", 6, 8 * GIB, 778.2),
        ("dgx-b200", 7, 8 * GIB, 811.2),
        ("dgx-b200", 8, 8 * GIB, 838.0),
        ("dgx-h200", 8, 16 * GIB, 482.3),
        ("dgx-b200", 8, 16 * GIB, 845.7),
        # NVIDIA/nccl issue 1455, 8 H100 SXM, 2 to 4 GiB, NCCL_ALGO=NVLS
        ("dgx-h100", 5, 4 * GIB, 420.0),
        ("dgx-h100", 6, 4 * GIB, 440.0),
        ("dgx-h100", 7, 4 * GIB, 460.0),
        ("dgx-h100", 8, 4 * GIB, 480.0),
    ],
)
def test_a_node_of_hopper_or_blackwell(name: str, ranks: int, size: float, measured: float) -> None:
    assert bus_gb_s(group_of(load_machine(name), ranks), size) == pytest.approx(measured, rel=0.06)


@pytest.mark.parametrize(
    ("racks", "gibibytes", "measured", "rel"),
    # coreweave/nccl-tests, README, GB200 NVL72, NCCL 2.26.2; the profile's rate is that of one rack
    # and 8 GiB
    [(1, 8, 846.8, 0.03), (1, 4, 835.3, 0.04), (2, 16, 820.4, 0.12), (2, 8, 791.9, 0.12)],
)
def test_the_switches_of_racks_add_up_for_all_their_gpus(
    racks: int, gibibytes: int, measured: float, rel: float
) -> None:
    group = whole_nodes(load_machine("dgx-gb200"), 18 * racks)
    assert bus_gb_s(group, gibibytes * GIB) == pytest.approx(measured, rel=rel)
    assert float(group.islands) == racks


def test_a_domain_without_such_switches_reduces_in_a_tray_alone() -> None:
    machine = load_machine("dgx-gb200", ("node.fabric.switch_reduction=0.6",))
    assert machine.domain is not None
    plain = machine.replaced(domain={**machine.domain.model_dump(), "switch_reduction": None})
    tray, trays = group_view(plain, 4, 1), group_view(plain, 8, 1)
    assert np.isfinite(switch_all_reduce_s(tray, GIB))
    assert np.isinf(switch_all_reduce_s(trays, GIB))
    assert np.isfinite(switch_all_reduce_s(group_view(machine, 8, 1), GIB))


@pytest.mark.parametrize(
    ("mebibytes", "measured_us"),
    # the same page, 8 H200, all_reduce_bench.py, NCCL 2.27.7
    [
        (32, 212.9),
        (64, 338.9),
        (128, 584.4),
        (256, 1077.1),
        (512, 2086.5),
        (1024, 4053.4),
        (4096, 15887.3),
    ],
)
def test_a_node_of_h200_over_sizes(mebibytes: int, measured_us: float) -> None:
    group = whole_nodes(load_machine("dgx-h200"), 1)
    time_s = float(all_reduce_s(group, mebibytes * 2**20))
    assert time_s == pytest.approx(measured_us * 1e-6, rel=0.17 if mebibytes < 64 else 0.05)


def test_gain_over_a_ring_grows_with_the_devices() -> None:
    # the same page: 1.00, 1.14, 1.19, 1.26, 1.29 times a ring on 4 to 8 H200
    groups = [group_of(load_machine("dgx-h200"), ranks) for ranks in range(4, 9)]
    gains = [bus_gb_s(g, 8 * GIB) / bus_gb_s(g, 8 * GIB, ring_all_reduce_s) for g in groups]
    assert gains == pytest.approx([1.00, 1.14, 1.19, 1.26, 1.29], rel=0.06)
    assert sorted(gains) == gains


def with_link(machine: Machine, bytes_per_s: float) -> Machine:
    known = {"value": bytes_per_s, "kind": "datasheet", "source": "test"}
    fabric = {"pair_bytes_per_s": known, "device_bytes_per_s": known}
    node = machine.node.model_dump()
    return machine.replaced(node={**node, "fabric": {**node["fabric"], **fabric}})


def test_a_node_with_narrower_links() -> None:
    # NVIDIA/nccl issue 1374: 215 GB/s on 8 H800, whose links are 200 GB/s a direction
    group = whole_nodes(with_link(load_machine("dgx-h100"), 200e9), 1)
    assert bus_gb_s(group, 8 * GIB) == pytest.approx(215, rel=0.03)


@pytest.mark.parametrize(
    ("name", "nodes", "size", "measured"),
    [
        # aws-samples/awsome-distributed-training, nccl-tests README: 2 p5
        ("aws-p5", 2, GIB, 437.0),
        ("aws-p5", 2, 16 * GIB, 487.0),
        # NVIDIA/nccl issue 1221: 2 nodes of 8 H100 with 8 x 400 Gb/s, 4 to 8 GiB
        ("dgx-h100", 2, 8 * GIB, 430.0),
        # Hugging Face, ultrascale playbook: 256 MB on 1, 2 and 4 nodes
        ("h100-cluster", 1, 256e6, 436.0),
        ("h100-cluster", 2, 256e6, 362.0),
        ("h100-cluster", 4, 256e6, 160.0),
        # stas00/ml-engineering, network/README.md: 4 p5en, 4 GiB, a ring
        ("dgx-h200", 4, 4 * GIB, 364.9),
    ],
)
def test_a_tree_of_nodes_beside_their_switches(
    name: str, nodes: int, size: float, measured: float
) -> None:
    group = whole_nodes(load_machine(name), nodes)
    assert bus_gb_s(group, size) == pytest.approx(measured, rel=0.15)


def test_only_all_reduces_are_faster() -> None:
    # the same page: 8 H200 gather at 361 GB/s and reduce-scatter at 363, NVLS or not
    machine = load_machine("dgx-h200")
    node = machine.node.model_dump()
    plain = machine.replaced(node={**node, "fabric": {**node["fabric"], "switch_reduction": None}})
    for ranks in (8, 16, 32):
        switched, ring = group_view(machine, ranks, 1), group_view(plain, ranks, 1)
        for same in (all_gather_s, reduce_scatter_s):
            assert float(same(switched, GIB)) == float(same(ring, GIB))
        assert np.isinf(switch_all_reduce_s(ring, GIB))
        for size in (8.0, 2.0**20, 2.0**34):
            assert all_reduce_s(switched, size) <= all_reduce_s(ring, size)
    assert float(all_reduce_s(group_view(machine, 8, 1), 8)) == pytest.approx(
        float(all_reduce_s(group_view(plain, 8, 1), 8))
    )


def test_arrays_equal_scalars() -> None:
    machine = load_machine("eos", ("network=sharp",))
    sizes, strides = np.array([1, 2, 4, 8, 16, 64, 4]), np.array([1, 1, 1, 1, 1, 1, 8])
    many = group_view(machine, sizes, strides)
    for amount in (2.0**10, 2.0**30):
        for function in (all_reduce_s, switch_all_reduce_s, network_all_reduce_s):
            ones = [
                float(function(group_view(machine, int(n), int(s)), amount))
                for n, s in zip(sizes, strides, strict=True)
            ]
            assert list(function(many, amount)) == ones


def reducing(machine: Machine, part: float, nics: int = 8) -> Machine:
    """A machine whose network adds up, with so many interfaces a node."""
    known = {"value": part, "kind": "assumed", "source": "test"}
    assert machine.network is not None
    network = {**machine.network.model_dump(), "switch_reduction": known}
    places = [device * nics // 8 for device in range(8)]
    node = {**machine.node.model_dump(), "num_nics": nics, "nic_of_device": places}
    return machine.replaced(network=network, node=node)


@pytest.mark.parametrize(("nics", "measured"), [(8, 220), (4, 160)])
def test_nodes_of_a100_through_the_switches_of_their_network(nics: int, measured: float) -> None:
    """NVIDIA/nccl issues 320 and 652, their maintainers: CollNet reaches about 220 GB/s of bus
    bandwidth with eight HDR ports, which the links inside bound, and about 160 with four."""
    group = whole_nodes(reducing(load_machine("dgx-a100"), 0.83, nics), 32)
    assert bus_gb_s(group, 8 * GIB) == pytest.approx(measured, rel=0.15)
    assert np.isinf(network_all_reduce_s(whole_nodes(load_machine("dgx-a100"), 32), GIB))


def test_a_network_that_adds_up_halves_what_one_rank_of_each_node_sends() -> None:
    machine = reducing(load_machine("dgx-a100"), 1.0)
    group = group_view(machine, 16, 8)
    ring = float(ring_all_reduce_s(group, 64 * GIB))
    assert ring / float(all_reduce_s(group, 64 * GIB)) == pytest.approx(2 * 15 / 16, rel=0.01)
    # nothing lies between the devices of a node
    assert np.isinf(network_all_reduce_s(whole_nodes(machine, 1), GIB))


def test_a_fabric_without_a_switch_cannot_add_up() -> None:
    fabric = load_machine("polaris").node.fabric.model_dump()
    known = {"value": 0.7, "kind": "assumed", "source": "test"}
    with pytest.raises(DescriptionError, match="kind 'mesh' has no switch; leave switch_reduction"):
        load_machine("polaris").node.fabric.replaced(**{**fabric, "switch_reduction": known})
