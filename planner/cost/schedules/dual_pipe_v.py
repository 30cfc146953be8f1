"""DualPipeV: two chunks a stage, down the stages and back up; passes run in pairs."""

from __future__ import annotations

from collections import Counter, deque

import numpy as np

from planner.cost.arrays import Float, Int
from planner.cost.schedules.schedule import Kind, Passes, PipelineSchedule, Task, pair

__all__ = ["DUAL_PIPE_V"]


class _Order:
    """Groups of tasks of a stage as they are added; weight gradients wait in a queue."""

    def __init__(self, stage: int) -> None:
        self.stage = stage
        self.groups: list[tuple[Task, ...]] = []
        self._number: Counter[tuple[Kind, int]] = Counter()
        self._waiting: deque[Task] = deque()

    def forward(self, chunk: int) -> None:
        self.groups.append((self._next("forward", chunk),))

    def backward(self, chunk: int, *, later: bool = False) -> None:
        """A backward pass, whose weight gradients come with it or are left to later."""
        tasks = self._backward_and_weights(chunk)
        if later:
            self._waiting.append(tasks[1])
        self.groups.append(tasks[:1] if later else tasks)

    def both(self, ahead: int, back: int) -> None:
        """A forward pass and a backward pass that run together."""
        self.groups.append((self._next("forward", ahead), *self._backward_and_weights(back)))

    def weights(self) -> None:
        if self._waiting:
            self.groups.append((self._waiting.popleft(),))

    def _backward_and_weights(self, chunk: int) -> tuple[Task, Task]:
        task = self._next("backward", chunk)
        return task, task._replace(kind="weight_gradient")

    def _next(self, kind: Kind, chunk: int) -> Task:
        task = Task(self.stage, kind, self._number[kind, chunk], chunk)
        self._number[kind, chunk] += 1
        return task


def _groups(p: int, stage: int, m: int, v: int) -> list[tuple[Task, ...]]:
    """torch's order for 2 p micro-batches or more; of fewer, what is left of it."""
    order, full, after = _Order(stage), max(2 * p, m), p - stage - 1
    for chunk in [0] * (2 * after) + [0, 1] * (stage + 1):
        order.forward(chunk)
    for _ in range(after):
        order.backward(1, later=True)
        order.weights()
        order.forward(1)
    for number in range(full - 2 * p + stage + 1):
        if number == 0 and after == 0:
            # apart, so that nothing waits for the backward pass that turns here
            order.forward(0)
            order.backward(1)
        else:
            order.both(0, 1)
        order.both(1, 0)
    for _ in range(after):
        order.backward(1)
        order.both(1, 0)
    for number, chunk in enumerate([1, 0] * (stage + 1)):
        order.backward(chunk, later=number > stage)
    for _ in range(after):
        order.weights()
        order.backward(0, later=True)
    for _ in range(stage + 1):
        order.weights()
    existing = [tuple(task for task in group if task.micro_batch < m) for group in order.groups]
    return [group for group in existing if group]


def _order(p: int, stage: int, m: int, v: int) -> list[Task]:
    return [task for group in _groups(p, stage, m, v) for task in group]


def _in_flight(p: Int, v: Int, m: Int, stage: Int) -> Float:
    """2 p + 1 passes of half a stage, on every stage."""
    return (np.minimum(m, 2 * p - stage) + np.minimum(m, stage + 1)) / 2


def _of_chunks(p: Int, v: Int, m: Int, stage: Int, layers: Float) -> Float:
    """2 p - i passes of the first chunk and i + 1 of the second."""
    return pair(np.minimum(m, 2 * p - stage), np.minimum(m, stage + 1), layers)


def _waiting(p: Int, v: Int, m: Int, stage: Int, layers: Float) -> tuple[Float, Float]:
    """p passes of the first chunk and i + 1 of the second open the cool-down: backward passes of
    either in turn, of which the first i + 1 are whole and leave nothing to later."""
    half, more = (stage + 1) // 2, (stage + 2) // 2
    return pair(p - half, half, layers), pair(more, half, layers)


def _bubble_s(p: Int, v: Int, m: Int, slowest: Passes, other_stages: Passes) -> Float:
    """What fills and drains the V, less what weight gradients fill [s].

    With equal chunks (p - 1) max(2 t_f, 2 t_f + t_i - t_w) or (p - 1)(t_f + 2 t_i - t_w) - t_f,
    what is more; where all three are as long it is DeepSeek's (p - 1)(F&B + B - 3 W).
    """
    forward, back, weight = (
        x / v for x in (other_stages.forward_s, other_stages.input_s, other_stages.weight_s)
    )
    short = 2 * forward + np.maximum(back - weight, 0.0)
    return np.maximum(short, forward + 2 * back - weight - slowest.forward_s / v)


DUAL_PIPE_V = PipelineSchedule(
    name="dualpipe-v",
    source="DeepSeek-AI 2024, arXiv:2412.19437, section 3.2.1; deepseek-ai/DualPipe, dualpipev.py; "
    "torch 2.13, ScheduleDualPipeV",
    order=_order,
    groups=_groups,
    in_flight=_in_flight,
    of_chunks=_of_chunks,
    waiting=_waiting,
    bubble_s=_bubble_s,
    defers_weight_gradients=True,
    needs_two_rounds=True,
)
