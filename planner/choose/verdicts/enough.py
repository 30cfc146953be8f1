"""Enough: more nodes, or a larger batch, searched for a job that does not fit as it is.

Both are searched, not extrapolated: what is found are legal layouts, evaluated as any other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from planner.choose.search import candidates
from planner.cost.memory.footprint import Footprints, footprints
from planner.cost.question import Question
from planner.describe.layout import RECOMPUTE

__all__ = ["doublings", "shared_batch"]

Taken = dict[str, Footprints]
"""What layouts take, by framework."""
_DOUBLINGS = 6


def doublings(questions: dict[str, Question], nodes: int) -> Iterator[tuple[int, Taken]]:
    """Layouts on two, four, ... 64 times the nodes, as far as the machine has them.

    They recompute as much as they can: that takes the least memory.
    """
    leanest = {
        name: replace(
            question,
            framework=question.framework.replaced(
                recompute=[max(question.framework.recompute, key=RECOMPUTE.index)]
            ),
        )
        for name, question in questions.items()
    }
    first = next(iter(questions.values()))
    for count in (nodes * 2**power for power in range(1, _DOUBLINGS + 1)):
        if count <= first.machine.num_nodes.value:
            yield count, _taken(leanest, count)


def shared_batch(questions: dict[str, Question], nodes: int) -> tuple[int, Taken]:
    """The next batch that all devices share evenly, and data-parallel layouts for it."""
    first = next(iter(questions.values()))
    world, batch = nodes * first.machine.node.num_devices, first.workload.global_batch
    wanted = -(-batch // world) * world
    if wanted == batch:
        return wanted, {}
    workload = first.workload.replaced(global_batch=wanted)
    alone = {
        name: replace(
            question,
            workload=workload,
            framework=question.framework.replaced(axes=[]),
        )
        for name, question in questions.items()
    }
    return wanted, _taken(alone, nodes)


def _taken(questions: dict[str, Question], nodes: int) -> Taken:
    taken = {}
    for name, question in questions.items():
        layouts, _ = candidates(question, nodes * question.machine.node.num_devices)
        taken[name] = footprints(question, layouts)
    return taken
