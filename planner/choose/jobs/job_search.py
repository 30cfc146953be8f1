"""Search a job with every framework, and with a nearby batch if its own has no layout."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.choose.jobs.job_spec import JobSpec, running_frameworks
from planner.choose.legality import check
from planner.choose.preferences import preferences
from planner.choose.recommendation import recommend, setup_effort
from planner.choose.search import Candidates, SearchScope, is_deep_pipeline, search
from planner.cost.arrays import Mask
from planner.cost.estimate import Estimate
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.describe.workload import Workload
from planner.errors import LayoutError
from planner.tables import Record

_AXES = ("tp", "ep")


@dataclass(frozen=True, slots=True)
class Batch:
    """A nearby global batch and its recommended layout."""

    global_batch: int
    estimate: Estimate
    speedup: float | None
    """Throughput relative to the job's own batch; None if that batch has no layout."""

    def record(self) -> Record:
        """Flatten the batch and its estimate to one row."""
        return {
            "global_batch": self.global_batch,
            "speedup": self.speedup,
            **self.estimate.record(),
        }


def nearest_batches(batch: int, ranks: int) -> list[int]:
    """Nearest multiples of `ranks` below and above a batch; none if the batch is a multiple."""
    below = batch // ranks * ranks
    return [] if below == batch else [size for size in (below, below + ranks) if size]


def offered(
    scenarios: Mapping[str, Scenario], nodes: int, answer: Estimate | None
) -> tuple[Batch, ...]:
    """Find nearby batches that make the job possible, faster, or simpler at about equal speed."""
    first = next(iter(scenarios.values()))
    world, batch = nodes * first.machine.node.num_devices, first.workload.global_batch
    if answer is not None and answer.layout.pp * answer.layout.cp == 1:
        return ()
    sharing = [_sharing(nodes, batch), _sharing(world, batch), *([] if answer else [world])]
    sizes = {size for ranks in sharing for size in nearest_batches(batch, ranks)}
    below = sorted((size for size in sizes if size < batch), reverse=True)
    above = sorted(size for size in sizes if size > batch)
    sides = [list(_worth(scenarios, world, side, answer)) for side in (below, above)]
    return tuple(_nearest(side) for side in sides if side)


def _nearest(side: Sequence[Batch]) -> Batch:
    """Pick the nearest batch, or a farther one with much more throughput; nearest come first."""
    batch, gain = side[0], preferences().offers.farther_batch_gain.value
    for farther in side[1:]:
        if farther.estimate.tokens_per_s > gain * batch.estimate.tokens_per_s:
            batch = farther
    return batch


def _sharing(ranks: int, batch: int) -> int:
    """Halve `ranks` until each has a sequence of the batch, or until `ranks` is odd."""
    while ranks > batch and ranks % 2 == 0:
        ranks //= 2
    return ranks


def _worth(
    scenarios: Mapping[str, Scenario], world: int, sizes: Sequence[int], answer: Estimate | None
) -> Iterator[Batch]:
    """Yield the batch sizes that are worth changing the job for."""
    first = next(iter(scenarios.values()))
    batch, per_node = first.workload.global_batch, first.machine.node.num_devices
    # without a layout, or with fewer sequences than devices, every axis may help
    axes = _AXES if answer and batch >= world else ()

    def no_worse(x: Layouts) -> Mask:
        """Exclude tp across nodes and, if the job has a layout, offload."""
        return np.asarray((x.tp <= per_node) & (x.keeps_states | (answer is None)))

    for size in sizes:
        if answer and abs(size - batch) > preferences().offers.batch_change.value * batch:
            continue
        resized = [_with_batch(scenario, size, axes) for scenario in _runnable(scenarios)]
        best = recommend(search(scenario, world).only(no_worse) for scenario in resized)
        if best is None:
            continue
        if answer is None:
            # if the job's batch has no layout, the nearest batch with one is enough
            yield Batch(size, best, None)
            return
        speedup = best.tokens_per_s / answer.tokens_per_s
        theirs, ours = (_effort(scenarios, candidate) for candidate in (best, answer))
        tolerance = preferences().tolerance
        if speedup >= (1 / (1 + tolerance) if theirs < ours else 1 + tolerance):
            yield Batch(size, best, speedup)


def _runnable(scenarios: Mapping[str, Scenario]) -> list[Scenario]:
    """Limit scenarios to layouts that files can express; all scenarios if files express none."""
    parts = [
        replace(q, framework=q.framework.limit_to_files(q.model, q.workload))
        for q in scenarios.values()
        if not q.framework.code.lacks(q.model, q.workload)
    ]
    return parts or list(scenarios.values())


def _effort(scenarios: Mapping[str, Scenario], estimate: Estimate) -> float:
    """Setup effort of a layout and its framework; infinite if no files can be written [1]."""
    scenario = scenarios[estimate.framework]
    if scenario.framework.code.lacks(scenario.model, scenario.workload):
        return math.inf
    return setup_effort(Layouts.of(estimate.layout)).item() + scenario.framework.effort


def _with_batch(scenario: Scenario, size: int, axes: Sequence[str]) -> Scenario:
    """Copy a scenario with another batch and, unless `axes` is empty, only these axes."""
    workload, framework = scenario.workload.replaced(global_batch=size), scenario.framework
    if axes:
        framework = framework.replaced(axes=[axis for axis in framework.axes if axis in axes])
    return replace(scenario, workload=workload, framework=framework)


@dataclass(frozen=True, slots=True)
class JobCandidates:
    """Candidates of a job by framework."""

    workload: Workload
    """The job's workload, with the nearest usable batch if its own has no suitable layout."""
    by_framework: dict[str, Candidates]
    """Candidates by name of the framework."""
    batches: tuple[Batch, ...] = ()
    """Alternatives to the job's batch, if the search replaced it."""


def search_job(job: JobSpec, scope: SearchScope = SearchScope()) -> JobCandidates:
    """Search every layout of a job, with the nearest usable batch if its own has no layout."""
    candidates: dict[str, Candidates] = {}
    for scenarios in _search_steps(job):
        candidates |= _search_all(scenarios, job.num_devices, scope)
        best = recommend(candidates.values())
        if best is not None and not is_deep_pipeline(job.model, best.layout.pp):
            break
        batches = offered(scenarios, job.nodes, best) if scenarios else ()
        nearest = _nearest_batch(job, batches, best)
        if nearest is not None:
            workload = job.workload.replaced(global_batch=nearest)
            nearby = {name: replace(s, workload=workload) for name, s in scenarios.items()}
            return JobCandidates(workload, _search_all(nearby, job.num_devices, scope), batches)
        if best is not None:
            break
    return JobCandidates(job.workload, candidates)


def _nearest_batch(job: JobSpec, batches: tuple[Batch, ...], best: Estimate | None) -> int | None:
    """Closest offered batch that is near enough to replace the job's own; None without one."""
    batch = job.workload.global_batch
    change = preferences().offers.batch_change.value * batch
    sizes = [
        offer.global_batch
        for offer in batches
        if abs(offer.global_batch - batch) <= change
        and (best is None or not is_deep_pipeline(job.model, offer.estimate.layout.pp))
    ]
    return min(sizes, key=lambda size: abs(size - batch)) if sizes else None


def _search_all(
    scenarios: dict[str, Scenario], world: int, scope: SearchScope
) -> dict[str, Candidates]:
    """Search every framework, those with the most axes first."""
    candidates: dict[str, Candidates] = {}
    for name in sorted(reversed(scenarios), key=lambda name: -len(scenarios[name].framework.axes)):
        candidates[name] = search(scenarios[name], world, scope=scope)
        scope = replace(scope, top_time_s=min(scope.top_time_s, candidates[name].top_time_s))
    return {name: candidates[name] for name in scenarios}


def _search_steps(job: JobSpec) -> Iterator[dict[str, Scenario]]:
    """Yield scenarios limited to what configuration files can express, then those without limit."""
    written = _writable_scenarios(job)
    yield written
    yield {
        framework.name: replace(job.scenario(framework), experience=job.experience)
        for framework in job.searched_frameworks()
        if (framework.name not in written or written[framework.name].framework != framework)
        and (job.frameworks or not framework.instead_of)
    }


def _writable_scenarios(job: JobSpec) -> dict[str, Scenario]:
    """Scenario of every framework, limited to layouts that its files can express."""
    model, workload = job.model, job.workload
    scenarios = {}
    frameworks = job.searched_frameworks() if job.frameworks else running_frameworks(job.machine)
    for framework in frameworks:
        if not job.frameworks and framework.code.lacks(model, workload):
            continue
        builds = framework.code.builds(model, workload) is not None
        unlimited = job.frameworks and framework.code.models and not builds
        part = framework if unlimited else framework.limit_to_files(model, workload)
        scenarios[framework.name] = job.scenario(part)
    if job.frameworks:
        return scenarios
    replaced = {scenario.framework.instead_of for scenario in scenarios.values()}
    return {
        name: scenario
        for name, scenario in scenarios.items()
        if name not in replaced and scenario.framework.stands_in_for not in scenarios
    }


def framework_notes(job: JobSpec, searched: Collection[str]) -> list[str]:
    """Name each framework whose configuration files cannot express the job, and the reason."""
    frameworks = [each for each in job.searched_frameworks() if each.instead_of not in searched]
    reasons = {each.name: each.code.lacks(job.model, job.workload) for each in frameworks}
    return [
        f"{'No files can be written for' if name in searched else 'Not searched:'} "
        f"{name}: {reason}."
        for name, reason in reasons.items()
        if reason
    ]


def unwritable_layout_notes(scenarios: Mapping[str, Scenario], best: Estimate | None) -> list[str]:
    """Explain why configuration files cannot express the recommended layout; empty if they can."""
    if best is None:
        return []
    scenario = scenarios[best.framework]
    model, workload, framework = scenario.model, scenario.workload, scenario.framework
    if framework.code.lacks(model, workload):
        return []  # `framework_notes` reports the whole framework
    try:
        check(replace(scenario, framework=framework.limit_to_files(model, workload)), best.layout)
    except LayoutError as error:
        return [
            f"No files can be written for the recommended layout: {error}. `planner emit` names "
            "the fastest one that can be."
        ]
    return []
