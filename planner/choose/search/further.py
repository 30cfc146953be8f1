"""Further: knobs that are tried only on what the plain candidates leave to try.

Each function takes the footprints so far and gives the layouts that are tried besides.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import fields, replace

import numpy as np

from planner.choose.legality import legal
from planner.choose.search.ends import with_ends
from planner.cost.arrays import Float, Mask
from planner.cost.memory.footprint import Footprints, footprints
from planner.cost.operators.blocks import blocks_of
from planner.cost.question import Question
from planner.cost.shards.layouts import Layouts, module_bits
from planner.cost.step.passes import block_passes
from planner.describe.layout import RECOMPUTE, Layout, divisors

__all__ = ["FURTHER", "TILES"]

TILES = (4, 16)
"""Tiles of the largest matrix that are tried."""


def _in_groups(question: Question, taken: Footprints) -> Layouts:
    """Layouts whose weights are sharded inside groups of any size, from those sharded over all.

    A smaller group takes more memory: only what fits over all ranks is tried, and of the rest what
    is closest to it, so that the answer can say by how much it does not fit.
    """
    layouts = taken.layouts
    if not question.framework.hybrid_stages or not len(layouts):
        return layouts.take(np.zeros(0, dtype=np.int64))
    fits = taken.fits.copy()
    fits[np.argmin(taken.memory_bytes)] = True
    whole = layouts.take(np.flatnonzero(fits & layouts.shards_weights & layouts.keeps_states))
    groups = []
    for size in divisors(int(np.max(whole.dp, initial=1)))[1:]:
        some = whole.take(np.flatnonzero((whole.dp % size == 0) & (size < whole.dp)))
        groups.append(replace(some, dp_shard=np.full(len(some), size)))
    joined = Layouts.joined(groups or [whole])
    mask, _ = legal(question, joined, set(Layout.model_fields))
    return joined.take(np.flatnonzero(mask))


def _with_less_recompute(question: Question, taken: Footprints) -> Layouts:
    """Between no recompute, which does not fit, and full recompute, which does: the fewest layers,
    and the smallest sets of modules.

    More of either takes less memory and more time, so that nothing else of their kind is faster.
    """
    offered = question.framework
    if not (offered.recompute_by or offered.recompute_modules) or not len(taken.layouts):
        return taken.layouts.take(np.zeros(0, dtype=np.int64))
    short = taken.layouts.take(np.flatnonzero(_short(taken)))
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
        for name in question.framework.recompute_modules
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


def _on_the_host(question: Question, taken: Footprints) -> Layouts:
    """Where nothing fits: activations wait for their backward in host memory."""
    layouts, modes = taken.layouts, question.framework.offload_activations
    if not modes or not len(layouts) or taken.fits.any():
        return layouts.take(np.zeros(0, dtype=np.int64))
    coded = [RECOMPUTE.index(mode) for mode in modes]
    some = layouts.take(np.flatnonzero(np.isin(layouts.recompute, coded)))
    moved = replace(some, offload_activations=np.ones_like(some.recompute))
    return moved.take(np.flatnonzero(legal(question, moved, set(Layout.model_fields))[0]))


def _in_tiles(question: Question, taken: Footprints) -> Layouts:
    """The last resort where nothing fits: the largest matrix in tiles."""
    layouts = taken.layouts
    tried = question.framework.tiling and len(layouts) and not taken.fits.any()
    some = layouts.take(np.flatnonzero(layouts.shards_weights & bool(tried)))
    return Layouts.joined([replace(some, tiles=np.full(len(some), n)) for n in TILES])


def _kept_near(question: Question, taken: Footprints) -> Layouts:
    """Layouts of ZeRO-3 over several nodes whose weights stay sharded over the ranks of one from
    forward to backward, where what they take besides may fit."""
    layouts = taken.layouts
    if not question.framework.second_shards or not len(layouts):
        return layouts.take(np.zeros(0, dtype=np.int64))
    node = question.machine.node.num_devices
    beyond = layouts.shards_weights & (layouts.num_shards > node) & (layouts.num_shards % node == 0)
    some = layouts.take(np.flatnonzero(taken.fits & beyond))
    near = replace(some, reshard=np.full(len(some), node))
    mask, _ = legal(question, near, set(Layout.model_fields))
    return near.take(np.flatnonzero(mask))


def _by_heads(question: Question, taken: Footprints) -> Layouts:
    """Context parallelism that exchanges tokens for heads, where a micro-batch takes less time so.

    The kind changes no memory and nothing but the passes of layers, so the fastest of all is that
    of the fastest passes.
    """
    layouts, blocks = taken.layouts, blocks_of(question)
    other = bool(set(question.framework.context) - {"ring"}) and len(layouts) > 0
    mine = layouts.take(
        np.flatnonzero(taken.fits & (layouts.cp > 1) & (layouts.ulysses == 1) & other)
    )
    if not len(mine):
        return mine

    def seconds(some: Layouts) -> Float:
        passes = block_passes(question, blocks, some)
        return np.sum([b.count * p.total_s for b, p in zip(blocks, passes, strict=True)], axis=0)

    best, least = np.ones_like(mine.cp), seconds(mine)
    for size in divisors(int(np.max(mine.cp)))[1:]:
        rows = np.flatnonzero(mine.cp % size == 0)
        tried = mine.take(rows)
        tried = replace(tried, ulysses=np.full(len(rows), size))
        allowed, _ = legal(question, tried, set(Layout.model_fields))
        rows, tried = rows[allowed], tried.take(np.flatnonzero(allowed))
        time_s = seconds(tried)
        faster = time_s < least[rows]
        best[rows[faster]], least[rows[faster]] = size, time_s[faster]
    changed = np.flatnonzero(best > 1)
    return replace(mine.take(changed), ulysses=best[changed])


FURTHER: tuple[Callable[[Question, Footprints], Layouts], ...] = (
    with_ends,
    _in_groups,
    _with_less_recompute,
    _on_the_host,
    _kept_near,
    _by_heads,
    _in_tiles,
)
"""What is tried besides, in this order: each sees what was found before it."""
