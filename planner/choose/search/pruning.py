"""Pruning: estimate only the layouts that can matter for an answer."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from planner.choose.preferences import preferences
from planner.choose.search import layout_classes
from planner.choose.search.candidates import Candidates, fits_safely
from planner.choose.search.expected_time import degree_factors, expected_time_s
from planner.choose.search.lower_bounds import memory_lower_bound_bytes, step_time_lower_bound_s
from planner.cost.arrays import Float, Int, Mask, distinct
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts

_FIRST_ROUND, _LARGEST_ROUND = 2048, 16_384
"""Layouts of the first and the largest round, lowest bounds first; each round doubles."""
_FIRST_OF_CLASS = 32
"""Layouts of each class in the first round; each round doubles."""
_CLOSEST = 256
"""Layouts closest to fitting the device, estimated to find what would make them fit."""

Estimator = Callable[[Layouts], Candidates]


@dataclass(frozen=True, slots=True)
class SearchScope:
    """Limits of a search: the part that an answer needs."""

    exhaustive_up_to: int = 32_768
    """Number of layouts up to which all are estimated, about as fast as with pruning."""
    near_factor: float | None = None
    """Longest step time to recommend, over the fastest; None: from the preferences."""
    top: int = 20
    """Number of strategies that an answer lists."""
    top_time_s: float = np.inf
    """Step time of the slowest of the `top` strategies in frameworks searched before [s]."""
    recommended_only: bool = False
    """Keep only what can be recommended; `top_time_s` is then its longest expected time."""


def estimate_promising(
    scenario: Scenario, layouts: Layouts, estimate: Estimator, scope: SearchScope
) -> tuple[Candidates, Pruner | None]:
    """Estimate the layouts that can be the fastest of their class, and keep their order."""
    runs = scenario.experience
    is_corrected = runs.step_time is not None or runs.memory is not None
    if len(layouts) <= scope.exhaustive_up_to or is_corrected:
        return estimate(layouts), None
    pruner = Pruner(scenario, scope)
    rounds = _Rounds(pruner, layouts)
    if not np.any(rounds.over == 0):
        return estimate(layouts), None
    return rounds.run(estimate), pruner


class Pruner:
    """Best results so far by class, and the limits that they set for other layouts."""

    def __init__(self, scenario: Scenario, scope: SearchScope) -> None:
        self.scenario, self.scope = scenario, scope
        self.fastest_s: Float = np.full(layout_classes.NUM_CLASSES, np.inf)
        """By class: step time of the fastest layout that fits safely."""
        self.least_over: Float = np.full(layout_classes.NUM_CLASSES, np.inf)
        """By class: smallest relative excess of any layout over its memory limits."""
        self.factor = scope.near_factor or 1 + preferences().tolerance
        self.top_time_s = scope.top_time_s
        """Step time of the slowest strategy that an answer would list; see `SearchScope`."""
        self.too_large = self.too_slow = 0
        """Refined layouts ruled out by the memory bound, and by the time bound."""

    def over(self, layouts: Layouts) -> Float:
        """Lower bound of the relative excess over device memory, also with embedding slots [1]."""
        scenario, least = self.scenario, memory_lower_bound_bytes(self.scenario, layouts)
        if scenario.framework.custom_pipeline_split:
            layers = np.maximum(scenario.model.depth // layouts.pp, 2)
            least = least * np.where(layouts.piped, 1 - 1 / layers, 1.0)
        return np.maximum(least / max(scenario.machine.device.memory_bytes.value, 1.0) - 1, 0.0)

    def bounds_s(self, layouts: Layouts, final: bool = False) -> Float:
        """Lower bound of what `limits_s` limits: step time, or expected time [s]."""
        bounds_s = (1 - 1e-7) * step_time_lower_bound_s(self.scenario, layouts, final)
        if self.scope.recommended_only:
            bounds_s = bounds_s * math.prod(degree_factors(self.scenario, layouts).values())
        return bounds_s

    def limits_s(self) -> Float:
        """Time by class above which its layouts cannot matter for the answer [s]."""
        if self.scope.recommended_only:
            return np.full(layout_classes.NUM_CLASSES, self.top_time_s)
        return layout_classes.time_limits_s(self.fastest_s, self.factor, self.top_time_s)

    def promising(self, layouts: Layouts) -> Layouts:
        """Keep refined layouts that can fit and be fast enough; count the others."""
        able = layouts.take(np.flatnonzero(self.over(layouts) == 0))
        self.too_large += len(layouts) - len(able)
        if not len(able):
            return able
        limits_s = self.limits_s()[layout_classes.classify_layouts(self.scenario, able)]
        is_fast = self.bounds_s(able, final=True) <= limits_s
        self.too_slow += int(np.count_nonzero(~is_fast))
        return able.take(np.flatnonzero(is_fast))

    def learn(self, candidates: Candidates) -> None:
        """Update the best results with estimated candidates."""
        footprints, estimates = candidates.footprints, candidates.estimates
        classes = layout_classes.classify_layouts(self.scenario, footprints.layouts)
        np.minimum.at(self.least_over, classes, footprints.excess)
        safe = fits_safely(self.scenario, estimates) & ~layout_classes.is_starved(estimates.layouts)
        classes = layout_classes.classify_layouts(self.scenario, estimates.layouts)[safe]
        np.minimum.at(self.fastest_s, classes, estimates.step_time_s[safe])
        if self.scope.recommended_only and len(estimates):
            least_s = float(np.min(expected_time_s(self.scenario, estimates)))
            self.top_time_s = min(self.top_time_s, self.factor * least_s)


class _Rounds:
    """Layouts with their bounds, estimated in rounds."""

    def __init__(self, pruner: Pruner, layouts: Layouts) -> None:
        self.pruner, self.layouts, self.over = pruner, layouts, pruner.over(layouts)
        # fewer digits: ties must not depend on the last one, which differs between processors
        self.bounds_s = pruner.bounds_s(layouts).astype(np.float32).astype(np.float64)
        self.classes = layout_classes.classify_layouts(pruner.scenario, layouts)
        columns = ("tp", "pp", "cp", "ep", "zero_stage", "offload")
        first, self.strategies = distinct(*(getattr(layouts, name) for name in columns))
        """Number of each layout's strategy; variants of a strategy share it."""
        self.is_open: Mask = np.ones(len(layouts), dtype=np.bool_)
        """True for layouts that are not estimated yet."""
        self.strategy_times_s: Float = np.full(len(first), np.inf)
        """Shortest step time so far of each strategy."""
        self.parts: list[tuple[Int, Candidates]] = []
        """Estimated rows and their candidates."""

    def run(self, estimate: Estimator) -> Candidates:
        """Estimate in rounds until no open layout could be faster, or closer to fitting."""
        count, of_class = _FIRST_ROUND, _FIRST_OF_CLASS
        while len(rows := self._possibly_fastest(count, of_class)):
            self._estimate(rows, estimate)
            count, of_class = min(2 * count, _LARGEST_ROUND), 2 * of_class
        # with one to recommend, those that cannot fit no longer matter
        if not (self.pruner.scope.recommended_only and np.isfinite(self.pruner.top_time_s)):
            if len(rows := self._least_over()):
                self._estimate(rows, estimate)
            while len(rows := self._possibly_closer()):
                self._estimate(rows, estimate)
        if not self.parts:  # a framework searched before has better ones than all of these
            self._estimate(np.zeros(0, dtype=np.int64), estimate)
        rows = np.concatenate([rows for rows, _ in self.parts])
        candidates = Candidates.joined([part for _, part in self.parts])
        large = int(np.count_nonzero(self.is_open & (self.over > 0)))
        return replace(
            candidates.reordered(np.argsort(rows)),
            too_large=large,
            too_slow=int(np.count_nonzero(self.is_open)) - large,
            top_time_s=self.pruner.top_time_s,
        )

    def _possibly_fastest(self, count: int, of_class: int) -> Int:
        """Open layouts that can be among the fastest, and some of each class without a limit."""
        able = np.flatnonzero(self.is_open & (self.over == 0))
        bounds_s, limits_s = self.bounds_s[able], self.pruner.limits_s()[self.classes[able]]
        is_unknown = ~np.isfinite(limits_s)
        limits_s = np.where(is_unknown, self.pruner.top_time_s, limits_s)
        fast = _lowest(bounds_s, bounds_s <= limits_s, count)
        unknown = np.flatnonzero(is_unknown)
        classes = self.classes[able[unknown]]
        unknown = unknown[_lowest_of_each(bounds_s[unknown], classes, of_class)]
        return able[np.union1d(fast, unknown)]

    def _least_over(self) -> Int:
        """Open layouts that cannot fit but come closest, overall and in each class."""
        rows = np.flatnonzero(self.is_open & (self.over > 0))
        over, classes = self.over[rows], self.classes[rows]
        of_all = _lowest(over, np.ones(len(rows), dtype=np.bool_), _CLOSEST)
        return rows[np.union1d(of_all, _lowest_of_each(over, classes, _FIRST_OF_CLASS))]

    def _possibly_closer(self) -> Int:
        """Open layouts that can come closer to fitting than any estimated one of their class."""
        least_over = self.pruner.least_over[self.classes]
        rows = np.flatnonzero(self.is_open & (least_over > 0) & (self.over < least_over))
        return rows[_lowest(self.over[rows], np.ones(len(rows), dtype=np.bool_), _LARGEST_ROUND)]

    def _estimate(self, rows: Int, estimate: Estimator) -> None:
        candidates = estimate(self.layouts.take(rows))
        self.is_open[rows] = False
        self.parts.append((rows, candidates))
        self.pruner.learn(candidates)
        if self.pruner.scope.recommended_only:
            return
        strategies = self.strategies[rows[candidates.footprints.fits]]
        np.minimum.at(self.strategy_times_s, strategies, candidates.estimates.step_time_s)
        # twice as many, because two frameworks may have the same strategy
        count = min(2 * self.pruner.scope.top, len(self.strategy_times_s)) - 1
        slowest_s = float(np.partition(self.strategy_times_s, count)[count])
        self.pruner.top_time_s = min(self.pruner.top_time_s, slowest_s)


def _lowest(values: Float, able: Mask, count: int) -> Int:
    """Rows of the `count` lowest values in the mask `able`, and of those equal to the last."""
    rows = np.flatnonzero(able)
    if len(rows) <= count:
        return rows
    return rows[values[rows] <= np.partition(values[rows], count - 1)[count - 1]]


def _lowest_of_each(values: Float, classes: Int, count: int) -> Int:
    order = np.lexsort((values, classes))
    sorted_classes = classes[order]
    starts = np.searchsorted(sorted_classes, sorted_classes)
    return order[np.arange(len(order)) - starts < count]
