"""Simulation: one step of a layout, event by event, beside its estimate."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from planner.choose.planning import job_of_layout, scenario_for
from planner.choose.simulation.bottlenecks import Bottleneck, find_bottlenecks
from planner.choose.simulation.chrome_trace import chrome_trace
from planner.choose.simulation.tasks import measured_factor, stage_work
from planner.cost.estimate import Estimate, estimate_layouts
from planner.cost.memory.chunks import chunk_kept_bytes, staying_bytes
from planner.cost.memory.footprint import stage_memory
from planner.cost.scenario import Scenario
from planner.cost.scenario.experience import Experience
from planner.cost.schedules.simulate import simulate as played
from planner.cost.schedules.timeline import Event, Timeline
from planner.cost.shards.layouts import Layouts
from planner.cost.shards.stages import Stages
from planner.cost.uncertainty.memory_spread import memory_outlook
from planner.describe.framework.framework import Framework
from planner.describe.layout import Layout
from planner.describe.machine import Machine
from planner.describe.model.model import Model
from planner.describe.workload import Workload
from planner.errors import LayoutError
from planner.tables import NotebookView

__all__ = ["MOST_PASSES", "Simulation", "StageMemory", "simulate", "simulate_scenario"]

MOST_PASSES = 60_000
"""Passes of a step that are played, all stages and chunks together: some seconds of work."""

_NOTHING = 1e-9
"""Share of a step below which a part of it is what rounding leaves."""


@dataclass(frozen=True, slots=True)
class StageMemory:
    """Memory of one rank of a stage over the step [B]."""

    times_s: tuple[float, ...]
    """Instants at which it changes."""
    activations_bytes: tuple[float, ...]
    """Activations held from each of them on."""
    states_bytes: float
    """Weights, gradients and optimizer states, which stay."""
    estimated_bytes: float
    """The estimate's peak of the stage: with temporaries and buffers of a pass, what driver and
    allocator hold, and moments at which no activations are held."""

    @property
    def peak_bytes(self) -> float:
        """The most that states and activations take together [B]."""
        return self.states_bytes + max(self.activations_bytes)


@dataclass(frozen=True)
class Simulation(NotebookView):
    """One step of a layout, event by event. Ranks of one stage do the same: one stands for all."""

    scenario: Scenario = field(repr=False)
    estimate: Estimate
    """What the closed forms say of the same layout."""
    timeline: Timeline = field(repr=False)
    memory: tuple[StageMemory, ...] = field(repr=False)
    """By stage."""

    @property
    def events(self) -> tuple[Event, ...]:
        """Everything that happens; none stands before one that it waits for."""
        return self.timeline.events

    @property
    def makespan_s(self) -> float:
        """Length of the step [s]."""
        return self.timeline.makespan_s

    @property
    def difference(self) -> float:
        """By how much the step is longer than estimated, as a share of the estimate."""
        return self.makespan_s / self.estimate.step_time_s - 1

    @functools.cached_property
    def idle_s(self) -> tuple[float, ...]:
        """Time in which each stage waits for others [s]."""
        stages = range(self.timeline.num_stages)
        return tuple(self.makespan_s - self.timeline.busy_s(stage) for stage in stages)

    @functools.cached_property
    def critical_path(self) -> tuple[Event, ...]:
        """The events that set the step's length, each waiting for the one before it."""
        return tuple(self.timeline.critical_path())

    def critical_s(self, by: str) -> dict[Any, float]:
        """Seconds of the critical path by "stage", "stream" or "kind", the longest first [s]."""
        sums = _sums((getattr(event, by), event.duration_s) for event in self.critical_path)
        return {name: s for name, s in sums.items() if s > _NOTHING * self.makespan_s}

    @functools.cached_property
    def bottlenecks(self) -> tuple[Bottleneck, ...]:
        """What the step gains where one stage or one link of the machine were 10 % faster, the
        most first."""
        return find_bottlenecks(
            self.scenario, self.estimate, self.timeline, self.critical_s("stage")
        )

    def to_trace(self) -> dict[str, Any]:
        """The step in the Trace Event Format, for Perfetto and chrome://tracing."""
        return chrome_trace(self.timeline, self.critical_path, self._counters(), self._names())

    def to_dict(self) -> dict[str, Any]:
        """What it says in plain numbers, without the events."""
        return {
            "layout": str(self.estimate.layout),
            "framework": self.estimate.framework,
            "fits": self.estimate.fits,
            "makespan_s": self.makespan_s,
            "estimated_s": self.estimate.step_time_s,
            "difference": self.difference,
            "events": len(self.events),
            "idle_s": list(self.idle_s),
            "critical_path_s": {
                by: {str(name): seconds for name, seconds in self.critical_s(by).items()}
                for by in ("stage", "stream", "kind")
            },
            "ten_percent_faster": [
                {"what": one.name, "kind": one.kind, "gain_s": one.gain_s}
                for one in self.bottlenecks
            ],
            "memory_bytes": [
                {
                    "states": held.states_bytes,
                    "activations": max(held.activations_bytes),
                    "simulated": held.peak_bytes,
                    "estimated": held.estimated_bytes,
                }
                for held in self.memory
            ],
        }

    def _counters(self) -> list[list[tuple[float, dict[str, float]]]]:
        return [
            [
                (time, {"states": held.states_bytes, "activations": amount})
                for time, amount in zip(held.times_s, held.activations_bytes, strict=True)
            ]
            for held in self.memory
        ]

    def _names(self) -> list[str]:
        """What stands for a stage: its first rank, and how many do the same."""
        layout, each = self.estimate.layout, self.estimate.layout.world // self.estimate.layout.pp
        same = f" and {each - 1} like it" if each > 1 else ""
        return [f"stage {i}: rank {i * each}{same}" for i in range(layout.pp)]


def simulate(
    model: str | Model,
    machine: str | Machine,
    layout: Layout,
    *,
    workload: Workload | None = None,
    framework: str | Framework | None = None,
    experience: Experience = Experience(),
) -> Simulation:
    """One step of one layout, event by event: what waits for what, and what to widen.

    Arguments are those of `estimate`, whose seconds are played. Raises LayoutError where no
    framework allows the layout, or where its step has more passes than can be played.

    >>> layout = Layout(pp=4, dp=4, grad_accumulation=8, schedule="1f1b", zero_stage=1)
    >>> step = simulate("llama-3-8b", "polaris", layout, framework="megatron-lm")
    >>> sum(event.duration_s for event in step.critical_path) / step.makespan_s
    1.0
    """
    job = job_of_layout(model, machine, layout, workload, framework, experience)
    return simulate_scenario(scenario_for(job, layout), layout)


def simulate_scenario(scenario: Scenario, layout: Layout) -> Simulation:
    """One step of a legal layout, event by event."""
    passes = 2 * layout.pp * layout.vpp * layout.grad_accumulation
    if passes > MOST_PASSES:
        most = max(MOST_PASSES // (2 * layout.pp * layout.vpp) // layout.pp, 1) * layout.pp
        raise LayoutError(
            f"a step of {passes:,} passes is too long to be played, at most {MOST_PASSES:,} are; "
            f"take fewer micro-batches than {layout.grad_accumulation:,} (--grad-accumulation or "
            f"--global-batch), {most:,} say: the middle of a step repeats itself"
        )
    found = estimate_layouts(scenario, Layouts.stack([layout]))[0]
    works = stage_work(scenario, layout, measured_factor(scenario, found))
    timeline = played(works, layout.grad_accumulation, layout.schedule, layout.vpp)
    return Simulation(scenario, found, timeline, _memory(scenario, layout, timeline))


def _memory(scenario: Scenario, layout: Layout, timeline: Timeline) -> tuple[StageMemory, ...]:
    """States and activations of every stage over the step."""
    stages = Stages.every(scenario, layout)
    kept, stay = chunk_kept_bytes(stages), staying_bytes(stages)
    factor = float(memory_outlook(scenario, Layouts.stack([layout])).expected[0])
    whole = [sum(parts.values()) for parts in stage_memory(scenario, layout)]
    found = []
    for stage in range(layout.pp):
        each = [factor * float(kept[chunk, stage]) for chunk in range(layout.vpp)]
        times, amounts = timeline.held(stage, each)
        found.append(
            StageMemory(tuple(times), tuple(amounts), factor * float(stay[stage]), whole[stage])
        )
    return tuple(found)


def _sums(parts: Iterable[tuple[Any, float]]) -> dict[Any, float]:
    """Seconds by name, the largest first [s]."""
    sums: dict[Any, float] = {}
    for name, seconds in parts:
        sums[name] = sums.get(name, 0.0) + seconds
    return dict(sorted(sums.items(), key=lambda item: -item[1]))
