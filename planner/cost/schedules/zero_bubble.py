"""Zero-bubble H1: weight gradients fill the idle time of a stage."""

from __future__ import annotations

import numpy as np

from planner.cost.arrays import Float, Int
from planner.cost.schedules.schedule import Passes, PipelineSchedule, Task

__all__ = ["ZERO_BUBBLE"]


def _order(p: int, stage: int, m: int, v: int) -> list[Task]:
    """Weight gradients wait until p micro-batches are in flight on every stage."""
    warm_up = min(p - stage, m)
    order = [Task(stage, "forward", i, 0) for i in range(warm_up)]
    started, weighed = warm_up, 0
    for done in range(m):
        order.append(Task(stage, "backward", done, 0))
        if done >= stage:
            order.append(Task(stage, "weight_gradient", weighed, 0))
            weighed += 1
        if started < m:
            order.append(Task(stage, "forward", started, 0))
            started += 1
    return order + [Task(stage, "weight_gradient", i, 0) for i in range(weighed, m)]


def _in_flight(p: Int, v: Int, m: Int, stage: Int) -> Float:
    """As much as 1F1B's first stage."""
    return np.minimum(m, p + 0 * stage).astype(float)


def _bubble_s(p: Int, v: Int, m: Int, slowest: Passes, other_stages: Passes) -> Float:
    """A stage waits for no weight gradient of another, and does its own meanwhile [s].

    With equal stages and m >= p the bubble is (p - 1)(t_f + t_b - 2 t_w), t_b including t_w.
    """
    return other_stages.total_s - other_stages.weight_s - (np.minimum(m, p) - 1) * slowest.weight_s


ZERO_BUBBLE = PipelineSchedule(
    name="zero-bubble",
    source="Qi et al. 2023, arXiv:2401.10241, table 1",
    order=_order,
    in_flight=_in_flight,
    bubble_s=_bubble_s,
    defers_weight_gradients=True,
)
