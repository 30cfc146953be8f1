"""Recompute: the least partial recompute for layouts that fit only with full recompute."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

import numpy as np

from planner.choose.legality import legal_refined
from planner.choose.search.candidates import Candidates, fits_safely
from planner.choose.search.lower_bounds import memory_lower_bound_bytes, step_time_lower_bound_s
from planner.cost.arrays import Arrays, Int, Mask, distinct
from planner.cost.estimate import step_times
from planner.cost.memory.footprint import Footprints, footprints
from planner.cost.operators.blocks import blocks_of
from planner.cost.scenario import Scenario
from planner.cost.shards.layout_codes import module_bits
from planner.cost.shards.layouts import Layouts
from planner.describe.layout import RECOMPUTE

_BOUNDED_FROM = 4096
"""Number of layouts above which lower bounds are checked before estimates."""
_NEAR_FACTOR = 1.1
"""Longest step time worth trying over the fastest so far; above any usual tolerance."""


def reduce_recompute(candidates: Candidates) -> Layouts:
    """Find the fewest recomputed layers and the smallest sets of modules with which layouts fit."""
    scenario, layouts = candidates.scenario, candidates.footprints.layouts
    framework = scenario.framework
    if not (framework.recompute_by or framework.recompute_modules) or not len(layouts):
        return layouts.take(np.zeros(0, dtype=np.int64))
    goals = _Goals.of(candidates)
    layouts = Layouts.joined([_fewest_layers(scenario, goals), _fewest_modules(scenario, goals)])
    first, _ = distinct(*(getattr(layouts, field.name) for field in fields(layouts)))
    return layouts.take(first)


@dataclass(frozen=True, slots=True)
class _Goals(Arrays):
    """Layouts with full recompute that may need less of it, and whether each must fit safely."""

    layouts: Layouts
    safely: Mask

    @classmethod
    def of(cls, candidates: Candidates) -> _Goals:
        """Select layouts that need recompute to fit (safely), and would be fast without it."""
        scenario, memory = candidates.scenario, candidates.footprints
        goals, limits_s = [], []
        for safely in (False, True):
            rows = np.flatnonzero(_needs_recompute(memory, _fits(scenario, memory, safely)))
            fits = _fits(scenario, candidates.estimates, safely)
            goals.append(cls(memory.layouts.take(rows), np.full(len(rows), safely)))
            limits_s.append(_NEAR_FACTOR * candidates.fastest_s(fits, goals[-1].layouts))
        joined, limit_s = cls.joined(goals), np.concatenate(limits_s)
        none = np.full_like(joined.safely, RECOMPUTE.index("none"), dtype=np.int64)
        without = replace(joined.layouts, recompute=none)
        if len(without) > _BOUNDED_FROM:
            is_fast = step_time_lower_bound_s(scenario, without, final=True) < limit_s
            rows = np.flatnonzero(is_fast)
            joined, without, limit_s = joined.take(rows), without.take(rows), limit_s[rows]
        return joined.take(np.flatnonzero(step_times(scenario, without) < limit_s))

    def met_by(self, scenario: Scenario, memory: Footprints) -> Mask:
        """True for footprints that fit, safely where required."""
        fits = _fits(scenario, memory, safely=False)
        if np.any(self.safely):
            fits = np.where(self.safely, _fits(scenario, memory, safely=True), fits)
        return fits

    def changed(self, **columns: Int) -> _Goals:
        """Copy the goals with changed columns of the layouts."""
        return replace(self, layouts=replace(self.layouts, **columns))


def _fits(scenario: Scenario, memory: Footprints, safely: bool) -> Mask:
    return fits_safely(scenario, memory) if safely else memory.fits


def _needs_recompute(memory: Footprints, fits: Mask) -> Mask:
    """True for layouts that fit with full recompute and are not known to fit without it."""
    layouts = memory.layouts
    needs = np.asarray(fits & layouts.recomputes_layers & ~layouts.recomputes_partly)
    # candidates that differ only in recompute follow each other
    for before in range(1, len(RECOMPUTE)):
        same = np.ones(max(len(layouts) - before, 0), dtype=np.bool_)
        for field in fields(layouts):
            if field.name != "recompute":
                column = getattr(layouts, field.name)
                same &= column[before:] == column[:-before]
        plain = ~(layouts.recomputes_layers | layouts.recomputes_selectively)
        needs[before:] &= ~(same & (plain & fits)[:-before])
    return needs


def _fewest_layers(scenario: Scenario, goals: _Goals) -> Layouts:
    """Find the fewest recomputed layers of a chunk: the first `layers`, then `every` n-th."""
    names = [name for name in ("layers", "every") if name in scenario.framework.recompute_by]
    if not names or not len(goals.layouts):
        return goals.layouts.take(np.zeros(0, dtype=np.int64))
    is_every = np.repeat([name == "every" for name in names], len(goals.layouts))
    # both kinds in one array: half as many estimates
    goals = _Goals.joined([goals] * len(names))
    layouts = goals.layouts

    def partly(rows: Int, numbers: Int) -> _Goals:
        part, by_number = goals.take(rows), is_every[rows]
        return part.changed(
            recompute_layers=np.where(by_number, part.layouts.recompute_layers, numbers),
            recompute_every=np.where(by_number, numbers, part.layouts.recompute_every),
        )

    # layers of the fullest chunk, where embedding and head may count as layers
    deepest = -(-(scenario.model.depth + 2) // (layouts.pp * layouts.vpp))
    # more first layers mean more recompute; a larger n in every n-th means less
    fitting, failing = np.where(is_every, 1, deepest), np.where(is_every, deepest + 1, 0)
    while np.any(is_open := np.abs(fitting - failing) > 1):
        rows = np.flatnonzero(is_open)
        between = _between(fitting[rows], failing[rows])
        trial = partly(np.tile(rows, len(between)), between.ravel())
        fits = trial.met_by(scenario, footprints(scenario, trial.layouts)).reshape(between.shape)
        # the numbers go from fitting to failing: keep the last that fits and the first that fails
        count = np.where(fits.all(0), len(fits), fits.argmin(0))
        bounds = np.concatenate([[fitting[rows]], between, [failing[rows]]])
        fitting[rows], failing[rows] = (
            np.take_along_axis(bounds, each[None], 0)[0] for each in (count, count + 1)
        )
    rows = np.flatnonzero(np.where(is_every, fitting > 1, fitting < deepest))
    layouts = partly(rows, fitting[rows]).layouts
    return layouts.take(np.flatnonzero(legal_refined(scenario, layouts)))


_TRIALS = 3
"""Numbers of layers tried at once: two rounds of bisection in one, about as fast as one."""


def _between(fitting: Int, failing: Int) -> Int:
    """Numbers that divide the ranges evenly, none of them failing. Shape (_TRIALS, layouts)."""
    parts, width = np.arange(1, _TRIALS + 1)[:, None], failing - fitting
    return np.asarray(fitting + np.sign(width) * (np.abs(width) * parts // (_TRIALS + 1)))


def _fewest_modules(scenario: Scenario, goals: _Goals) -> Layouts:
    """Find the sets of modules that suffice and have no subset that suffices."""
    sets = _module_sets(scenario)
    none = goals.layouts.take(np.zeros(0, dtype=np.int64))
    if not len(goals.layouts) or not sets:
        return none
    # if all modules are too little, no set suffices
    everything = _with_modules(goals, np.bitwise_or.reduce(sets))
    goals = goals.take(np.flatnonzero(_suffices(scenario, everything)))
    count, suffices = len(goals.layouts), dict[int, Mask]()
    for _, group in itertools.groupby(sets, int.bit_count):
        # sets of the same size are not subsets of each other, so they are checked together
        rows = {bits: np.flatnonzero(~_subset_suffices(bits, suffices, count)) for bits in group}
        trials = [_with_modules(goals.take(each), bits) for bits, each in rows.items()]
        fits = _suffices(scenario, _Goals.joined(trials))
        ends = np.cumsum([len(each) for each in rows.values()])[:-1]
        for (bits, each), part in zip(rows.items(), np.split(fits, ends), strict=True):
            suffices[bits] = np.zeros(count, dtype=np.bool_)
            suffices[bits][each] = part
    reduced = [
        _with_modules(goals.take(np.flatnonzero(mask)), bits).layouts
        for bits, mask in suffices.items()
    ]
    return Layouts.joined([none, *reduced])


def _subset_suffices(bits: int, suffices: Mapping[int, Mask], count: int) -> Mask:
    """True where a subset of a set of modules is known to suffice."""
    covered = np.zeros(count, dtype=np.bool_)
    for subset, mask in suffices.items():
        if subset & bits == subset:
            covered |= mask
    return covered


def _with_modules(goals: _Goals, bits: int) -> _Goals:
    mode = np.full_like(goals.layouts.recompute, RECOMPUTE.index("selective"))
    return goals.changed(recompute=mode, recompute_modules=np.full_like(mode, bits))


def _suffices(scenario: Scenario, goals: _Goals) -> Mask:
    """True for layouts that are legal and fit, safely where required."""
    if not len(goals.layouts):
        return np.zeros(0, dtype=np.bool_)
    suffices = legal_refined(scenario, goals.layouts)
    if len(goals.layouts) > _BOUNDED_FROM:
        limit = scenario.machine.device.memory_bytes.value
        suffices &= memory_lower_bound_bytes(scenario, goals.layouts) <= limit
    rows = np.flatnonzero(suffices)
    able = goals.take(rows)
    suffices[rows] = able.met_by(scenario, footprints(scenario, able.layouts))
    return suffices


def _module_sets(scenario: Scenario) -> list[int]:
    """Sets of modules as bits, smallest first, in which no module makes another redundant."""
    if "selective" not in scenario.framework.recompute:
        return []
    layers = [block for block in blocks_of(scenario) if block.kind == "layer"]
    freed = {
        name: frozenset(
            (number, item.name)
            for number, block in enumerate(layers)
            for item in block.saved
            if name in item.recomputed_with
        )
        for name in scenario.framework.modules_for(scenario.workload.precision)
        # fused attention keeps no scores
        if name != "core_attn" or scenario.workload.attention != "flash"
    }
    names = [name for name in freed if freed[name]]
    sets = itertools.chain.from_iterable(
        itertools.combinations(names, size) for size in range(1, len(names) + 1)
    )
    return [
        module_bits(modules)
        for modules in sets
        if not any(freed[a] <= freed[b] for a, b in itertools.permutations(modules, 2))
    ]
