"""Simulate: one step of a pipeline, event by event, and the chain of events that sets its length.

Each stage works through a fixed order of passes; a pass starts when the stage is free and what
it needs has arrived. With equal stages the length equals the closed form of `pipeline.bubble_s`,
with any stages the longest path through the task graph of the schedule.

The orders are those of `planner.cost.schedules`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from planner.cost.schedules.known import schedule_named
from planner.cost.schedules.schedule import PipelineSchedule, Task
from planner.describe.layout import Layout, Schedule
from planner.errors import LayoutError

if TYPE_CHECKING:
    import networkx

__all__ = ["Event", "StageTime", "Timeline", "simulate"]

Drawn = Literal[
    "forward", "recompute", "backward", "weight_gradient", "pipeline_transfer", "communication"
]
"""What an event is drawn as. A pipeline_transfer keeps its stage from computing; communication is
on its way beside it."""


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
    """Until one chunk's activations are on the next stage."""
    blocked_s: float = 0.0
    """While the stage can do nothing else after a pass of a chunk: transfers that nothing hides."""


@dataclass(frozen=True, slots=True)
class Event:
    """What a stage does for a task, or the transfer of the task's result."""

    task: Task
    kind: Drawn
    start_s: float
    end_s: float

    @property
    def stage(self) -> int:
        """The stage that computes or sends."""
        return self.task.stage

    @property
    def micro_batch(self) -> int:
        """The micro-batch, from 0."""
        return self.task.micro_batch

    @property
    def chunk(self) -> int:
        """The chunk of the stage, from 0."""
        return self.task.chunk

    @property
    def duration_s(self) -> float:
        """How long it takes [s]."""
        return self.end_s - self.start_s


@dataclass(frozen=True, slots=True)
class Timeline:
    """Everything that happens in one step, by stage and time."""

    place: Layout
    """Stages, chunks and schedule: where in the model each chunk lies."""
    num_micro_batches: int
    events: tuple[Event, ...]
    groups: tuple[tuple[Task, ...], ...] = ()
    """Tasks that start together and are done together, where there are such."""

    @property
    def num_stages(self) -> int:
        """Stages of the pipeline."""
        return self.place.pp

    @property
    def num_chunks(self) -> int:
        """Chunks of each stage."""
        return self.place.vpp

    @property
    def makespan_s(self) -> float:
        """End of the last pass [s]."""
        return max(event.end_s for event in self.events)

    @property
    def idle_fraction(self) -> float:
        """Idle time of all stages over all time."""
        busy = sum(self.busy_s(stage) for stage in range(self.num_stages))
        return 1 - busy / (self.num_stages * self.makespan_s)

    def computed(self, stage: int) -> list[Event]:
        """What a stage computes, in order."""
        return [e for e in self.occupied(stage) if e.kind != "pipeline_transfer"]

    def occupied(self, stage: int) -> list[Event]:
        """What a stage computes, and transfers that keep it from computing, in order."""
        return [e for e in self.events if e.stage == stage and e.kind != "communication"]

    def busy_s(self, stage: int) -> float:
        """Time that a stage computes or cannot for its transfers [s]."""
        return sum(event.duration_s for event in self.occupied(stage))

    def in_flight(self, stage: int) -> tuple[list[float], list[float]]:
        """Times, and from each on the micro-batches whose activations the stage holds.

        A pass holds its activations from the start of its forward to the end of its last
        backward part; one of `v` chunks counts 1/v.
        """
        mine, chunks = self.computed(stage), self.num_chunks
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

    def task_graph(self) -> networkx.DiGraph:
        """The step as a graph: an edge to every event from each that it waits for.

        Vertices are positions in `events`, after which comes the end of the step. An edge weighs
        what the event it leaves takes ("seconds").
        """
        import networkx

        graph = networkx.DiGraph()
        graph.add_weighted_edges_from(
            ((before, after, self.events[before].duration_s) for before, after in self._waits()),
            weight="seconds",
        )
        return graph

    def critical_path(self) -> list[Event]:
        """The events that set the step's length, each waiting for the one before it.

        The longest path through the task graph. Of several that are equally long, one that
        stays on its stage where it can.

        >>> path = simulate([StageTime(1.0, 2.0), StageTime(2.0, 4.0)], 3, "1f1b").critical_path()
        >>> sum(event.duration_s for event in path)     # 1 + 3 (2 + 4) + 2
        21.0
        """
        import networkx

        *path, _ = networkx.dag_longest_path(self.task_graph(), weight="seconds")
        return [self.events[position] for position in path]

    def _waits(self) -> Iterator[tuple[int, int]]:
        """What is waited for and what waits, as positions in `events`."""
        opens = {task: group[0] for group in self.groups for task in group}
        closes = {task: group[-1] for group in self.groups for task in group}
        first: dict[Task, int] = {}
        last: dict[Task, int] = {}
        sent: dict[Task, int] = {}
        busy: dict[int, int] = {}
        # a stage's own order comes first: networkx keeps the first of equally long paths
        for position, event in enumerate(self.events):
            if event.kind == "communication":
                sent[event.task] = position
                continue
            if event.stage in busy:
                yield busy[event.stage], position
            busy[event.stage] = position
            if event.kind != "pipeline_transfer":
                last[event.task] = position
                first.setdefault(event.task, position)
        for task, position in sent.items():
            yield last[closes.get(task, task)], position
        for task in first:
            source = _source(task, self.place)
            if source is None or (source in opens and opens[source] == opens.get(task)):
                continue
            ready, position = last[closes.get(source, source)], first[opens.get(task, task)]
            yield (ready if source.stage == task.stage else sent.get(source, ready)), position
        for position in busy.values():
            yield position, len(self.events)


def simulate(
    stages: Sequence[StageTime], micro_batches: int, schedule: Schedule, chunks: int = 1
) -> Timeline:
    """One step: `micro_batches` through `stages` in the order of `schedule`.

    Counted: forward, backward, recompute, transfers between stages. Left out: the optimizer,
    data-parallel traffic. Transfers run beside computation. The closed form is that of
    method.md#pipeline.

    >>> timeline = simulate([StageTime(1.0, 2.0)] * 4, 8, "1f1b")
    >>> timeline.makespan_s                     # (m + p - 1) (t_f + t_b)
    33.0

    Raises LayoutError where the interleaved schedule does not exist for these numbers.
    """
    p, known = len(stages), schedule_named(schedule)
    if known.interleaves and micro_batches % p:
        raise LayoutError(
            f"interleaved 1F1B needs micro-batches in multiples of pp = {p}, not "
            f"{micro_batches}; use {max(p, micro_batches // p * p)}"
        )
    place = Layout(pp=p, vpp=chunks, schedule=schedule)
    least = 2 if known.v_shaped else 1
    if not known.interleaves and chunks != least:
        raise LayoutError(
            f"vpp = {chunks} needs the interleaved schedule, not {schedule}; use vpp = {least}"
        )
    orders = [_groups(known, p, stage, micro_batches, chunks) for stage in range(p)]
    together = tuple(group for order in orders for group in order if len(group) > 1)
    events = tuple(_run(stages, orders, known, place))
    return Timeline(place, micro_batches, events, together)


# --- time ------------------------------------------------------------------------------------


def _groups(
    schedule: PipelineSchedule, p: int, stage: int, m: int, v: int
) -> list[tuple[Task, ...]]:
    """Tasks of a stage in their order, those that run together in one group."""
    if schedule.groups is not None:
        return schedule.groups(p, stage, m, v)
    return [(task,) for task in schedule.order(p, stage, m, v)]


def _run(
    stages: Sequence[StageTime],
    orders: list[list[tuple[Task, ...]]],
    schedule: PipelineSchedule,
    place: Layout,
) -> list[Event]:
    """Tasks with their times; stages advance in turn until all orders are worked off."""
    p = len(stages)
    ends: dict[Task, float] = {}
    free, position = [0.0] * p, [0] * p
    events: list[Event] = []
    waiting = list(range(p))
    while waiting:
        progressed = False
        for stage in list(waiting):
            while position[stage] < len(orders[stage]):
                group = orders[stage][position[stage]]
                ready = [_ready_s(task, stages, ends, place, group) for task in group]
                if None in ready:
                    break
                start = max(free[stage], *(time for time in ready if time is not None))
                made, done, free[stage] = _worked(group, stages[stage], start, schedule, place.vpp)
                ends |= dict.fromkeys(group, done)
                events += made
                position[stage] += 1
                progressed = True
            if position[stage] == len(orders[stage]):
                waiting.remove(stage)
        assert progressed or not waiting, "the order of a schedule waits for itself"
    return events + _transfers(stages, ends, place)


def _worked(
    group: tuple[Task, ...], time: StageTime, start: float, schedule: PipelineSchedule, chunks: int
) -> tuple[list[Event], float, float]:
    """Tasks one after the other, when all of them are done, and when the stage is free again."""
    events: list[Event] = []
    done = start
    for task in group:
        events += _timed(task, time, done, schedule, chunks)
        done = events[-1].end_s
    free = done
    for task in group:
        # weight gradients have nothing to hand on
        if time.blocked_s and task.kind != "weight_gradient":
            events.append(Event(task, "pipeline_transfer", free, free + time.blocked_s))
            free = events[-1].end_s
    return events, done, free


def _source(task: Task, place: Layout) -> Task | None:
    """The task whose result a task needs; None for the first."""
    stage, kind, micro_batch, chunk = task
    if kind == "weight_gradient":
        return Task(stage, "backward", micro_batch, chunk)
    before = place.chunk(stage, chunk) + (-1 if kind == "forward" else 1)
    if before == place.pp * place.vpp:
        return Task(stage, "forward", micro_batch, chunk)
    if before < 0:
        return None
    return Task(place.stage_of(before), kind, micro_batch, before // place.pp)


def _goes(task: Task, place: Layout) -> bool:
    """Whether a task's result goes to a neighbour; at the turn of a V it stays where it is."""
    if task.kind == "weight_gradient":
        return False
    after = place.chunk(task.stage, task.chunk) + (1 if task.kind == "forward" else -1)
    return 0 <= after < place.pp * place.vpp and place.stage_of(after) != task.stage


def _ready_s(
    task: Task,
    stages: Sequence[StageTime],
    ends: dict[Task, float],
    place: Layout,
    group: tuple[Task, ...],
) -> float | None:
    """When a task's input is there, but for what its own group makes; None where it is not known
    yet."""
    source = _source(task, place)
    if source is None or source in group:
        return 0.0
    end = ends.get(source)
    if end is None:
        return None
    return end + (stages[source.stage].send_s if source.stage != task.stage else 0.0)


def _timed(
    task: Task, time: StageTime, start: float, schedule: PipelineSchedule, chunks: int
) -> list[Event]:
    """A task from its start: recompute stands before the backward it serves."""
    spans: list[tuple[Drawn, float]]
    if task.kind == "forward":
        spans = [("forward", time.forward_s)]
    elif task.kind == "weight_gradient":
        spans = [("weight_gradient", time.weight_gradient_s)]
    else:
        split = time.weight_gradient_s if schedule.defers_weight_gradients else 0.0
        spans = [("recompute", time.recompute_s)] if time.recompute_s else []
        spans.append(("backward", time.backward_s - split))
    events = []
    for kind, length in spans:
        end = start + length / chunks
        events.append(Event(task, kind, start, end))
        start = end
    return events


def _transfers(stages: Sequence[StageTime], ends: dict[Task, float], place: Layout) -> list[Event]:
    """Activations on their way to the next stage, gradients on theirs to the one before."""
    return [
        Event(task, "communication", end, end + send)
        for task, end in ends.items()
        if (send := stages[task.stage].send_s) and _goes(task, place)
    ]
