"""Measured collectives: the output of nccl-tests beside the model, and what was published.

Reads the output of nccl-tests (and of RCCL's and oneCCL's versions of it) or a CSV with the
columns `collective`, `nodes`, `size_bytes` and `time_us`. Published times stand in
`collectives.toml`.
"""

from __future__ import annotations

import csv
import functools
import io
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from pydantic import Field

from planner.cost.network.table import OPERATIONS, whole_nodes
from planner.describe.base import Description
from planner.describe.files import read_text, read_toml
from planner.describe.machine import Machine
from planner.errors import CatalogueError, shorten

__all__ = ["Measured", "Published", "SizeClass", "published_for", "read_measured", "score"]


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
        group = whole_nodes(machine, count)
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


class SizeClass(NamedTuple):
    """How far estimates of one operation are from the measurements of one class of sizes."""

    name: str
    nodes: int
    num_runs: int
    mean_error: float
    """Mean of |error|."""
    median_error: float


def score(measured: list[Measured]) -> list[SizeClass]:
    """Errors per operation, class of sizes (from 1 MiB on, below) and number of nodes."""
    groups: dict[tuple[str, int], list[float]] = {}
    for item in measured:
        label = f"{item.operation} {'>= 1 MiB' if item.size_bytes >= 2**20 else '< 1 MiB'}"
        groups.setdefault((label, item.nodes), []).append(item.error)
    return [
        SizeClass(name, nodes, len(e), float(np.mean(np.abs(e))), float(np.median(e)))
        for (name, nodes), e in sorted(groups.items())
    ]


class Published(Description):
    """Published times of one collective on one machine over sizes."""

    machine: str
    """Name in the catalogue."""
    operation: str
    """Operation as the figures call it."""
    nodes: int = Field(ge=1)
    """Nodes, all of whose devices take part."""
    ranks: int = Field(ge=2)
    """Devices."""
    library: str
    """Library and version."""
    sizes_bytes: tuple[int, ...]
    """Buffer sizes [B]."""
    times_us: tuple[float, ...]
    """Time of each size [us]."""
    source: str = Field(min_length=6)
    """Where the times were published."""

    @property
    def times_s(self) -> tuple[float, ...]:
        """Time of each size [s]."""
        return tuple(time * 1e-6 for time in self.times_us)


@functools.cache
def _published() -> tuple[Published, ...]:
    path = Path(__file__).with_name("collectives.toml")
    return tuple(Published.described(row, where=path.name) for row in read_toml(path)["published"])


def published_for(machine: str, operation: str, ranks: int, per_node: int) -> Published | None:
    """The published times of a collective over `ranks` ranks that fill their nodes.

    >>> published_for("polaris", "all-reduce", 8, 4).times_s[-1]
    0.052079
    """
    for row in _published():
        fits = row.machine == machine and row.operation == operation and row.ranks == ranks
        if fits and row.nodes * per_node == ranks:
            return row
    return None
