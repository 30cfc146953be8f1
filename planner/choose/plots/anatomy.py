"""Anatomy: one layout taken apart: its step played event by event, its axes and what they carry."""

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
# passes of a played step: half a second of work; what the middle repeats beyond is left out


def scenario_of(
    model: Model,
    machine: Machine,
    workload: Workload,
    estimate: Estimate,
    experience: Experience = Experience(),
) -> Scenario:
    """The scenario that an estimate answers; its framework is that of the catalogue."""
    return Scenario(model, machine, workload, load_framework(estimate.framework), experience)


@dataclass(frozen=True)
class PlayedStep:
    """The step of an estimate, event by event, and as long as the estimate says.

    Events last what the estimate says. A schedule that is played is a little longer or shorter
    than its closed form where stages differ; that, and micro-batches that are not played, are
    made up for in the middle of the passes, where the schedule repeats itself.
    """

    timeline: Timeline
    micro_batches: int
    """Of the step; the timeline may play fewer."""
    step_s: float
    """Length of the step, as estimated [s]."""

    @classmethod
    def whole(cls, timeline: Timeline) -> PlayedStep:
        """A schedule on its own."""
        return cls(timeline, timeline.num_micro_batches, timeline.makespan_s)

    @functools.cached_property
    def played_s(self) -> float:
        """Length of the timeline [s]."""
        return self.timeline.makespan_s

    @functools.cached_property
    def middle_s(self) -> float:
        """Where in the timeline the difference to the estimate is made up for [s]."""
        return self.timeline.passes_s / 2

    def instant_s(self, time_s: float) -> float:
        """When in the step an instant of the timeline is [s]."""
        moved = self.step_s - self.played_s
        return time_s if time_s <= self.middle_s else time_s + moved

    @functools.cached_property
    def idle_s(self) -> float:
        """Waiting of the stage that works longest [s]."""
        repeats = self.micro_batches / self.timeline.num_micro_batches
        worked = [
            sum(event.duration_s for event in self.timeline.computed(stage))
            for stage in range(self.timeline.num_stages)
        ]
        longest = max(range(len(worked)), key=worked.__getitem__)
        closing = [e.duration_s for e in self.timeline.occupied(longest) if not e.in_passes]
        return self.step_s - repeats * worked[longest] - sum(closing)


def play_step(
    model: Model,
    machine: Machine,
    workload: Workload,
    estimate: Estimate,
    experience: Experience = Experience(),
) -> PlayedStep:
    """The step of an estimate, event by event."""
    layout = estimate.layout
    scenario = scenario_of(model, machine, workload, estimate, experience)
    works = stage_work(scenario, layout, measured_factor(scenario, estimate))
    count, per_batch = layout.grad_accumulation, 2 * layout.pp * layout.vpp
    if count * per_batch > _MOST_TASKS:
        rounds = max(_MOST_TASKS // per_batch // layout.pp, 2)
        count = min(rounds * layout.pp, count)
    timeline = simulate(works, count, layout.schedule, layout.vpp)
    return PlayedStep(timeline, layout.grad_accumulation, estimate.step_time_s)


@dataclass(frozen=True, slots=True)
class Axis:
    """One parallel axis of a layout: its groups, what they see and what they carry."""

    name: str
    size: int
    stride: int
    nodes: int
    bytes_per_s: float
    """Rate per rank on the slowest part of the way; infinite where the group is one rank [B/s]."""
    latency_s: float
    carries: str
    traffic: AxisTraffic
    """Bytes of one step, hidden or not."""
    time_s: float
    """Part of the step that stays exposed for it [s]."""


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
"""What each axis carries, and its parts of the step, fastest axis first."""


def parallel_axes(
    model: Model, machine: Machine, workload: Workload, estimate: Estimate
) -> list[Axis]:
    """The parallel axes of a layout that have more than one rank, fastest first."""
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
    """Where a rank stands on every axis [1].

    Counted: tp fastest, then cp, dp, pp. Left out: the expert axis, which lies inside dp and cp.
    method.md#what-a-group-sees.

    >>> rank_axes(Layout(tp=4, dp=2, pp=2), 13)
    {'tp': 1, 'cp': 0, 'dp': 1, 'pp': 1}
    """
    place = {}
    for axis in ("tp", "cp", "dp", "pp"):
        rank, place[axis] = divmod(rank, getattr(layout, axis))
    return place
