"""Collective table: times of every operation and algorithm on a machine."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from planner.cost.constants import LOW_LATENCY, SIMPLE
from planner.cost.network.collectives import (
    all_gather_s,
    all_reduce_s,
    all_to_all_s,
    hierarchical_all_reduce_s,
    reduce_scatter_s,
    ring_all_reduce_s,
    ring_exchange_s,
    tree_all_reduce_s,
)
from planner.cost.network.in_network_reduction import network_all_reduce_s, switch_all_reduce_s
from planner.cost.network.rooted_collectives import (
    broadcast_s,
    chain_broadcast_s,
    scatter_s,
    tree_broadcast_s,
)
from planner.cost.network.topology import GroupView, group_view, reduction_view
from planner.describe.machine import Machine
from planner.errors import LayoutError
from planner.units import counted

Time = Callable[[GroupView, Any], Any]

OPERATIONS: dict[str, Time] = {
    "all_reduce": all_reduce_s,
    "all_gather": all_gather_s,
    "reduce_scatter": reduce_scatter_s,
    "broadcast": broadcast_s,
    "reduce": lambda group, size: broadcast_s(reduction_view(group), size),
    "scatter": scatter_s,
    "gather": scatter_s,
    "all_to_all": all_to_all_s,
    "send_recv": ring_exchange_s,
}
"""Operations by their nccl-tests names, each with the time of the library's choice."""

ALGORITHMS: dict[str, dict[str, Time]] = {
    "all_reduce": {
        "ring, Simple": lambda group, size: ring_all_reduce_s(reduction_view(group), size, SIMPLE),
        "ring, LL": lambda group, size: ring_all_reduce_s(reduction_view(group), size, LOW_LATENCY),
        "tree, Simple": lambda group, size: tree_all_reduce_s(reduction_view(group), size, SIMPLE),
        "tree, LL": lambda group, size: tree_all_reduce_s(reduction_view(group), size, LOW_LATENCY),
        "switches (NVLS)": lambda group, size: switch_all_reduce_s(reduction_view(group), size),
        "network (SHARP)": lambda group, size: network_all_reduce_s(reduction_view(group), size),
        "hierarchical": hierarchical_all_reduce_s,
    },
    "all_gather": {"ring": all_gather_s},
    "reduce_scatter": {"ring": reduce_scatter_s},
    "broadcast": {
        "chain, Simple": lambda group, size: chain_broadcast_s(group, size, SIMPLE),
        "chain, LL": lambda group, size: chain_broadcast_s(group, size, LOW_LATENCY),
        "binary tree": tree_broadcast_s,
    },
    "reduce": {
        "chain, Simple": lambda group, size: chain_broadcast_s(reduction_view(group), size, SIMPLE),
        "chain, LL": lambda group, size: chain_broadcast_s(
            reduction_view(group), size, LOW_LATENCY
        ),
        "binary tree": lambda group, size: tree_broadcast_s(reduction_view(group), size),
    },
    "scatter": {"sends of the root": scatter_s},
    "gather": {"sends to the root": scatter_s},
    "all_to_all": {"sends to all": all_to_all_s},
    "send_recv": {"to the next rank": ring_exchange_s},
}
"""Modelled algorithms of each operation; infinite if the machine lacks the switch for it."""

_COMPARED = ("hierarchical", "binary tree")
"""Algorithms that NCCL and RCCL lack: listed for comparison, never marked as used."""

_SENT_ONCE = ("all_gather", "reduce_scatter", "all_to_all", "scatter", "gather")
_PARTS_SENT = {"all_reduce": 2.0, **dict.fromkeys(_SENT_ONCE, 1.0)}
_WHOLE_BUFFER = ("broadcast", "reduce", "send_recv")


def bus_factor(operation: str, size: float) -> float:
    """Bus bandwidth over algorithm bandwidth in a group of `size` ranks [1].

    Counted: bytes that one rank of a ring sends, as a part of the full buffer. Left out: latency.
    Definition: nccl-tests, doc/PERFORMANCE.md. Raises LayoutError for an unknown operation.
    """
    if operation in _WHOLE_BUFFER:
        return 1.0
    if operation not in _PARTS_SENT:
        operations = ", ".join([*_PARTS_SENT, *_WHOLE_BUFFER])
        raise LayoutError(f"operation {operation!r} has no bus bandwidth; use one of {operations}")
    return _PARTS_SENT[operation] * (size - 1) / size


@dataclass(frozen=True, slots=True)
class Row:
    """Time of one operation with one algorithm."""

    operation: str
    algorithm: str
    time_s: float
    bus_bytes_per_s: float
    """Bus bandwidth as nccl-tests defines it."""
    used: bool
    """True if the library would choose this algorithm."""


def whole_nodes(machine: Machine, nodes: int) -> GroupView:
    """Network view of the group of all devices of `nodes` nodes.

    Counted: ranks in the order of devices. Left out: the position of the nodes in the network.
    network.md#what-a-group-sees. Raises LayoutError if the machine has fewer nodes.
    """
    if not 1 <= nodes <= machine.num_nodes.value:
        raise LayoutError(
            f"nodes = {nodes} is not between 1 and the {machine.num_nodes.value:.0f} nodes of "
            f"{machine.name}; use 1 to {machine.num_nodes.value:.0f}"
        )
    return group_view(machine, nodes * machine.node.num_devices, 1)


def group_of(machine: Machine, ranks: int, stride: int = 1) -> GroupView:
    """Network view of one group of `ranks` devices with `stride`, from a node's first device on.

    Counted: other groups of this shape on the same nodes. Left out: where the nodes are.
    network.md#what-a-group-sees. Raises LayoutError if the machine is too small, or for one rank.
    """
    if ranks < 2 or stride < 1:
        raise LayoutError(
            f"ranks = {ranks}, stride = {stride}: a collective needs at least 2 ranks and a stride "
            "of at least 1"
        )
    if (ranks - 1) * stride >= machine.num_devices:
        available = counted(machine.num_devices, "device")
        raise LayoutError(
            f"{ranks:,} ranks with stride {stride:,} exceed the {available} of {machine.name}; "
            "use fewer ranks or a smaller stride"
        )
    return group_view(machine, ranks, stride, first=True)


def table(group: GroupView, size_bytes: float) -> list[Row]:
    """List times of all operations over a group, with every algorithm that its machine supports.

    Counted: a full buffer of `size_bytes`; `used` marks the library's choice. Left out: other jobs
    on the network. network.md#algorithms. Raises LayoutError for a size of 0.
    """
    if not 0 < size_bytes < math.inf:
        raise LayoutError(
            f"size = {size_bytes:g} bytes must be positive and finite; for example 64MiB"
        )
    return [row for name in OPERATIONS for row in _of_operation(group, name, size_bytes)]


def _of_operation(group: GroupView, name: str, size: float) -> list[Row]:
    """List one operation with every available algorithm; mark the fastest that libraries have."""
    n = float(group.size)
    times = {way: float(np.asarray(f(group, size))) for way, f in ALGORITHMS[name].items()}
    used = min((t, way) for way, t in times.items() if way not in _COMPARED)[1] if n > 1 else ""
    return [
        Row(name, way, t, size * bus_factor(name, n) / t if t > 0 else 0.0, way == used)
        for way, t in times.items()
        if t < math.inf
    ]
