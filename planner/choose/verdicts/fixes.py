"""Fixes: by how much a layout does not fit, and what would make it: a change, nodes, a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import numpy as np

from planner.choose.preferences import preferences
from planner.choose.recommendation import setup_effort
from planner.choose.search import Candidates, enumerate_layouts
from planner.cost.arrays import Float
from planner.cost.estimate import Estimate
from planner.cost.memory.footprint import Footprints, footprints
from planner.cost.parts import part
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.describe.framework.framework import Framework
from planner.describe.layout import RECOMPUTE
from planner.describe.machine import Machine
from planner.units import format_bytes

__all__ = [
    "cheapest_change",
    "closest_to_fitting",
    "double_nodes",
    "even_batch",
    "memory_margin",
    "shortage_sentence",
    "shortage_summary",
]

Scenarios = dict[str, Scenario]
"""A job by framework."""


def closest_to_fitting(candidates: Candidates) -> tuple[float, Footprints]:
    """The share by which the closest layout exceeds device, host or disk, and its footprint."""
    excess = candidates.footprints.excess
    index = int(np.argmin(excess))
    return float(excess[index]), candidates.footprints.take(np.array([index]))


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
    sizes = {name: size for name, size in parts.items() if name != "total"}
    if not sizes:
        return text
    largest = max(sizes, key=sizes.__getitem__)
    return f"{text}; {part(largest).label}: {format_bytes(sizes[largest])}"


def shortage_summary(estimate: Estimate, machine: Machine) -> str:
    """Name the memory that a layout exceeds and by how much, in few words."""
    over = estimate.memory_bytes["total"] - machine.device.memory_bytes.value
    if over > 0:
        return f"{format_bytes(over)} too much per device on stage {estimate.worst_stage}"
    over = estimate.host_memory_bytes["total"] - machine.node.host_memory_bytes.value
    if over > 0:
        return f"{format_bytes(over)} too much host memory per node"
    return "the node's disk is too small for what is offloaded to it"


# --- changes --------------------------------------------------------------------------------------


def cheapest_change(estimate: Estimate, candidates: Mapping[str, Candidates]) -> str:
    """Describe the change to a fitting layout that costs least; empty where nothing fits."""
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


# --- more nodes, another batch --------------------------------------------------------------------


def double_nodes(scenarios: Scenarios, nodes: int) -> Iterator[tuple[int, dict[str, Footprints]]]:
    """Yield the footprints on two, four, ... 64 times the nodes, as far as the machine has them."""
    # as much recompute as each framework can do takes the least memory
    leanest = _with_frameworks(
        scenarios, lambda f: f.replaced(recompute=[max(f.recompute, key=RECOMPUTE.index)])
    )
    most = next(iter(scenarios.values())).machine.num_nodes.value
    doublings = int(preferences().offers.node_doublings.value)
    for count in (nodes * 2**power for power in range(1, doublings + 1)):
        if count <= most:
            yield count, _footprints(leanest, count)


def even_batch(scenarios: Scenarios, nodes: int) -> tuple[int, dict[str, Footprints]]:
    """The next batch that all devices share evenly, and footprints of data parallelism with it."""
    first = next(iter(scenarios.values()))
    world, batch = nodes * first.machine.node.num_devices, first.workload.global_batch
    even = -(-batch // world) * world
    if even == batch:
        return even, {}
    workload = first.workload.replaced(global_batch=even)
    data_parallel = _with_frameworks(scenarios, lambda f: f.replaced(axes=[]))
    changed = {name: replace(each, workload=workload) for name, each in data_parallel.items()}
    return even, _footprints(changed, nodes)


def _with_frameworks(scenarios: Scenarios, change: Callable[[Framework], Framework]) -> Scenarios:
    """The scenarios with changed frameworks."""
    return {
        name: replace(each, framework=change(each.framework)) for name, each in scenarios.items()
    }


def _footprints(scenarios: Scenarios, nodes: int) -> dict[str, Footprints]:
    """Footprints of all layouts on some nodes, by framework."""
    by_framework = {}
    for name, scenario in scenarios.items():
        layouts, _ = enumerate_layouts(scenario, nodes * scenario.machine.node.num_devices)
        by_framework[name] = footprints(scenario, layouts)
    return by_framework
