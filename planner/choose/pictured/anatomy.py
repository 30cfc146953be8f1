"""Anatomy: one layout taken apart: its step played event by event, its axes and what they carry."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from planner.cost.estimate import Estimate
from planner.cost.network.groups import AXES, geometry
from planner.cost.network.topology import GroupView, group_view
from planner.cost.question import Question
from planner.cost.question.experience import Experience
from planner.cost.schedules.simulate import StageTime, simulate
from planner.cost.schedules.timeline import Timeline
from planner.cost.shards.layouts import Layouts
from planner.cost.step.passes import stage_passes
from planner.cost.step.traffic import AxisTraffic, step_traffic
from planner.cost.uncertainty.runs import step_outlook
from planner.describe.catalogue import load_framework
from planner.describe.layout import Layout
from planner.describe.machine import Machine
from planner.describe.model.model import Model
from planner.describe.workload import Workload

__all__ = [
    "AFTER_PASSES",
    "Axis",
    "Played",
    "axes",
    "played",
    "question_of",
    "rank_axes",
    "stage_times",
]

AFTER_PASSES = (
    "parameter_gathering",
    "gradient_reduction",
    "offload",
    "optimizer",
    "parameter_update_gathering",
)
"""Parts of the step that no schedule plays, in the order in which they are drawn after it."""
_MOST_TASKS = 8_000
# passes of a played step: half a second of work; what the middle repeats beyond is left out


def question_of(
    model: Model,
    machine: Machine,
    workload: Workload,
    estimate: Estimate,
    experience: Experience = Experience(),
) -> Question:
    """The question that an estimate answers; its framework is that of the catalogue."""
    return Question(model, machine, workload, load_framework(estimate.framework), experience)


def stage_times(
    model: Model,
    machine: Machine,
    workload: Workload,
    estimate: Estimate,
    experience: Experience = Experience(),
) -> tuple[StageTime, ...]:
    """Seconds of one micro-batch on every pipeline stage of a layout, for `simulate` to play [s].

    Counted and left out: as `planner.cost.step.passes.stage_passes`, whose figures these are, as
    far as runs measured before correct them.
    """
    question = question_of(model, machine, workload, estimate, experience)
    found = stage_passes(question, estimate.layout)
    layouts = Layouts.stack([estimate.layout])
    factor = float(step_outlook(question, layouts, estimate.step_time_parts_s).expected[0])
    return tuple(
        StageTime(
            forward_s=factor * float(found.forward_s[stage]),
            backward_s=factor * float(found.backward_s[stage]),
            recompute_s=factor * float(found.recompute_s[stage]),
            weight_gradient_s=factor * float(found.weight_gradient_s[stage]),
            send_s=factor * float(found.transfer.arrives_s[stage]),
            blocked_s=factor * float(found.transfer.blocks_s[stage]),
        )
        for stage in range(estimate.layout.pp)
    )


@dataclass(frozen=True)
class Played:
    """The step of an estimate, event by event, and as long as the estimate says.

    Passes last what the estimate says. A schedule that is played is a little longer or shorter
    than its closed form where stages differ; that, and micro-batches that are not played, are
    made up for in the middle of the step, where the schedule repeats itself.
    """

    timeline: Timeline
    micro_batches: int
    """Of the step; the timeline may play fewer."""
    passes_s: float
    """Until the last pass ends, as estimated [s]."""
    after_s: dict[str, float]
    """What follows the passes, by part [s]."""

    @classmethod
    def whole(cls, timeline: Timeline) -> Played:
        """A schedule on its own, which nothing follows."""
        return cls(timeline, timeline.num_micro_batches, timeline.makespan_s, {})

    @property
    def step_s(self) -> float:
        """Length of the step [s]."""
        return self.passes_s + sum(self.after_s.values())

    @functools.cached_property
    def played_s(self) -> float:
        """Length of the timeline [s]."""
        return self.timeline.makespan_s

    @property
    def middle_s(self) -> float:
        """Where in the timeline the difference to the estimate is made up for [s]."""
        return self.played_s / 2

    def instant_s(self, time_s: float) -> float:
        """When in the step an instant of the timeline is [s]."""
        moved = self.passes_s - self.played_s
        return time_s if time_s <= self.middle_s else time_s + moved

    @functools.cached_property
    def idle_s(self) -> float:
        """Waiting of the stage that works longest, while passes run [s]."""
        repeats = self.micro_batches / self.timeline.num_micro_batches
        computed = [
            sum(event.duration_s for event in self.timeline.computed(stage))
            for stage in range(self.timeline.num_stages)
        ]
        return self.passes_s - repeats * max(computed)


def played(
    model: Model,
    machine: Machine,
    workload: Workload,
    estimate: Estimate,
    experience: Experience = Experience(),
) -> Played:
    """The step of an estimate, event by event."""
    layout, stages = estimate.layout, stage_times(model, machine, workload, estimate, experience)
    after = {name: estimate.step_time_parts_s[name] for name in AFTER_PASSES}
    count, per_batch = layout.grad_accumulation, 2 * layout.pp * layout.vpp
    if count * per_batch > _MOST_TASKS:
        rounds = max(_MOST_TASKS // per_batch // layout.pp, 2)
        count = min(rounds * layout.pp, count)
    return Played(
        simulate(stages, count, layout.schedule, layout.vpp),
        layout.grad_accumulation,
        estimate.step_time_s - sum(after.values()),
        {name: seconds for name, seconds in after.items() if seconds > 0},
    )


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


def axes(model: Model, machine: Machine, workload: Workload, estimate: Estimate) -> list[Axis]:
    """The parallel axes of a layout that have more than one rank, fastest first."""
    layout = estimate.layout
    question = question_of(model, machine, workload, estimate)
    traffic = step_traffic(question, layout)
    places, rows = geometry(Layouts.of(layout).settled(question.framework)), []
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
