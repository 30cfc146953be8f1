"""Strategy verdicts: whether each classic strategy fits, why not, and what would make it fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

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
    memory_margin,
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
from planner.units import counted


@dataclass(frozen=True, slots=True)
class _Searched:
    """The candidates of a job by framework, on all devices and on one."""

    scenarios: dict[str, Scenario]
    candidates: dict[str, Candidates]
    world: int
    chosen: bool
    """Whether the user named the frameworks."""
    on_one_device: dict[str, Candidates]
    """Searched on demand."""
    tolerance: float | None

    def for_strategy(self, strategy: Strategy) -> dict[str, Candidates]:
        """Candidates on one device for a single-device strategy, else on all devices."""
        if self.world == 1 or not strategy.single:
            return self.candidates
        for name, scenario in self.scenarios.items():
            if name not in self.on_one_device:
                self.on_one_device[name] = search(scenario, 1)
        return self.on_one_device


def judge_strategies(
    candidates: dict[str, Candidates],
    scenarios: dict[str, Scenario],
    nodes: int,
    chosen: bool = False,
    tolerance: float | None = None,
) -> list[Verdict]:
    """Judge every classic strategy by a job's candidates; `chosen`: the user named frameworks."""
    first = next(iter(scenarios.values()))
    world = nodes * first.machine.node.num_devices
    verdicts = list(_verdicts(_Searched(scenarios, candidates, world, chosen, {}, tolerance)))
    if not any(len(part.estimates) for part in candidates.values()):
        if chosen:
            verdicts = _with_other_frameworks(verdicts, first, nodes)
        verdicts = _with_more_nodes(verdicts, scenarios, nodes)
    return _with_even_batch(verdicts, scenarios, nodes)


def _verdicts(searched: _Searched) -> Iterator[Verdict]:
    """Yield the verdict on each strategy; estimate layouts that do not fit together."""
    layouts = [list(_strategy_candidates(strategy, searched)) for strategy in CLASSIC]
    best = [_best(parts, searched.tolerance) for parts in layouts]
    closest = [
        _closest(parts) if parts and estimate is None else None
        for parts, estimate in zip(layouts, best, strict=True)
    ]
    estimates = iter(_estimates([pair for pair in closest if pair]))
    for strategy, parts, estimate, pair in zip(CLASSIC, layouts, best, closest, strict=True):
        if estimate is not None:
            why = memory_margin(estimate, parts[0].footprints.device_limit_bytes)
            yield Verdict(strategy.name, True, why, "", estimate)
        elif pair is not None:
            estimate = next(estimates)
            fix = cheapest_change(estimate, searched.for_strategy(strategy))
            yield Verdict(strategy.name, False, shortage_sentence(estimate, pair[0]), fix, estimate)
        else:
            job = searched.scenarios, searched.world, searched.chosen
            why = explain_infeasibility(strategy, *job)
            yield Verdict(strategy.name, False, f"no legal layout: {why}", "", None)


def _closest(parts: list[Candidates]) -> tuple[Footprints, Scenario]:
    """Find the layout that exceeds its limits least, and its scenario."""
    closest = [(*closest_to_fitting(part), part.scenario) for part in parts]
    _, footprint, scenario = min(closest, key=lambda each: each[0])
    return footprint, scenario


def _estimates(layouts: list[tuple[Footprints, Scenario]]) -> list[Estimate]:
    """Estimate single layouts, all layouts of a scenario together."""
    estimates: dict[int, Estimate] = {}
    for scenario in {id(scenario): scenario for _, scenario in layouts}.values():
        rows = [row for row, (_, each) in enumerate(layouts) if each is scenario]
        times = estimate_times(scenario, Footprints.joined([layouts[row][0] for row in rows]))
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
    """Yield a strategy's candidates in each framework that has any."""
    candidates = searched.for_strategy(strategy)
    for name in strategy_frameworks(strategy, searched.scenarios, searched.chosen):
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
    elif len(sharded.footprints):
        layouts = closest_to_fitting(sharded)[1].layouts
    else:
        return sharded
    layouts = legal_layouts(scenario, change(scenario, layouts))
    layouts = layouts.take(np.flatnonzero(strategy.holds(layouts)))
    footprints, estimates = estimate_fitting(scenario, layouts)
    return replace(candidates, footprints=footprints, estimates=estimates)


def _with_other_frameworks(verdicts: list[Verdict], first: Scenario, nodes: int) -> list[Verdict]:
    """Add fixes: layouts that fit in a framework that the user did not name."""
    job = JobSpec(first.model, first.machine, nodes=nodes, workload=first.workload)
    candidates = search_job(job).by_framework
    scenarios = {name: part.scenario for name, part in candidates.items()}
    searched = _Searched(scenarios, candidates, job.num_devices, False, {}, None)
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
    """True if any layout of the strategy fits in one of its frameworks."""
    parts = [
        part for name, part in footprints.items() if strip_switches(name) in strategy.frameworks
    ]
    return any(np.any(part.fits & strategy.holds(part.layouts)) for part in parts if len(part))
