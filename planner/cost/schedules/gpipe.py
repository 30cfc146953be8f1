"""GPipe: all forward passes, then all backward passes."""

from __future__ import annotations

from planner.cost.arrays import Float, Int
from planner.cost.schedules.schedule import PipelineSchedule, Task

__all__ = ["GPIPE"]


def _order(p: int, stage: int, m: int, v: int) -> list[Task]:
    forward = [Task(stage, "forward", i, 0) for i in range(m)]
    return forward + [Task(stage, "backward", i, 0) for i in reversed(range(m))]


def _in_flight(p: Int, v: Int, m: Int, stage: Int) -> Float:
    return (m + 0 * stage).astype(float)


GPIPE = PipelineSchedule(
    name="gpipe",
    source="Huang et al. 2019, arXiv:1811.06965",
    order=_order,
    in_flight=_in_flight,
    runs_forward_ahead=True,
    no_better_than="1f1b",
)
