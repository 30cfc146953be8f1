"""Simulate one step of a layout event by event, and compare it with the estimate."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from planner.choose.planning import job_of_layout, scenario_for
from planner.choose.simulation.chrome_trace import chrome_trace
from planner.choose.simulation.tasks import measured_factor, stage_work
from planner.cost.estimate import Estimate, estimate_layouts
from planner.cost.memory.activations import chunk_kept_bytes
from planner.cost.memory.footprint import stage_memory
from planner.cost.memory.phases import resident_bytes
from planner.cost.scenario import Scenario
from planner.cost.scenario.experience import Experience
from planner.cost.schedules.simulate import StageWork
from planner.cost.schedules.simulate import simulate as run_schedule
from planner.cost.schedules.timeline import Event, Timeline
from planner.cost.shards.layouts import Layouts
from planner.cost.shards.stages import Stages
from planner.cost.uncertainty import memory_outlook
from planner.describe.files import read_toml
from planner.describe.framework.framework import Framework
from planner.describe.layout import Layout
from planner.describe.machine import Machine
from planner.describe.machine.variants import scale_fields
from planner.describe.model.model import Model
from planner.describe.workload import Workload
from planner.errors import LayoutError
from planner.tables import NotebookView

SPEEDUP = 0.1
"""Share by which a stage or a rate of the machine is made faster."""
_MAX_STAGES = 16
"""Most stages to speed up: those with the most time on the critical path."""


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """Step time saved if one stage or one rate of the machine were faster."""

    name: str
    kind: Literal["stage", "machine"]
    gain_s: float


def find_bottlenecks(
    scenario: Scenario, estimate: Estimate, timeline: Timeline, path_s: Mapping[int, float]
) -> tuple[Bottleneck, ...]:
    """Simulate the step with one stage or machine rate faster at a time, and rank the gains."""
    layout, factor = estimate.layout, measured_factor(scenario, estimate)
    work = stage_work(scenario, layout, factor)
    bottlenecks = []

    def gain_s(faster: tuple[StageWork, ...]) -> float:
        shorter = run_schedule(faster, layout.grad_accumulation, layout.schedule, layout.vpp)
        return timeline.makespan_s - shorter.makespan_s

    if layout.pp > 1:
        for stage in sorted(path_s, key=lambda stage: (-path_s[stage], stage))[:_MAX_STAGES]:
            faster = (*work[:stage], work[stage].faster(SPEEDUP), *work[stage + 1 :])
            bottlenecks.append(Bottleneck(f"stage {stage}", "stage", gain_s(faster)))
    for name, paths in _LINKS.items():
        # devices without links of their own reach each other through the host
        through_host = name == _INSIDE and scenario.machine.node.fabric.kind == "host"
        host = ("node.host_link_bytes_per_s.value",) * through_host
        machine = scale_fields(scenario.machine, (*paths, *host), 1 + SPEEDUP)
        if machine != scenario.machine:
            faster = stage_work(replace(scenario, machine=machine), layout, factor)
            bottlenecks.append(Bottleneck(name, "machine", gain_s(faster)))
    return tuple(sorted(bottlenecks, key=lambda bottleneck: -bottleneck.gain_s))


_INSIDE = "links inside the node"
_LINKS = read_toml(Path(__file__).with_name("links.toml"))
"""Fields of a machine that are raised together, by name."""


MOST_PASSES = 60_000
"""Most passes of a step to simulate, over all stages and chunks: a few seconds of work."""

_ROUNDING = 1e-9
"""Share of a step below which a part counts as a rounding error."""


@dataclass(frozen=True, slots=True)
class StageMemory:
    """Memory of one rank of a stage over the step [B]."""

    times_s: tuple[float, ...]
    activations_bytes: tuple[float, ...]
    """Activations held from each instant on [B]."""
    states_bytes: float
    """Weights, gradients and optimizer states, which do not change."""
    estimated_bytes: float
    """The estimated peak of the stage, with temporaries, buffers, driver and allocator."""

    @property
    def peak_bytes(self) -> float:
        """Peak of states plus activations [B]."""
        return self.states_bytes + max(self.activations_bytes)


@dataclass(frozen=True)
class Simulation(NotebookView):
    """Simulated step of a layout, event by event, with one rank per stage."""

    scenario: Scenario = field(repr=False)
    estimate: Estimate
    """The closed-form estimate of the same layout."""
    timeline: Timeline = field(repr=False)
    memory: tuple[StageMemory, ...] = field(repr=False)

    @property
    def events(self) -> tuple[Event, ...]:
        """All events, ordered so that each follows the events that it waits for."""
        return self.timeline.events

    @property
    def makespan_s(self) -> float:
        """Simulated step time [s]."""
        return self.timeline.makespan_s

    @property
    def difference(self) -> float:
        """Difference of simulated and estimated step time, as a share of the estimate."""
        return self.makespan_s / self.estimate.step_time_s - 1

    @functools.cached_property
    def idle_s(self) -> tuple[float, ...]:
        """Idle time of each stage [s]."""
        stages = range(self.timeline.num_stages)
        return tuple(self.makespan_s - self.timeline.busy_s(stage) for stage in stages)

    @functools.cached_property
    def critical_path(self) -> tuple[Event, ...]:
        """Events that set the step time; each waits for the one before it."""
        return tuple(self.timeline.critical_path())

    def critical_s(self, by: str) -> dict[Any, float]:
        """Time on the critical path by "stage", "stream" or "kind", longest first [s]."""
        sums: dict[Any, float] = {}
        for event in self.critical_path:
            sums[getattr(event, by)] = sums.get(getattr(event, by), 0.0) + event.duration_s
        longest = sorted(sums.items(), key=lambda item: -item[1])
        return {name: s for name, s in longest if s > _ROUNDING * self.makespan_s}

    @functools.cached_property
    def bottlenecks(self) -> tuple[Bottleneck, ...]:
        """Step time saved if one stage or machine rate were 10 % faster, largest first."""
        return find_bottlenecks(
            self.scenario, self.estimate, self.timeline, self.critical_s("stage")
        )

    def to_trace(self) -> dict[str, Any]:
        """The step in the Trace Event Format, for Perfetto and chrome://tracing."""
        counters = [
            [
                (time, {"states": stage.states_bytes, "activations": activations})
                for time, activations in zip(stage.times_s, stage.activations_bytes, strict=True)
            ]
            for stage in self.memory
        ]
        layout, each = self.estimate.layout, self.estimate.layout.world // self.estimate.layout.pp
        same = f" and {each - 1} more" if each > 1 else ""
        names = [f"stage {i}: rank {i * each}{same}" for i in range(layout.pp)]
        return chrome_trace(self.timeline, self.critical_path, counters, names)

    def to_dict(self) -> dict[str, Any]:
        """Convert the simulation to plain numbers, without the events."""
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
                {"what": bottleneck.name, "kind": bottleneck.kind, "gain_s": bottleneck.gain_s}
                for bottleneck in self.bottlenecks
            ],
            "memory_bytes": [
                {
                    "states": stage.states_bytes,
                    "activations": max(stage.activations_bytes),
                    "simulated": stage.peak_bytes,
                    "estimated": stage.estimated_bytes,
                }
                for stage in self.memory
            ],
        }


def simulate(
    model: str | Model,
    machine: str | Machine,
    layout: Layout,
    *,
    workload: Workload | None = None,
    framework: str | Framework | None = None,
    experience: Experience = Experience(),
) -> Simulation:
    """Simulate one step of one layout event by event: its critical path and bottlenecks."""
    job = job_of_layout(model, machine, layout, workload, framework, experience)
    return simulate_scenario(scenario_for(job, layout), layout)


def simulate_scenario(scenario: Scenario, layout: Layout) -> Simulation:
    """Simulate one step of a legal layout, event by event."""
    passes = 2 * layout.pp * layout.vpp * layout.grad_accumulation
    if passes > MOST_PASSES:
        most = max(MOST_PASSES // (2 * layout.pp * layout.vpp) // layout.pp, 1) * layout.pp
        raise LayoutError(
            f"a step of {passes:,} passes is too long to simulate (at most {MOST_PASSES:,}); "
            f"use {most:,} micro-batches instead of {layout.grad_accumulation:,} "
            "(a smaller batch), because the steady state repeats"
        )
    estimate = estimate_layouts(scenario, Layouts.stack([layout]))[0]
    work = stage_work(scenario, layout, measured_factor(scenario, estimate))
    timeline = run_schedule(work, layout.grad_accumulation, layout.schedule, layout.vpp)
    return Simulation(scenario, estimate, timeline, _stage_memory(scenario, layout, timeline))


def _stage_memory(
    scenario: Scenario, layout: Layout, timeline: Timeline
) -> tuple[StageMemory, ...]:
    stages = Stages.of_pipeline(scenario, layout)
    saved, states = chunk_kept_bytes(stages), resident_bytes(stages)
    factor = float(memory_outlook(scenario, Layouts.stack([layout])).expected[0])
    memory = []
    for stage, parts in enumerate(stage_memory(scenario, layout)):
        per_chunk = [factor * float(saved[chunk, stage]) for chunk in range(layout.vpp)]
        times, activations = timeline.held_bytes(stage, per_chunk)
        states_bytes = factor * float(states[stage])
        memory.append(
            StageMemory(tuple(times), tuple(activations), states_bytes, sum(parts.values()))
        )
    return tuple(memory)
