"""Promising: of many candidates those that are estimated in full.

What by the bound of its memory cannot fit, or by that of its time cannot be as fast as what is
known of its kind, is decided without. What is left holds the fastest of every kind, and of kinds
of which nothing fits what comes closest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from planner.choose.search.found import Found, fits_safely
from planner.choose.search.least import least_memory_bytes, least_step_s
from planner.cost.arrays import Float, Int, Mask, distinct
from planner.cost.question import Question
from planner.cost.shards.layouts import Layouts
from planner.describe.layout import OFFLOAD

__all__ = ["FEW", "Sieve", "promising"]

FEW = 32_768
"""Fewer candidates are estimated about as fast as they are told apart."""
_AT_ONCE = 16_384
_FIRST = 32
# of each kind in the first round; twice as many in each that follows
_NEAR = 1.05
# times as long as the fastest of its kind is what may be recommended in its place
_IDEAS = 40
# twice as many as an answer lists: of two frameworks' some are twins
_CLOSE = 256
# candidates that miss the device by least: advice says what would make them fit

_DEEP = 16
_SLICE = 4096
# stages above which, and tokens of a slice below which, a layout is of another kind
_NUM_KINDS = 3 * 3 * 3 * 2 * 2 * 4 * len(OFFLOAD)

Estimating = Callable[[Layouts], Found]


def promising(
    question: Question, layouts: Layouts, estimating: Estimating, few: int = FEW
) -> tuple[Found, Sieve | None]:
    """The candidates that can be the fastest of their kind, estimated in full, in their order; and
    what says the same of further ones.

    All, and nothing that rules further ones out, where they are `few`, where measured runs correct
    estimates, or where none can fit.
    """
    taught = question.experience.step_time is not None or question.experience.memory is not None
    if len(layouts) <= few or taught:
        return estimating(layouts), None
    sieve = Sieve(question)
    race = _Race.of(sieve, layouts)
    if not np.any(race.over == 0):
        return estimating(layouts), None
    return race.run(estimating), sieve


class Sieve:
    """What is known of every kind of layouts of a question, and what that rules out.

    A kind are the axes in use, how far they reach, what is sharded and what is offloaded.
    """

    def __init__(self, question: Question) -> None:
        self.question = question
        self.fastest_s: Float = np.full(_NUM_KINDS, np.inf)
        """Of what fits safely."""
        self.closest: Float = np.full(_NUM_KINDS, np.inf)
        """By which part of its limits any layout exceeds them least."""
        self.enough_s = np.inf
        """The time of the slowest idea that an answer would list."""

    def kinds(self, layouts: Layouts) -> Int:
        """The kind of each layout."""
        wired = self.question.machine.wired_devices
        tensor = (layouts.tp > 1).astype(np.int64) + (layouts.tp > wired)
        stages = layouts.piped.astype(np.int64) + (layouts.pp > _DEEP)
        tokens = self.question.workload.sequence_length // layouts.cp
        context = (layouts.cp > 1).astype(np.int64) + ((layouts.cp > 1) & (tokens < _SLICE))
        kinds = (tensor * 3 + stages) * 3 + context
        for column, values in (
            (layouts.dp > 1, 2),
            (layouts.ep > 1, 2),
            (layouts.zero_stage, 4),
            (layouts.offload, len(OFFLOAD)),
        ):
            kinds = kinds * values + column
        return kinds

    def over(self, layouts: Layouts) -> Float:
        """By which part of the device layouts exceed it at least, be it with ends as layers."""
        question, least = self.question, least_memory_bytes(self.question, layouts)
        if question.framework.deals_as_told:
            layers = question.model.num_layers + question.model.num_decoder_layers
            each = np.maximum(layers // layouts.pp, 2)
            least = least * np.where(layouts.piped, 1 - 1 / each, 1.0)
        return np.maximum(least / max(question.machine.device.memory_bytes.value, 1.0) - 1, 0.0)

    def limits_s(self, kinds: Int) -> Float:
        """Times above which layouts of these kinds do not matter; none of what is not known."""
        return np.maximum(self.enough_s, _NEAR * self.fastest_s[kinds])

    def passed(self, layouts: Layouts) -> Layouts:
        """Those of further layouts that can fit and be fast enough, by bounds of their own."""
        rows = np.flatnonzero(self.over(layouts) == 0)
        some = layouts.take(rows)
        if not len(rows):
            return some
        fast = least_step_s(self.question, some, alone=True) <= self.limits_s(self.kinds(some))
        return some.take(np.flatnonzero(fast))

    def learn(self, found: Found) -> None:
        """Take note of what was estimated."""
        taken, estimates = found.footprints, found.estimates
        np.minimum.at(self.closest, self.kinds(taken.layouts), taken.excess)
        safe = fits_safely(self.question, estimates)
        kinds = self.kinds(estimates.layouts)[safe]
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
    parts: list[tuple[Int, Found]]
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
            least_step_s(sieve.question, layouts),
            sieve.kinds(layouts),
            ideas,
            left=np.ones(len(layouts), dtype=np.bool_),
            fastest_idea_s=np.full(len(first), np.inf),
            parts=[],
        )

    def run(self, estimating: Estimating) -> Found:
        """Rounds until nothing is left that could be faster, or closer."""
        each = _FIRST
        while len(rows := self._faster(each)):
            self._learn(rows, estimating)
            each *= 2
        if len(rows := self._nearest()):
            self._learn(rows, estimating)
        while len(rows := self._closer()):
            self._learn(rows, estimating)
        rows = np.concatenate([rows for rows, _ in self.parts])
        found = Found.of_parts([part for _, part in self.parts]).reordered(np.argsort(rows))
        large = int(np.count_nonzero(self.left & (self.over > 0)))
        slow = int(np.count_nonzero(self.left)) - large
        return replace(found, too_large=large, too_slow=slow)

    def _faster(self, each: int) -> Int:
        """What can be among the fastest, and some of every kind of which none is known to fit."""
        able = np.flatnonzero(self.left & (self.over == 0))
        least_s, kinds = self.least_s[able], self.kinds[able]
        unknown = ~np.isfinite(self.sieve.fastest_s[kinds])
        limit_s = np.where(unknown, self.sieve.enough_s, self.sieve.limits_s(kinds))
        fast = _lowest(least_s, least_s <= limit_s, _AT_ONCE)
        some = np.flatnonzero(unknown)
        some = some[_lowest_of_each(least_s[some], kinds[some], each)]
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
        count = min(_IDEAS, len(self.fastest_idea_s)) - 1
        self.sieve.enough_s = float(np.partition(self.fastest_idea_s, count)[count])


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
