"""Timeline: events of one step by stage, stream and time, with their dependencies."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from planner.cost.schedules.schedule import Task
from planner.describe.layout import Layout

if TYPE_CHECKING:
    import networkx

EventKind = Literal[
    "forward", "recompute", "backward", "weight_gradient", "host_overhead", "tensor_parallel",
    "context_parallel", "expert_parallel", "pipeline_transfer", "communication",
    "parameter_gathering", "gradient_reduction", "optimizer", "parameter_update_gathering",
    "offload",
]  # fmt: skip
"""Kinds of events, named like the parts of the step. A pipeline_transfer blocks its stage;
communication is a result sent to a neighbour while its stage computes."""

Stream = Literal["compute", "host", "tensor", "context", "expert", "pipeline", "data", "host link"]
"""Parallel streams of a rank: computation, the host, a link per axis, the host link."""

STREAMS: tuple[Stream, ...] = get_args(Stream)

ASYNC_TRANSFER: EventKind = "communication"
"""Kind of events that do not keep their stage busy, although others wait for them."""

_STREAM: dict[EventKind, Stream] = {
    "host_overhead": "host",
    "tensor_parallel": "tensor",
    "context_parallel": "context",
    "expert_parallel": "expert",
    "communication": "pipeline",
    "parameter_gathering": "data",
    "gradient_reduction": "data",
    "parameter_update_gathering": "data",
    "offload": "host link",
}


@dataclass(frozen=True, slots=True)
class Event:
    """Work of a stage on a task, or the transfer of its result."""

    task: Task
    kind: EventKind
    start_s: float
    end_s: float
    hidden: bool = False
    """True for traffic hidden behind computation: nothing waits for it."""

    @property
    def stage(self) -> int:
        """Stage that computes or sends."""
        return self.task.stage

    @property
    def micro_batch(self) -> int:
        """Micro-batch, from 0."""
        return self.task.micro_batch

    @property
    def chunk(self) -> int:
        """Chunk of the stage, from 0."""
        return self.task.chunk

    @property
    def stream(self) -> Stream:
        """Stream of the stage on which the event runs; an awaited transfer blocks computation."""
        return _STREAM.get(self.kind, "compute")

    @property
    def keeps_busy(self) -> bool:
        """True if the stage computes nothing else during the event."""
        return not self.hidden and self.kind != ASYNC_TRANSFER

    @property
    def in_passes(self) -> bool:
        """True if the event belongs to a micro-batch's pass, not to the step's start or end."""
        return self.task.kind != "step"

    @property
    def duration_s(self) -> float:
        """Duration [s]."""
        return self.end_s - self.start_s


@dataclass(frozen=True)
class Timeline:
    """Events of one step, by stage and time."""

    layout: Layout
    """Layout with stages, chunks and schedule, which place each chunk in the model."""
    num_micro_batches: int
    events: tuple[Event, ...]
    """Events, each after all events that it waits for."""
    waits: tuple[tuple[int, ...], ...]
    """Positions of the events that each event waits for, its own stage's first."""
    groups: tuple[tuple[Task, ...], ...] = ()
    """Groups of tasks that start and finish together."""

    @property
    def num_stages(self) -> int:
        """Number of pipeline stages."""
        return self.layout.pp

    @property
    def num_chunks(self) -> int:
        """Number of chunks per stage."""
        return self.layout.vpp

    @functools.cached_property
    def makespan_s(self) -> float:
        """End of the last event [s]."""
        return max(event.end_s for event in self.events)

    @functools.cached_property
    def passes_s(self) -> float:
        """End of the last pass, before the work that ends the step [s]."""
        return max(event.end_s for event in self.events if event.in_passes)

    @functools.cached_property
    def _by_stage(self) -> tuple[list[Event], ...]:
        events_by_stage: tuple[list[Event], ...] = tuple([] for _ in range(self.num_stages))
        for event in self.events:
            if event.keeps_busy:
                events_by_stage[event.stage].append(event)
        return events_by_stage

    def computed(self, stage: int) -> list[Event]:
        """Return the events that keep a stage busy in passes, without transfers, in order."""
        return [e for e in self._by_stage[stage] if e.kind != "pipeline_transfer" and e.in_passes]

    def occupied(self, stage: int) -> list[Event]:
        """Return the events that keep a stage busy, awaited transfers included, in order."""
        return self._by_stage[stage]

    def busy_s(self, stage: int) -> float:
        """Time that a stage works or is blocked by its transfers [s]."""
        return sum(event.duration_s for event in self.occupied(stage))

    def in_flight(self, stage: int) -> tuple[list[float], list[float]]:
        """Return times, and the micro-batches held from each on; one of `v` chunks counts 1/v."""
        return self.held_bytes(stage, [1 / self.num_chunks] * self.num_chunks)

    def held_bytes(self, stage: int, each: Sequence[float]) -> tuple[list[float], list[float]]:
        """Return times, and the bytes held from each on, where a chunk's pass holds `each`."""
        pass_events = self.computed(stage)
        opened: dict[tuple[int, int], float] = {}
        closed: dict[tuple[int, int], float] = {}
        for e in pass_events:
            key = (e.micro_batch, e.chunk)
            opened.setdefault(key, e.start_s)
            closed[key] = max(closed.get(key, 0.0), e.end_s)
        # at equal times, passes that end are freed before new ones are held
        changes = sorted(
            [(start, 1, key) for key, start in opened.items()]
            + [(end, -1, key) for key, end in closed.items()]
        )
        times, amounts, alive = [0.0], [0.0], [0] * self.num_chunks
        for time, step, (_, chunk) in changes:
            alive[chunk] += step
            times.append(time)
            # computed from counts, so that no rounding error is left when all is freed
            amounts.append(sum(n * part for n, part in zip(alive, each, strict=True)))
        return times, amounts

    def task_graph(self) -> networkx.DiGraph:
        """Build the graph of the step, with an edge ("seconds") from each awaited event."""
        import networkx

        graph = networkx.DiGraph()
        end, left = len(self.events), set(range(len(self.events)))
        for position, before in enumerate(self.waits):
            for predecessor in before:
                graph.add_edge(predecessor, position, seconds=self.events[predecessor].duration_s)
            left.difference_update(before)
        for position in sorted(left):
            graph.add_edge(position, end, seconds=self.events[position].duration_s)
        return graph

    def critical_path(self) -> list[Event]:
        """Return the events that set the step's length: the longest path through the task graph."""
        import networkx

        *path, _ = networkx.dag_longest_path(self.task_graph(), weight="seconds")
        return [self.events[position] for position in path]
