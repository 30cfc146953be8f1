"""Scale up: search more nodes, or a batch that all devices share, where nothing fits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from planner.choose.preferences import preferences
from planner.choose.search import enumerate_layouts
from planner.cost.memory.footprint import Footprints, footprints
from planner.cost.scenario import Scenario
from planner.describe.framework.framework import Framework
from planner.describe.layout import RECOMPUTE

__all__ = ["double_nodes", "even_batch"]

Scenarios = dict[str, Scenario]
"""A job by framework."""


def double_nodes(scenarios: Scenarios, nodes: int) -> Iterator[tuple[int, dict[str, Footprints]]]:
    """Yield the footprints on two, four, ... 64 times the nodes, as far as the machine has them.

    Layouts recompute as much as their framework can, which takes the least memory.
    """
    leanest = _with_frameworks(
        scenarios, lambda f: f.replaced(recompute=[max(f.recompute, key=RECOMPUTE.index)])
    )
    machine = next(iter(scenarios.values())).machine
    doublings = int(preferences().offers.node_doublings.value)
    for count in (nodes * 2**power for power in range(1, doublings + 1)):
        if count <= machine.num_nodes.value:
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
