"""Promising: of many candidates those that are estimated in full.

What by the bound of its memory cannot fit, or by that of its time cannot be as fast as what is
known of its kind, is decided without. What is left holds the fastest of every kind, and of kinds
of which nothing fits what comes closest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from planner.choose.preferences import preferences
from planner.choose.search.candidates import Candidates, fits_safely
from planner.choose.search.layout_classes import (
    IS_PREFERRED,
    IS_UNCLASSIFIED,
    NUM_CLASSES,
    PREFERRED,
    classify_layouts,
)
from planner.choose.search.lower_bounds import memory_lower_bound_bytes, step_time_lower_bound_s
from planner.cost.arrays import Float, Int, Mask, distinct
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts

__all__ = ["SearchScope", "Sieve", "estimate_promising"]

_FASTEST = 2048
# candidates of the lowest bounds in the first round, and in each that follows twice as many
_AT_ONCE = 16_384
_FIRST = 32
# of each kind in the first round, as above
_CLOSE = 256
# candidates that miss the device by least: advice says what would make them fit

Estimating = Callable[[Layouts], Candidates]


@dataclass(frozen=True, slots=True)
class SearchScope:
    """What an answer needs of a search."""

    exhaustive_up_to: int = 32_768
    """Up to so many candidates all are estimated: about as fast as to tell them apart."""
    near_factor: float = field(default_factory=lambda: 1 + preferences().tolerance)
    """Times as long as the fastest is what may be recommended in its place."""
    top: int = 20
    """Ideas that an answer lists."""
    top_time_s: float = np.inf
    """The time of as many that are known from elsewhere [s]."""


def estimate_promising(
    scenario: Scenario, layouts: Layouts, estimating: Estimating, scope: SearchScope
) -> tuple[Candidates, Sieve | None]:
    """The candidates that can be the fastest of their kind, estimated in full, in their order; and
    what says the same of further ones.

    All, and nothing that rules further ones out, where they are few, where measured runs correct
    estimates, or where none can fit.
    """
    taught = scenario.experience.step_time is not None or scenario.experience.memory is not None
    if len(layouts) <= scope.exhaustive_up_to or taught:
        return estimating(layouts), None
    sieve = Sieve(scenario, scope)
    race = _Race.of(sieve, layouts)
    if not np.any(race.over == 0):
        return estimating(layouts), None
    return race.run(estimating), sieve


class Sieve:
    """What is known of every kind of layouts of a scenario, and what that rules out."""

    def __init__(self, scenario: Scenario, scope: SearchScope) -> None:
        self.scenario, self.scope = scenario, scope
        self.fastest_s: Float = np.full(NUM_CLASSES, np.inf)
        """Of what fits safely."""
        self.closest: Float = np.full(NUM_CLASSES, np.inf)
        """By which part of its limits any layout exceeds them least."""
        self.top_time_s = scope.top_time_s
        """The time of the slowest idea that an answer would list."""
        self.too_large = self.too_slow = 0
        """Further layouts that did not pass, by the bound that said so."""

    def over(self, layouts: Layouts) -> Float:
        """By which part of the device layouts exceed it at least, be it with ends as layers."""
        scenario, least = self.scenario, memory_lower_bound_bytes(self.scenario, layouts)
        if scenario.framework.custom_pipeline_split:
            layers = scenario.model.depth
            each = np.maximum(layers // layouts.pp, 2)
            least = least * np.where(layouts.piped, 1 - 1 / each, 1.0)
        return np.maximum(least / max(scenario.machine.device.memory_bytes.value, 1.0) - 1, 0.0)

    def limits_s(self) -> Float:
        """Of every kind the times above which its layouts do not matter.

        Endless where nothing is known of it, nor of what is preferred to it.
        """
        near = self.scope.near_factor
        own, preferred = near * self.fastest_s, self.fastest_s[PREFERRED]
        limits = np.where(IS_PREFERRED, own, np.minimum(own, preferred))
        usual = float(np.min(self.fastest_s[IS_PREFERRED]))
        # what is of no classic strategy is only asked for where it is among the fastest of all
        limits = np.where(IS_UNCLASSIFIED, np.minimum(limits, near * usual), limits)
        listed = max(self.top_time_s, near * usual) if np.isfinite(usual) else 0.0
        return np.maximum(limits, listed)

    def passed(self, layouts: Layouts) -> Layouts:
        """Those of further layouts that can fit and be fast enough, by bounds of their own."""
        rows = np.flatnonzero(self.over(layouts) == 0)
        some = layouts.take(rows)
        self.too_large += len(layouts) - len(some)
        if not len(rows):
            return some
        limits_s = self.limits_s()[classify_layouts(self.scenario, some)]
        fast = step_time_lower_bound_s(self.scenario, some, alone=True) <= limits_s
        self.too_slow += int(np.count_nonzero(~fast))
        return some.take(np.flatnonzero(fast))

    def learn(self, found: Candidates) -> None:
        """Take note of what was estimated."""
        taken, estimates = found.footprints, found.estimates
        np.minimum.at(self.closest, classify_layouts(self.scenario, taken.layouts), taken.excess)
        safe = fits_safely(self.scenario, estimates)
        kinds = classify_layouts(self.scenario, estimates.layouts)[safe]
        np.minimum.at(self.fastest_s, kinds, estimates.step_time_s[safe])


@dataclass(slots=True)
class _Race:
    """Candidates and their bounds."""

    sieve: Sieve
    layouts: Layouts
    over: Float
    """By which part of the device they exceed it at least."""
    least_s: Float
    kinds: Int
    ideas: Int
    left: Mask
    """Which are not estimated yet."""
    fastest_idea_s: Float
    parts: list[tuple[Int, Candidates]]
    """Rows, and what was found of them."""

    @classmethod
    def of(cls, sieve: Sieve, layouts: Layouts) -> _Race:
        """Nothing is known yet but bounds."""
        columns = ("tp", "pp", "cp", "ep", "zero_stage", "offload")
        first, ideas = distinct(*(getattr(layouts, name) for name in columns))
        return cls(
            sieve,
            layouts,
            sieve.over(layouts),
            step_time_lower_bound_s(sieve.scenario, layouts),
            classify_layouts(sieve.scenario, layouts),
            ideas,
            left=np.ones(len(layouts), dtype=np.bool_),
            fastest_idea_s=np.full(len(first), np.inf),
            parts=[],
        )

    def run(self, estimating: Estimating) -> Candidates:
        """Rounds until nothing is left that could be faster, or closer."""
        several, each = _FASTEST, _FIRST
        while len(rows := self._faster(several, each)):
            self._learn(rows, estimating)
            several, each = min(2 * several, _AT_ONCE), 2 * each
        if len(rows := self._nearest()):
            self._learn(rows, estimating)
        while len(rows := self._closer()):
            self._learn(rows, estimating)
        rows = np.concatenate([rows for rows, _ in self.parts])
        found = Candidates.of_parts([part for _, part in self.parts]).reordered(np.argsort(rows))
        large = int(np.count_nonzero(self.left & (self.over > 0)))
        slow = int(np.count_nonzero(self.left)) - large
        top_time_s = self.sieve.top_time_s
        return replace(found, too_large=large, too_slow=slow, top_time_s=top_time_s)

    def _faster(self, several: int, each: int) -> Int:
        """What can be among the fastest, and some of every kind of which too little is known."""
        able = np.flatnonzero(self.left & (self.over == 0))
        least_s, limits_s = self.least_s[able], self.sieve.limits_s()[self.kinds[able]]
        unknown = ~np.isfinite(limits_s)
        limits_s = np.where(unknown, self.sieve.top_time_s, limits_s)
        fast = _lowest(least_s, least_s <= limits_s, several)
        some = np.flatnonzero(unknown)
        some = some[_lowest_of_each(least_s[some], self.kinds[able[some]], each)]
        return able[np.union1d(fast, some)]

    def _nearest(self) -> Int:
        """Of what cannot fit, what comes closest by its bound, of all and of every kind."""
        some = np.flatnonzero(self.left & (self.over > 0))
        over, kinds = self.over[some], self.kinds[some]
        of_all = _lowest(over, np.ones(len(some), dtype=np.bool_), _CLOSE)
        return some[np.union1d(of_all, _lowest_of_each(over, kinds, _FIRST))]

    def _closer(self) -> Int:
        """What can come closer to its limits than any of a kind of which nothing fits."""
        closest = self.sieve.closest[self.kinds]
        rows = np.flatnonzero(self.left & (closest > 0) & (self.over < closest))
        return rows[_lowest(self.over[rows], np.ones(len(rows), dtype=np.bool_), _AT_ONCE)]

    def _learn(self, rows: Int, estimating: Estimating) -> None:
        found = estimating(self.layouts.take(rows))
        self.left[rows] = False
        self.parts.append((rows, found))
        self.sieve.learn(found)
        fitting = rows[found.footprints.fits]
        np.minimum.at(self.fastest_idea_s, self.ideas[fitting], found.estimates.step_time_s)
        # twice as many: of those of two frameworks some are twins
        count = min(2 * self.sieve.scope.top, len(self.fastest_idea_s)) - 1
        slowest_s = float(np.partition(self.fastest_idea_s, count)[count])
        self.sieve.top_time_s = min(self.sieve.top_time_s, slowest_s)


def _lowest(values: Float, able: Mask, count: int) -> Int:
    """Places of the lowest values, so many of those that are able."""
    rows = np.flatnonzero(able)
    if len(rows) <= count:
        return rows
    return rows[np.argpartition(values[rows], count)[:count]]


def _lowest_of_each(values: Float, kinds: Int, count: int) -> Int:
    """Places of the lowest values of each kind, so many of each."""
    order = np.lexsort((values, kinds))
    sorted_kinds = kinds[order]
    starts = np.searchsorted(sorted_kinds, sorted_kinds)
    return order[np.arange(len(order)) - starts < count]
