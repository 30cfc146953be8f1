"""Recompute: what lies between none and all of it, and activations that wait on the host."""

from __future__ import annotations

import itertools
from dataclasses import fields, replace

import numpy as np

from planner.choose.legality import legal
from planner.choose.search.found import Found
from planner.cost.arrays import Mask, among
from planner.cost.estimate import step_times
from planner.cost.memory.footprint import Footprints, footprints
from planner.cost.operators.blocks import blocks_of
from planner.cost.question import Question
from planner.cost.shards.layouts import Layouts, module_bits
from planner.describe.layout import RECOMPUTE, Layout

__all__ = ["on_the_host", "with_less_recompute"]


_NEAR = 1.1
# of the fastest so far: what is recommended may be slower than the fastest by less


def with_less_recompute(found: Found) -> Layouts:
    """Between no recompute, which does not fit, and full recompute, which does: the fewest layers,
    and the smallest sets of modules.

    More of either takes less memory and more time, so that nothing else of their kind is faster;
    and none takes less time than no recompute, so that what is slow without is not tried.
    """
    question, taken = found.question, found.footprints
    offered = question.framework
    if not (offered.recompute_by or offered.recompute_modules) or not len(taken.layouts):
        return taken.layouts.take(np.zeros(0, dtype=np.int64))
    short = taken.layouts.take(np.flatnonzero(_short(taken)))
    none = replace(short, recompute=np.full_like(short.recompute, RECOMPUTE.index("none")))
    short = short.take(np.flatnonzero(step_times(question, none) < _NEAR * found.fastest_s))
    ways = [_fewest_layers(question, short, name) for name in ("layers", "every")]
    return Layouts.joined([*ways, _fewest_modules(question, short)])


def _short(taken: Footprints) -> Mask:
    """Layouts of full recompute that fit, where the same without recompute is not known to."""
    layouts = taken.layouts
    short = np.asarray(taken.fits & layouts.recomputes_layers & ~layouts.recomputes_partly)
    # candidates that differ in recompute alone follow each other
    for before in range(1, len(RECOMPUTE)):
        same = np.ones(max(len(layouts) - before, 0), dtype=np.bool_)
        for field in fields(layouts):
            if field.name != "recompute":
                column = getattr(layouts, field.name)
                same &= column[before:] == column[:-before]
        plain = ~(layouts.recomputes_layers | layouts.recomputes_selectively)
        short[before:] &= ~(same & (plain & taken.fits)[:-before])
    return short


def _fewest_layers(question: Question, short: Layouts, name: str) -> Layouts:
    """The fewest layers of a chunk whose recompute suffices, first ones or every n-th: halved."""
    column, none = f"recompute_{name}", short.take(np.zeros(0, dtype=np.int64))
    if name not in question.framework.recompute_by or not len(short):
        return none
    layers = question.model.num_layers + question.model.num_decoder_layers
    # of the fullest chunk, where both ends may count as layers
    deep = -(-(layers + 2) // (short.pp * short.vpp))
    # of n layers more are more recompute, of every n-th fewer: `least` suffices, `most` does not
    enough = deep.copy() if name == "layers" else np.ones_like(deep)
    short_of = np.zeros_like(deep) if name == "layers" else deep + 1
    while np.any(apart := np.abs(enough - short_of) > 1):
        rows = np.flatnonzero(apart)
        middle = (enough[rows] + short_of[rows]) // 2
        fits = footprints(question, replace(short.take(rows), **{column: middle})).fits
        enough[rows], short_of[rows] = (
            np.where(fits, middle, enough[rows]),
            np.where(fits, short_of[rows], middle),
        )
    partly = (enough < deep) if name == "layers" else (enough > 1)
    found = replace(short, **{column: enough}).take(np.flatnonzero(partly))
    return found.take(np.flatnonzero(legal(question, found, set(Layout.model_fields))[0]))


def _fewest_modules(question: Question, short: Layouts) -> Layouts:
    """Sets of modules that suffice and of which no part does."""
    found, sets = [short.take(np.zeros(0, dtype=np.int64))], _sets_of_modules(question)
    if not len(short) or not sets:
        return found[0]
    # where all that can be named is too little, nothing else suffices
    short = short.take(np.flatnonzero(_suffices(question, short, np.bitwise_or.reduce(sets))))
    known: dict[int, Mask] = {}
    for bits in sets:
        covered = np.zeros(len(short), dtype=np.bool_)
        for other, fits in known.items():
            covered |= fits & (other & bits == other)
        rows = np.flatnonzero(~covered)
        known[bits] = np.zeros(len(short), dtype=np.bool_)
        known[bits][rows] = _suffices(question, short.take(rows), bits)
        found.append(_repeating(short.take(np.flatnonzero(known[bits])), bits))
    return Layouts.joined(found)


def _repeating(layouts: Layouts, bits: int) -> Layouts:
    """The layouts with selective recompute of a set of modules."""
    mode = np.full_like(layouts.recompute, RECOMPUTE.index("selective"))
    return replace(layouts, recompute=mode, recompute_modules=np.full_like(mode, bits))


def _suffices(question: Question, layouts: Layouts, bits: int) -> Mask:
    tried = _repeating(layouts, bits)
    if not len(tried):
        return np.zeros(0, dtype=np.bool_)
    allowed, _ = legal(question, tried, set(Layout.model_fields))
    return footprints(question, tried).fits & allowed


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
