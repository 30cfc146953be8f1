"""Search: every legal layout of a world size, evaluated by the one implementation.

Memory comes first, and only what fits is timed; of very many, what bounds do not rule out.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from planner.choose.job_checks import check_routing, check_sequence
from planner.choose.search.candidates import Candidates
from planner.choose.search.enumeration import enumerate_layouts
from planner.choose.search.pruning import SearchScope, estimate_promising
from planner.choose.search.refine import REFINEMENTS
from planner.cost.arrays import Mask
from planner.cost.estimate import fitting
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts

__all__ = ["search"]


def search(
    scenario: Scenario,
    world: int,
    within: Callable[[Layouts], Mask] | None = None,
    scope: SearchScope = SearchScope(),
) -> Candidates:
    """Every legal layout of `world` ranks under one framework, and the step time of what fits.

    With `within`, of one kind of layouts: what is tried further is then what could be the fastest
    of that kind and not of all, and comes of layouts of that kind. Of very many candidates those
    are estimated that by their bounds can be `scope`.
    """
    check_sequence(scenario.model, scenario.workload)
    check_routing(scenario.model, scenario.workload)
    layouts, dropped = enumerate_layouts(scenario, world)
    layouts = _kept(layouts, within)
    estimating = functools.partial(_found, scenario, dropped)
    found, sieve = estimate_promising(scenario, layouts, estimating, scope)
    for further in REFINEMENTS:
        more = _kept(further(found), within)
        more = more if sieve is None else sieve.passed(more)
        if len(more):
            tried = estimating(more)
            found = found.joined(tried)
            if sieve is not None:
                sieve.learn(tried)
    if sieve is not None:
        large, slow = found.too_large + sieve.too_large, found.too_slow + sieve.too_slow
        found = replace(found, too_large=large, too_slow=slow)
    taken = found.footprints
    device = int(np.count_nonzero(~taken.fits_device)) + found.too_large
    host = int(np.count_nonzero(taken.fits_device & ~taken.fits_host))
    if device:
        dropped["device memory is exceeded"] = device
    if host:
        dropped["host memory is exceeded"] = host
    if found.too_slow:
        dropped["by its bound slower than others of its kind"] = found.too_slow
    return found


def _kept(layouts: Layouts, within: Callable[[Layouts], Mask] | None) -> Layouts:
    return layouts if within is None else layouts.take(np.flatnonzero(within(layouts)))


def _found(scenario: Scenario, dropped: dict[str, int], layouts: Layouts) -> Candidates:
    """What all layouts take, and how long those take that fit."""
    return Candidates(scenario, *fitting(scenario, layouts), dropped)
