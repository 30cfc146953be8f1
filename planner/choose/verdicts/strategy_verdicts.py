"""Judging: every classic strategy's fate, with the reason that the estimate or the rules give.

For what runs out of memory the verdict names the largest part, the excess and the cheapest change
that makes it fit; for what has no legal layout, the obstacle.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from planner.choose.job import JobSpec
from planner.choose.job_search import search_job
from planner.choose.legality import legal
from planner.choose.preferences import preferences
from planner.choose.recommendation import recommend
from planner.choose.search import Candidates, rank_fastest, search
from planner.choose.verdicts.fixes import (
    cheapest_change,
    closest_to_fitting,
    memory_margin,
    shortage_sentence,
)
from planner.choose.verdicts.infeasibility import explain_infeasibility, strategy_frameworks
from planner.choose.verdicts.scale_up import double_nodes, even_batch
from planner.choose.verdicts.strategies import CLASSIC, Strategy
from planner.cost.estimate import Estimate, fitting, timed
from planner.cost.memory.footprint import Footprints
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.describe.framework.switches import family
from planner.describe.layout import Layout
from planner.tables import Record
from planner.units import counted

__all__ = ["Verdict", "judge_strategies"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """A classic strategy's fate: the layout to run, or what is too much and what helps."""

    name: str
    fits: bool
    why: str
    fix: str
    estimate: Estimate | None
    """The one to run where any fits, else the one closest to fitting; None where none is legal."""
    nodes: int | None = None
    """Where nothing fits: nodes on which it does, with this batch; None where none was found."""
    batch: int | None = None
    """Where it has no legal layout: the batch with which it has one that fits, on these nodes."""

    def record(self) -> Record:
        """The verdict as one flat row, with that of its estimate."""
        said = {"strategy": self.name, "fits": self.fits, "why": self.why, "fix": self.fix}
        elsewhere = {"enough_nodes": self.nodes, "possible_batch": self.batch}
        found = {} if self.estimate is None else self.estimate.record()
        return {**said, **elsewhere, **{k: v for k, v in found.items() if k not in said}}


@dataclass(frozen=True, slots=True)
class _Bench:
    """What verdicts are taken from: what was found over all devices and on one, per framework."""

    scenarios: dict[str, Scenario]
    found: dict[str, Candidates]
    world: int
    chosen: bool
    alone: dict[str, Candidates]
    tolerance: float | None

    def of(self, strategy: Strategy) -> dict[str, Candidates]:
        """What was found on the devices that a strategy uses."""
        if self.world > 1 and strategy.single:
            for name, scenario in self.scenarios.items():
                if name not in self.alone:
                    self.alone[name] = search(scenario, 1)
            return self.alone
        return self.found


def judge_strategies(
    found: dict[str, Candidates],
    scenarios: dict[str, Scenario],
    nodes: int,
    chosen: bool = False,
    tolerance: float | None = None,
) -> list[Verdict]:
    """The verdict on every classic strategy, from the candidates already evaluated.

    `chosen`: whether the frameworks were named by the user; `tolerance`: as of `recommend`, which
    picks the layout of a strategy too. Where nothing at all fits, more nodes
    are searched; where only the batch is in the way, the next one that is not.
    """
    first = next(iter(scenarios.values()))
    bench = _Bench(scenarios, found, nodes * first.machine.node.num_devices, chosen, {}, tolerance)
    verdicts = list(_judged(bench))
    if not any(len(source.estimates) for source in found.values()):
        if chosen:
            verdicts = _with_others(verdicts, first, nodes)
        verdicts = _on_more_nodes(verdicts, scenarios, nodes)
    return _with_a_batch(verdicts, scenarios, nodes)


@dataclass(frozen=True)
class _Case:
    """A strategy's layouts, and the one that is shown of them where any fits."""

    strategy: Strategy
    members: list[Candidates]
    best: Estimate | None

    @classmethod
    def of(cls, strategy: Strategy, bench: _Bench) -> _Case:
        """The case of a strategy."""
        members = list(_members(strategy, bench))
        return cls(strategy, members, _shown(members, bench.tolerance) if members else None)

    @functools.cached_property
    def closest(self) -> tuple[Footprints, Scenario]:
        """The layout that exceeds its limits least."""
        found = [(*closest_to_fitting(kind), kind.scenario) for kind in self.members]
        _, one, scenario = min(found, key=lambda each: each[0])
        return one, scenario


def _judged(bench: _Bench) -> Iterator[Verdict]:
    """The verdict on each strategy, those that do not fit estimated together."""
    cases = [_Case.of(strategy, bench) for strategy in CLASSIC]
    short = [case.closest for case in cases if case.members and case.best is None]
    estimates = iter(_estimated(short))
    for case in cases:
        name = case.strategy.name
        if not case.members:
            why = explain_infeasibility(case.strategy, bench.scenarios, bench.world, bench.chosen)
            yield Verdict(name, False, f"no legal layout: {why}", "", None)
        elif case.best is not None:
            why = memory_margin(case.best, case.members[0].footprints.device_limit_bytes)
            yield Verdict(name, True, why, "", case.best)
        else:
            estimate = next(estimates)
            fix = cheapest_change(estimate, bench.of(case.strategy))
            yield Verdict(name, False, shortage_sentence(estimate, case.closest[0]), fix, estimate)


def _estimated(some: list[tuple[Footprints, Scenario]]) -> list[Estimate]:
    """Estimates of single layouts, those of one scenario at once."""
    found: dict[int, Estimate] = {}
    for scenario in {id(scenario): scenario for _, scenario in some}.values():
        rows = [row for row, (_, asked) in enumerate(some) if asked is scenario]
        times = timed(scenario, Footprints.joined([some[row][0] for row in rows]))
        found |= {row: times[number] for number, row in enumerate(rows)}
    return [found[row] for row in range(len(some))]


def _shown(members: list[Candidates], tolerance: float | None) -> Estimate | None:
    """The layout to run of a strategy; its fastest where safety costs much time."""
    one = recommend(members, tolerance)
    if one is None:
        return None
    firsts = [kind.estimates[int(i)] for kind in members for i in rank_fastest(kind.estimates, 1)]
    fastest = min(firsts, key=lambda e: e.step_time_s)
    slowdown = preferences().recommendation.strategy_slowdown.value
    return one if one.step_time_s <= (1 + slowdown) * fastest.step_time_s else fastest


def _members(strategy: Strategy, bench: _Bench) -> Iterator[Candidates]:
    """What was found of the strategy's layouts, per framework that is at hand and has any."""
    found = bench.of(strategy)
    for name in strategy_frameworks(strategy, bench.scenarios, bench.chosen):
        kind = found[name].only(strategy.holds)
        if strategy.of_sharded is not None and not len(kind.footprints):
            kind = _made(strategy.of_sharded, strategy, found[name])
        if len(kind.footprints):
            yield kind


def _made(
    change: Callable[[Scenario, Layouts], Layouts], strategy: Strategy, found: Candidates
) -> Candidates:
    """A strategy's layouts made of those with sharded weights, where the search tries none.

    Of the fastest that fits, or of the one that exceeds its limits least.
    """
    scenario = found.scenario
    sharded = found.only(lambda x: x.shards_weights & (x.tp * x.pp * x.cp * x.ep == 1))
    if len(sharded.estimates):
        some = sharded.estimates.layouts.take(rank_fastest(sharded.estimates, 1))
    elif len(sharded.footprints):
        some = closest_to_fitting(sharded)[1].layouts
    else:
        return sharded
    changed = change(scenario, some)
    allowed, _ = legal(scenario, changed, set(Layout.model_fields))
    some = changed.take(np.flatnonzero(allowed & strategy.holds(changed)))
    taken, estimates = fitting(scenario, some)
    return replace(found, footprints=taken, estimates=estimates)


def _with_others(verdicts: list[Verdict], first: Scenario, nodes: int) -> list[Verdict]:
    """The verdicts with what fits in frameworks that were not asked for."""
    job = JobSpec(first.model, first.machine, nodes=nodes, workload=first.workload)
    found = search_job(job).by_framework
    scenarios = {name: part.scenario for name, part in found.items()}
    world = nodes * first.machine.node.num_devices
    others = _judged(_Bench(scenarios, found, world, False, {}, None))
    return [
        replace(mine, fix=f"with {theirs.estimate.framework}: {theirs.estimate.layout}")
        if theirs.fits and theirs.estimate is not None
        else mine
        for mine, theirs in zip(verdicts, others, strict=True)
    ]


def _on_more_nodes(
    verdicts: list[Verdict], scenarios: dict[str, Scenario], nodes: int
) -> list[Verdict]:
    """The verdicts with the first doubling of the nodes on which any of them fits."""
    for count, found in double_nodes(scenarios, nodes):
        able = [_fits_in(strategy, found) and not strategy.single for strategy in CLASSIC]
        if any(able):
            fix = counted(count, "node")
            return [
                replace(verdict, fix=fix, nodes=count) if fits else verdict
                for verdict, fits in zip(verdicts, able, strict=True)
            ]
    return verdicts


def _with_a_batch(
    verdicts: list[Verdict], scenarios: dict[str, Scenario], nodes: int
) -> list[Verdict]:
    """The verdicts without a legal layout with the batch that gives them one that fits."""
    lacking = [verdict.estimate is None and not verdict.nodes for verdict in verdicts]
    if not any(lacking):
        return verdicts
    batch, found = even_batch(scenarios, nodes)
    return [
        replace(verdict, fix=f"batch {batch:,}", batch=batch)
        if lacks and found and _fits_in(strategy, found)
        else verdict
        for verdict, strategy, lacks in zip(verdicts, CLASSIC, lacking, strict=True)
    ]


def _fits_in(strategy: Strategy, found: dict[str, Footprints]) -> bool:
    """Whether any of the strategy's layouts fits."""
    sets = [some for name, some in found.items() if family(name) in strategy.frameworks]
    return any(bool(np.any(some.fits & strategy.holds(some.layouts))) for some in sets if len(some))
