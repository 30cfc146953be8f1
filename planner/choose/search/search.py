"""Search every legal layout of a world size: memory first, then the time of those that fit."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from planner.choose.legality.job_checks import check_routing, check_sequence
from planner.choose.search.candidates import Candidates
from planner.choose.search.enumeration import enumerate_layouts
from planner.choose.search.pruning import SearchScope, estimate_promising
from planner.choose.search.refine import REFINEMENTS
from planner.cost.arrays import Mask
from planner.cost.estimate import estimate_fitting
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts

__all__ = ["search"]


def search(
    scenario: Scenario,
    world: int,
    within: Callable[[Layouts], Mask] | None = None,
    scope: SearchScope = SearchScope(),
) -> Candidates:
    """Search every legal layout of `world` ranks under one framework."""
    check_sequence(scenario.model, scenario.workload)
    check_routing(scenario.model, scenario.workload)
    layouts, dropped = enumerate_layouts(scenario, world)
    estimate = functools.partial(_estimate, scenario, dropped)
    candidates, pruner = estimate_promising(scenario, _restrict(layouts, within), estimate, scope)
    for refine in REFINEMENTS:
        refined = _restrict(refine(candidates), within)
        refined = refined if pruner is None else pruner.promising(refined)
        if len(refined):
            estimated = estimate(refined)
            candidates = Candidates.joined([candidates, estimated])
            if pruner is not None:
                pruner.learn(estimated)
    if pruner is not None:
        large, slow = candidates.too_large + pruner.too_large, candidates.too_slow + pruner.too_slow
        candidates = replace(candidates, too_large=large, too_slow=slow)
    _count_dropped(candidates)
    return candidates


def _restrict(layouts: Layouts, within: Callable[[Layouts], Mask] | None) -> Layouts:
    return layouts if within is None else layouts.take(np.flatnonzero(within(layouts)))


def _estimate(scenario: Scenario, dropped: dict[str, int], layouts: Layouts) -> Candidates:
    """Memory of all layouts, step time of those that fit."""
    return Candidates(scenario, *estimate_fitting(scenario, layouts), dropped)


def _count_dropped(candidates: Candidates) -> None:
    """Count the candidates that do not fit or are ruled out by a bound."""
    footprints = candidates.footprints
    no_host_memory = footprints.fits_device & ~footprints.fits_host
    counts = {
        "out of device memory": int(np.count_nonzero(~footprints.fits_device))
        + candidates.too_large,
        "out of host memory": int(np.count_nonzero(no_host_memory)),
        "slower than another of its class by a lower bound": candidates.too_slow,
    }
    candidates.dropped.update({reason: count for reason, count in counts.items() if count})
