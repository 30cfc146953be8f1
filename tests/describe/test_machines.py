"""The machine catalogue: every profile loads, is sourced, plausible, and holds published values."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterator
from importlib.resources import files

import networkx
import pytest

from planner.cost.network.collectives import all_reduce_s
from planner.cost.network.topology import group_view
from planner.cost.scenario import Scenario
from planner.describe.base import Description, Quantity
from planner.describe.catalogue import (
    aliases,
    folder,
    load_framework,
    load_machine,
    load_model,
    names,
)
from planner.describe.framework.switches import strip_switches
from planner.describe.machine import Curve, Machine
from planner.describe.workload import Workload
from planner.errors import DescriptionError, UnknownNameError

MACHINES = names("machine")
EXPECTED = [
    "abci",
    "big-basin",
    "mn-1",
    "theta",
    "vsc-5-cpu",
    "a100-40gb-roce",
    "a100-80gb-roce",
    "a100-pcie-node",
    "a100-hdr4",
    "a100-pcie-node",
    "a10g-node",
    "alps",
    "aurora",
    "aws-p4d",
    "aws-p4de",
    "aws-p5",
    "dgx-1v",
    "dgx-2",
    "dgx-a100",
    "dgx-b200",
    "dgx-b300",
    "dgx-gb200",
    "dgx-gb300",
    "dgx-h100",
    "dgx-h200",
    "eos",
    "frontier",
    "grand-teton",
    "h100-cluster",
    "isambard-ai",
    "jean-zay-a100",
    "jean-zay-v100",
    "jupiter",
    "juwels-booster",
    "l40s-node",
    "laptop",
    "leonardo",
    "lumi-g",
    "mi300x-node",
    "mi325x-node",
    "mi355x-node",
    "mn5-acc",
    "perlmutter",
    "perlmutter-80gb",
    "polaris",
    "selene",
    "sophia",
    "summit",
    "t4-node",
    "thetagpu",
    "vista",
    "vsc-4",
    "vsc-5",
    "vsc-5-a40",
    "workstation-1x4090",
    "workstation-2x3090",
    "workstation-2x4090",
    "workstation-4x4090",
]
GIB = 2**30


def quantities(part: object, path: str = "") -> Iterator[tuple[str, Quantity | Curve]]:
    """Everything in a machine that carries a kind and a source."""
    if isinstance(part, (Quantity, Curve)):
        yield path, part
    elif isinstance(part, Description):
        for field in type(part).model_fields:
            yield from quantities(getattr(part, field), f"{path}.{field}".lstrip("."))
    elif isinstance(part, dict):
        for key, item in part.items():
            yield from quantities(item, f"{path}.{key}")
    elif isinstance(part, tuple):
        for index, item in enumerate(part):
            yield from quantities(item, f"{path}[{index}]")


def queue(machine: Machine, name: str) -> tuple[int, int, float]:
    """Fewest nodes, most nodes and hours of a queue."""
    (found,) = [queue for queue in machine.scheduler.queues if queue.name == name]
    return found.min_nodes, found.max_nodes, found.max_hours


def test_expected_machines_are_there() -> None:
    assert set(EXPECTED) <= set(MACHINES)


def test_aliases_are_unique_and_hide_no_machine() -> None:
    given = [alias.lower() for name in MACHINES for alias in load_machine(name).aliases]
    assert len(given) == len(set(given))
    assert not set(given) & set(MACHINES)
    assert {alias: aliases()[alias] for alias in ("vsc5", "lumi", "clariden", "4090")} == {
        "vsc5": "vsc-5",
        "lumi": "lumi-g",
        "clariden": "alps",
        "4090": "workstation-4x4090",
    }
    assert load_machine("laptop-cpu").name == "laptop"


@pytest.mark.parametrize("name", MACHINES)
def test_every_number_has_a_source(name: str) -> None:
    machine = load_machine(name)
    assert machine.name == name
    for path, item in quantities(machine):
        if re.match(r"\d{4}-\d\d: |as calibrated on \w+$", item.source):
            assert item.kind in ("calibrated", "assumed"), f"{path}: a fit is neither"
            continue
        leading = re.match(r"([A-Za-z0-9 ]+?)(?::|$)", item.source)
        assert leading, f"{path}: {item.source!r} does not open with a source id"
        if leading[1] == "general knowledge":
            assert item.kind == "assumed", f"{path}: general knowledge is an assumption"
        else:
            assert leading[1] in machine.sources, f"{path}: {leading[1]} is not in [sources]"
    if machine.scheduler.queues:
        assert machine.scheduler.source
    launch = machine.scheduler.launch
    if launch is not None:
        leading = launch.source.partition(":")[0]
        assert leading == "general knowledge" or leading in machine.sources, launch.source
    text = (folder("machine") / f"{name}.toml").read_text(encoding="utf-8")
    assert text.isascii()
    for identifier in machine.sources:
        assert len(re.findall(rf"\b{identifier}\b", text)) > 1, f"{identifier} is never cited"


@pytest.mark.parametrize("name", MACHINES)
def test_plausible(name: str) -> None:
    machine = load_machine(name)
    device, node, fabric = machine.device, machine.node, machine.node.fabric
    # the device of a CPU machine is a whole node
    most = 600 if device.runtime == "cpu" else 300
    assert 1 * GIB <= device.memory_bytes.value <= most * GIB
    assert 0.1 * GIB <= device.context_bytes.value <= 4 * GIB
    assert 1e6 <= device.communicator_bytes.value <= 1 * GIB
    assert 20e9 <= device.memory_bytes_per_s.value <= 10e12
    assert 4 <= device.num_units.value <= 304
    assert 1e-7 <= device.launch_s.value <= 1e-4
    for fraction in (
        device.gemm_efficiency,
        *([device.attention_efficiency] if device.attention_efficiency else []),
        device.memory_efficiency,
        fabric.efficiency,
    ):
        assert 0 < fraction.value <= 1
    peaks = device.peak_flop_per_s
    assert "fp32" in peaks
    assert all(0.1e12 <= peak.value <= 10e15 for peak in peaks.values())
    for slow, fast in (("fp64", "fp32"), ("fp32", "tf32"), ("tf32", "bf16"), ("bf16", "fp8")):
        if slow in peaks and fast in peaks and device.runtime != "cpu":
            assert peaks[slow].value <= peaks[fast].value
    assert 1 <= node.num_devices <= 16
    assert node.num_devices % node.devices_per_card == 0
    assert 4 <= node.num_cores.value <= 512
    assert 8 * GIB <= node.host_memory_bytes.value <= 4096 * GIB
    assert 20e9 <= node.host_memory_bytes_per_s.value <= 4e12
    assert 5e9 <= node.host_link_bytes_per_s.value <= 500e9
    assert 1e-7 <= fabric.latency_s.value <= 1e-4
    assert 1 <= machine.num_nodes.value <= 20000
    if node.nic_bytes_per_s is not None:
        # 900 GB/s where NVLink reaches beyond the node.
        assert 1e9 <= node.nic_bytes_per_s.value <= 900e9
        assert set(node.nic_of_device) == set(range(node.num_nics))
    for queue in machine.scheduler.queues:
        assert queue.min_nodes <= queue.max_nodes <= machine.num_nodes.value
        assert queue.max_hours <= 240


@pytest.mark.parametrize("name", MACHINES)
def test_fabric_rates_agree(name: str) -> None:
    node = load_machine(name).node
    fabric = node.fabric
    if node.num_devices == 1:
        assert fabric.kind == "none"
        return
    assert fabric.pair_bytes_per_s is not None
    assert fabric.device_bytes_per_s is not None
    pair, device = fabric.pair_bytes_per_s.value, fabric.device_bytes_per_s.value
    assert pair <= device <= load_machine(name).device.memory_bytes_per_s.value
    if fabric.kind == "mesh":
        assert pair * (node.num_devices - 1) == device
    if fabric.kind == "wires":
        graph = networkx.Graph([wire.devices for wire in fabric.wires])
        assert sorted(graph) == list(range(node.num_devices))
        assert networkx.is_connected(graph)
        assert len(graph.edges) == len(fabric.wires), "a pair is listed twice"
        assert all(wire.bytes_per_s <= device for wire in fabric.wires)


@pytest.mark.parametrize("name", MACHINES)
def test_network_curve(name: str) -> None:
    machine = load_machine(name)
    if machine.network is None:
        assert machine.num_nodes.value == 1
        return
    curve = machine.network.efficiency
    assert list(curve.num_nodes) == sorted(set(curve.num_nodes))
    assert curve.num_nodes[0] >= 2
    assert all(0 < fraction <= 1 for fraction in curve.fraction)
    assert 1e-6 <= machine.network.latency_s.value <= 2e-4


def test_polaris() -> None:
    machine = load_machine("polaris")
    assert (machine.num_nodes.value, machine.node.num_devices) == (560, 4)
    assert machine.device.memory_bytes_per_s.value == 1555e9
    assert machine.peak("bf16") == 312e12
    assert machine.node_bytes_per_s == 50e9
    assert machine.node.fabric.pair_bytes_per_s.value == 100e9
    assert queue(machine, "debug") == (1, 2, 1)
    # the site routes prod by the size of the job, and the size decides the wall time
    assert queue(machine, "prod (small)") == (10, 24, 3)
    assert queue(machine, "prod (medium)") == (25, 99, 6)
    assert queue(machine, "prod (large)") == (100, 496, 24)
    assert queue(machine, "capacity") == (1, 4, 168)
    # 8-byte all-reduce on 256 nodes took 100 us; the step stands for 10 us + step x log2(nodes).
    assert 10e-6 + machine.network.latency_s.value * 8 == pytest.approx(100e-6, rel=0.1)


def test_aurora() -> None:
    machine = load_machine("aurora")
    assert (machine.num_nodes.value, machine.node.num_devices) == (10624, 12)
    assert (machine.node.num_nics, machine.node_bytes_per_s) == (8, 200e9)
    assert machine.node.devices_per_card == 2
    assert len(machine.node.fabric.wires) == 12 * 11 // 2
    assert machine.device.memory_bytes.value == 65520 * 2**20
    # The convention of the peak times the efficiency gives what was measured with all tiles busy.
    achieved = machine.peak("bf16") * machine.device.gemm_efficiency.value
    assert achieved * 12 == pytest.approx(2487e12, rel=0.005)
    assert queue(machine, "prod (small)") == (256, 1024, 12)
    assert queue(machine, "prod (medium)") == (1025, 1999, 18)
    assert queue(machine, "prod (large)") == (2000, 10624, 24)
    assert queue(machine, "debug-scaling") == (2, 256, 1)


def test_vsc_5() -> None:
    a100, a40 = load_machine("vsc-5-a100"), load_machine("vsc5-a40")
    assert (a100.num_nodes.value, a100.node.num_devices) == (61, 2)
    assert (a40.num_nodes.value, a40.node.num_devices) == (45, 2)
    assert a40.device.memory_bytes.value / GIB == pytest.approx(44.99, abs=0.005)
    assert a40.peak("bf16") == 149.7e12
    assert queue(a100, "zen3_0512_a100x2") == (1, 61, 72)
    assert queue(a40, "zen2_0256_a40x2") == (1, 45, 72)


def test_cpu_nodes_are_whole_devices() -> None:
    """A rank a node, for arithmetic in fp32."""
    theta, vsc = load_machine("theta"), load_machine("vsc-5-cpu")
    assert (theta.num_nodes.value, vsc.num_nodes.value) == (4392, 638 + 136 + 20)
    # 11.69 PF of the Top500's peak
    assert theta.peak("fp64") * 4392 == pytest.approx(11.69e15, rel=0.001)
    for machine in (theta, vsc):
        assert machine.node.num_devices == 1
        assert set(machine.device.peak_flop_per_s) == {"fp64", "fp32"}
    assert queue(vsc, "zen3_0512") == (1, 638, 72)
    assert queue(vsc, "zen3_1024") == (1, 136, 72)
    assert queue(vsc, "zen3_2048") == (1, 20, 72)
    assert queue(theta, "default (128+)") == (128, 255, 3)
    assert queue(theta, "default (802+)") == (802, 4392, 24)


def test_machines_of_records() -> None:
    """Those of Goyal 2017 (32 servers of 8 P100, 50 Gb/s), Akiba 2017 (1,024 P100) and ABCI."""
    basin, mn, abci = (load_machine(name) for name in ("big-basin", "mn-1", "abci"))
    assert basin.num_nodes.value * basin.node.num_devices == 256
    assert basin.node_bytes_per_s == 6.25e9
    assert (basin.peak("fp32"), basin.peak("fp16")) == (10.6e12, 21.2e12)
    assert mn.num_nodes.value * mn.node.num_devices == 1024
    assert abci.num_nodes.value * abci.node.num_devices >= 3456
    # four links a device, three in its quad and one to the other
    for device in range(8):
        assert sum(device in wire.devices for wire in basin.node.fabric.wires) == 4


@pytest.mark.parametrize("name", ["frontier", "lumi-g"])
def test_bard_peak_node(name: str) -> None:
    machine = load_machine(name)
    assert (machine.node.num_devices, machine.node.devices_per_card) == (8, 2)
    assert machine.node_bytes_per_s == 100e9
    assert machine.peak("bf16") == 191.5e12
    links = {wire.devices: wire.bytes_per_s / 50e9 for wire in machine.node.fabric.wires}
    assert all(links[gcd, gcd + 1] == 4 for gcd in (0, 2, 4, 6))
    # A GCD has 7 links to others; the odd ones spend one on the NIC.
    for gcd in range(8):
        used = sum(number for devices, number in links.items() if gcd in devices)
        assert used == (7 if gcd % 2 == 0 else 6)


@pytest.mark.parametrize(
    ("name", "devices", "node_rate", "bf16"),
    [
        ("selene", 8, 200e9, 312e12),
        ("perlmutter", 4, 100e9, 312e12),
        ("leonardo", 4, 50e9, 358e12),
        ("alps", 4, 100e9, 989e12),
        ("vista", 1, 50e9, 989e12),
        ("dgx-h100", 8, 400e9, 989e12),
        ("dgx-b200", 8, 400e9, 2250e12),
        ("aws-p4d", 8, 50e9, 312e12),
        ("aws-p5", 8, 400e9, 989e12),
        ("a100-hdr4", 8, 100e9, 312e12),
        ("workstation-2x4090", 2, 0, 165.2e12),
        ("workstation-2x3090", 2, 0, 71.2e12),
        ("grand-teton", 8, 400e9, 989e12),
        ("dgx-b300", 8, 800e9, 2250e12),
        ("dgx-gb200", 4, 200e9, 2500e12),
        ("mi300x-node", 8, 400e9, 1300e12),
        ("mi355x-node", 8, 400e9, 2500e12),
        ("a10g-node", 4, 5e9, 70e12),
        ("l40s-node", 8, 50e9, 362e12),
        ("a100-pcie-node", 8, 50e9, 312e12),
    ],
)
def test_published_node_values(name: str, devices: int, node_rate: float, bf16: float) -> None:
    machine = load_machine(name)
    assert machine.node.num_devices == devices
    assert machine.node_bytes_per_s == pytest.approx(node_rate)
    assert machine.peak("bf16") == bf16


def test_volta_has_no_bf16() -> None:
    for name in ("summit", "jean-zay-v100", "dgx-1v", "dgx-2"):
        assert "bf16" not in load_machine(name).device.peak_flop_per_s
        assert load_machine(name).peak("fp16") == 125e12


def test_frontier_queues() -> None:
    bins = [queue for queue in load_machine("frontier").scheduler.queues if "bin" in queue.name]
    assert [(queue.max_nodes, queue.max_hours) for queue in bins] == [
        (91, 2),
        (183, 6),
        (1881, 12),
        (5644, 12),
        (9472, 12),
    ]


def test_nvlink_reaches_18_trays() -> None:
    for name, adapter in (("dgx-gb200", 50e9), ("dgx-gb300", 100e9)):
        machine = load_machine(name)
        assert machine.domain is not None
        assert machine.domain.num_nodes == 18
        assert machine.domain.device_bytes_per_s.value == 900e9
        assert machine.node.nic_bytes_per_s.value == adapter
        # NVLink reaches to the end of the rack, adapters beyond it
        assert machine.bytes_per_s_between(18) == 4 * 900e9
        assert machine.bytes_per_s_between(19) == 4 * adapter


def test_a_rack_that_is_described_as_adapters_is_refused_with_the_remedy() -> None:
    machine = load_machine("dgx-gb200")
    assert machine.network is not None
    exits = {"value": 50e9, "kind": "assumed", "source": "ports"}
    old = {**machine.network.model_dump(), "domain_nodes": 18, "domain_exit_bytes_per_s": exits}
    message = r"domain_nodes = 18: .*adapters alone; move .* to \[domain\] .*node.nic_bytes_per_s"
    with pytest.raises(DescriptionError, match=message):
        machine.replaced(network=old)
    with pytest.raises(DescriptionError, match=r"num_nodes = 1 is refused"):
        machine.replaced(domain={**machine.domain.model_dump(), "num_nodes": 1})


def test_hybrid_cube_mesh() -> None:
    wires = load_machine("dgx-1v").node.fabric.wires
    for gpu in range(8):
        assert sum(wire.bytes_per_s for wire in wires if gpu in wire.devices) == 150e9


def test_jobs_run_on_the_network_of_their_framework_unless_one_is_chosen() -> None:
    polaris = load_machine("polaris")
    both = {network.name for network in polaris.all_networks}
    assert both == {"plugin", "plugin-staged", "sockets"}
    assert polaris.network_of("fsdp2") is polaris
    staged = polaris.network_of(strip_switches("megatron-deepspeed (as measured)"))
    assert staged.network is not None
    assert staged.network.name == "plugin-staged"
    # the choice of a user holds for every framework, and nothing is lost by it
    chosen = load_machine("polaris", ("network=plugin", "network.latency_s=1us"))
    assert chosen.network_of("megatron-deepspeed") is chosen
    assert chosen.network is not None
    assert chosen.network.latency_s.value == 1e-6
    assert {network.name for network in chosen.all_networks} == both
    with pytest.raises(UnknownNameError, match="unknown network 'socket': did you mean sockets"):
        load_machine("polaris", ("network=socket",))
    with pytest.raises(DescriptionError, match=r"vsc-5 has only one network.*leave the name out"):
        load_machine("vsc-5", ("network=sockets",))


def test_every_profile_says_in_one_line_what_measured_runs_stand_behind_it() -> None:
    """As many as the table of residuals has, or none."""
    table = files("planner.evidence").joinpath("residuals.csv").read_text("utf-8")
    runs = Counter(row["machine"] for row in csv.DictReader(table.splitlines()))
    # in words: one run, and 24 rows of which one is a copy slip of the source
    words = {"polaris": ("one training run", 1), "aurora": ("22 runs of a 70B model", 24)}
    for name in MACHINES:
        said = load_machine(name).evidence
        assert len(said) < 300
        start, counted = words.get(name, ("", 0))
        if found := re.match(r"(\d+) runs\b", said):
            counted = counted or int(found[1])
        assert said.startswith(start or (f"{counted} runs" if counted else "none"))
        # a row more or less is scored as estimates change
        assert abs(runs[name] - counted) <= 2
        assert bool(runs[name]) == bool(counted)


@pytest.mark.parametrize(
    ("place", "value", "word"),
    [
        ("launch environment", {"`touch X`": "1"}, "environment"),
        ("launch device_environment", {"A B": "1"}, "device_environment"),
        ("launch node_environment", {"X;Y": "1"}, "node_environment"),
        ("launch directives", ["-l a\ntouch X"], "directives"),
        ("launch rank_variables", ["X}", "Y"], "rank_variables"),
        ("launch local_disk", "`touch X`", "local_disk"),
        ("queues 0 name", "a\nb", "queues"),
        ("queues 0 name", "`touch X`", "queues"),
        ("queues 0 directives", ["-q a\rb"], "queues"),
    ],
)
def test_what_reaches_a_job_script_is_one_line_without_commands(
    place: str, value: object, word: str
) -> None:
    fields = load_machine("polaris").model_dump()
    *path, last = place.split()
    table = fields["scheduler"]
    for part in path:
        table = table[int(part) if part.isdigit() else part]
    table[last] = value
    with pytest.raises(DescriptionError, match=word) as refusal:
        Machine.described(fields)
    assert "\n" not in str(refusal.value)


def test_names_of_variables_of_a_network_are_checked() -> None:
    fields = load_machine("polaris").model_dump()
    fields["networks"][0]["environment"] = {"$(touch X)": "1"}
    with pytest.raises(DescriptionError, match="letters, digits and _"):
        Machine.described(fields)


def test_a_refusal_is_one_line_whatever_a_name_holds() -> None:
    machine = load_machine("polaris")
    odd = machine.replaced(device={**machine.device.model_dump(), "name": "x\ny\x1b[31m"})
    with pytest.raises(DescriptionError) as refusal:
        odd.peak("fp8")
    assert "x\\ny\\x1b[31m" in str(refusal.value)


def test_networks_of_one_machine_need_names() -> None:
    polaris = load_machine("polaris")
    assert polaris.network is not None
    with pytest.raises(DescriptionError, match="give each a unique name"):
        polaris.replaced(network=polaris.network.replaced(name="sockets").model_dump())


def test_the_question_estimates_the_network_that_the_framework_runs_on() -> None:
    # NCCLT: all-reduce of 1 GiB on 8 nodes of Polaris, 36 GB/s with the plugin, 3 to 10 without
    polaris, size = load_machine("polaris"), 2.0**30
    rates = {}
    slow = load_machine("polaris", ("network=sockets",))
    for name, machine in (("fsdp2", polaris), ("megatron-deepspeed", slow)):
        job = Scenario(load_model("gpt2"), machine, Workload(), load_framework(name))
        group = group_view(job.machine, 32, 1)
        rates[name] = 2 * 31 / 32 * size / float(all_reduce_s(group, size)) / 1e9
    assert rates["fsdp2"] == pytest.approx(36, rel=0.1)
    assert 3 < rates["megatron-deepspeed"] < 10
