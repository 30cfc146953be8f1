"""Changes: by how much a layout does not fit, and the cheapest change with which it does."""

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


def _pairs(taken: Footprints) -> tuple[tuple[Float, float], ...]:
    """What is taken of device, host and disk, and what there is of each."""
    return (
        (taken.memory_bytes, taken.device_limit_bytes),
        (taken.host_memory_bytes, taken.host_limit_bytes),
        (taken.disk_bytes, taken.disk_limit_bytes),
    )


def closest_to_fitting(found: Candidates) -> tuple[float, Footprints]:
    """The layout that exceeds its limits least: by which part of them, and what it takes.

    Device, host and disk count alike, each by its part of what there is.
    """
    taken = found.footprints
    index = int(np.argmin(taken.excess))
    return float(taken.excess[index]), taken.take(np.array([index]))


def memory_margin(estimate: Estimate, limit_bytes: float) -> str:
    """What a layout that fits takes and leaves."""
    total = estimate.memory_bytes["total"]
    return f"{format_bytes(total)} per rank, {format_bytes(limit_bytes - total)} free"


def shortage_sentence(estimate: Estimate, one: Footprints) -> str:
    """What does not suffice for a layout, by how much, and the largest part of it."""
    device, host, disk = ((float(used[0]), room) for used, room in _pairs(one))
    if device[0] > device[1]:
        return _said(*device, "per rank", "the device has", estimate.memory_bytes)
    if host[0] > host[1]:
        return _said(*host, "of host memory per node", "it has", estimate.host_memory_bytes)
    return _said(*disk, "on the node's disk", "it holds", {})


def shortage_summary(estimate: Estimate, machine: Machine) -> str:
    """What does not suffice for a layout that does not fit, in few words."""
    total, limit = estimate.memory_bytes["total"], machine.device.memory_bytes.value
    if total > limit:
        over = format_bytes(total - limit)
        return f"{over} too much per device on stage {estimate.worst_stage}"
    host, room = estimate.host_memory_bytes["total"], machine.node.host_memory_bytes.value
    if host > room:
        return f"{format_bytes(host - room)} too much host memory per node"
    return "the node's disk is too small for what is offloaded to it"


def _said(used: float, room: float, where: str, owner: str, parts: dict[str, float]) -> str:
    text = f"needs {format_bytes(used)} {where}, {format_bytes(used - room)} more than {owner}"
    inner = {name: value for name, value in parts.items() if name != "total"}
    if not inner:
        return text
    largest = max(inner, key=lambda name: inner[name])
    return f"{text}; {part(largest).label}: {format_bytes(inner[largest])}"


def cheapest_change(estimate: Estimate, found: Mapping[str, Candidates]) -> str:
    """The fitting layout that is least to change to from one that does not fit, in words.

    Counted: what differs, by what it costs to change; the effort of what comes out; a step twice as
    long as one flag. Empty where nothing fits.
    """
    best: tuple[float, float, str] | None = None
    for source in found.values():
        fitting = source.estimates
        if not len(fitting):
            continue
        cost = _change_effort(estimate, source)
        time = fitting.step_time_s
        cost = cost + np.log2(time / min(time.min(), estimate.step_time_s))
        pick = int(np.lexsort((time, cost))[0])
        text = _difference(estimate, fitting[pick])
        candidate = (float(cost[pick]), float(time[pick]), text)
        best = candidate if best is None or candidate < best else best
    return best[2] if best else ""


def _change_effort(estimate: Estimate, source: Candidates) -> Float:
    """Effort of every layout that fits, and of changing to it."""
    efforts = {name: effort.value for name, effort in preferences().change.items()}
    other_framework = source.scenario.framework.name != estimate.framework
    fixed, wires = efforts.pop("framework") * other_framework, efforts.pop("tp_beyond_wires")
    layouts, wanted = source.estimates.layouts, Layouts.of(estimate.layout)
    total = setup_effort(layouts) + fixed
    for column, effort in efforts.items():
        total = total + effort * (getattr(layouts, column) != getattr(wanted, column))
    return total + wires * (layouts.tp > source.scenario.machine.wired_devices)


_NAMED = (
    "zero_stage",
    "dp_shard",
    "reshard",
    "tp",
    "pp",
    "cp",
    "ulysses",
    "ep",
    "etp",
    "recompute",
    "micro_batch",
    "offload",
    "tiles",
)


def _difference(old: Estimate, new: Estimate) -> str:
    """What changes from one estimate's layout to the other's, in words."""
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
