"""Pruning: estimate only the layouts that an answer can need, out of very many."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from planner.choose.preferences import preferences
from planner.choose.search.candidates import Candidates, fits_safely
from planner.choose.search.lower_bounds import memory_lower_bound_bytes, step_time_lower_bound_s
from planner.cost.arrays import Float, Int, Mask, distinct
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.describe.layout import OFFLOAD
from planner.describe.model.model import Model

_DATA, _TENSOR, _PIPELINE, _TENSOR_PIPELINE, _THREE_AXES, _UNCLASSIFIED = range(6)
"""Axes in use; `_UNCLASSIFIED` has context parallelism, or experts and data parallelism alone."""
_ZERO_STAGES, _FLAGS = 4, 2**3

NUM_CLASSES = (_UNCLASSIFIED + 1) * _ZERO_STAGES * len(OFFLOAD) * _FLAGS
_CLASSES = np.arange(NUM_CLASSES)
_AXES = _CLASSES // (_ZERO_STAGES * len(OFFLOAD) * _FLAGS)
# beside data parallelism alone, offload is a strategy of its own
_OFFLOADED = np.where(_AXES == _DATA, 0, _CLASSES // _FLAGS % len(OFFLOAD))

PREFERRED: Int = _CLASSES // _FLAGS * _FLAGS - _OFFLOADED * _FLAGS
"""For every class the one that is recommended in its place unless that is much slower."""
IS_PREFERRED = PREFERRED == _CLASSES
IS_UNCLASSIFIED = _AXES == _UNCLASSIFIED
"""Classes of no classic strategy."""


def classify_layouts(scenario: Scenario, layouts: Layouts) -> Int:
    """The class of each layout: axes in use, sharding and offload, how far axes reach."""
    tensor, piped = layouts.tp > 1, layouts.piped
    both = np.where(layouts.dp > 1, _THREE_AXES, _TENSOR_PIPELINE)
    axes = np.where(tensor & piped, both, _TENSOR * tensor + _PIPELINE * piped)
    is_other = (layouts.cp > 1) | ((layouts.ep > 1) & (axes == _DATA))
    axes = np.where(is_other, _UNCLASSIFIED, axes)
    # strategies with both axes do not differ by ZeRO stage, but stalls may
    by_stage = (axes < _TENSOR_PIPELINE) | bool(scenario.framework.stalls)
    sharded = np.where(by_stage, layouts.zero_stage, 0)
    offload = np.where(axes == _DATA, layouts.offload, layouts.offload > 0)
    classes = (axes * _ZERO_STAGES + sharded) * len(OFFLOAD) + offload
    for flag in (
        _leaves_wires(scenario, layouts),
        _has_short_slices(scenario, layouts),
        # of every model: a class of its own loses no layout, and the recommendation decides
        layouts.pp > preferences().recommendation.max_pipeline_stages.value,
    ):
        classes = classes * 2 + flag
    return np.asarray(classes)


def is_common(scenario: Scenario, layouts: Layouts) -> Mask:
    """Whether layers lie on wired devices (arXiv:2104.04473) and slices of sequences are long."""
    return ~_leaves_wires(scenario, layouts) & ~_has_short_slices(scenario, layouts)


def _leaves_wires(scenario: Scenario, layouts: Layouts) -> Mask:
    """Tensor parallelism over devices that are not wired to each other."""
    return np.asarray(layouts.tp > scenario.machine.wired_devices)


def _has_short_slices(scenario: Scenario, layouts: Layouts) -> Mask:
    """Context parallelism with fewer tokens a slice than in common use."""
    shortest = preferences().recommendation.min_slice_tokens.value
    tokens = scenario.workload.sequence_length
    return np.asarray((layouts.cp > 1) & (tokens < layouts.cp * shortest))


def is_deep_pipeline(model: Model, pp: Int | int) -> Mask:
    """Whether a model has more stages than any published run of its size (arXiv:2104.04473)."""
    policy = preferences().recommendation
    is_deep = np.asarray(pp) > policy.max_pipeline_stages.value
    return is_deep & (model.num_params < policy.deep_pipeline_params.value)


_FIRST_ROUND, _LARGEST_ROUND = 2048, 16_384
"""Layouts of the first round, those of the lowest bounds; each round has twice as many."""
_FIRST_OF_CLASS = 32
"""Layouts of every class in the first round; each round has twice as many."""
_CLOSEST = 256
"""Layouts that miss the device by least, to find what would make them fit."""

Estimator = Callable[[Layouts], Candidates]


@dataclass(frozen=True, slots=True)
class SearchScope:
    """How much of a search an answer needs."""

    exhaustive_up_to: int = 32_768
    """Up to so many layouts all are estimated, which is about as fast as pruning them."""
    near_factor: float | None = None
    """Time over the fastest of what may be recommended; by the usual tolerance if None."""
    top: int = 20
    """Strategies that an answer lists."""
    top_time_s: float = np.inf
    """Time of the slowest of so many strategies in other frameworks [s]."""

    @property
    def near_optimal_factor(self) -> float:
        """Time over the fastest of what may be recommended."""
        return 1 + preferences().tolerance if self.near_factor is None else self.near_factor


def estimate_promising(
    scenario: Scenario, layouts: Layouts, estimate: Estimator, scope: SearchScope
) -> tuple[Candidates, Pruner | None]:
    """Estimate the layouts that can be the fastest of their class, in their order."""
    is_corrected = scenario.experience.step_time is not None or (
        scenario.experience.memory is not None
    )
    if len(layouts) <= scope.exhaustive_up_to or is_corrected:
        return estimate(layouts), None
    pruner = Pruner(scenario, scope)
    rounds = _Rounds.of(pruner, layouts)
    if not np.any(rounds.over == 0):
        return estimate(layouts), None
    return rounds.run(estimate), pruner


class Pruner:
    """The best known layouts of every class, and the limits that they set to others."""

    def __init__(self, scenario: Scenario, scope: SearchScope) -> None:
        self.scenario, self.scope = scenario, scope
        self.fastest_s: Float = np.full(NUM_CLASSES, np.inf)
        """By class, of layouts that fit safely."""
        self.least_over: Float = np.full(NUM_CLASSES, np.inf)
        """By class, the least share by which any layout exceeds its limits."""
        self.top_time_s = scope.top_time_s
        """Time of the slowest strategy that an answer would list."""
        self.too_large = self.too_slow = 0
        """Refined layouts that were ruled out, by the bound that did so."""

    def over(self, layouts: Layouts) -> Float:
        """The least share by which layouts exceed the device, also with embedding slots."""
        scenario, least = self.scenario, memory_lower_bound_bytes(self.scenario, layouts)
        if scenario.framework.custom_pipeline_split:
            layers = np.maximum(scenario.model.depth // layouts.pp, 2)
            least = least * np.where(layouts.piped, 1 - 1 / layers, 1.0)
        return np.maximum(least / max(scenario.machine.device.memory_bytes.value, 1.0) - 1, 0.0)

    def limits_s(self) -> Float:
        """By class, the time above which its layouts do not matter."""
        factor = self.scope.near_optimal_factor
        limits_of_class, preferred = factor * self.fastest_s, self.fastest_s[PREFERRED]
        limits = np.where(IS_PREFERRED, limits_of_class, np.minimum(limits_of_class, preferred))
        fastest = float(np.min(self.fastest_s[IS_PREFERRED]))
        # layouts of no classic strategy matter only among the fastest of all
        limits = np.where(IS_UNCLASSIFIED, np.minimum(limits, factor * fastest), limits)
        listed = max(self.top_time_s, factor * fastest) if np.isfinite(fastest) else 0.0
        return np.maximum(limits, listed)

    def promising(self, layouts: Layouts) -> Layouts:
        """The refined layouts that can fit and be fast enough; the others are counted."""
        able = layouts.take(np.flatnonzero(self.over(layouts) == 0))
        self.too_large += len(layouts) - len(able)
        if not len(able):
            return able
        limits_s = self.limits_s()[classify_layouts(self.scenario, able)]
        is_fast = step_time_lower_bound_s(self.scenario, able, final=True) <= limits_s
        self.too_slow += int(np.count_nonzero(~is_fast))
        return able.take(np.flatnonzero(is_fast))

    def learn(self, candidates: Candidates) -> None:
        """Update the best known layouts with estimated ones."""
        footprints, estimates = candidates.footprints, candidates.estimates
        classes = classify_layouts(self.scenario, footprints.layouts)
        np.minimum.at(self.least_over, classes, footprints.excess)
        safe = fits_safely(self.scenario, estimates)
        classes = classify_layouts(self.scenario, estimates.layouts)[safe]
        np.minimum.at(self.fastest_s, classes, estimates.step_time_s[safe])


@dataclass(slots=True)
class _Rounds:
    """Layouts with their bounds, estimated in rounds."""

    pruner: Pruner
    layouts: Layouts
    over: Float
    """The least share by which they exceed the device."""
    bounds_s: Float
    classes: Int
    strategies: Int
    """Rows of the same number are details of one strategy."""
    is_open: Mask
    """Not estimated yet."""
    strategy_times_s: Float
    """The fastest known of each strategy."""
    parts: list[tuple[Int, Candidates]]
    """Rows, and their estimates."""

    @classmethod
    def of(cls, pruner: Pruner, layouts: Layouts) -> _Rounds:
        """The layouts with bounds alone."""
        columns = ("tp", "pp", "cp", "ep", "zero_stage", "offload")
        first, strategies = distinct(*(getattr(layouts, name) for name in columns))
        return cls(
            pruner,
            layouts,
            pruner.over(layouts),
            step_time_lower_bound_s(pruner.scenario, layouts),
            classify_layouts(pruner.scenario, layouts),
            strategies,
            is_open=np.ones(len(layouts), dtype=np.bool_),
            strategy_times_s=np.full(len(first), np.inf),
            parts=[],
        )

    def run(self, estimate: Estimator) -> Candidates:
        """Estimate in rounds until no open layout could be faster, or closer to fitting."""
        count, of_class = _FIRST_ROUND, _FIRST_OF_CLASS
        while len(rows := self._possibly_fastest(count, of_class)):
            self._estimate(rows, estimate)
            count, of_class = min(2 * count, _LARGEST_ROUND), 2 * of_class
        if len(rows := self._least_over()):
            self._estimate(rows, estimate)
        while len(rows := self._possibly_closer()):
            self._estimate(rows, estimate)
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
        """Open layouts that can be among the fastest, and some of every class without a limit."""
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
        """Of the open layouts that cannot fit, the closest of all and of every class."""
        rows = np.flatnonzero(self.is_open & (self.over > 0))
        over, classes = self.over[rows], self.classes[rows]
        of_all = _lowest(over, np.ones(len(rows), dtype=np.bool_), _CLOSEST)
        return rows[np.union1d(of_all, _lowest_of_each(over, classes, _FIRST_OF_CLASS))]

    def _possibly_closer(self) -> Int:
        """Open layouts that can come closer to fitting than any known of their class."""
        least_over = self.pruner.least_over[self.classes]
        rows = np.flatnonzero(self.is_open & (least_over > 0) & (self.over < least_over))
        return rows[_lowest(self.over[rows], np.ones(len(rows), dtype=np.bool_), _LARGEST_ROUND)]

    def _estimate(self, rows: Int, estimate: Estimator) -> None:
        candidates = estimate(self.layouts.take(rows))
        self.is_open[rows] = False
        self.parts.append((rows, candidates))
        self.pruner.learn(candidates)
        strategies = self.strategies[rows[candidates.footprints.fits]]
        np.minimum.at(self.strategy_times_s, strategies, candidates.estimates.step_time_s)
        # twice as many, because some strategies of two frameworks are the same
        count = min(2 * self.pruner.scope.top, len(self.strategy_times_s)) - 1
        slowest_s = float(np.partition(self.strategy_times_s, count)[count])
        self.pruner.top_time_s = min(self.pruner.top_time_s, slowest_s)


def _lowest(values: Float, able: Mask, count: int) -> Int:
    """Rows of the lowest values among those that are able."""
    rows = np.flatnonzero(able)
    if len(rows) <= count:
        return rows
    return rows[np.argpartition(values[rows], count)[:count]]


def _lowest_of_each(values: Float, classes: Int, count: int) -> Int:
    """Rows of the lowest values of each class, `count` of each."""
    order = np.lexsort((values, classes))
    sorted_classes = classes[order]
    starts = np.searchsorted(sorted_classes, sorted_classes)
    return order[np.arange(len(order)) - starts < count]
