"""Collectives against published measurements: in-switch reductions, broadcasts, sends.

Switch rates are NCCL's constants; link rates come from all-gathers and rings. Two rows are not held
out: the ring of four B200, because the profile's efficiency is the same page's ring of eight, and
the p5 at 64 MiB, on which its latency between nodes was fitted.
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.cost.network.collective_table import OPERATIONS, bus_factor, group_of, whole_nodes
from planner.cost.network.in_network_reduction import switch_all_reduce_s
from planner.cost.network.rooted_collectives import broadcast_s
from planner.cost.network.topology import group_view
from planner.describe.catalogue import load_machine

__all__ = ["rows"]

Row = tuple[str, str, float, float, str]

GIB = 2.0**30
STAS = "github stas00/ml-engineering @744d01e1, network/README.md; held out"
ISSUE = "github NVIDIA/nccl issue 1455; held out"
AWS = "github aws-samples/awsome-distributed-training, nccl-tests README; held out"
FITTED = AWS.replace("held out", "fitted")
RING = STAS.replace("held out", "fitted")
ULTRA = "Hugging Face ultrascale playbook, bus bandwidth at 256 MB; held out"
LUMI = "github spyysalo/lumi-llm-scaling @7314958, 175B-scaling-comms, in-run medians; held out"
SENDS = "github li-plus/playground, cuda/nccl.md: sendrecv_perf; held out"


@dataclass(frozen=True, slots=True)
class _Measured:
    """Measured bus bandwidth of an operation over whole nodes, or over part of one node."""

    machine: str
    operation: str
    nodes: int
    ranks: int
    size: float
    gb_s: float
    source: str


MEASURED = (
    *(
        _Measured("dgx-h200", "all_reduce", 1, n, 8 * GIB, gb_s, STAS)
        for n, gb_s in ((4, 363.3), (5, 414.2), (6, 435.6), (7, 460.0), (8, 473.1))
    ),
    *(
        _Measured("dgx-b200", "all_reduce", 1, n, 8 * GIB, gb_s, STAS if n > 4 else RING)
        for n, gb_s in ((4, 673.2), (5, 677.8), (6, 778.2), (7, 811.2), (8, 838.0))
    ),
    _Measured("dgx-h200", "all_reduce", 1, 8, 16 * GIB, 482.3, STAS),
    _Measured("dgx-b200", "all_reduce", 1, 8, 16 * GIB, 845.7, STAS),
    *(
        _Measured("dgx-h200", "all_reduce", 1, 8, mib * 2**20, gb_s, STAS)
        for mib, gb_s in ((16, 219.9), (64, 346.5), (256, 436.2), (1024, 463.6))
    ),
    *(
        _Measured("dgx-b200", "all_reduce", 1, 8, mib * 2**20, gb_s, STAS)
        for mib, gb_s in ((16, 255.0), (64, 400.6), (256, 646.1), (1024, 723.3))
    ),
    *(
        _Measured("dgx-h100", "all_reduce", 1, n, 4 * GIB, gb_s, ISSUE)
        for n, gb_s in ((5, 420.0), (6, 440.0), (7, 460.0), (8, 480.0))
    ),
    _Measured("aws-p5", "all_reduce", 2, 16, 64 * 2**20, 209.0, FITTED),
    _Measured("aws-p5", "all_reduce", 2, 16, GIB, 437.0, AWS),
    _Measured("aws-p5", "all_reduce", 2, 16, 16 * GIB, 487.0, AWS),
    *(
        _Measured("h100-cluster", "all_reduce", n, 8 * n, 256e6, gb_s, ULTRA)
        for n, gb_s in ((1, 436.0), (2, 362.0), (4, 160.0), (8, 100.0), (64, 33.0))
    ),
    _Measured("dgx-a100", "send_recv", 1, 8, GIB, 195.1, SENDS),
)

BROADCASTS = (
    (2, 205_520_896, 21.515e-3),
    (4, 205_520_896, 42.415e-3),
    (8, 205_520_896, 46.49e-3),
    (16, 205_520_896, 45.22e-3),
    (32, 205_520_896, 42.10e-3),
    (4, 51_380_224, 10.08e-3),
    (8, 51_380_224, 11.00e-3),
    (16, 51_380_224, 12.64e-3),
    (32, 51_380_224, 9.31e-3),
)
"""Nodes with one rank of the group per node, bytes, median seconds."""


def _row(item: _Measured) -> Row:
    machine = load_machine(item.machine)
    group = group_of(machine, item.ranks) if item.nodes == 1 else whole_nodes(machine, item.nodes)
    time_s = float(OPERATIONS[item.operation](group, item.size))
    rate = bus_factor(item.operation, item.ranks) * item.size / time_s
    where = f"{item.ranks} devices on {item.nodes} node{'s' * (item.nodes > 1)} of {item.machine}"
    what = f"{item.operation}, {item.size / 2**20:,.0f} MiB, {where}"
    return what, "GB/s of bus bandwidth", item.gb_s, rate / 1e9, item.source


def rows() -> list[Row]:
    """Return rows: label, unit, measured, estimated, and source."""
    found = [_row(item) for item in MEASURED]
    lumi = load_machine("lumi-g")
    for nodes, size, measured_s in BROADCASTS:
        estimate_s = float(broadcast_s(group_view(lumi, nodes, 8), size))
        what = f"broadcast, {size / 2**20:.0f} MiB, one rank on each of {nodes} nodes of lumi-g"
        found.append((what, "ms", 1e3 * measured_s, 1e3 * estimate_s, LUMI))
    group = whole_nodes(load_machine("dgx-h200"), 4)
    tree = bus_factor("all_reduce", 32) * 4 * GIB / float(switch_all_reduce_s(group, 4 * GIB))
    what = "all_reduce forced to NVLSTree, 4,096 MiB, 32 devices on 4 nodes of dgx-h200"
    found.append((what, "GB/s of bus bandwidth", 310.1, tree / 1e9, STAS))
    return found


if __name__ == "__main__":
    for what, unit, measured, estimate, _ in rows():
        print(
            f"{what:75} {measured:8.1f} {estimate:8.1f} {unit:22} {estimate / measured - 1:+6.1%}"
        )
