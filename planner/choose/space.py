"""Explore: what figures need beyond a plan: the space of candidates, stage times, ranks, traffic.

Each is a pure function of frozen descriptions, so an application can cache it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.choose.planning import frameworks_for
from planner.choose.search import search
from planner.cost.estimate import Estimate
from planner.cost.network.topology import GroupView, group_view
from planner.cost.operators.blocks import blocks_of
from planner.cost.shards.layouts import Layouts
from planner.cost.shards.pipeline import stage_counts
from planner.cost.simulate import StageTime
from planner.cost.step.step import block_passes
from planner.cost.step.traffic import AxisTraffic, step_traffic
from planner.describe.catalogue import load_framework
from planner.describe.layout import Layout
from planner.describe.machine import Machine
from planner.describe.model.model import Model
from planner.describe.question import Question
from planner.describe.workload import Workload

__all__ = ["Axis", "Cell", "Point", "Space", "axes", "rank_axes", "space", "stage_times"]


@dataclass(frozen=True, slots=True)
class Cell:
    """The best of all layouts with one tp and pp."""

    tp: int
    pp: int
    step_time_s: float
    """The fastest that fits; infinite where none does."""
    memory_bytes: float
    """Of that layout, or of the smallest where none fits."""
    text: str


@dataclass(frozen=True, slots=True)
class Point:
    """One layout as memory and time."""

    memory_bytes: float
    step_time_s: float
    text: str


@dataclass(frozen=True, slots=True)
class Space:
    """All candidates of a job, condensed."""

    cells: tuple[Cell, ...]
    front: tuple[Point, ...]
    """Layouts that no other beats in both memory and time, smallest memory first."""
    cloud: tuple[Point, ...]
    """A deterministic sample of the rest."""
    num_candidates: int


def space(
    model: Model,
    machine: Machine,
    nodes: int,
    workload: Workload,
    frameworks: Sequence[str] = (),
    *,
    cloud: int = 400,
) -> Space:
    """The candidates of a job: best per tp and pp, the Pareto front, a sample."""
    world = nodes * machine.node.num_devices
    found = [
        search(Question(model, machine, workload, framework), world).estimates
        for framework in frameworks_for(frameworks, machine)
    ]
    found = [estimates for estimates in found if len(estimates)]
    if not found:
        return Space((), (), (), 0)

    def all_of(name: str) -> NDArray[np.float64]:
        return np.concatenate([np.ravel(getattr(e, name)).astype(float) for e in found])

    time, memory, fits = all_of("step_time_s"), all_of("memory_bytes"), all_of("fits") > 0
    tp = np.concatenate([e.layouts.tp for e in found])
    pp = np.concatenate([e.layouts.pp for e in found])
    starts = np.cumsum([0, *(len(e) for e in found)])

    def text(index: int) -> str:
        part = int(np.searchsorted(starts, index, side="right")) - 1
        return f"{found[part].layouts[index - int(starts[part])]} [{found[part].framework}]"

    def point(index: int) -> Point:
        return Point(float(memory[index]), float(time[index]), text(index))

    front = _front(memory, time)
    step = max(len(time) // cloud, 1)
    return Space(
        cells=tuple(_cells(tp, pp, time, memory, fits, text)),
        front=tuple(point(int(i)) for i in front),
        cloud=tuple(point(i) for i in range(0, len(time), step)),
        num_candidates=len(time),
    )


def _front(memory: NDArray[np.float64], time: NDArray[np.float64]) -> NDArray[np.int64]:
    """Indices that nothing beats in both, by rising memory."""
    order = np.lexsort((time, memory))
    best = np.minimum.accumulate(time[order])
    first = np.concatenate([[True], time[order][1:] < best[:-1] - 1e-12])
    return np.asarray(order[first])


def _cells(
    tp: NDArray[np.int64],
    pp: NDArray[np.int64],
    time: NDArray[np.float64],
    memory: NDArray[np.float64],
    fits: NDArray[np.bool_],
    text: Callable[[int], str],
) -> list[Cell]:
    cells = []
    key = tp * (int(pp.max()) + 1) + pp
    # the fastest fitting first; where none fits, the smallest
    order = np.lexsort((np.where(fits, time, memory), ~fits, key))
    _, firsts = np.unique(key[order], return_index=True)
    for index in order[firsts]:
        i = int(index)
        cells.append(
            Cell(
                int(tp[i]),
                int(pp[i]),
                float(time[i]) if fits[i] else float("inf"),
                float(memory[i]),
                text(i),
            )
        )
    return cells


# --- one layout ------------------------------------------------------------------------------


def _question(model: Model, machine: Machine, workload: Workload, estimate: Estimate) -> Question:
    return Question(model, machine, workload, load_framework(estimate.framework))


def stage_times(
    model: Model, machine: Machine, workload: Workload, estimate: Estimate
) -> tuple[StageTime, ...]:
    """Seconds of one micro-batch on every pipeline stage of a layout.

    Tensor, context and expert traffic that nothing hides counts one third to forward and two
    thirds to backward.
    """
    question = _question(model, machine, workload, estimate)
    blocks, framework, layout = blocks_of(question), question.framework, estimate.layout
    layouts = Layouts.stack([layout])
    passes = block_passes(question, blocks, layouts)
    stages = np.arange(layout.pp)
    counts = stage_counts(blocks, layouts.take((..., None)), stages[None, :], framework)
    send = _send_s(estimate)
    made = []
    for stage in stages:
        ahead = back = again = weights = 0.0
        for work, count in zip(passes, counts, strict=True):
            n = float(count[0, stage])
            traffic = float((work.tensor_s + work.context_s + work.expert_s)[0])
            ahead += n * (float(work.compute.forward_s[0]) + traffic / 3)
            back += n * (float(work.compute.backward_s[0]) + traffic * 2 / 3)
            again += n * float(work.compute.recompute_s[0])
            weights += n * float(work.compute.weight_gradient_s[0])
        made.append(StageTime(ahead, back, again, weights, send))
    return tuple(made)


def _send_s(estimate: Estimate) -> float:
    """One stage-to-stage transfer, from the estimate's own part [s]."""
    layout = estimate.layout
    if layout.pp == 1:
        return 0.0
    whole = estimate.step_time_parts_s["pipeline_transfer"]
    fill = 2 * (layout.pp - 1)
    framework = load_framework(estimate.framework)
    if framework.communication.overlap_pipeline:
        return whole / fill
    return whole / (fill + 2 * layout.vpp * layout.grad_accumulation)


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
    "cp": ("keys and values around the ring", ("context_parallel",)),
    "dp": (
        "gradients, weights where sharded",
        ("gradient_reduction", "parameter_gathering", "parameter_update_gathering"),
    ),
    "pp": ("activations, stage to stage", ("pipeline_transfer",)),
    "ep": ("tokens to experts and back", ("expert_parallel",)),
}


def axes(model: Model, machine: Machine, workload: Workload, estimate: Estimate) -> list[Axis]:
    """The parallel axes of a layout that have more than one rank, fastest first."""
    layout = estimate.layout
    traffic = step_traffic(_question(model, machine, workload, estimate), layout)
    # context ranks hold the same weights, so gradients are reduced over them too
    places = {
        "tp": (layout.tp, 1),
        "ep": (layout.ep, layout.tp),
        "cp": (layout.cp, layout.tp),
        "dp": (layout.dp * layout.cp, layout.tp),
        "pp": (layout.pp, layout.tp * layout.cp * layout.dp),
    }
    rows = []
    for name, (size, stride) in places.items():
        if size == 1:
            continue
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
    """Where a rank stands on every axis (tp fastest, then cp, dp, pp).

    >>> rank_axes(Layout(tp=4, dp=2, pp=2), 13)
    {'tp': 1, 'cp': 0, 'dp': 1, 'pp': 1}
    """
    place = {}
    for axis in ("tp", "cp", "dp", "pp"):
        rank, place[axis] = divmod(rank, getattr(layout, axis))
    return place
