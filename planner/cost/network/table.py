"""Collective table: the time of every operation and algorithm on a machine, and its score.

Reads the output of nccl-tests (and of RCCL's and oneCCL's versions of it) or a CSV with the
columns `collective`, `nodes`, `size_bytes` and `time_us`.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from planner.cost.network.collectives import (
    LOW_LATENCY,
    SIMPLE,
    all_gather_s,
    all_reduce_s,
    all_to_all_s,
    hierarchical_all_reduce_s,
    reduce_scatter_s,
    ring_all_reduce_s,
    send_s,
    tree_all_reduce_s,
)
from planner.cost.network.topology import GroupView, group_view
from planner.describe.files import read_text
from planner.describe.machine import Machine
from planner.errors import CatalogueError, LayoutError, shorten

__all__ = ["OPERATIONS", "Measured", "Row", "bus_factor", "read_measured", "score", "table"]

Time = Callable[[GroupView, float], object]

OPERATIONS: dict[str, Time] = {
    "all_reduce": all_reduce_s,
    "all_gather": all_gather_s,
    "reduce_scatter": reduce_scatter_s,
    "all_to_all": all_to_all_s,
    "send_recv": send_s,
}
"""Operations as training uses them, each in its fastest algorithm."""

_ALGORITHMS: dict[str, Time] = {
    "ring, Simple": lambda group, size: ring_all_reduce_s(group, size, SIMPLE),
    "ring, LL": lambda group, size: ring_all_reduce_s(group, size, LOW_LATENCY),
    "tree, Simple": lambda group, size: tree_all_reduce_s(group, size, SIMPLE),
    "tree, LL": lambda group, size: tree_all_reduce_s(group, size, LOW_LATENCY),
    "hierarchical": hierarchical_all_reduce_s,
}

_PARTS_SENT = {
    "all_reduce": 2.0,
    "all_gather": 1.0,
    "reduce_scatter": 1.0,
    "all_to_all": 1.0,
    "scatter": 1.0,
    "gather": 1.0,
}
_WHOLE_BUFFER = ("broadcast", "reduce", "send_recv")


def bus_factor(operation: str, size: float) -> float:
    """Bus bandwidth over algorithm bandwidth in a group of `size` ranks.

    It is also what one rank of a ring sends, as a part of the full buffer. Source: nccl-tests,
    doc/PERFORMANCE.md. Raises LayoutError for an operation without one.

    >>> bus_factor("all_reduce", 4), bus_factor("all_gather", 4), bus_factor("broadcast", 4)
    (1.5, 0.75, 1.0)
    """
    if operation in _WHOLE_BUFFER:
        return 1.0
    if operation not in _PARTS_SENT:
        known = ", ".join([*_PARTS_SENT, *_WHOLE_BUFFER])
        raise LayoutError(f"operation {operation!r} has no bus bandwidth; use one of {known}")
    return _PARTS_SENT[operation] * (size - 1) / size


@dataclass(frozen=True, slots=True)
class Row:
    """One operation in one algorithm."""

    operation: str
    algorithm: str
    time_s: float
    bus_bytes_per_s: float
    """Bus bandwidth as nccl-tests defines it."""
    used: bool
    """Whether the library would take this algorithm."""


def _group(machine: Machine, nodes: int) -> GroupView:
    if not 1 <= nodes <= machine.num_nodes.value:
        raise LayoutError(
            f"nodes = {nodes} is not between 1 and the {machine.num_nodes.value:.0f} nodes of "
            f"{machine.name}; choose another number"
        )
    return group_view(machine, nodes * machine.node.num_devices, 1)


def table(machine: Machine, nodes: int, size_bytes: float) -> list[Row]:
    """Times of all operations over all devices of some nodes.

    >>> from planner.describe.catalogue import load_machine
    >>> [row.algorithm for row in table(load_machine("polaris"), 8, 2**28) if row.used][0]
    'ring, Simple'
    """
    if not size_bytes > 0:
        raise LayoutError(f"size = {size_bytes:g} bytes must be above 0; give for example 64MiB")
    group = _group(machine, nodes)
    n = float(group.size)
    times = {name: float(np.asarray(f(group, size_bytes))) for name, f in _ALGORITHMS.items()}
    chosen = min((t, name) for name, t in times.items() if name != "hierarchical")[1]
    rows = [
        _row("all_reduce", name, time, size_bytes, n, name == chosen)
        for name, time in times.items()
    ]
    for name, function in OPERATIONS.items():
        if name != "all_reduce":
            time = float(np.asarray(function(group, size_bytes)))
            rows.append(_row(name, "fastest", time, size_bytes, n, True))
    return rows


def _row(name: str, algorithm: str, time: float, size: float, n: float, used: bool) -> Row:
    rate = size * bus_factor(name, n) / time if time > 0 else 0.0
    return Row(name, algorithm, time, rate, used)


@dataclass(frozen=True, slots=True)
class Measured:
    """A measured collective."""

    operation: str
    nodes: int
    size_bytes: float
    time_s: float
    estimated_s: float

    @property
    def error(self) -> float:
        """Estimated over measured time, minus one."""
        return self.estimated_s / self.time_s - 1


_SPELLINGS = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "sendrecv": "send_recv",
}
_TEST_LINE = re.compile(r"^\s*(\d+)\s+\d+\s+\w+\s+\w+\s+-?\d+\s+([\d.]+)\s+[\d.]+\s+[\d.]+")


def _operation(text: str) -> str | None:
    plain = re.sub(r"[^a-z]", "", text.lower())
    return next((name for key, name in _SPELLINGS.items() if key in plain), None)


def read_measured(
    path: Path, machine: Machine, nodes: int | None = None
) -> tuple[list[Measured], list[str]]:
    """Measured collectives of a file with their estimates, and why rows were refused."""
    text = read_text(path, limit=50_000_000)
    header = text.lstrip("\ufeff").split("\n", 1)[0]
    if "size_bytes" in header and "time_us" in header:
        rows, refused = _from_csv(text, nodes)
    else:
        rows, refused = _from_nccl_tests(text, nodes)
    if not rows:
        raise CatalogueError(
            f"{shorten(str(path))} holds no measured collective: give nccl-tests output or a CSV "
            "with collective, nodes, size_bytes and time_us"
            + (f" ({refused[0]})" if refused else "")
        )
    found = []
    for operation, count, size, time in rows:
        group = _group(machine, count)
        estimated = float(np.asarray(OPERATIONS[operation](group, size)))
        found.append(Measured(operation, count, size, time, estimated))
    return found, refused


_RawRow = tuple[str, int, float, float]


def _from_csv(text: str, nodes: int | None) -> tuple[list[_RawRow], list[str]]:
    rows: list[_RawRow] = []
    refused: list[str] = []
    for number, cells in enumerate(csv.DictReader(io.StringIO(text.lstrip("\ufeff"))), start=2):
        operation = _operation(cells.get("collective") or "")
        try:
            count = int(cells.get("nodes") or nodes or 0)
            size, time = float(cells["size_bytes"]), float(cells["time_us"]) * 1e-6
        except (TypeError, ValueError):
            refused.append(f"line {number}: nodes, size_bytes or time_us is no number")
            continue
        if operation is None:
            refused.append(f"line {number}: collective {cells.get('collective')!r} is not known")
        elif count < 1 or not (math.isfinite(time) and time > 0) or size < 1:
            # a size of 0 measures the launch, not the operation
            refused.append(f"line {number}: nodes, size and time must be above 0")
        else:
            rows.append((operation, count, size, time))
    return rows, refused


def _from_nccl_tests(text: str, nodes: int | None) -> tuple[list[_RawRow], list[str]]:
    """Lines of nccl-tests: size, count, type, operation, root, time [us], ..."""
    operation, rows, hosts = None, [], set()
    for line in text.splitlines():
        if line.startswith("#"):
            operation = operation or _operation(line)
            if found := re.search(r"Rank\s+\d+.*? on\s+(\S+)", line):
                hosts.add(found[1])
        elif found := _TEST_LINE.match(line):
            rows.append((float(found[1]), float(found[2]) * 1e-6))
    count = nodes or len(hosts)
    if rows and not count:
        return [], ["the output names no hosts: add --nodes"]
    name = operation or "all_reduce"
    return [(name, count, size, time) for size, time in rows if size >= 1 and time > 0], []


def score(measured: list[Measured]) -> list[tuple[str, int, int, float, float]]:
    """Per operation and size class: name, nodes, runs, mean absolute and median error."""
    groups: dict[tuple[str, int], list[float]] = {}
    for item in measured:
        label = f"{item.operation} {'>= 1 MiB' if item.size_bytes >= 2**20 else '< 1 MiB'}"
        groups.setdefault((label, item.nodes), []).append(item.error)
    return [
        (name, nodes, len(e), float(np.mean(np.abs(e))), float(np.median(e)))
        for (name, nodes), e in sorted(groups.items())
    ]
