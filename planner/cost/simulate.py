"""Simulate: one step of a pipeline, event by event.

Each stage works through a fixed order of passes; a pass starts when the stage is free and what
it needs has arrived. With equal stages the length equals the closed form of `pipeline.bubble_s`.

Orders: GPipe (Huang et al. 2019, arXiv:1811.06965), 1F1B and interleaved 1F1B (Narayanan et al.
2021, arXiv:2104.04473, section 2.2), zero-bubble H1 (Qi et al. 2023, arXiv:2401.10241).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from planner.describe.layout import Schedule
from planner.errors import LayoutError

__all__ = ["Event", "StageTime", "Timeline", "simulate"]

Kind = Literal["forward", "backward", "weight_gradient"]
Drawn = Literal["forward", "recompute", "backward", "weight_gradient", "communication"]


@dataclass(frozen=True, slots=True)
class StageTime:
    """Seconds of one micro-batch on one stage, all its chunks together."""

    forward_s: float
    backward_s: float
    """Without recompute; weight gradients included."""
    recompute_s: float = 0.0
    weight_gradient_s: float = 0.0
    """Part of backward that zero-bubble schedules move."""
    send_s: float = 0.0
    """Transfer of one chunk's activations to the next stage."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something a stage does."""

    stage: int
    micro_batch: int
    chunk: int
    kind: Drawn
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class _Pass:
    kind: Kind
    micro_batch: int
    chunk: int


@dataclass(frozen=True, slots=True)
class Timeline:
    """Everything that happens in one step, by stage and time."""

    num_stages: int
    num_micro_batches: int
    events: tuple[Event, ...]

    @property
    def makespan_s(self) -> float:
        """End of the last pass [s]."""
        return max(event.end_s for event in self.events)

    def busy_s(self, stage: int) -> float:
        """Time that a stage computes [s]."""
        return sum(
            e.end_s - e.start_s
            for e in self.events
            if e.stage == stage and e.kind != "communication"
        )

    @property
    def idle_fraction(self) -> float:
        """Idle time of all stages over all time."""
        busy = sum(self.busy_s(stage) for stage in range(self.num_stages))
        return 1 - busy / (self.num_stages * self.makespan_s)

    def in_flight(self, stage: int) -> tuple[list[float], list[float]]:
        """Times, and from each on the micro-batches whose activations the stage holds.

        A pass holds its activations from the start of its forward to the end of its last
        backward part; one of `v` chunks counts 1/v.
        """
        mine = [e for e in self.events if e.stage == stage and e.kind != "communication"]
        chunks = 1 + max(e.chunk for e in mine)
        opened = {(e.micro_batch, e.chunk): e.start_s for e in mine if e.kind == "forward"}
        closed: dict[tuple[int, int], float] = {}
        for e in mine:
            key = (e.micro_batch, e.chunk)
            closed[key] = max(closed.get(key, 0.0), e.end_s)
        # what ends at an instant is freed before what starts there is held
        changes = sorted(
            [(start, 1, key) for key, start in opened.items()]
            + [(end, -1, key) for key, end in closed.items()],
            key=lambda change: (change[0], change[1], change[2]),
        )
        times, held, now = [0.0], [0.0], 0
        for time, step, _ in changes:
            now += step
            times.append(time)
            held.append(now / chunks)
        return times, held


def simulate(
    stages: Sequence[StageTime], micro_batches: int, schedule: Schedule, chunks: int = 1
) -> Timeline:
    """One step: `micro_batches` through `stages` in the order of `schedule`.

    Counted: forward, backward, recompute, transfers between stages. Left out: the optimizer,
    data-parallel traffic. Transfers run beside computation.

    >>> timeline = simulate([StageTime(1.0, 2.0)] * 4, 8, "1f1b")
    >>> timeline.makespan_s                     # (m + p - 1) (t_f + t_b)
    33.0

    Raises LayoutError where the interleaved schedule does not exist for these numbers.
    """
    p = len(stages)
    if schedule == "interleaved-1f1b" and micro_batches % p:
        raise LayoutError(
            f"interleaved 1F1B needs micro-batches in multiples of pp = {p}, not "
            f"{micro_batches}; use {max(p, micro_batches // p * p)}"
        )
    if schedule != "interleaved-1f1b" and chunks != 1:
        raise LayoutError(
            f"vpp = {chunks} needs the interleaved schedule, not {schedule}; use vpp = 1"
        )
    orders = [_order(schedule, p, stage, micro_batches, chunks) for stage in range(p)]
    return Timeline(p, micro_batches, tuple(_run(stages, orders, schedule, chunks)))


# --- orders ----------------------------------------------------------------------------------


def _order(schedule: Schedule, p: int, stage: int, m: int, v: int) -> list[_Pass]:
    if schedule == "gpipe":
        forward = [_Pass("forward", i, 0) for i in range(m)]
        return forward + [_Pass("backward", i, 0) for i in reversed(range(m))]
    if schedule == "interleaved-1f1b":
        return _interleaved(p, stage, m, v)
    if schedule == "zero-bubble":
        return _zero_bubble(p, stage, m)
    forward = [_Pass("forward", i, 0) for i in range(m)]
    backward = [_Pass("backward", i, 0) for i in range(m)]
    return _one_each(forward, backward, min(p - stage - 1, m))


def _one_each(forward: list[_Pass], backward: list[_Pass], warm_up: int) -> list[_Pass]:
    """`warm_up` forwards, then one forward and one backward in turn, then the rest."""
    order = forward[:warm_up]
    for ahead, back in zip(forward[warm_up:], backward, strict=False):
        order += [ahead, back]
    return order + backward[len(forward) - warm_up :]


def _interleaved(p: int, stage: int, m: int, v: int) -> list[_Pass]:
    """Megatron-LM's order: groups of p micro-batches pass chunk 0, then chunk 1, ..."""
    forward, backward = [], []
    for first in range(0, m, p):
        for chunk in range(v):
            forward += [_Pass("forward", first + i, chunk) for i in range(p)]
            backward += [_Pass("backward", first + i, v - 1 - chunk) for i in range(p)]
    if m == p:
        return forward + backward
    return _one_each(forward, backward, min(2 * (p - stage - 1) + (v - 1) * p, m * v))


def _zero_bubble(p: int, stage: int, m: int) -> list[_Pass]:
    """H1: weight gradients wait until p micro-batches are in flight on every stage."""
    warm_up = min(p - stage, m)
    order = [_Pass("forward", i, 0) for i in range(warm_up)]
    started, weighed = warm_up, 0
    for done in range(m):
        order.append(_Pass("backward", done, 0))
        if done >= stage:
            order.append(_Pass("weight_gradient", weighed, 0))
            weighed += 1
        if started < m:
            order.append(_Pass("forward", started, 0))
            started += 1
    return order + [_Pass("weight_gradient", i, 0) for i in range(weighed, m)]


# --- time ------------------------------------------------------------------------------------


def _run(
    stages: Sequence[StageTime], orders: list[list[_Pass]], schedule: Schedule, chunks: int
) -> list[Event]:
    """Passes with their times; stages advance in turn until all orders are worked off."""
    p = len(stages)
    ends: dict[tuple[str, int, int, int], float] = {}
    free, position = [0.0] * p, [0] * p
    events: list[Event] = []
    waiting = list(range(p))
    while waiting:
        progressed = False
        for stage in list(waiting):
            while position[stage] < len(orders[stage]):
                work = orders[stage][position[stage]]
                ready = _ready_s(work, stage, stages, ends, chunks)
                if ready is None:
                    break
                start = max(free[stage], ready)
                made = _timed(work, stage, stages[stage], start, schedule, chunks)
                events += made
                free[stage] = made[-1].end_s
                ends[(work.kind, stage, work.micro_batch, work.chunk)] = free[stage]
                position[stage] += 1
                progressed = True
            if position[stage] == len(orders[stage]):
                waiting.remove(stage)
        assert progressed or not waiting, "the order of a schedule waits for itself"
    return events + _transfers(stages, ends, chunks)


def _source(work: _Pass, stage: int, p: int, chunks: int) -> tuple[str, int, int, int] | None:
    """The pass whose result a pass needs; None for the first."""
    if work.kind == "weight_gradient":
        return ("backward", stage, work.micro_batch, work.chunk)
    if work.kind == "forward":
        if stage:
            return ("forward", stage - 1, work.micro_batch, work.chunk)
        return ("forward", p - 1, work.micro_batch, work.chunk - 1) if work.chunk else None
    if stage < p - 1:
        return ("backward", stage + 1, work.micro_batch, work.chunk)
    if work.chunk < chunks - 1:
        return ("backward", 0, work.micro_batch, work.chunk + 1)
    return ("forward", stage, work.micro_batch, work.chunk)


def _ready_s(
    work: _Pass,
    stage: int,
    stages: Sequence[StageTime],
    ends: dict[tuple[str, int, int, int], float],
    chunks: int,
) -> float | None:
    """When a pass's input is there; None where it is not known yet."""
    source = _source(work, stage, len(stages), chunks)
    if source is None:
        return 0.0
    end = ends.get(source)
    if end is None:
        return None
    return end + (stages[source[1]].send_s if source[1] != stage else 0.0)


def _timed(
    work: _Pass, stage: int, time: StageTime, start: float, schedule: Schedule, chunks: int
) -> list[Event]:
    """A pass from its start: recompute stands before the backward it serves."""
    spans: list[tuple[Drawn, float]]
    if work.kind == "forward":
        spans = [("forward", time.forward_s)]
    elif work.kind == "weight_gradient":
        spans = [("weight_gradient", time.weight_gradient_s)]
    else:
        split = time.weight_gradient_s if schedule == "zero-bubble" else 0.0
        spans = [("recompute", time.recompute_s)] if time.recompute_s else []
        spans.append(("backward", time.backward_s - split))
    events = []
    for kind, length in spans:
        end = start + length / chunks
        events.append(Event(stage, work.micro_batch, work.chunk, kind, start, end))
        start = end
    return events


def _transfers(
    stages: Sequence[StageTime], ends: dict[tuple[str, int, int, int], float], chunks: int
) -> list[Event]:
    """Activations on their way to the next stage, gradients on theirs to the one before."""
    p, events = len(stages), []
    for (kind, stage, micro_batch, chunk), end in ends.items():
        send = stages[stage].send_s
        last_forward = kind == "forward" and stage == p - 1 and chunk == chunks - 1
        last_backward = kind == "backward" and stage == 0 and chunk == 0
        if p > 1 and send and kind != "weight_gradient" and not (last_forward or last_backward):
            events.append(Event(stage, micro_batch, chunk, "communication", end, end + send))
    return events
