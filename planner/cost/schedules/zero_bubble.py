"""Zero bubble: ZB-H1, ZB-V and DualPipeV, with weight gradients as separate passes."""

from collections import Counter, deque

import numpy as np

from planner.cost.arrays import Float, Int
from planner.cost.schedules.schedule import Kind, Passes, PipelineSchedule, Task, pair


def _h1_order(p: int, stage: int, m: int, v: int) -> list[Task]:
    """Order of ZB-H1: stage i defers weight gradients until its backward pass i, from 0."""
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


def _h1_in_flight(p: Int, v: Int, m: Int, stage: Int) -> Float:
    """Micro-batches in flight: as many as on the first stage of 1F1B."""
    return np.minimum(m, p + 0 * stage).astype(float)


def _h1_bubble_s(p: Int, v: Int, m: Int, slowest: Passes, other_stages: Passes) -> Float:
    """Bubble without the other stages' weight gradients, less the stage's own that fill it [s]."""
    # with equal stages and m >= p: (p - 1)(t_f + t_b - 2 t_w), t_b including t_w
    return other_stages.total_s - other_stages.weight_s - (np.minimum(m, p) - 1) * slowest.weight_s


ZERO_BUBBLE = PipelineSchedule(
    name="zero-bubble",
    source="Qi et al. 2023, arXiv:2401.10241, table 1",
    order=_h1_order,
    in_flight=_h1_in_flight,
    bubble_s=_h1_bubble_s,
    defers_weight_gradients=True,
)


def _v_order(p: int, stage: int, m: int, v: int) -> list[Task]:
    """Order of torch for 2 p - 1 micro-batches or more; with fewer, without the missing ones."""
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


def _v_in_flight(p: Int, v: Int, m: Int, stage: Int) -> Float:
    """Micro-batches in flight: 2 p passes of half a stage, on every stage."""
    return (np.minimum(m, 2 * p - stage - 1) + np.minimum(m, stage + 1)) / 2


def _v_in_flight_by_chunk(p: Int, v: Int, m: Int, stage: Int, layers: Float) -> Float:
    """Passes in flight: 2 p - i - 1 of chunk one, i + 1 of chunk two, or one more and one less."""
    first, second = np.minimum(m, 2 * p - stage - 1), np.minimum(m, stage + 1)
    # each round starts with a forward pass of the first chunk; the second's follows its backward
    more = (m >= 2 * p - stage) & (layers[0] > layers[1])
    return pair(first + more, second - more, layers)


def _v_waiting(p: Int, v: Int, m: Int, stage: Int, layers: Float) -> tuple[Float, Float]:
    """Passes held in the cool-down, p of chunk one and i of chunk two, and those deferred."""
    late = np.maximum(m, 2 * p - 1) - m
    first, second = np.clip(p - late, 0, None), np.clip(stage - late, 0, None)
    in_flight_passes = pair(first, second, layers)
    return in_flight_passes, pair(np.minimum(first, stage + 1), second, layers)


def _v_bubble_s(p: Int, v: Int, m: Int, slowest: Passes, other_stages: Passes) -> Float:
    """Bubble: time to fill and drain the V, less the part that further micro-batches fill [s]."""
    hops = np.maximum(p - 1, 1)
    filled = np.clip(m - p, 0, hops) / hops
    missing = np.maximum(p - m, 0) / hops
    forward, back, weight = (
        x / v for x in (other_stages.forward_s, other_stages.input_s, other_stages.weight_s)
    )
    # with equal chunks, t_w <= t_f <= t_i and m >= 2 p - 1: (p - 1) max(t_i, 2 (t_i - t_w))
    return 2 * back + 2 * missing * forward - filled * np.minimum(back, 2 * weight)


ZERO_BUBBLE_V = PipelineSchedule(
    name="zero-bubble-v",
    source="Qi et al. 2023, arXiv:2401.10241, section 6; torch 2.13, ScheduleZBVZeroBubble",
    order=_v_order,
    in_flight=_v_in_flight,
    in_flight_by_chunk=_v_in_flight_by_chunk,
    waiting=_v_waiting,
    bubble_s=_v_bubble_s,
    defers_weight_gradients=True,
)


class _DualOrder:
    """Builder of a stage's task groups, with a queue of deferred weight gradients."""

    def __init__(self, stage: int) -> None:
        self.stage = stage
        self.groups: list[tuple[Task, ...]] = []
        self._number: Counter[tuple[Kind, int]] = Counter()
        self._waiting: deque[Task] = deque()

    def forward(self, chunk: int) -> None:
        self.groups.append((self._next("forward", chunk),))

    def backward(self, chunk: int, *, later: bool = False) -> None:
        """Add a backward pass, with its weight gradients, or without if they come `later`."""
        tasks = self._backward_and_weights(chunk)
        if later:
            self._waiting.append(tasks[1])
        self.groups.append(tasks[:1] if later else tasks)

    def both(self, ahead: int, back: int) -> None:
        """Add a forward pass and a backward pass that run together."""
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


def _dual_groups(p: int, stage: int, m: int, v: int) -> list[tuple[Task, ...]]:
    """Order of torch for 2 p micro-batches or more; with fewer, without the missing ones."""
    order, full, after = _DualOrder(stage), max(2 * p, m), p - stage - 1
    for chunk in [0] * (2 * after) + [0, 1] * (stage + 1):
        order.forward(chunk)
    for _ in range(after):
        order.backward(1, later=True)
        order.weights()
        order.forward(1)
    for number in range(full - 2 * p + stage + 1):
        if number == 0 and after == 0:
            # separate, so that nothing waits for the backward pass that turns on this stage
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


def _dual_order(p: int, stage: int, m: int, v: int) -> list[Task]:
    return [task for group in _dual_groups(p, stage, m, v) for task in group]


def _dual_in_flight(p: Int, v: Int, m: Int, stage: Int) -> Float:
    """Micro-batches in flight: 2 p + 1 passes of half a stage, on every stage."""
    return (np.minimum(m, 2 * p - stage) + np.minimum(m, stage + 1)) / 2


def _dual_in_flight_by_chunk(p: Int, v: Int, m: Int, stage: Int, layers: Float) -> Float:
    """Passes in flight: 2 p - i of the first chunk and i + 1 of the second."""
    return pair(np.minimum(m, 2 * p - stage), np.minimum(m, stage + 1), layers)


def _dual_waiting(p: Int, v: Int, m: Int, stage: Int, layers: Float) -> tuple[Float, Float]:
    """Passes held in the cool-down, p of chunk one and i + 1 of chunk two, and those deferred."""
    half, more = (stage + 1) // 2, (stage + 2) // 2
    return pair(p - half, half, layers), pair(more, half, layers)


def _dual_bubble_s(p: Int, v: Int, m: Int, slowest: Passes, other_stages: Passes) -> Float:
    """Bubble: time to fill and drain the V, less the part that weight gradients fill [s]."""
    forward, back, weight = (
        x / v for x in (other_stages.forward_s, other_stages.input_s, other_stages.weight_s)
    )
    # with equal passes it is DeepSeek's (p - 1)(F&B + B - 3 W)
    short = 2 * forward + np.maximum(back - weight, 0.0)
    return np.maximum(short, forward + 2 * back - weight - slowest.forward_s / v)


DUAL_PIPE_V = PipelineSchedule(
    name="dualpipe-v",
    source="DeepSeek-AI 2024, arXiv:2412.19437, section 3.2.1; deepseek-ai/DualPipe, dualpipev.py; "
    "torch 2.13, ScheduleDualPipeV",
    order=_dual_order,
    groups=_dual_groups,
    in_flight=_dual_in_flight,
    in_flight_by_chunk=_dual_in_flight_by_chunk,
    waiting=_dual_waiting,
    bubble_s=_dual_bubble_s,
    defers_weight_gradients=True,
    needs_two_rounds=True,
)
