"""Collective table: the time of every operation and algorithm on a machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

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
from planner.describe.machine import Machine
from planner.errors import LayoutError

__all__ = ["OPERATIONS", "Row", "bus_factor", "table", "whole_nodes"]

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
    """Bus bandwidth over algorithm bandwidth in a group of `size` ranks [1].

    Counted: what one rank of a ring sends, as a part of the full buffer. Left out: latency.
    Definition: nccl-tests, doc/PERFORMANCE.md. Raises LayoutError for an operation without one.

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


def whole_nodes(machine: Machine, nodes: int) -> GroupView:
    """The group of all devices of some nodes.

    Counted: ranks in the order of devices, node by node. Left out: where the nodes stand in the
    network. method.md#what-a-group-sees. Raises LayoutError where the machine has fewer.

    >>> from planner.describe.catalogue import load_machine
    >>> float(whole_nodes(load_machine("polaris"), 2).size)     # 2 nodes of 4
    8.0
    """
    if not 1 <= nodes <= machine.num_nodes.value:
        raise LayoutError(
            f"nodes = {nodes} is not between 1 and the {machine.num_nodes.value:.0f} nodes of "
            f"{machine.name}; choose another number"
        )
    return group_view(machine, nodes * machine.node.num_devices, 1)


def table(machine: Machine, nodes: int, size_bytes: float) -> list[Row]:
    """Times of all operations over all devices of some nodes.

    Counted: a full buffer of `size_bytes`, an all-reduce in every algorithm, the others in their
    fastest. Left out: other jobs on the network. method.md#algorithms. Raises LayoutError for a
    size of 0 or nodes that the machine does not have.

    >>> from planner.describe.catalogue import load_machine
    >>> [row.algorithm for row in table(load_machine("polaris"), 8, 2**28) if row.used][0]
    'ring, Simple'
    """
    if not size_bytes > 0:
        raise LayoutError(f"size = {size_bytes:g} bytes must be above 0; give for example 64MiB")
    group = whole_nodes(machine, nodes)
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
