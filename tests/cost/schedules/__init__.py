"""The closed form of a schedule's length, from what each stage takes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from planner.cost.schedules.bubble import bubble_s
from planner.cost.schedules.schedule import Passes, PipelinePasses
from planner.cost.schedules.simulate import StageTime
from planner.cost.shards.layouts import Layouts
from planner.describe.layout import SCHEDULES

__all__ = ["length_s"]


def length_s(schedule: str, m: int, v: int, times: Sequence[StageTime]) -> float:
    """All passes of a step by the closed form, whose stages' chunks are alike [s]."""
    layouts = Layouts.broadcast(
        pp=len(times), vpp=v, grad_accumulation=m, schedule=SCHEDULES.index(schedule)
    )
    stage = np.arange(len(times))
    once = np.array([t.forward_s + t.backward_s + t.recompute_s for t in times])
    forward = np.array([t.forward_s for t in times])
    weights = np.array([t.weight_gradient_s for t in times])

    def passes(some: object) -> Passes:
        chosen = np.asarray(some)
        return Passes(chosen @ once, chosen @ forward, chosen @ weights)

    around = PipelinePasses(
        stage,
        Passes(once, forward, weights),
        passes(np.tri(len(times), k=-1) / v),
        passes(np.tri(len(times), k=-1).T / v),
        passes(np.ones(len(times))),
    )
    return m * float(np.max(once)) + float(bubble_s(layouts, around))
