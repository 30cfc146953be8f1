"""Recompute: partial recompute between none and full, tried where full fits and none does not."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

import numpy as np

from planner.choose.legality import legal
from planner.choose.search.candidates import Candidates, fits, fits_safely
from planner.choose.search.lower_bounds import memory_lower_bound_bytes, step_time_lower_bound_s
from planner.cost.arrays import Arrays, Int, Mask, distinct
from planner.cost.estimate import step_times
from planner.cost.memory.footprint import Footprints, footprints
from planner.cost.operators.blocks import blocks_of
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts, module_bits
from planner.describe.layout import RECOMPUTE, Layout

__all__ = ["reduce_recompute"]


_MANY = 4096
# layouts from which on bounds are asked first
_NEAR = 1.1
# of the fastest so far: what is recommended may be slower than the fastest by less


def reduce_recompute(found: Candidates) -> Layouts:
    """Between no recompute, which does not fit, and full recompute, which does: the fewest layers,
    and the smallest sets of modules; and once more those with which it fits safely.

    More of either takes less memory and more time, so that nothing else of their kind is faster;
    and none takes less time than no recompute, so that what is slow without is not tried.
    """
    scenario, taken = found.scenario, found.footprints
    offered = scenario.framework
    if not (offered.recompute_by or offered.recompute_modules) or not len(taken.layouts):
        return taken.layouts.take(np.zeros(0, dtype=np.int64))
    some = _Asked.of(found)
    ways = [_fewest_layers(scenario, some, name) for name in ("layers", "every")]
    return _without_twins(Layouts.joined([*ways, _fewest_modules(scenario, some)]))


@dataclass(frozen=True, slots=True)
class _Asked(Arrays):
    """Layouts with full recompute that may need less, and whether each is to fit safely."""

    layouts: Layouts
    safely: Mask

    @classmethod
    def of(cls, found: Candidates) -> _Asked:
        """Of those that were found, each asked for either way where it is fast enough without."""
        scenario, taken, asked, near = found.scenario, found.footprints, [], []
        for safely, enough in enumerate((fits, fits_safely)):
            rows = np.flatnonzero(_short(taken, enough(scenario, taken)))
            done = found.estimates.step_time_s[enough(scenario, found.estimates)]
            asked.append(cls(taken.layouts.take(rows), np.full(len(rows), bool(safely))))
            near.append(np.full(len(rows), _NEAR * np.min(done, initial=np.inf)))
        some, near_s = cls.joined(asked), np.concatenate(near)
        none = np.full_like(some.safely, RECOMPUTE.index("none"), dtype=np.int64)
        without = replace(some.layouts, recompute=none)
        if len(without) > _MANY:
            rows = np.flatnonzero(step_time_lower_bound_s(scenario, without, alone=True) < near_s)
            some, without, near_s = some.take(rows), without.take(rows), near_s[rows]
        return some.take(np.flatnonzero(step_times(scenario, without) < near_s))

    def enough(self, scenario: Scenario, taken: Footprints) -> Mask:
        """Whether memory is enough for what they take."""
        found = fits(scenario, taken)
        if np.any(self.safely):
            found = np.where(self.safely, fits_safely(scenario, taken), found)
        return found

    def changed(self, **columns: Int) -> _Asked:
        """With other columns of the layouts."""
        return replace(self, layouts=replace(self.layouts, **columns))


def _without_twins(layouts: Layouts) -> Layouts:
    first, _ = distinct(*(getattr(layouts, field.name) for field in fields(layouts)))
    return layouts.take(first)


def _short(taken: Footprints, holds: Mask) -> Mask:
    """Layouts of full recompute whose memory is enough, where it is not known to be without."""
    layouts = taken.layouts
    short = np.asarray(holds & layouts.recomputes_layers & ~layouts.recomputes_partly)
    # candidates that differ in recompute alone follow each other
    for before in range(1, len(RECOMPUTE)):
        same = np.ones(max(len(layouts) - before, 0), dtype=np.bool_)
        for field in fields(layouts):
            if field.name != "recompute":
                column = getattr(layouts, field.name)
                same &= column[before:] == column[:-before]
        plain = ~(layouts.recomputes_layers | layouts.recomputes_selectively)
        short[before:] &= ~(same & (plain & holds)[:-before])
    return short


def _fewest_layers(scenario: Scenario, short: _Asked, name: str) -> Layouts:
    """The fewest layers of a chunk whose recompute suffices, first ones or every n-th: halved."""
    column, layouts = f"recompute_{name}", short.layouts
    if name not in scenario.framework.recompute_by or not len(layouts):
        return layouts.take(np.zeros(0, dtype=np.int64))
    layers = scenario.model.depth
    # of the fullest chunk, where both ends may count as layers
    deep = -(-(layers + 2) // (layouts.pp * layouts.vpp))
    # of n layers more are more recompute, of every n-th fewer: `met` suffices, `missed` does not
    met = deep.copy() if name == "layers" else np.ones_like(deep)
    missed = np.zeros_like(deep) if name == "layers" else deep + 1
    while np.any(apart := np.abs(met - missed) > 1):
        rows = np.flatnonzero(apart)
        middle = (met[rows] + missed[rows]) // 2
        tried = short.take(rows).changed(**{column: middle})
        suffices = tried.enough(scenario, footprints(scenario, tried.layouts))
        met[rows], missed[rows] = (
            np.where(suffices, middle, met[rows]),
            np.where(suffices, missed[rows], middle),
        )
    partly = (met < deep) if name == "layers" else (met > 1)
    found = replace(layouts, **{column: met}).take(np.flatnonzero(partly))
    return found.take(np.flatnonzero(legal(scenario, found, set(Layout.model_fields))[0]))


def _fewest_modules(scenario: Scenario, short: _Asked) -> Layouts:
    """Sets of modules that suffice and of which no part does."""
    sets = _sets_of_modules(scenario)
    found = [short.layouts.take(np.zeros(0, dtype=np.int64))]
    if not len(short.layouts) or not sets:
        return found[0]
    # where all that can be named is too little, nothing else suffices
    all_named = _repeating(short, np.bitwise_or.reduce(sets))
    short = short.take(np.flatnonzero(_allowed(scenario, all_named)))
    count, known = len(short.layouts), dict[int, Mask]()
    for _, group in itertools.groupby(sets, int.bit_count):
        # sets of as many modules are no parts of each other: their layouts are looked at together
        rows = {bits: np.flatnonzero(~_covered(bits, known, count)) for bits in group}
        some = [_repeating(short.take(each), bits) for bits, each in rows.items()]
        suffices = _allowed(scenario, _Asked.joined(some))
        ends = np.cumsum([len(each) for each in rows.values()])[:-1]
        for (bits, each), holds in zip(rows.items(), np.split(suffices, ends), strict=True):
            known[bits] = np.zeros(count, dtype=np.bool_)
            known[bits][each] = holds
    for bits, mask in known.items():
        found.append(_repeating(short.take(np.flatnonzero(mask)), bits).layouts)
    return Layouts.joined(found)


def _covered(bits: int, known: Mapping[int, Mask], count: int) -> Mask:
    """Where a part of a set of modules is known to suffice."""
    covered = np.zeros(count, dtype=np.bool_)
    for other, suffices in known.items():
        if other & bits == other:
            covered |= suffices
    return covered


def _repeating(some: _Asked, bits: int) -> _Asked:
    """The layouts with selective recompute of a set of modules."""
    mode = np.full_like(some.layouts.recompute, RECOMPUTE.index("selective"))
    return some.changed(recompute=mode, recompute_modules=np.full_like(mode, bits))


def _allowed(scenario: Scenario, tried: _Asked) -> Mask:
    """Which layouts are legal and have memory enough."""
    if not len(tried.layouts):
        return np.zeros(0, dtype=np.bool_)
    allowed, _ = legal(scenario, tried.layouts, set(Layout.model_fields))
    if len(tried.layouts) > _MANY:
        room = scenario.machine.device.memory_bytes.value
        allowed &= memory_lower_bound_bytes(scenario, tried.layouts) <= room
    rows = np.flatnonzero(allowed)
    some = tried.take(rows)
    allowed[rows] = some.enough(scenario, footprints(scenario, some.layouts))
    return allowed


def _sets_of_modules(scenario: Scenario) -> list[int]:
    """Sets of modules of which none repeats only what the others do, the smallest first."""
    if "selective" not in scenario.framework.recompute:
        return []
    layers = [block for block in blocks_of(scenario) if block.kind == "layer"]
    freed = {
        name: frozenset(
            (number, item.name)
            for number, block in enumerate(layers)
            for item in block.saved
            if name in item.again_with
        )
        for name in scenario.framework.modules_for(scenario.workload.precision)
        # fused attention keeps no scores
        if name != "core_attn" or scenario.workload.attention != "flash"
    }
    names = [name for name in freed if freed[name]]
    some = itertools.chain.from_iterable(
        itertools.combinations(names, size) for size in range(1, len(names) + 1)
    )
    return [
        module_bits(each)
        for each in some
        if not any(freed[a] <= freed[b] for a, b in itertools.permutations(each, 2))
    ]
