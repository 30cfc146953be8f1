"""Measured collectives: the output of nccl-tests beside the model, and what was published.

Reads the output of nccl-tests (and of RCCL's and oneCCL's versions of it) or a CSV with the
columns `collective`, `nodes`, `size_bytes` and `time_us`. Published times stand in
`collectives.toml`.
"""

from __future__ import annotations

import csv
import functools
import io
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from pydantic import Field

from planner.cost.network.table import OPERATIONS, whole_nodes
from planner.describe.base import Description
from planner.describe.files import read_text, read_toml
from planner.describe.machine import Machine
from planner.errors import CatalogueError, shorten, shorten_path

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
_NUMBER = r"\d+(?:\.\d*)?"
_TEST_LINE = re.compile(
    rf"\s*(\d{{1,18}})\s+\d+\s+\w+\s+\w+\s+-?\d+\s+({_NUMBER})\s+{_NUMBER}\s+{_NUMBER}(?:\s|$)"
)
_COLUMNS = ("collective", "size_bytes", "time_us")
_MAX_FILE_BYTES = 10_000_000
_MAX_NODES = 1_000_000
_MAX_SIZE_BYTES = 1e15
_MAX_TIME_S = 1e6


def _is_header(line: str) -> bool:
    return len(line) < 1000 and all(column in line for column in _COLUMNS[1:])


def _operation(text: str) -> str | None:
    plain = re.sub(r"[^a-z]", "", text.lower())
    return next((name for key, name in _SPELLINGS.items() if key in plain), None)


def read_measured(
    path: Path, machine: Machine, nodes: int | None = None
) -> tuple[list[Measured], list[str]]:
    """Measured collectives of a file with their estimates, and why rows were refused."""
    if nodes is not None and not 1 <= nodes <= _MAX_NODES:
        raise CatalogueError(f"nodes = {nodes} must be between 1 and {_MAX_NODES:,}; correct it")
    text = read_text(path, limit=_MAX_FILE_BYTES).lstrip("\ufeff")
    # a launcher may have said something before
    header = next((line for line in text.splitlines() if _is_header(line)), "")
    if header:
        text = text[text.index(header) :]
        rows, refused = _from_csv(text, header, nodes)
    else:
        rows, refused = _from_nccl_tests(text, nodes)
    if not rows:
        raise CatalogueError(
            f"{shorten_path(path)} holds no measured collective: give nccl-tests output or a CSV "
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


def _from_csv(text: str, header: str, nodes: int | None) -> tuple[list[_RawRow], list[str]]:
    rows: list[_RawRow] = []
    refused: list[str] = []
    table = csv.DictReader(io.StringIO(text), delimiter=max(",;\t", key=header.count))
    missing = [column for column in _COLUMNS if column not in (table.fieldnames or ())]
    if missing:
        return [], [f"the table has no column {missing[0]}"]
    try:
        for cells in table:
            found = _row(cells, nodes)
            if isinstance(found, str):
                refused.append(f"line {table.line_num}: {found}")
            else:
                rows.append(found)
    except csv.Error as error:
        refused.append(f"line {table.line_num}: {error}, and no line after it was read")
    return rows, refused


def _row(cells: Mapping[str, str | None], nodes: int | None) -> _RawRow | str:
    """The measurement of a row of a table, or what is wrong with it."""
    label = cells["collective"] or ""
    operation = _operation(label)
    try:
        count = int(cells.get("nodes") or nodes or 0)
        size, time = float(cells["size_bytes"] or ""), float(cells["time_us"] or "") * 1e-6
    except ValueError:
        return "nodes, size_bytes or time_us is no number"
    if operation is None:
        return f"collective {shorten(label)!r} is not known"
    # a size of 0 measures the launch, not the operation
    if not (1 <= count <= _MAX_NODES and 1 <= size <= _MAX_SIZE_BYTES and 0 < time <= _MAX_TIME_S):
        return "nodes, size and time must be above 0, and no more than a machine can have"
    return operation, count, size, time


def _from_nccl_tests(text: str, nodes: int | None) -> tuple[list[_RawRow], list[str]]:
    """Lines of nccl-tests: size, count, type, operation, root, time [us], ..."""
    operation, rows, hosts = None, [], set()
    for line in text.splitlines():
        if line.startswith("#"):
            operation = operation or _operation(line[:1000])
            if found := re.search(r"Rank\s+\d+.*? on\s+(\S+)", line[:1000]):
                hosts.add(found[1])
        elif found := _TEST_LINE.match(line[:1000]):
            rows.append((float(found[1]), float(found[2]) * 1e-6))
    count = nodes or len(hosts)
    if rows and not count:
        return [], ["the output names no hosts: add --nodes"]
    name = operation or "all_reduce"
    return [
        (name, count, size, time)
        for size, time in rows
        if 1 <= size <= _MAX_SIZE_BYTES and 0 < time <= _MAX_TIME_S
    ], []


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
