"""Layout space: the best layout per tp and pp, the Pareto front and a sample of all layouts."""

import functools
import itertools
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from planner.choose.jobs.job_search import search_job
from planner.choose.jobs.job_spec import JobSpec
from planner.choose.plan import Plan
from planner.choose.planning import plan_with_candidates
from planner.choose.search import Candidates, SearchScope
from planner.choose.search.recommendation import trade_offs
from planner.choose.simulation.tasks import measured_factor, stage_work
from planner.cost.arrays import Int
from planner.cost.estimate import Estimate
from planner.cost.network.groups import AXES, geometry
from planner.cost.network.topology import group_view
from planner.cost.scenario import Scenario
from planner.cost.schedules.simulate import simulate
from planner.cost.schedules.timeline import Timeline
from planner.cost.shards.layouts import Layouts
from planner.cost.step.communication.bytes_per_axis import AxisTraffic, step_traffic
from planner.describe.layout import Layout


@dataclass(frozen=True, slots=True)
class LayoutSpace:
    """Summary of all layouts of a job."""

    cells: tuple[Estimate, ...] = ()
    """Per pair of tp and pp the fastest layout that fits; if none fits, the smallest."""
    front: tuple[Estimate, ...] = ()
    """Pareto front of memory and step time among layouts that fit, smallest memory first."""
    cloud: tuple[Estimate, ...] = ()
    """Deterministic sample of all layouts but those that exceed the device's memory by far."""
    choices: tuple[Estimate, ...] = ()
    """Layouts from the safest and simplest to the fastest; the recommended one is among them."""
    num_candidates: int = 0
    num_fitting: int = 0


def layout_space(job: JobSpec) -> LayoutSpace:
    """Summarize all layouts of a job: the best per tp and pp, the Pareto front, a sample."""
    return space_of(list(search_job(job, SearchScope(sys.maxsize)).values()))


def plan_with_space(job: JobSpec, top: int) -> tuple[Plan, LayoutSpace]:
    """Plan a job; also summarize the layouts that its search estimated."""
    plan, candidates = plan_with_candidates(job, top)
    return plan, space_of(candidates, job.tolerance)


_CLOUD, _CUT = 400, 1.3
"""Size of the sample, and the most memory of its layouts over the device's."""


def space_of(candidates: Sequence[Candidates], tolerance: float | None = None) -> LayoutSpace:
    """Summarize candidates."""
    parts = [part for part in candidates if len(part.footprints)]
    if not parts:
        return LayoutSpace()
    table = _Table(parts)
    limit = _CUT * max(table.limit_bytes, float(np.min(table.memory_bytes)))
    rows = np.flatnonzero(table.memory_bytes <= limit)
    cells, front, cloud = table.estimates(
        _cells(table), _front(table), rows[:: max(len(rows) // _CLOUD, 1)]
    )
    return LayoutSpace(
        cells=cells,
        front=front,
        cloud=cloud,
        choices=trade_offs(parts, tolerance),
        num_candidates=len(table),
        num_fitting=int(np.count_nonzero(table.fits)),
    )


class _Table:
    def __init__(self, parts: Sequence[Candidates]) -> None:
        self.parts = parts
        self._starts = np.cumsum([0, *(len(part.footprints) for part in parts)])
        footprints = [part.footprints for part in parts]
        self.limit_bytes = footprints[0].device_limit_bytes
        self.memory_bytes = np.concatenate([each.memory_bytes for each in footprints])
        self.fits = np.concatenate([each.fits for each in footprints])
        self.tp = np.concatenate([each.layouts.tp for each in footprints])
        self.pp = np.concatenate([each.layouts.pp for each in footprints])
        self.time_s = np.full(len(self), np.inf)
        """Step time; infinite for layouts that do not fit [s]."""
        for part, start in zip(parts, self._starts, strict=False):
            rows = start + np.flatnonzero(part.footprints.fits)
            self.time_s[rows] = part.estimates.step_time_s

    def __len__(self) -> int:
        return int(self._starts[-1])

    def estimates(self, *lists: Int) -> Iterator[tuple[Estimate, ...]]:
        """Estimate lists of layouts, whether they fit or not, each in its order."""
        rows, estimated = np.unique(np.concatenate(lists)), dict[int, Estimate]()
        for part, (start, end) in zip(self.parts, itertools.pairwise(self._starts), strict=True):
            selected = rows[(rows >= start) & (rows < end)]
            estimated |= zip(selected.tolist(), part.rows(selected - start), strict=True)
        return (tuple(estimated[row] for row in each.tolist()) for each in lists)


def _front(table: _Table) -> Int:
    order = np.lexsort((table.time_s, table.memory_bytes))
    order = order[table.fits[order]]
    time_s = table.time_s[order]
    best_s = np.minimum.accumulate(np.concatenate([[np.inf], time_s]))
    return np.asarray(order[time_s < best_s[:-1] - 1e-12])


def _cells(table: _Table) -> Int:
    key = table.tp * (int(table.pp.max()) + 1) + table.pp
    # the fastest that fits first; if none fits, the smallest
    figure = np.where(table.fits, table.time_s, table.memory_bytes)
    order = np.lexsort((figure, ~table.fits, key))
    _, firsts = np.unique(key[order], return_index=True)
    return np.asarray(order[firsts])


_MOST_TASKS = 8_000
"""Most passes to simulate for a plot (half a second); further steady-state passes are skipped."""


@dataclass(frozen=True)
class SimulatedStep:
    """Simulated events of a step, stretched to the estimated step time."""

    timeline: Timeline
    micro_batches: int
    """Micro-batches of the step; the timeline may simulate fewer."""
    step_s: float
    """Estimated step time [s]."""

    @functools.cached_property
    def middle_s(self) -> float:
        """Instant of the timeline where the difference to the estimate is inserted [s]."""
        return self.timeline.passes_s / 2

    def instant_s(self, time_s: float) -> float:
        """Map an instant of the timeline to the estimated step [s]."""
        added_s = self.step_s - self.timeline.makespan_s if time_s > self.middle_s else 0.0
        return time_s + added_s

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


def simulate_step(scenario: Scenario, estimate: Estimate) -> SimulatedStep:
    """Simulate the step of an estimate event by event."""
    layout = estimate.layout
    work = stage_work(scenario, layout, measured_factor(scenario, estimate))
    count, per_batch = layout.grad_accumulation, 2 * layout.pp * layout.vpp
    if count * per_batch > _MOST_TASKS:
        rounds = max(_MOST_TASKS // per_batch // layout.pp, 2)
        count = min(rounds * layout.pp, count)
    timeline = simulate(work, count, layout.schedule, layout.vpp)
    return SimulatedStep(timeline, layout.grad_accumulation, estimate.step_time_s)


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
    """Traffic of one step, hidden or exposed [B]."""
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
"""Data sent on each axis, and the parts of the step time for it; fastest axis first."""


def parallel_axes(scenario: Scenario, estimate: Estimate) -> list[Axis]:
    """List the parallel axes of a layout with more than one rank, fastest first."""
    layout = estimate.layout
    traffic = step_traffic(scenario, layout)
    places, rows = geometry(Layouts.of(layout).with_default_etp(scenario.framework)), []
    for name in _CARRIES:
        if name not in traffic:
            continue
        size, stride = (int(figure) for figure in places[AXES[name]])
        view = group_view(scenario.machine, size, stride)
        inside = float(view.local_bytes_per_s) if view.local > 1 else np.inf
        between = float(view.network_bytes_per_s) if view.nodes > 1 else np.inf
        latency_s = view.network_latency_s if view.nodes > 1 else view.local_latency_s
        link = int(view.nodes), float(min(inside, between)), float(latency_s)
        carries, parts = _CARRIES[name]
        time_s = sum(estimate.step_time_parts_s.get(part, 0.0) for part in parts)
        rows.append(Axis(name, size, stride, *link, carries, traffic[name], time_s))
    return rows


def rank_axes(layout: Layout, rank: int) -> dict[str, int]:
    """Coordinates of a rank on tp (varies fastest), cp, dp and pp."""
    place = {}
    for axis in ("tp", "cp", "dp", "pp"):
        rank, place[axis] = divmod(rank, getattr(layout, axis))
    return place
