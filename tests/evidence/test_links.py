"""Links and networks of a profile from measured collectives."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.choose.planning import estimate
from planner.cost.network.collective_table import OPERATIONS, whole_nodes
from planner.describe.catalogue import load_machine, load_model
from planner.describe.layout import Layout
from planner.describe.machine import Machine
from planner.describe.workload import Workload
from planner.errors import CatalogueError
from planner.evidence.links import fit_links, write_links

NCCL_TESTS = """\
# Collective test starting: all_reduce_perf
#  Rank  0 Group  0 Pid  1 on  n3071-001 device  0 [0x07] NVIDIA A100
#  Rank  1 Group  0 Pid  2 on  n3071-001 device  1 [0x08] NVIDIA A100
#  Rank  2 Group  0 Pid  3 on  n3071-002 device  0 [0x07] NVIDIA A100
#  Rank  3 Group  0 Pid  4 on  n3071-002 device  1 [0x08] NVIDIA A100
           8             2     float     sum      -1     48.00    0.00    0.00      0
   268435456      67108864     float     sum      -1   44739.2    6.00    9.00      0
  1073741824     268435456     float     sum      -1  178957.0    6.00    9.00      0
"""
"""Two nodes of two devices, a bus bandwidth of 9 GB/s."""


def _table(path: Path, machine: Machine, nodes: int, *operations: str) -> Path:
    """What a machine would measure, with a line of chatter before it."""
    group = whole_nodes(machine, nodes)
    rows = ["Due to MODULEPATH changes", "collective,nodes,size_bytes,time_us"]
    rows += [
        f"{name},{nodes},{size},{1e6 * float(OPERATIONS[name](group, size))}"  # type: ignore[arg-type]
        for name in operations
        for size in (2**10, 2**26, 2**28, 2**30)
    ]
    path.write_text("\n".join(rows) + "\n")
    return path


def test_measured_collectives_take_the_place_of_an_assumed_curve(tmp_path: Path) -> None:
    (tmp_path / "nccl.txt").write_text(NCCL_TESTS)
    result = fit_links(tmp_path / "nccl.txt", load_machine("vsc-5"))
    assert result.nodes == (2,)
    assert result.error_after < 0.02 < 0.4 < result.error_before
    write_links(result, "vsc-5", tmp_path / "mine.toml")
    before, mine = load_machine("vsc-5"), load_machine(str(tmp_path / "mine.toml"))
    assert mine.network is not None
    # 9 of the 25 GB/s of a node
    assert mine.network.efficiency.fraction == (pytest.approx(9 / 25, rel=0.02),)
    assert mine.network.efficiency.kind == mine.network.latency_s.kind == "measured"
    assert mine.evidence.startswith(
        "own collectives on 2 nodes (nccl.txt); no training run of them"
    )
    assert mine.evidence.endswith(before.evidence)
    # nothing was measured inside a node, and all else is as it was
    assert mine.node == before.node
    assert mine.device == before.device
    times = [
        estimate(
            load_model("gpt2-xl"),
            machine,
            Layout(dp=4, zero_stage=1),
            workload=Workload(global_batch=4, sequence_length=1024),
        ).step_time_s
        for machine in (before, mine)
    ]
    assert times[1] > 1.1 * times[0]


def test_refused_rows_of_a_fit_are_named(tmp_path: Path) -> None:
    (tmp_path / "nccl.txt").write_text(NCCL_TESTS + "   4096   1024   float   sum   -1   nan\n")
    *_, last = fit_links(tmp_path / "nccl.txt", load_machine("vsc-5")).messages
    assert last.startswith("1 row refused: line 9: size 4096 or time nan")


def test_reductions_get_a_curve_of_their_own_where_gathers_were_measured_too(
    tmp_path: Path,
) -> None:
    """Aurora's own collectives give Aurora's curves back, whatever they were thought to be."""
    aurora = load_machine("aurora")
    assert aurora.network is not None
    path = _table(tmp_path / "c.csv", aurora, 256, "all_reduce", "all_gather")
    other = load_machine("aurora", ("network.latency_s=50us",)).replaced(
        network={**aurora.network.model_dump(), "reducing": None}
    )
    fitted = fit_links(path, other).machine.network
    assert fitted is not None
    assert fitted.reducing is not None
    assert fitted.reducing.fraction == (pytest.approx(0.046, rel=0.1),)
    assert fitted.efficiency.fraction == (pytest.approx(0.61, rel=0.1),)


def test_inside_a_node_the_links_are_fitted(tmp_path: Path) -> None:
    polaris = load_machine("polaris", ("node.fabric.efficiency=0.5",))
    path = _table(tmp_path / "c.csv", polaris, 1, "all_reduce")
    result = fit_links(path, load_machine("polaris"))
    assert result.machine.node.fabric.efficiency.value == pytest.approx(0.5, rel=0.01)
    assert "on 1 node (c.csv)" in result.machine.evidence
    assert result.machine.network == load_machine("polaris").network


def test_the_network_that_was_measured_is_the_one_that_is_written(tmp_path: Path) -> None:
    slow = load_machine("polaris", ("network=sockets", "network.latency_s=90us"))
    path = _table(tmp_path / "c.csv", slow, 8, "all_reduce")
    write_links(
        fit_links(path, load_machine("polaris", ("network=sockets",))),
        "polaris",
        tmp_path / "own.toml",
    )
    own = load_machine(str(tmp_path / "own.toml"))
    known = {network.name: network for network in load_machine("polaris").all_networks}
    for network in own.all_networks:
        assert (network == known[network.name]) == (network.name != "sockets")
    assert own.on_network("sockets").network.latency_s.value == pytest.approx(90e-6, rel=0.05)  # type: ignore[union-attr]


def test_what_tells_no_bandwidth_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "small.csv"
    path.write_text(
        "collective,nodes,size_bytes,time_us\nallreduce,2,1024,30\nsendrecv,2,1e9,9e4\n"
    )
    with pytest.raises(CatalogueError, match="do not determine bandwidth; measure up to 1 GiB"):
        fit_links(path, load_machine("polaris"))
    result = fit_links(
        _table(path, load_machine("polaris"), 2, "all_gather"), load_machine("polaris")
    )
    own = tmp_path / "own.toml"
    write_links(result, "polaris", own)
    with pytest.raises(CatalogueError, match="is the profile itself; choose another file"):
        write_links(result, str(own), own)


@pytest.mark.parametrize("operations", [("all_reduce", "all_gather"), ("all_reduce",)])
def test_all_reduces_of_a_switch_that_adds_up_say_nothing_of_rings(
    tmp_path: Path, operations: tuple[str, ...]
) -> None:
    """A node of H200 whose rings reach 0.7 of its links, and whose switch 0.6."""
    machine = load_machine("dgx-h200")
    truth = load_machine(
        "dgx-h200", ("node.fabric.efficiency=0.7", "node.fabric.switch_reduction=0.6")
    )
    group = whole_nodes(truth, 1)
    lines = ["collective,nodes,size_bytes,time_us"]
    for name in operations:
        for size in (2**28, 2**30, 2**32):
            lines.append(f"{name},1,{size},{1e6 * float(OPERATIONS[name](group, size))}")
    path = tmp_path / "own.csv"
    path.write_text("\n".join(lines))
    fitted = fit_links(path, machine)
    switch = fitted.machine.node.fabric.switch_reduction
    assert switch is not None
    assert switch.value == pytest.approx(0.6, rel=0.01)
    kept = 0.7 if "all_gather" in operations else machine.node.fabric.efficiency.value
    assert fitted.machine.node.fabric.efficiency.value == pytest.approx(kept, rel=0.01)
    write_links(fitted, "dgx-h200", tmp_path / "own.toml")
    assert load_machine(str(tmp_path / "own.toml")).node.fabric.switch_reduction == switch


def test_collectives_of_a_rack_fit_its_links_and_those_beyond_it_the_network(
    tmp_path: Path,
) -> None:
    machine = load_machine("dgx-gb200")
    assert machine.domain is not None
    slower = load_machine("dgx-gb200", ("domain.efficiency=0.6",))
    path = _table(tmp_path / "rack.csv", slower, 8, "all_gather")
    result = fit_links(path, machine)
    write_links(result, "dgx-gb200", tmp_path / "mine.toml")
    mine = load_machine(str(tmp_path / "mine.toml"))
    assert mine.domain is not None
    assert mine.domain.efficiency.value == pytest.approx(0.6, rel=0.01)
    assert mine.domain.efficiency.kind == "measured"
    assert mine.network == machine.network  # eight trays say nothing of the adapters
    beyond = fit_links(_table(tmp_path / "racks.csv", slower, 36, "all_gather"), machine).machine
    assert beyond.domain == machine.domain
