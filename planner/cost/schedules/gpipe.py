"""GPipe: all forward passes, then all backward passes."""

from __future__ import annotations

import numpy as np

from planner.cost.arrays import Float, Int
from planner.cost.schedules.schedule import PipelinePasses, PipelineSchedule, Task, idle_s

__all__ = ["GPIPE"]


def _order(p: int, stage: int, m: int, v: int) -> list[Task]:
    forward = [Task(stage, "forward", i, 0) for i in range(m)]
    return forward + [Task(stage, "backward", i, 0) for i in reversed(range(m))]


def _in_flight(p: Int, v: Int, m: Int, stage: Int) -> Float:
    return (m + 0 * stage).astype(float)


def _length_s(p: Int, v: Int, m: Int, pipeline: PipelinePasses) -> Float:
    """Every pass of one micro-batch, and those of the others on the stage that is slowest in them:
    forward and backward passes are two flows, one after the other [s].

    Exact for any stages.
    """
    stages = pipeline.at_stage
    longest_passes = np.max(stages.forward_s, axis=-1) + np.max(stages.backward_s, axis=-1)
    return pipeline.all_stages.total_s + (m - 1) * longest_passes


GPIPE = PipelineSchedule(
    name="gpipe",
    source="Huang et al. 2019, arXiv:1811.06965",
    order=_order,
    in_flight=_in_flight,
    length_s=_length_s,
    least_idle_s=idle_s,
    runs_forward_ahead=True,
    no_better_than="1f1b",
)
