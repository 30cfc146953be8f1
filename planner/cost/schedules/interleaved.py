"""Interleaved 1F1B: every stage holds several chunks of the model."""

from __future__ import annotations

import numpy as np

from planner.cost.arrays import Float, Int
from planner.cost.schedules.schedule import PipelineSchedule, Task, one_each

__all__ = ["INTERLEAVED"]


def _order(p: int, stage: int, m: int, v: int) -> list[Task]:
    """Megatron-LM's order: groups of p micro-batches pass chunk 0, then chunk 1, ..."""
    forward, backward = [], []
    for first in range(0, m, p):
        for chunk in range(v):
            forward += [Task(stage, "forward", first + i, chunk) for i in range(p)]
            backward += [Task(stage, "backward", first + i, v - 1 - chunk) for i in range(p)]
    if m == p:
        return forward + backward
    return one_each(forward, backward, min(2 * (p - stage - 1) + (v - 1) * p, m * v))


def _in_flight(p: Int, v: Int, m: Int, stage: Int) -> Float:
    """2 (p - i - 1) + (v - 1) p + 1 chunks of 1/v stage."""
    chunks = 2 * (p - stage - 1) + (v - 1) * p + 1
    # with as many micro-batches as stages every forward pass precedes the first backward
    return np.where(m == p, m, np.minimum(chunks / v, m))


INTERLEAVED = PipelineSchedule(
    name="interleaved-1f1b",
    source="Narayanan et al. 2021, arXiv:2104.04473, section 2.2",
    order=_order,
    in_flight=_in_flight,
    interleaves=True,
)
