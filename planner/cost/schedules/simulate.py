"""Simulate: one step of a pipeline, event by event."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from planner.cost.schedules.bubble import schedule_by_name
from planner.cost.schedules.schedule import PipelineSchedule, Task
from planner.cost.schedules.timeline import ASYNC_TRANSFER, Event, EventKind, Timeline
from planner.describe.layout import Layout, Schedule
from planner.errors import LayoutError


class Span(NamedTuple):
    """Part of a pass, or of the work before or after all passes."""

    kind: EventKind
    seconds: float
    hidden: bool = False
    """True for traffic hidden behind the pass, at most as long as it; nothing waits for it."""


@dataclass(frozen=True, slots=True)
class ChunkWork:
    """Work of one micro-batch on one chunk of a stage."""

    forward: tuple[Span, ...]
    backward: tuple[Span, ...]
    """Backward pass without weight gradients."""
    weights_s: float = 0.0
    """Weight gradients; part of the backward pass unless the schedule defers them."""
    first_forward: tuple[Span, ...] = ()
    """Forward pass of the first micro-batch, if it differs."""
    last_backward: tuple[Span, ...] = ()
    """Last backward pass of the stage, if it differs."""

    def scaled(self, factor: float) -> ChunkWork:
        """Return this work with all times multiplied by `factor`."""

        def each(spans: tuple[Span, ...]) -> tuple[Span, ...]:
            return tuple(span._replace(seconds=factor * span.seconds) for span in spans)

        return ChunkWork(
            each(self.forward),
            each(self.backward),
            factor * self.weights_s,
            each(self.first_forward),
            each(self.last_backward),
        )


@dataclass(frozen=True, slots=True)
class StageWork:
    """Work of a stage in one step."""

    chunks: tuple[ChunkWork, ...]
    send_s: float = 0.0
    """Time until one chunk's activations arrive on the next stage."""
    blocked_s: float = 0.0
    """Time that exposed transfers block the stage after each pass of a chunk."""
    before: tuple[Span, ...] = ()
    """Work before the first pass, which needs no other stage."""
    after: tuple[Span, ...] = ()
    """Work after the stage's own passes."""
    closing: tuple[Span, ...] = ()
    """Work after the passes of all stages and their `after` work."""

    def faster(self, share: float) -> StageWork:
        """Return this work with passes faster by `share`; all other work keeps its time."""
        return replace(self, chunks=tuple(c.scaled(1 / (1 + share)) for c in self.chunks))


@dataclass(frozen=True, slots=True)
class StageTime:
    """Times of one micro-batch on one stage, which its chunks share equally [s]."""

    forward_s: float
    backward_s: float
    """Backward pass with weight gradients, without recompute."""
    recompute_s: float = 0.0
    weight_gradient_s: float = 0.0
    """Part of backward that zero-bubble schedules defer."""
    send_s: float = 0.0
    """Time until one chunk's activations arrive on the next stage."""
    blocked_s: float = 0.0
    """Time that exposed transfers block the stage after each pass of a chunk."""

    def split_over_chunks(self, chunks: int) -> StageWork:
        """Split the times equally over `chunks`."""
        backward = Span("backward", (self.backward_s - self.weight_gradient_s) / chunks)
        recompute = (Span("recompute", self.recompute_s / chunks),) if self.recompute_s else ()
        chunk = ChunkWork(
            (Span("forward", self.forward_s / chunks),),
            (*recompute, backward),
            self.weight_gradient_s / chunks,
        )
        return StageWork((chunk,) * chunks, self.send_s, self.blocked_s)


def simulate(
    stages: Sequence[StageTime | StageWork], micro_batches: int, schedule: Schedule, chunks: int = 1
) -> Timeline:
    """Simulate one step: `micro_batches` through `stages` in the order of `schedule`.

    Counted: forward, backward, recompute, transfers between stages in parallel with computation,
    and all other spans of the stages' work. Left out: anything else. Closed form:
    pipeline.md#pipeline. Raises LayoutError if the schedule does not allow these numbers of
    micro-batches or chunks.
    """
    p, pipeline_schedule = len(stages), schedule_by_name(schedule)
    if pipeline_schedule.interleaves and micro_batches % p:
        raise LayoutError(
            f"interleaved 1F1B needs micro-batches in multiples of pp = {p}, not "
            f"{micro_batches}; use {max(p, micro_batches // p * p)}"
        )
    layout = Layout(pp=p, vpp=chunks, schedule=schedule)
    least = 2 if pipeline_schedule.v_shaped else 1
    if not pipeline_schedule.interleaves and chunks != least:
        raise LayoutError(
            f"vpp = {chunks} needs the interleaved schedule, not {schedule}; use vpp = {least}"
        )
    works = [
        stage if isinstance(stage, StageWork) else stage.split_over_chunks(chunks)
        for stage in stages
    ]
    orders = [_groups(pipeline_schedule, p, stage, micro_batches, chunks) for stage in range(p)]
    run = _Run(works, orders, pipeline_schedule, layout)
    run.passes()
    run.close()
    groups = tuple(group for order in orders for group in order if len(group) > 1)
    return Timeline(layout, micro_batches, tuple(run.events), tuple(run.waits), groups)


def _groups(
    schedule: PipelineSchedule, p: int, stage: int, m: int, v: int
) -> list[tuple[Task, ...]]:
    """Return the tasks of a stage in order, in groups that run together."""
    if schedule.groups is not None:
        return schedule.groups(p, stage, m, v)
    return [(task,) for task in schedule.order(p, stage, m, v)]


class _Run:
    """State of a simulation; each event comes after all events that it waits for."""

    def __init__(
        self,
        works: Sequence[StageWork],
        orders: list[list[tuple[Task, ...]]],
        schedule: PipelineSchedule,
        layout: Layout,
    ) -> None:
        self.events: list[Event] = []
        self.waits: list[tuple[int, ...]] = []
        self._works, self._orders, self._layout = works, orders, layout
        self._defers = schedule.defers_weight_gradients
        self._latest: list[int | None] = [None] * len(works)
        """Last event that keeps each stage busy."""
        self._results: dict[Task, int] = {}
        """Event after which a task's result is on its own stage; `_sent`: on a neighbour."""
        self._sent: dict[Task, int] = {}
        backwards = [[t for g in order for t in g if t.kind == "backward"] for order in orders]
        self._last = {tasks[-1] for tasks in backwards}

    def passes(self) -> None:
        """Run the tasks of all stages, which advance in turn until every order is done."""
        for stage, work in enumerate(self._works):
            self._chain(Task(stage, "step", 0, 0), work.before, ())
        position, waiting = [0] * len(self._works), list(range(len(self._works)))
        while waiting:
            progressed = False
            for stage in list(waiting):
                order = self._orders[stage]
                while position[stage] < len(order):
                    if not self._run_group(order[position[stage]]):
                        break
                    position[stage] += 1
                    progressed = True
                if position[stage] == len(order):
                    waiting.remove(stage)
            assert progressed or not waiting, "the schedule's order deadlocks"

    def close(self) -> None:
        """Run the work after each stage's passes, then the work after those of all stages."""
        for stage, work in enumerate(self._works):
            self._chain(Task(stage, "step", 0, 0), work.after, ())
        last_events = [event for event in self._latest if event is not None]
        for stage, work in enumerate(self._works):
            self._chain(Task(stage, "step", 0, 0), work.closing, last_events)

    def _run_group(self, group: tuple[Task, ...]) -> bool:
        """Run a group's tasks in sequence if their inputs are available; True if they ran."""
        sources = [source for t in group if (source := _source(t, self._layout)) is not None]
        sources = [source for source in sources if source not in group]
        if any(source not in self._results for source in sources):
            return False
        stage = group[0].stage
        needs: Iterable[int] = [self._arrival(source, stage) for source in sources]
        for task in group:
            self._chain(task, self._spans(task), needs)
            needs = ()
        done = self._latest[stage]
        assert done is not None, "every task adds an event"
        work = self._works[stage]
        for task in group:
            self._results[task] = done
            if work.send_s and _leaves_stage(task, self._layout):
                self._sent[task] = self._add(task, Span(ASYNC_TRANSFER, work.send_s), (done,))
        for task in group:
            # weight gradients send nothing
            if work.blocked_s and task.kind != "weight_gradient":
                self._chain(task, (Span("pipeline_transfer", work.blocked_s),), ())
        return True

    def _arrival(self, source: Task, stage: int) -> int:
        """Return the event after which a stage has the result of a task."""
        result = self._results[source]
        return result if source.stage == stage else self._sent.get(source, result)

    def _chain(self, task: Task, spans: Sequence[Span], needs: Iterable[int]) -> None:
        """Add the spans that keep a stage busy, in sequence, and the traffic hidden behind them."""
        stage, start = task.stage, len(self.events)
        for span in spans:
            if span.hidden:
                continue
            latest = self._latest[stage]
            before = dict.fromkeys(() if latest is None else (latest,)) | dict.fromkeys(needs)
            self._latest[stage] = self._add(task, span, tuple(before))
            needs = ()
        busy = range(start, len(self.events))
        computes = [n for n in busy if self.events[n].stream == "compute"]
        for span in spans:
            if span.hidden and computes:
                first, end_s = computes[0], self.events[computes[-1]].end_s
                length = min(span.seconds, end_s - self.events[first].start_s)
                self._add(task, span._replace(seconds=length), self.waits[first])

    def _add(self, task: Task, span: Span, waits: tuple[int, ...]) -> int:
        start = max((self.events[event].end_s for event in waits), default=0.0)
        self.events.append(Event(task, span.kind, start, start + span.seconds, span.hidden))
        self.waits.append(waits)
        return len(self.events) - 1

    def _spans(self, task: Task) -> tuple[Span, ...]:
        """Return the spans of a task; recompute precedes its backward pass."""
        chunk = self._works[task.stage].chunks[task.chunk]
        if task.kind == "weight_gradient":
            return (Span("weight_gradient", chunk.weights_s),)
        if task.kind == "forward":
            is_first = chunk.first_forward and task.micro_batch == 0
            return chunk.first_forward if is_first else chunk.forward
        is_last = chunk.last_backward and task in self._last
        spans = chunk.last_backward if is_last else chunk.backward
        if self._defers:
            return spans
        return tuple(
            span._replace(seconds=span.seconds + chunk.weights_s)
            if span.kind == "backward"
            else span
            for span in spans
        )


def _source(task: Task, layout: Layout) -> Task | None:
    """Return the task whose result a task needs; None for the first."""
    stage, kind, micro_batch, chunk = task
    if kind == "weight_gradient":
        return Task(stage, "backward", micro_batch, chunk)
    before = layout.chunk(stage, chunk) + (-1 if kind == "forward" else 1)
    if before == layout.pp * layout.vpp:
        return Task(stage, "forward", micro_batch, chunk)
    if before < 0:
        return None
    return Task(layout.stage_of(before), kind, micro_batch, before // layout.pp)


def _leaves_stage(task: Task, layout: Layout) -> bool:
    """True if a task's result goes to another stage; at the turn of a V it stays."""
    if task.kind == "weight_gradient":
        return False
    after = layout.chunk(task.stage, task.chunk) + (1 if task.kind == "forward" else -1)
    return 0 <= after < layout.pp * layout.vpp and layout.stage_of(after) != task.stage
