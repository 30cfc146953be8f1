"""Bubble: pipeline schedules by name, and idle time and micro-batches in flight of layouts."""

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from planner.cost.arrays import Float, Int, Mask
from planner.cost.schedules.one_f_one_b import GPIPE, INTERLEAVED, ONE_F_ONE_B
from planner.cost.schedules.schedule import PipelinePasses, PipelineSchedule, idle_s
from planner.cost.schedules.zero_bubble import DUAL_PIPE_V, ZERO_BUBBLE, ZERO_BUBBLE_V
from planner.cost.shards.layouts import Layouts

REGISTRY: dict[str, PipelineSchedule] = {
    schedule.name: schedule
    for schedule in (ONE_F_ONE_B, GPIPE, INTERLEAVED, ZERO_BUBBLE, ZERO_BUBBLE_V, DUAL_PIPE_V)
}


def schedule_by_name(name: str) -> PipelineSchedule:
    """Return the schedule of this name; 1F1B if the name is `none` (a single stage)."""
    return REGISTRY.get(name, ONE_F_ONE_B)


def in_flight(layouts: Layouts, stage: ArrayLike) -> Float:
    """Micro-batches whose activations a stage holds at its peak [1].

    Counted: each schedule's own closed form. Left out: receive buffers. pipeline.md#pipeline.
    """
    p, v, m = layouts.pp, layouts.vpp, layouts.num_microbatches
    first, *further_schedules = REGISTRY.values()
    stage = np.asarray(stage)
    micro_batches = first.in_flight(p, v, m, stage)
    for schedule in further_schedules:
        if np.any(runs_schedule := layouts.uses_schedule(schedule.name)):
            micro_batches = np.where(
                runs_schedule, schedule.in_flight(p, v, m, stage), micro_batches
            )
    return np.where(layouts.piped, micro_batches, 1.0)


def chunks_in_flight(layouts: Layouts, stage: ArrayLike, layers: Float) -> Float:
    """Micro-batches whose activations a stage holds at its peak, by chunk [1].

    `layers`: layers of each chunk; they and the result have the shape (chunks, ...). Counted: the
    schedule's order. Left out: receive buffers. pipeline.md#pipeline.
    """
    p, v, m, stage = layouts.pp, layouts.vpp, layouts.num_microbatches, np.asarray(stage)
    micro_batches = np.zeros(np.shape(layers))
    micro_batches[0] = in_flight(layouts, stage)
    for schedule in REGISTRY.values():
        runs_schedule = layouts.uses_schedule(schedule.name) & layouts.piped
        if schedule.in_flight_by_chunk and np.any(runs_schedule):
            on = np.broadcast_to(runs_schedule, micro_batches.shape[1:])
            p_on, v_on, m_on, stage_on = (
                np.broadcast_to(each, on.shape)[on] for each in (p, v, m, stage)
            )
            micro_batches[:, on] = schedule.in_flight_by_chunk(
                p_on, v_on, m_on, stage_on, layers[:, on]
            )
    return micro_batches


def chunks_waiting(layouts: Layouts, stage: ArrayLike, layers: Float) -> tuple[Float, Float]:
    """Passes of each chunk held in the cool-down, and those with pending weight gradients [1].

    Shapes as in `chunks_in_flight`. Counted: the moment with most pending weight gradients; the
    second result is part of the first, with its input gradients done. Left out: schedules that do
    not defer weight gradients (0). pipeline.md#pipeline.
    """
    p, v, m, stage = layouts.pp, layouts.vpp, layouts.num_microbatches, np.asarray(stage)
    in_flight_passes = waiting = np.zeros(np.shape(layers))
    for schedule in REGISTRY.values():
        runs_schedule = layouts.uses_schedule(schedule.name) & layouts.piped
        if schedule.waiting and np.any(runs_schedule):
            passes = schedule.waiting(p, v, m, stage, layers)
            in_flight_passes, waiting = (
                np.where(runs_schedule, passes[0], in_flight_passes),
                np.where(runs_schedule, passes[1], waiting),
            )
    return in_flight_passes, waiting


def bubble_s(layouts: Layouts, pipeline: PipelinePasses) -> Float:
    """Idle time of the slowest stage while the pipeline fills and drains [s].

    `pipeline`: passes of the candidate stages (..., S), which include the slowest. Counted: with
    equal stages (p - 1)(t_f + t_b) / v (Narayanan et al. 2021, arXiv:2104.04473, section 2.2), less
    work that fills it; the longest path through unequal stages, if the schedule has a formula for
    it. Left out: the optimizer. pipeline.md#pipeline.
    """
    shape = (layouts.pp, layouts.vpp, layouts.num_microbatches)
    slowest = pipeline.at_stage.at(np.argmax(pipeline.at_stage.total_s, axis=-1)[..., None])
    other_stages = pipeline.all_stages.minus(slowest)
    idle = idle_s(*shape, slowest, other_stages)
    for schedule in REGISTRY.values():
        if not np.any(runs_schedule := layouts.uses_schedule(schedule.name) & layouts.piped):
            continue
        if schedule.length_s is not None:
            length = schedule.length_s(*shape, pipeline)
            bubble = length - layouts.num_microbatches * slowest.total_s
        else:
            bubble = schedule.bubble_s(*shape, slowest, other_stages)
        idle = np.where(runs_schedule, np.maximum(bubble, 0.0), idle)
    return idle


def interleaved(layouts: Layouts) -> Mask:
    """True if stages hold several interleaved chunks of the model."""
    return _any_of(layouts, lambda schedule: schedule.interleaves)


def runs_forward_ahead(layouts: Layouts) -> Mask:
    """True if the last stage runs all forward passes before its first backward pass."""
    return _any_of(layouts, lambda schedule: schedule.runs_forward_ahead)


def defers_weight_gradients(layouts: Layouts) -> Mask:
    """True if weight gradients are separate passes."""
    return _any_of(layouts, lambda schedule: schedule.defers_weight_gradients)


def fewest_micro_batches(layouts: Layouts) -> Int:
    """Minimum number of micro-batches of the schedule [1].

    Counted: two per stage if the schedule needs two rounds. Left out: the multiples of the stages
    that interleaving requires. pipeline.md#pipeline.
    """
    rounds = _any_of(layouts, lambda schedule: schedule.needs_two_rounds)
    return np.where(rounds, 2 * layouts.pp, 1)


def _any_of(layouts: Layouts, has_trait: Callable[[PipelineSchedule], bool]) -> Mask:
    names = [name for name, schedule in REGISTRY.items() if has_trait(schedule)]
    return np.any([layouts.uses_schedule(name) for name in names], axis=0)
