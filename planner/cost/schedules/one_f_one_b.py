"""1F1B: after a warm-up one forward and one backward pass in turn."""

from __future__ import annotations

import numpy as np

from planner.cost.arrays import Float, Int
from planner.cost.schedules.schedule import PipelineSchedule, Task, one_each

__all__ = ["ONE_F_ONE_B"]


def _order(p: int, stage: int, m: int, v: int) -> list[Task]:
    forward = [Task(stage, "forward", i, 0) for i in range(m)]
    backward = [Task(stage, "backward", i, 0) for i in range(m)]
    return one_each(forward, backward, min(p - stage - 1, m))


def _in_flight(p: Int, v: Int, m: Int, stage: Int) -> Float:
    """min(m, p - i)."""
    return np.minimum(m, p - stage).astype(float)


ONE_F_ONE_B = PipelineSchedule(
    name="1f1b",
    source="Narayanan et al. 2021, arXiv:2104.04473, section 2.2",
    order=_order,
    in_flight=_in_flight,
)
