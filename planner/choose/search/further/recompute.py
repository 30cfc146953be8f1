"""Recompute: what lies between none and all of it, and activations that wait on the host."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import fields, replace

import numpy as np

from planner.choose.legality import legal
from planner.choose.search.found import Found, fits, fits_safely
from planner.choose.search.least import least_memory_bytes, least_step_s
from planner.cost.arrays import Mask, among
from planner.cost.estimate import step_times
from planner.cost.memory.footprint import Footprints, footprints
from planner.cost.operators.blocks import blocks_of
from planner.cost.question import Question
from planner.cost.shards.layouts import Layouts, module_bits
from planner.describe.layout import RECOMPUTE, Layout

__all__ = ["on_the_host", "with_less_recompute"]


_MANY = 4096
# layouts from which on bounds are asked first
_NEAR = 1.1
# of the fastest so far: what is recommended may be slower than the fastest by less
_Enough = Callable[[Question, Footprints], Mask]


def with_less_recompute(found: Found) -> Layouts:
    """Between no recompute, which does not fit, and full recompute, which does: the fewest layers,
    and the smallest sets of modules; and once more those with which it fits safely.

    More of either takes less memory and more time, so that nothing else of their kind is faster;
    and none takes less time than no recompute, so that what is slow without is not tried.
    """
    question, taken = found.question, found.footprints
    offered = question.framework
    if not (offered.recompute_by or offered.recompute_modules) or not len(taken.layouts):
        return taken.layouts.take(np.zeros(0, dtype=np.int64))
    ways = [way for enough in (fits, fits_safely) for way in _ways(found, enough)]
    return _without_twins(Layouts.joined(ways))


def _ways(found: Found, enough: _Enough) -> list[Layouts]:
    """The fewest layers and the smallest sets of modules with which memory is enough."""
    question, taken = found.question, found.footprints
    short = taken.layouts.take(np.flatnonzero(_short(taken, enough(question, taken))))
    none = replace(short, recompute=np.full_like(short.recompute, RECOMPUTE.index("none")))
    done = found.estimates.step_time_s[enough(question, found.estimates)]
    near = _NEAR * np.min(done, initial=np.inf)
    if len(none) > _MANY:
        rows = np.flatnonzero(least_step_s(question, none, alone=True) < near)
        short, none = short.take(rows), none.take(rows)
    short = short.take(np.flatnonzero(step_times(question, none) < near))
    ways = [_fewest_layers(question, short, name, enough) for name in ("layers", "every")]
    return [*ways, _fewest_modules(question, short, enough)]


def _without_twins(layouts: Layouts) -> Layouts:
    columns = np.stack([getattr(layouts, field.name) for field in fields(layouts)])
    _, first = np.unique(columns, axis=1, return_index=True)
    return layouts.take(np.sort(first))


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


def _fewest_layers(question: Question, short: Layouts, name: str, enough: _Enough) -> Layouts:
    """The fewest layers of a chunk whose recompute suffices, first ones or every n-th: halved."""
    column, none = f"recompute_{name}", short.take(np.zeros(0, dtype=np.int64))
    if name not in question.framework.recompute_by or not len(short):
        return none
    layers = question.model.num_layers + question.model.num_decoder_layers
    # of the fullest chunk, where both ends may count as layers
    deep = -(-(layers + 2) // (short.pp * short.vpp))
    # of n layers more are more recompute, of every n-th fewer: `met` suffices, `missed` does not
    met = deep.copy() if name == "layers" else np.ones_like(deep)
    missed = np.zeros_like(deep) if name == "layers" else deep + 1
    while np.any(apart := np.abs(met - missed) > 1):
        rows = np.flatnonzero(apart)
        middle = (met[rows] + missed[rows]) // 2
        taken = footprints(question, replace(short.take(rows), **{column: middle}))
        suffices = enough(question, taken)
        met[rows], missed[rows] = (
            np.where(suffices, middle, met[rows]),
            np.where(suffices, missed[rows], middle),
        )
    partly = (met < deep) if name == "layers" else (met > 1)
    found = replace(short, **{column: met}).take(np.flatnonzero(partly))
    return found.take(np.flatnonzero(legal(question, found, set(Layout.model_fields))[0]))


def _fewest_modules(question: Question, short: Layouts, enough: _Enough) -> Layouts:
    """Sets of modules that suffice and of which no part does."""
    found, sets = [short.take(np.zeros(0, dtype=np.int64))], _sets_of_modules(question)
    if not len(short) or not sets:
        return found[0]
    # where all that can be named is too little, nothing else suffices
    all_named = _repeating(short, np.bitwise_or.reduce(sets))
    short = short.take(np.flatnonzero(_allowed(question, all_named, enough)))
    known: dict[int, Mask] = {}
    for _, group in itertools.groupby(sets, int.bit_count):
        # sets of as many modules are no parts of each other: their layouts are looked at together
        rows = {bits: np.flatnonzero(~_covered(bits, known, len(short))) for bits in group}
        some = [_repeating(short.take(each), bits) for bits, each in rows.items()]
        suffices = _allowed(question, Layouts.joined(some), enough)
        ends = np.cumsum([len(each) for each in rows.values()])[:-1]
        for (bits, each), holds in zip(rows.items(), np.split(suffices, ends), strict=True):
            known[bits] = np.zeros(len(short), dtype=np.bool_)
            known[bits][each] = holds
    for bits, mask in known.items():
        found.append(_repeating(short.take(np.flatnonzero(mask)), bits))
    return Layouts.joined(found)


def _covered(bits: int, known: Mapping[int, Mask], count: int) -> Mask:
    """Where a part of a set of modules is known to suffice."""
    covered = np.zeros(count, dtype=np.bool_)
    for other, suffices in known.items():
        if other & bits == other:
            covered |= suffices
    return covered


def _repeating(layouts: Layouts, bits: int) -> Layouts:
    """The layouts with selective recompute of a set of modules."""
    mode = np.full_like(layouts.recompute, RECOMPUTE.index("selective"))
    return replace(layouts, recompute=mode, recompute_modules=np.full_like(mode, bits))


def _allowed(question: Question, tried: Layouts, enough: _Enough) -> Mask:
    """Which layouts are legal and have memory enough."""
    if not len(tried):
        return np.zeros(0, dtype=np.bool_)
    allowed, _ = legal(question, tried, set(Layout.model_fields))
    if len(tried) > _MANY:
        room = question.machine.device.memory_bytes.value
        allowed &= least_memory_bytes(question, tried) <= room
    rows = np.flatnonzero(allowed)
    allowed[rows] = enough(question, footprints(question, tried.take(rows)))
    return allowed


def _sets_of_modules(question: Question) -> list[int]:
    """Sets of modules of which none repeats only what the others do, the smallest first."""
    if "selective" not in question.framework.recompute:
        return []
    layers = [block for block in blocks_of(question) if block.kind == "layer"]
    freed = {
        name: frozenset(
            (number, item.name)
            for number, block in enumerate(layers)
            for item in block.saved
            if name in item.again_with
        )
        for name in question.framework.modules(question.workload.precision)
        # fused attention keeps no scores
        if name != "core_attn" or question.workload.attention != "flash"
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


def on_the_host(found: Found) -> Layouts:
    """Where nothing fits: activations wait for their backward in host memory."""
    question, taken = found.question, found.footprints
    layouts, modes = taken.layouts, question.framework.offload_activations
    if not modes or not len(layouts) or taken.fits.any():
        return layouts.take(np.zeros(0, dtype=np.int64))
    coded = [RECOMPUTE.index(mode) for mode in modes]
    some = layouts.take(np.flatnonzero(among(layouts.recompute, coded)))
    moved = replace(some, offload_activations=np.ones_like(some.recompute))
    return moved.take(np.flatnonzero(legal(question, moved, set(Layout.model_fields))[0]))
