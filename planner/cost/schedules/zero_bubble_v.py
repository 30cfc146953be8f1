"""ZB-V: two chunks a stage, down the stages and back up; weight gradients fill the cool-down."""

from __future__ import annotations

from collections import Counter

import numpy as np

from planner.cost.arrays import Float, Int
from planner.cost.schedules.schedule import Kind, Passes, PipelineSchedule, Task, pair

__all__ = ["ZERO_BUBBLE_V"]


def _order(p: int, stage: int, m: int, v: int) -> list[Task]:
    """torch's order for 2 p - 1 micro-batches or more; of fewer, what is left of it."""
    number: Counter[tuple[Kind, int]] = Counter()
    order: list[Task] = []

    def add(kind: Kind, chunk: int) -> None:
        order.append(Task(stage, kind, number[kind, chunk], chunk))
        number[kind, chunk] += 1

    def whole_backward(chunk: int) -> None:
        add("backward", chunk)
        add("weight_gradient", chunk)

    full = max(2 * p - 1, m)
    for chunk in [0] * (2 * (p - stage) - 1) + [1, 0] * stage:
        add("forward", chunk)
    for _ in range(p - stage):
        add("forward", 1)
        whole_backward(1)
    while number["forward", 1] < full:
        if number["forward", 0] < full:
            add("forward", 0)
        whole_backward(0)
        add("forward", 1)
        whole_backward(1)
    for chunk in [0, 1] * stage:
        add("backward", chunk)
    for _ in range(p - stage):
        add("backward", 0)
        add("weight_gradient", 0)
    for chunk in (1, 0):
        while number["weight_gradient", chunk] < full:
            add("weight_gradient", chunk)
    return [task for task in order if task.micro_batch < m]


def _in_flight(p: Int, v: Int, m: Int, stage: Int) -> Float:
    """2 p passes of half a stage, on every stage."""
    return (np.minimum(m, 2 * p - stage - 1) + np.minimum(m, stage + 1)) / 2


def _of_chunks(p: Int, v: Int, m: Int, stage: Int, layers: Float) -> Float:
    """2 p - i - 1 passes of the first chunk and i + 1 of the second, or one more and one less."""
    first, second = np.minimum(m, 2 * p - stage - 1), np.minimum(m, stage + 1)
    # a forward pass of the first chunk opens each round, one of the second follows its backward
    more = (m >= 2 * p - stage) & (layers[0] > layers[1])
    return pair(first + more, second - more, layers)


def _waiting(p: Int, v: Int, m: Int, stage: Int, layers: Float) -> tuple[Float, Float]:
    """p passes of the first chunk and i of the second open the cool-down, whose i rounds leave all
    weight gradients to later, as the backward pass after them does until it is done."""
    late = np.maximum(m, 2 * p - 1) - m
    first, second = np.clip(p - late, 0, None), np.clip(stage - late, 0, None)
    in_flight_passes = pair(first, second, layers)
    return in_flight_passes, pair(np.minimum(first, stage + 1), second, layers)


def _bubble_s(p: Int, v: Int, m: Int, slowest: Passes, other_stages: Passes) -> Float:
    """What fills and drains the V, less what of it further micro-batches fill [s].

    With equal chunks, whose weight gradients take no longer than a forward pass and that no longer
    than the rest of a backward pass, and m >= 2 p - 1 it is (p - 1) max(t_i, 2 (t_i - t_w)), t_i
    being a chunk's backward pass without its weight gradients.
    """
    hops = np.maximum(p - 1, 1)
    filled = np.clip(m - p, 0, hops) / hops
    missing = np.maximum(p - m, 0) / hops
    forward, back, weight = (
        x / v for x in (other_stages.forward_s, other_stages.input_s, other_stages.weight_s)
    )
    return 2 * back + 2 * missing * forward - filled * np.minimum(back, 2 * weight)


ZERO_BUBBLE_V = PipelineSchedule(
    name="zero-bubble-v",
    source="Qi et al. 2023, arXiv:2401.10241, section 6; torch 2.13, ScheduleZBVZeroBubble",
    order=_order,
    in_flight=_in_flight,
    of_chunks=_of_chunks,
    waiting=_waiting,
    bubble_s=_bubble_s,
    defers_weight_gradients=True,
)
