"""Anatomy of one layout: its step event by event, and what its parallel axes carry."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from planner.choose.simulation.tasks import measured_factor, stage_work
from planner.cost.estimate import Estimate
from planner.cost.network.groups import AXES, geometry
from planner.cost.network.topology import GroupView, group_view
from planner.cost.scenario import Scenario
from planner.cost.scenario.experience import Experience
from planner.cost.schedules.simulate import simulate
from planner.cost.schedules.timeline import Timeline
from planner.cost.shards.layouts import Layouts
from planner.cost.step.communication.bytes_per_axis import AxisTraffic, step_traffic
from planner.describe.catalogue import load_framework
from planner.describe.layout import Layout
from planner.describe.machine import Machine
from planner.describe.model.model import Model
from planner.describe.workload import Workload

__all__ = [
    "Axis",
    "PlayedStep",
    "parallel_axes",
    "play_step",
    "rank_axes",
    "scenario_of",
]

_MOST_TASKS = 8_000
"""Passes to play, which takes half a second; further repetitions of the middle are left out."""


def scenario_of(
    model: Model,
    machine: Machine,
    workload: Workload,
    estimate: Estimate,
    experience: Experience = Experience(),
) -> Scenario:
    """The scenario of an estimate, with the framework of the catalogue."""
    return Scenario(model, machine, workload, load_framework(estimate.framework), experience)


@dataclass(frozen=True)
class PlayedStep:
    """The step of an estimate, event by event, and as long as the estimate says.

    The played schedule is a little longer or shorter than its closed form where stages differ, and
    may play fewer micro-batches. Both are made up for in the middle of the passes, where the
    schedule repeats itself.
    """

    timeline: Timeline
    micro_batches: int
    """Micro-batches of the step; the timeline may play fewer."""
    step_s: float
    """Length of the step, as estimated [s]."""

    @classmethod
    def of_schedule(cls, timeline: Timeline) -> PlayedStep:
        """A schedule without an estimate."""
        return cls(timeline, timeline.num_micro_batches, timeline.makespan_s)

    @functools.cached_property
    def played_s(self) -> float:
        """Length of the timeline [s]."""
        return self.timeline.makespan_s

    @functools.cached_property
    def middle_s(self) -> float:
        """Instant of the timeline at which the difference to the estimate is made up for [s]."""
        return self.timeline.passes_s / 2

    def instant_s(self, time_s: float) -> float:
        """Instant of the step that an instant of the timeline stands for [s]."""
        difference_s = self.step_s - self.played_s
        return time_s if time_s <= self.middle_s else time_s + difference_s

    @functools.cached_property
    def idle_s(self) -> float:
        """Idle time of the busiest stage [s]."""
        repeats = self.micro_batches / self.timeline.num_micro_batches
        busy_s = [
            sum(event.duration_s for event in self.timeline.computed(stage))
            for stage in range(self.timeline.num_stages)
        ]
        busiest = max(range(len(busy_s)), key=busy_s.__getitem__)
        closing = [e.duration_s for e in self.timeline.occupied(busiest) if not e.in_passes]
        return self.step_s - repeats * busy_s[busiest] - sum(closing)


def play_step(
    model: Model,
    machine: Machine,
    workload: Workload,
    estimate: Estimate,
    experience: Experience = Experience(),
) -> PlayedStep:
    """Play the step of an estimate, event by event."""
    layout = estimate.layout
    scenario = scenario_of(model, machine, workload, estimate, experience)
    work = stage_work(scenario, layout, measured_factor(scenario, estimate))
    count, per_batch = layout.grad_accumulation, 2 * layout.pp * layout.vpp
    if count * per_batch > _MOST_TASKS:
        rounds = max(_MOST_TASKS // per_batch // layout.pp, 2)
        count = min(rounds * layout.pp, count)
    timeline = simulate(work, count, layout.schedule, layout.vpp)
    return PlayedStep(timeline, layout.grad_accumulation, estimate.step_time_s)


@dataclass(frozen=True, slots=True)
class Axis:
    """One parallel axis of a layout: its groups of ranks, their links and their traffic."""

    name: str
    size: int
    stride: int
    nodes: int
    bytes_per_s: float
    """Bandwidth per rank of the slowest link; infinite for a group of one rank [B/s]."""
    latency_s: float
    carries: str
    traffic: AxisTraffic
    """Bytes of one step, hidden or not."""
    time_s: float
    """Exposed communication of the axis in a step [s]."""


_CARRIES = {
    "tp": ("activations of every layer", ("tensor_parallel",)),
    "etp": ("tokens at experts that are split", ()),
    "ep": ("tokens to experts and back", ("expert_parallel",)),
    "cp": ("keys and values, or tokens for heads", ("context_parallel",)),
    "dp": (
        "gradients, weights where sharded",
        ("gradient_reduction", "parameter_gathering", "parameter_update_gathering"),
    ),
    "pp": ("activations, stage to stage", ("pipeline_transfer",)),
}
"""Data of each axis, and its parts of the step; fastest axis first."""


def parallel_axes(
    model: Model, machine: Machine, workload: Workload, estimate: Estimate
) -> list[Axis]:
    """List the parallel axes of a layout with more than one rank, fastest first."""
    layout = estimate.layout
    scenario = scenario_of(model, machine, workload, estimate)
    traffic = step_traffic(scenario, layout)
    places, rows = geometry(Layouts.of(layout).settled(scenario.framework)), []
    for name in _CARRIES:
        if name not in traffic:
            continue
        size, stride = (int(figure) for figure in places[AXES[name]])
        view = group_view(machine, size, stride)
        carries, parts = _CARRIES[name]
        rows.append(
            Axis(
                name,
                size,
                stride,
                int(view.nodes),
                _slowest(view),
                float(view.network_latency_s if view.nodes > 1 else view.local_latency_s),
                carries,
                traffic[name],
                sum(estimate.step_time_parts_s.get(part, 0.0) for part in parts),
            )
        )
    return rows


def _slowest(view: GroupView) -> float:
    inside = float(view.local_bytes_per_s) if view.local > 1 else np.inf
    between = float(view.network_bytes_per_s) if view.nodes > 1 else np.inf
    return float(min(inside, between))


def rank_axes(layout: Layout, rank: int) -> dict[str, int]:
    """Coordinates of a rank on every axis [1].

    Counted: tp fastest, then cp, dp, pp. Left out: the expert axis, which lies inside dp and cp.
    method.md#what-a-group-sees.

    >>> rank_axes(Layout(tp=4, dp=2, pp=2), 13)
    {'tp': 1, 'cp': 0, 'dp': 1, 'pp': 1}
    """
    place = {}
    for axis in ("tp", "cp", "dp", "pp"):
        rank, place[axis] = divmod(rank, getattr(layout, axis))
    return place
