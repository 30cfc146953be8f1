"""Measured collectives: nccl-tests output or a CSV against estimates, and published times."""

import csv
import functools
import io
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from pydantic import Field

from planner.cost.network.collective_table import OPERATIONS, whole_nodes
from planner.cost.network.topology import GroupView
from planner.describe.base import Description
from planner.describe.files import read_text, read_toml
from planner.describe.machine import Machine
from planner.describe.machine.variants import take_devices
from planner.errors import CatalogueError, LayoutError, shorten, shorten_path
from planner.units import counted


@dataclass(frozen=True, slots=True)
class Measured:
    """A measured collective."""

    operation: str
    nodes: int
    size_bytes: float
    time_s: float
    estimated_s: float = math.nan
    ranks: int | None = None
    """Number of ranks; None: all devices of the nodes."""

    @property
    def error(self) -> float:
        """Estimated over measured time, minus one."""
        return self.estimated_s / self.time_s - 1


_SPELLINGS = {op.replace("_", ""): op for op in sorted(OPERATIONS, key=len, reverse=True)}
"""Operations by the letters of their name; a longer name comes before names it contains."""
_COLUMNS = ("collective", "size_bytes", "time_us")
_MAX_FILE_BYTES = 10_000_000
_MAX_NODES = 1_000_000
_MAX_SIZE_BYTES = 1e15
_TIMES_S = (1e-9, 1e6)
"""Times beyond these are not measured."""
_TIME_COLUMN = 5
"""Column of the time where a table has no header: size, count, type, operation, root, time."""


def _operation(text: str) -> str | None:
    plain = re.sub(r"[^a-z]", "", text.lower())
    return next((name for key, name in _SPELLINGS.items() if key in plain), None)


def read_measured(
    path: Path, machine: Machine, nodes: int | None = None
) -> tuple[list[Measured], list[str]]:
    """Read measured collectives with their estimates, and the reasons for refused rows."""
    if nodes is not None and not 1 <= nodes <= _MAX_NODES:
        raise CatalogueError(f"nodes = {nodes} must be between 1 and {_MAX_NODES:,}; correct it")
    text = read_text(path, limit=_MAX_FILE_BYTES).lstrip("\ufeff")
    # a launcher may have printed lines before the table
    short = (line for line in text.splitlines() if len(line) < 1000)
    header = next((line for line in short if all(name in line for name in _COLUMNS[1:])), "")
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
    measurements: list[Measured] = []
    group_of = functools.cache(functools.partial(measured_group, machine))
    for row in rows:
        try:
            group = group_of(row.nodes, row.ranks)
        except LayoutError as error:
            refused.append(str(error))
            continue
        estimated = float(np.asarray(OPERATIONS[row.operation](group, row.size_bytes)))
        is_whole = row.ranks == row.nodes * machine.node.num_devices
        ranks = None if is_whole else row.ranks
        measurements.append(replace(row, estimated_s=estimated, ranks=ranks))
    if not measurements:
        raise CatalogueError(f"{shorten_path(path)}: {refused[0]}")
    return measurements, list(dict.fromkeys(refused))


def measured_group(machine: Machine, nodes: int, ranks: int | None) -> GroupView:
    """Return the device group of a measurement; LayoutError if the machine has no such nodes."""
    per_node = machine.node.num_devices
    if ranks is None or ranks == nodes * per_node:
        return whole_nodes(machine, nodes)
    if ranks % nodes or ranks < max(nodes, 2) or ranks > nodes * per_node:
        raise LayoutError(
            f"{ranks} ranks cannot be spread evenly over {counted(nodes, 'node')} of {per_node} "
            "devices; measure on the same number of each"
        )
    # the machine as seen by a run that has the first devices of every node to itself
    part = take_devices(machine, ranks // nodes)
    per_socket = -(-per_node // machine.node.num_sockets)
    node = {**part.node.model_dump(), "num_sockets": -(-ranks // nodes // per_socket)}
    of_all = {"node": node, "num_nodes": machine.num_nodes.model_dump()}
    return whole_nodes(part.replaced(**of_all), nodes)


def _from_csv(text: str, header: str, nodes: int | None) -> tuple[list[Measured], list[str]]:
    rows: list[Measured] = []
    refused: list[str] = []
    table = csv.DictReader(io.StringIO(text), delimiter=max(",;\t", key=header.count))
    missing = [column for column in _COLUMNS if column not in (table.fieldnames or ())]
    if missing:
        return [], [f"the table has no column {missing[0]}"]
    try:
        for cells in table:
            row = _row(cells, nodes)
            if isinstance(row, str):
                refused.append(f"line {table.line_num}: {row}")
            else:
                rows.append(row)
    except csv.Error as error:
        refused.append(f"line {table.line_num}: {error}, and no line after it was read")
    return rows, refused


def _row(cells: Mapping[str, str | None], nodes: int | None) -> Measured | str:
    label = cells["collective"] or ""
    operation = _operation(label)
    try:
        count = int(cells.get("nodes") or nodes or 0)
        ranks = int(cells.get("ranks") or 0) or None
        size, time = float(cells["size_bytes"] or ""), float(cells["time_us"] or "") * 1e-6
    except ValueError:
        return "nodes, ranks, size_bytes or time_us is not a number"
    if operation is None:
        return f"collective {shorten(label)!r} is unknown"
    # a size of 0 measures the launch, not the operation
    if not (
        1 <= count <= _MAX_NODES
        and (ranks is None or 1 < ranks <= _MAX_NODES * 1024)
        and 1 <= size <= _MAX_SIZE_BYTES
        and _TIMES_S[0] <= time <= _TIMES_S[1]
    ):
        return "nodes, size and time must be above 0, ranks above 1, all within plausible limits"
    return Measured(operation, count, size, time, ranks=ranks)


def _from_nccl_tests(text: str, nodes: int | None) -> tuple[list[Measured], list[str]]:
    """Parse lines of nccl-tests: size, count, type, operation, root, time [us], ..."""
    lines = [line[:1000] for line in text.splitlines()]
    comments = (line for line in lines if line.startswith("#"))
    matches = (re.search(r"Rank\s+(\d+).*? on\s+(\S+)", line) for line in comments)
    ranks = {match.groups() for match in matches if match}
    hosts = len({host for _, host in ranks})
    count = len(ranks) if hosts and nodes in (None, hosts) else None
    rows: list[Measured] = []
    refused: list[str] = []
    for number, name, size_text, time_text in _table_lines(lines):
        size, time = _number(size_text), _number(time_text) * 1e-6
        if size == 0:  # measures the launch, not the operation
            continue
        if not (1 <= size <= _MAX_SIZE_BYTES and _TIMES_S[0] <= time <= _TIMES_S[1]):
            shown = f"size {shorten(size_text)} or time {shorten(time_text)}"
            refused.append(f"line {number}: {shown} is no plausible number of bytes or us")
        elif not (nodes or hosts):
            return [], ["the output names no hosts: add --nodes"]
        else:
            rows.append(Measured(name, nodes or hosts, size, time, ranks=count))
    return rows, refused


def _table_lines(lines: Sequence[str]) -> Iterator[tuple[int, str, str, str]]:
    """Yield number, operation, size and time of every line of a table, of older versions too."""
    operation, time_column = None, _TIME_COLUMN
    for number, line in enumerate(lines, 1):
        words = line.strip("# ").split()
        if line.startswith("#"):
            if operation is None or "starting" in line:
                operation = _operation(line) or operation
            if words[:2] == ["size", "count"] and "time" in words:
                time_column = words.index("time")
        # size, count and type of the elements; a launcher's lines begin otherwise
        elif len(words) > 2 and words[1].isdecimal() and words[2].isidentifier():
            time = words[time_column] if len(words) > time_column else "missing"
            yield number, operation or "all_reduce", words[0], time


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


class SizeClass(NamedTuple):
    """Errors of one operation over one class of sizes."""

    name: str
    nodes: int
    num_runs: int
    mean_error: float
    median_error: float


def score(measured: list[Measured]) -> list[SizeClass]:
    """Compute errors per operation, size class (from 1 MiB on, below) and node count."""
    groups: dict[tuple[str, int], list[float]] = {}
    for item in measured:
        label = f"{item.operation} {'>= 1 MiB' if item.size_bytes >= 2**20 else '< 1 MiB'}"
        label += f", {item.ranks} ranks" if item.ranks else ""
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
    """Nodes; all their devices take part."""
    ranks: int = Field(ge=2)
    """Devices that take part."""
    library: str
    """Library and version."""
    sizes_bytes: tuple[int, ...]
    """Buffer sizes [B]."""
    times_us: tuple[float, ...]
    """Time of each size [us]."""
    source: str = Field(min_length=6)
    """Publication of the times."""

    @property
    def times_s(self) -> tuple[float, ...]:
        """Time of each size [s]."""
        return tuple(time * 1e-6 for time in self.times_us)


@functools.cache
def _published() -> tuple[Published, ...]:
    path = Path(__file__).with_name("collectives.toml")
    return tuple(Published.described(row, where=path.name) for row in read_toml(path)["published"])


def published_for(machine: str, operation: str, ranks: int, per_node: int) -> Published | None:
    """Return the published times of a collective over `ranks` ranks that fill their nodes."""
    for row in _published():
        fits = row.machine == machine and row.operation == operation and row.ranks == ranks
        if fits and row.nodes * per_node == ranks:
            return row
    return None
