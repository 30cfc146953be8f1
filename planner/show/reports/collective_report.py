"""Collective report: a group of ranks, the time of each operation, and errors, as text."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from planner.cost.network.collective_table import Row, bus_factor
from planner.cost.network.topology import GroupView
from planner.describe.machine import Machine
from planner.units import counted, format_bytes, format_rate, format_seconds

if TYPE_CHECKING:
    from planner.evidence.nccl_tests import SizeClass


def group_text(group: GroupView) -> str:
    """Describe a group of ranks and its bandwidths in one sentence."""
    local, nodes = int(group.local), int(group.nodes)
    text = f"{counted(nodes, 'node')}, {counted(local, 'rank')} on each"
    if nodes > 1 and local * nodes != int(group.size):
        text = f"{nodes} nodes, up to {counted(local, 'rank')} on each"
    if local > 1:
        text += f"; inside a node {format_rate(float(group.local_bytes_per_s))} per rank"
    if nodes > 1:
        rate = format_rate(float(group.network_bytes_per_s))
        text += f"; its share of a node's links to others is {rate}"
    return text + ", per direction"


def collectives_text(
    machine: Machine, group: GroupView, rows: Sequence[Row], size_bytes: float, apart: int = 1
) -> str:
    """Format a table of a group's operations, with the library's choices marked."""
    size = int(group.size)
    spacing = "" if apart == 1 else f", every {apart}th device" if apart > 3 else _SPACINGS[apart]
    lines = [
        f"{format_bytes(size_bytes)} over {counted(size, 'device')} of {machine.name}{spacing}: "
        f"{group_text(group)}.",
        "",
        f"{'operation':15} {'algorithm':18} {'time':>10} {'bus bandwidth':>14}",
    ]
    ways = Counter(row.operation for row in rows)
    for row in rows:
        mark = "<- taken" if row.used and ways[row.operation] > 1 else ""
        lines.append(
            f"{row.operation:15} {row.algorithm:18} {format_seconds(row.time_s):>10} "
            f"{format_rate(row.bus_bytes_per_s):>14}  {mark}".rstrip()
        )
    return "\n".join([*lines, "", *_legend(rows, size)])


_SPACINGS = {2: ", every second device", 3: ", every third device"}


def _legend(rows: Sequence[Row], size: int) -> list[str]:
    factors: dict[str, list[str]] = {}
    for name in dict.fromkeys(row.operation for row in rows):
        factor = bus_factor(name, size)
        factors.setdefault("1" if math.isclose(factor, 1) else f"{factor:.4g}", []).append(name)
    parts = "; ".join(f"{factor} in {', '.join(names)}" for factor, names in factors.items())
    lines = [
        "Sizes are of the full buffer, as in nccl-tests: what a rank holds in an all-reduce, what",
        "the root holds in a scatter. Bus bandwidth is size / time times what a rank of a ring",
        f"sends of it: {parts}.",
    ]
    shown = {row.algorithm for row in rows}
    if shown & {"hierarchical", "binary tree"}:
        lines.append("Hierarchical and binary trees are other libraries' ways, for comparison.")
    return lines


def score_text(groups: Sequence[SizeClass], refused: Sequence[str]) -> str:
    """Format errors by operation and size class, and the reasons for refused rows."""
    lines = [
        f"{name:26} {count:>4} nodes {runs:>4} runs  mean |error| {100 * mean:5.1f} %"
        f"  median {100 * median:+6.1f} %"
        for name, count, runs, mean, median in groups
    ]
    lines += [f"refused: {reason}" for reason in refused[:10]]
    if len(refused) > 10:
        lines.append(f"refused: {counted(len(refused) - 10, 'further row')}")
    return "\n".join(lines)
