"""Registry: every pipeline schedule by its name."""

from __future__ import annotations

from planner.cost.schedules.dual_pipe_v import DUAL_PIPE_V
from planner.cost.schedules.gpipe import GPIPE
from planner.cost.schedules.interleaved import INTERLEAVED
from planner.cost.schedules.one_f_one_b import ONE_F_ONE_B
from planner.cost.schedules.schedule import PipelineSchedule
from planner.cost.schedules.zero_bubble import ZERO_BUBBLE
from planner.cost.schedules.zero_bubble_v import ZERO_BUBBLE_V

__all__ = ["REGISTRY", "schedule_by_name"]

REGISTRY: dict[str, PipelineSchedule] = {
    schedule.name: schedule
    for schedule in (ONE_F_ONE_B, GPIPE, INTERLEAVED, ZERO_BUBBLE, ZERO_BUBBLE_V, DUAL_PIPE_V)
}


def schedule_by_name(name: str) -> PipelineSchedule:
    """A schedule by name; 1F1B's for one stage, which has none.

    >>> schedule_by_name("gpipe").source
    'Huang et al. 2019, arXiv:1811.06965'
    """
    return REGISTRY.get(name, ONE_F_ONE_B)
