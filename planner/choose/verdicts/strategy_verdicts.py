"""Strategy verdicts: whether each classic strategy fits, why not, and what would make it fit."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from planner.choose.jobs.job_search import search_job
from planner.choose.jobs.job_spec import JobSpec
from planner.choose.legality import legal_layouts
from planner.choose.plan import Verdict
from planner.choose.preferences import preferences
from planner.choose.search import Candidates, rank_fastest, search
from planner.choose.search.recommendation import recommend
from planner.choose.verdicts.fixes import (
    Scenarios,
    cheapest_change,
    closest_to_fitting,
    double_nodes,
    even_batch,
    layout_changes,
    shortage_sentence,
)
from planner.choose.verdicts.strategies import (
    CLASSIC,
    Strategy,
    explain_infeasibility,
    strategy_frameworks,
)
from planner.cost.estimate import Estimate, estimate_fitting, estimate_times
from planner.cost.memory.footprint import Footprints
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.describe.framework.switches import strip_switches
from planner.units import counted, format_bytes


@dataclass(frozen=True, slots=True)
class _Searched:
    """The candidates of a job by framework, on all devices and on one."""

    job: JobSpec
    candidates: dict[str, Candidates]
    on_one_device: dict[str, Candidates] = field(default_factory=dict)
    """Searched on demand."""

    @property
    def scenarios(self) -> dict[str, Scenario]:
        """Scenario of the job under each framework, as it was searched."""
        return {name: part.scenario for name, part in self.candidates.items()}

    def for_strategy(self, strategy: Strategy) -> dict[str, Candidates]:
        """Candidates on one device for a single-device strategy, else on all devices."""
        if self.job.num_devices == 1 or not strategy.single:
            return self.candidates
        for name, scenario in self.scenarios.items():
            if name not in self.on_one_device:
                self.on_one_device[name] = search(scenario, 1)
        return self.on_one_device


def judge_strategies(job: JobSpec, candidates: dict[str, Candidates]) -> list[Verdict]:
    """Judge every classic strategy by the candidates of a job."""
    searched = _Searched(job, candidates)
    verdicts = list(_verdicts(searched))
    if not any(len(part.estimates) for part in candidates.values()):
        if job.frameworks:
            verdicts = _with_other_frameworks(verdicts, job)
        verdicts = _with_more_nodes(verdicts, searched.scenarios, job.nodes)
    return _with_even_batch(verdicts, searched.scenarios, job.nodes)


def _verdicts(searched: _Searched) -> Iterator[Verdict]:
    """Yield the verdict on each strategy; estimate layouts that do not fit together."""
    layouts = [list(_strategy_candidates(strategy, searched)) for strategy in CLASSIC]
    best = [_best(parts, searched.job.tolerance) for parts in layouts]
    closest = [
        closest_to_fitting(parts) if estimate is None else None
        for parts, estimate in zip(layouts, best, strict=True)
    ]
    estimates = iter(_estimates([pair for pair in closest if pair]))
    for strategy, parts, estimate, pair in zip(CLASSIC, layouts, best, closest, strict=True):
        if estimate is not None:
            used, limit = estimate.memory_bytes["total"], parts[0].footprints.device_limit_bytes
            why = f"{format_bytes(used)} per rank, {format_bytes(limit - used)} free"
            yield Verdict(strategy.name, True, why, "", estimate)
        elif pair is not None:
            estimate = next(estimates)
            fix = _fix(estimate, searched.for_strategy(strategy))
            yield Verdict(strategy.name, False, shortage_sentence(estimate, pair[1]), fix, estimate)
        else:
            chosen, world = bool(searched.job.frameworks), searched.job.num_devices
            why = explain_infeasibility(strategy, searched.scenarios, world, chosen)
            yield Verdict(strategy.name, False, f"no legal layout: {why}", "", None)


def _fix(estimate: Estimate, candidates: dict[str, Candidates]) -> str:
    """Describe the cheapest change to a layout that fits; empty if nothing fits."""
    if (new := cheapest_change(estimate, candidates)) is None:
        return ""
    changes = layout_changes(estimate.layout, estimate.framework, new)
    return f"{changes} ({format_bytes(new.memory_bytes['total'])})"


def _estimates(layouts: list[tuple[Scenario, Footprints]]) -> list[Estimate]:
    """Estimate single layouts, all layouts of a scenario together."""
    estimates: dict[int, Estimate] = {}
    for scenario in {id(scenario): scenario for scenario, _ in layouts}.values():
        rows = [row for row, (each, _) in enumerate(layouts) if each is scenario]
        times = estimate_times(scenario, Footprints.joined([layouts[row][1] for row in rows]))
        estimates |= {row: times[number] for number, row in enumerate(rows)}
    return [estimates[row] for row in range(len(layouts))]


def _best(parts: list[Candidates], tolerance: float | None) -> Estimate | None:
    """Recommended layout of a strategy, or its fastest if that is much faster."""
    recommended = recommend(parts, tolerance)
    if recommended is None:
        return None
    firsts = [part.estimates[int(i)] for part in parts for i in rank_fastest(part.estimates, 1)]
    fastest = min(firsts, key=lambda estimate: estimate.step_time_s)
    limit_s = (1 + preferences().recommendation.strategy_slowdown.value) * fastest.step_time_s
    return recommended if recommended.step_time_s <= limit_s else fastest


def _strategy_candidates(strategy: Strategy, searched: _Searched) -> Iterator[Candidates]:
    candidates = searched.for_strategy(strategy)
    for name in strategy_frameworks(strategy, candidates, bool(searched.job.frameworks)):
        part = candidates[name].only(strategy.holds)
        if strategy.of_sharded is not None and not len(part.footprints):
            part = _derived(strategy.of_sharded, strategy, candidates[name])
        if len(part.footprints):
            yield part


def _derived(
    change: Callable[[Scenario, Layouts], Layouts], strategy: Strategy, candidates: Candidates
) -> Candidates:
    """Derive layouts from the sharded-weight layout that is fastest, or closest to fitting."""
    scenario = candidates.scenario
    sharded = candidates.only(lambda x: x.shards_weights & (x.tp * x.pp * x.cp * x.ep == 1))
    if len(sharded.estimates):
        layouts = sharded.estimates.layouts.take(rank_fastest(sharded.estimates, 1))
    elif closest := closest_to_fitting([sharded]):
        layouts = closest[1].layouts
    else:
        return sharded
    layouts = legal_layouts(scenario, change(scenario, layouts))
    layouts = layouts.take(np.flatnonzero(strategy.holds(layouts)))
    footprints, estimates = estimate_fitting(scenario, layouts)
    return replace(candidates, footprints=footprints, estimates=estimates)


def _with_other_frameworks(verdicts: list[Verdict], job: JobSpec) -> list[Verdict]:
    """Add fixes: layouts that fit in a framework that the user did not name."""
    job = JobSpec(job.model, job.machine, nodes=job.nodes, workload=job.workload)
    searched = _Searched(job, search_job(job))
    return [
        replace(
            verdict, fix=f"with {alternative.estimate.framework}: {alternative.estimate.layout}"
        )
        if alternative.fits and alternative.estimate is not None
        else verdict
        for verdict, alternative in zip(verdicts, _verdicts(searched), strict=True)
    ]


def _with_more_nodes(verdicts: list[Verdict], scenarios: Scenarios, nodes: int) -> list[Verdict]:
    """Add fixes: the first doubling of nodes on which any strategy fits, for those that fit."""
    for count, footprints in double_nodes(scenarios, nodes):
        fits = [_fits_in(strategy, footprints) and not strategy.single for strategy in CLASSIC]
        if any(fits):
            fix = counted(count, "node")
            return [
                replace(verdict, fix=fix, nodes=count) if helps else verdict
                for verdict, helps in zip(verdicts, fits, strict=True)
            ]
    return verdicts


def _with_even_batch(verdicts: list[Verdict], scenarios: Scenarios, nodes: int) -> list[Verdict]:
    """Add fixes: the next even batch, for strategies without a legal layout that fit with it."""
    open_verdicts = [verdict.estimate is None and not verdict.nodes for verdict in verdicts]
    if not any(open_verdicts):
        return verdicts
    batch, footprints = even_batch(scenarios, nodes)
    return [
        replace(verdict, fix=f"batch {batch:,}", batch=batch)
        if is_open and footprints and _fits_in(strategy, footprints)
        else verdict
        for verdict, strategy, is_open in zip(verdicts, CLASSIC, open_verdicts, strict=True)
    ]


def _fits_in(strategy: Strategy, footprints: dict[str, Footprints]) -> bool:
    parts = [
        part for name, part in footprints.items() if strip_switches(name) in strategy.frameworks
    ]
    return any(np.any(part.fits & strategy.holds(part.layouts)) for part in parts if len(part))
