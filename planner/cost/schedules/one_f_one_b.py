"""1F1B: after a warm-up one forward and one backward pass in turn."""

from __future__ import annotations

import numpy as np

from planner.cost.arrays import Float, Int
from planner.cost.schedules.schedule import Passes, PipelinePasses, PipelineSchedule, Task, one_each

__all__ = ["ONE_F_ONE_B"]


def _order(p: int, stage: int, m: int, v: int) -> list[Task]:
    forward = [Task(stage, "forward", i, 0) for i in range(m)]
    backward = [Task(stage, "backward", i, 0) for i in range(m)]
    return one_each(forward, backward, min(p - stage - 1, m))


def _in_flight(p: Int, v: Int, m: Int, stage: Int) -> Float:
    """min(m, p - i)."""
    return np.minimum(m, p - stage).astype(float)


def _length_s(p: Int, v: Int, m: Int, pipeline: PipelinePasses) -> Float:
    """The longest way through one of the stages [s].

    It begins with the first micro-batch on its way down to the stage and ends with the last one's
    way back up. Between them the stage works m times. To the first backward pass it waits while the
    first micro-batch goes on to the last stage and comes back, but has w forward passes to do
    meanwhile; and so for the last one, with w backward passes. Of few micro-batches one waits
    alone.
    """
    p, m = p[..., None], m[..., None]
    stages, behind = pipeline.at_stage, pipeline.after.total_s
    ahead = p - 1 - pipeline.stage
    forward, back = stages.forward_s, stages.backward_s
    both = np.maximum(behind - ahead * forward, 0.0) + np.maximum(behind - ahead * back, 0.0)
    few_micro_batches = np.maximum(behind - (m - 1) * np.minimum(forward, back), 0.0)
    waits = np.where(m > ahead + 1, both, few_micro_batches)
    return np.max(pipeline.before.total_s + m * stages.total_s + waits, axis=-1)


def _least_idle_s(p: Int, v: Int, m: Int, slowest: Passes, other_stages: Passes) -> Float:
    """What the way through the slowest stage adds, wherever it stands [s].

    Behind it both waits are D - w t_f and D - w t_b at least, which miss w t - D of D, and no more
    than all stages are faster than p of the slowest one. Of few micro-batches one waits, with
    m - 1 passes of half the stage's time at most to do.
    """
    faster = (p - 1) * slowest.total_s - other_stages.total_s
    few_micro_batches = (m - 1) * slowest.total_s / 2
    return np.maximum(other_stages.total_s - np.where(m > p, faster, few_micro_batches), 0.0)


ONE_F_ONE_B = PipelineSchedule(
    name="1f1b",
    source="Narayanan et al. 2021, arXiv:2104.04473, section 2.2",
    order=_order,
    in_flight=_in_flight,
    length_s=_length_s,
    least_idle_s=_least_idle_s,
)
