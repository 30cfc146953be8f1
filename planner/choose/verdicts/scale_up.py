"""Enough: more nodes, or a larger batch, searched for a job that does not fit as it is.

Both are searched, not extrapolated: what is found are legal layouts, evaluated as any other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from planner.choose.preferences import preferences
from planner.choose.search import enumerate_layouts
from planner.cost.memory.footprint import Footprints, footprints
from planner.cost.scenario import Scenario
from planner.describe.layout import RECOMPUTE

__all__ = ["double_nodes", "even_batch"]

Taken = dict[str, Footprints]
"""What layouts take, by framework."""


def double_nodes(scenarios: dict[str, Scenario], nodes: int) -> Iterator[tuple[int, Taken]]:
    """Layouts on two, four, ... 64 times the nodes, as far as the machine has them.

    They recompute as much as they can: that takes the least memory.
    """
    leanest = {
        name: replace(
            scenario,
            framework=scenario.framework.replaced(
                recompute=[max(scenario.framework.recompute, key=RECOMPUTE.index)]
            ),
        )
        for name, scenario in scenarios.items()
    }
    first = next(iter(scenarios.values()))
    doublings = int(preferences().offers.node_doublings.value)
    for count in (nodes * 2**power for power in range(1, doublings + 1)):
        if count <= first.machine.num_nodes.value:
            yield count, _taken(leanest, count)


def even_batch(scenarios: dict[str, Scenario], nodes: int) -> tuple[int, Taken]:
    """The next batch that all devices share evenly, and data-parallel layouts for it."""
    first = next(iter(scenarios.values()))
    world, batch = nodes * first.machine.node.num_devices, first.workload.global_batch
    wanted = -(-batch // world) * world
    if wanted == batch:
        return wanted, {}
    workload = first.workload.replaced(global_batch=wanted)
    alone = {
        name: replace(
            scenario,
            workload=workload,
            framework=scenario.framework.replaced(axes=[]),
        )
        for name, scenario in scenarios.items()
    }
    return wanted, _taken(alone, nodes)


def _taken(scenarios: dict[str, Scenario], nodes: int) -> Taken:
    taken = {}
    for name, scenario in scenarios.items():
        layouts, _ = enumerate_layouts(scenario, nodes * scenario.machine.node.num_devices)
        taken[name] = footprints(scenario, layouts)
    return taken
