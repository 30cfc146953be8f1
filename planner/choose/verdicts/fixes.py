"""Fixes: by how much a layout does not fit, and the cheapest change that makes it fit."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from planner.choose.preferences import preferences
from planner.choose.recommendation import setup_effort
from planner.choose.search import Candidates
from planner.cost.arrays import Float
from planner.cost.estimate import Estimate
from planner.cost.memory.footprint import Footprints
from planner.cost.parts import part
from planner.cost.shards.layouts import Layouts
from planner.describe.machine import Machine
from planner.units import format_bytes

__all__ = [
    "cheapest_change",
    "closest_to_fitting",
    "memory_margin",
    "shortage_sentence",
    "shortage_summary",
]


def closest_to_fitting(candidates: Candidates) -> tuple[float, Footprints]:
    """The share by which the closest layout exceeds device, host or disk, and its footprint."""
    footprints = candidates.footprints
    index = int(np.argmin(footprints.excess))
    return float(footprints.excess[index]), footprints.take(np.array([index]))


def memory_margin(estimate: Estimate, limit_bytes: float) -> str:
    """Used and free memory of a layout that fits, in words."""
    total = estimate.memory_bytes["total"]
    return f"{format_bytes(total)} per rank, {format_bytes(limit_bytes - total)} free"


def shortage_sentence(estimate: Estimate, footprint: Footprints) -> str:
    """Name the memory that a layout exceeds, by how much, and its largest part."""
    device, host = float(footprint.memory_bytes[0]), float(footprint.host_memory_bytes[0])
    if device > (limit := footprint.device_limit_bytes):
        return _shortage(device, limit, "per rank", "the device has", estimate.memory_bytes)
    if host > (limit := footprint.host_limit_bytes):
        where = "of host memory per node"
        return _shortage(host, limit, where, "it has", estimate.host_memory_bytes)
    disk, limit = float(footprint.disk_bytes[0]), footprint.disk_limit_bytes
    return _shortage(disk, limit, "on the node's disk", "it holds", {})


def _shortage(used: float, limit: float, where: str, owner: str, parts: dict[str, float]) -> str:
    text = f"needs {format_bytes(used)} {where}, {format_bytes(used - limit)} more than {owner}"
    parts = {name: value for name, value in parts.items() if name != "total"}
    if not parts:
        return text
    largest = max(parts, key=lambda name: parts[name])
    return f"{text}; {part(largest).label}: {format_bytes(parts[largest])}"


def shortage_summary(estimate: Estimate, machine: Machine) -> str:
    """Name the memory that a layout exceeds and by how much, in few words."""
    total, limit = estimate.memory_bytes["total"], machine.device.memory_bytes.value
    if total > limit:
        over = format_bytes(total - limit)
        return f"{over} too much per device on stage {estimate.worst_stage}"
    host, limit = estimate.host_memory_bytes["total"], machine.node.host_memory_bytes.value
    if host > limit:
        return f"{format_bytes(host - limit)} too much host memory per node"
    return "the node's disk is too small for what is offloaded to it"


# --- changes --------------------------------------------------------------------------------------


def cheapest_change(estimate: Estimate, candidates: Mapping[str, Candidates]) -> str:
    """Describe the change to a fitting layout that costs least; empty where nothing fits.

    Counted: what differs, by its cost in `preferences.toml`; the effort of the new layout; a step
    twice as long as one flag.
    """
    changes: list[tuple[float, float, str]] = []
    for source in candidates.values():
        estimates = source.estimates
        if not len(estimates):
            continue
        cost, time_s = _change_effort(estimate, source), estimates.step_time_s
        cost = cost + np.log2(time_s / min(time_s.min(), estimate.step_time_s))
        index = int(np.lexsort((time_s, cost))[0])
        text = _difference(estimate, estimates[index])
        changes.append((float(cost[index]), float(time_s[index]), text))
    return min(changes)[2] if changes else ""


def _change_effort(estimate: Estimate, candidates: Candidates) -> Float:
    """Effort of every layout that fits, and of changing to it."""
    efforts = {name: effort.value for name, effort in preferences().change.items()}
    beyond_wires, framework = efforts.pop("tp_beyond_wires"), efforts.pop("framework")
    layouts, old = candidates.estimates.layouts, Layouts.of(estimate.layout)
    is_other = candidates.scenario.framework.name != estimate.framework
    total = setup_effort(layouts) + framework * is_other
    for column, effort in efforts.items():
        total = total + effort * (getattr(layouts, column) != getattr(old, column))
    return total + beyond_wires * (layouts.tp > candidates.scenario.machine.wired_devices)


_NAMED = (
    *("zero_stage", "dp_shard", "reshard", "tp", "pp", "cp", "ulysses", "ep", "etp"),
    *("recompute", "micro_batch", "offload", "tiles"),
)
"""Columns that a change names, in this order."""


def _difference(old: Estimate, new: Estimate) -> str:
    """Describe the change from one estimate's layout to the other's."""
    changes = []
    for name in _NAMED:
        before, after = getattr(old.layout, name), getattr(new.layout, name)
        if name == "dp_shard":
            # unstated means all replicas; that it follows dp is no change of its own
            if bool(before) == bool(after):
                continue
            before, after = before or old.layout.dp, after or new.layout.dp
        if before != after:
            label = name.replace("_", " ").replace("zero stage", "ZeRO stage")
            changes.append(f"{label} {before} -> {after}")
    if old.framework != new.framework:
        changes.append(f"with {new.framework}")
    return ", ".join(changes) + f" ({format_bytes(new.memory_bytes['total'])})"
