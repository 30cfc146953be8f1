"""Pipeline: how layers are dealt to stages."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from planner.cost.arrays import Float, Int, Mask
from planner.cost.shards.layouts import Layouts
from planner.describe.framework.framework import Framework
from planner.describe.layout import STAGE_FIELDS, Layout
from planner.describe.model.block import Block

__all__ = [
    "Deal",
    "chunk_counts",
    "deal_columns",
    "layers_on_stage",
    "told_deal",
]


@dataclass(frozen=True, slots=True)
class Deal:
    """How layers are dealt to stages, or to chunks of stages."""

    first: float = 0.0
    """Layers that the embedding counts for."""
    last: float = 0.0
    """Layers that head and loss count for."""
    by_cost: bool = False
    """Dealt in order, each stage closing with the layer that passes its share (nanotron, but the
    head is taken on the last stage, as measured steps of 16 and 32 stages suggest); else ends
    count as whole layers of stages as even as possible (torchtitan, Megatron-LM)."""
    told: tuple[int, ...] = ()
    """Layers of every chunk in the order of the model, where users deal them."""


_EVENLY = Deal()


def layers_on_stage(
    num_layers: int, pp: ArrayLike, stage: ArrayLike, deal: Deal = _EVENLY
) -> tuple[Float, Float]:
    """Index of a stage's first layer and its number of layers [1].

    Counted: stages as even as possible; without ends the first num_layers mod pp stages hold one
    layer more; stages that users deal. Left out: what stages of unlike layers cost.
    method.md#pipeline.

    >>> [int(layers_on_stage(32, 4, i)[1]) for i in range(4)]
    [8, 8, 8, 8]
    >>> [int(layers_on_stage(32, 4, i, Deal(1, 1))[1]) for i in range(4)]
    [8, 9, 8, 7]
    >>> [int(layers_on_stage(16, 4, i, Deal(0, 4.0, by_cost=True))[1]) for i in range(4)]
    [6, 5, 5, 0]
    """
    pp, stage = np.broadcast_arrays(np.asarray(pp), np.asarray(stage))
    if deal.told:
        told = np.array(deal.told, dtype=float)
        return (np.cumsum(told) - told)[stage], told[stage]
    if deal.by_cost:
        share = (num_layers + deal.last) / pp
        start = np.where(stage > 0, np.floor(share * stage) + 1, 0)
        end = np.where(stage < pp - 1, np.floor(share * (stage + 1)) + 1, num_layers)
        start, end = np.minimum(start, num_layers), np.minimum(end, num_layers)
        return start.astype(float), (end - start).astype(float)
    # ends count as whole layers: deal them all, then take the ends away
    first, last = int(deal.first), int(deal.last)
    base, extra = np.divmod(num_layers + first + last, pp)
    count = base + (stage < extra) - first * (stage == 0) - last * (stage == pp - 1)
    start = stage * base + np.minimum(stage, extra) - first * (stage > 0)
    return start.astype(float), count.astype(float)


def chunk_counts(
    blocks: tuple[Block, ...], layouts: Layouts, stage: Int, framework: Framework
) -> list[Float]:
    """How many of each block every chunk of a pipeline stage holds. Shape (chunks, ...) [1].

    Counted: chunks dealt as the stages of a pipeline as long as all of them. Left out: nothing;
    what a layout has fewer chunks of stands at 0. method.md#pipeline.

    >>> from planner.cost.operators.blocks import blocks
    >>> titan = load_framework("fsdp2")
    >>> llama = blocks(load_model("llama-3-8b"), Workload(), titan)         # 32 layers and 2 ends
    >>> counts = chunk_counts(llama, Layouts.of(Layout(pp=4, vpp=2)), np.asarray(0), titan)
    >>> [count.tolist() for count in counts]
    [[1.0, 0.0], [4.0, 4.0], [0.0, 0.0]]
    """
    total, dealt, deals = _deals(blocks, layouts, framework)
    most = int(np.max(layouts.vpp, initial=1))
    number = np.arange(most).reshape(-1, *[1] * np.ndim(stage))
    shape = (most, *np.shape(stage))
    pp = np.broadcast_to(layouts.pp * layouts.vpp, shape)
    there = np.broadcast_to(number < layouts.vpp, shape)
    chunk = np.where(there, layouts.chunk(stage, number), 0)
    counts = [np.zeros(shape) for _ in blocks]
    for one, deal in enumerate(deals):
        here = there & (dealt == one)
        found = _counts_of(blocks, pp[here], chunk[here], total, deal)
        for count, some in zip(counts, found, strict=True):
            count[here] = some
    return counts


def deal_columns(layouts: Layouts) -> tuple[Int | Mask, ...]:
    """What tells how layers are dealt to the chunks of stages [1].

    Counted: degrees, the way in which chunks go, what users tell of the deal. Left out: what the
    framework does unasked, which is the same for all. method.md#pipeline.

    >>> some = Layouts.stack([Layout(pp=4), Layout(pp=4, embedding_slots=1)])
    >>> [column.tolist() for column in deal_columns(some)]
    [[4, 4], [1, 1], [False, False], [-1, 1], [-1, -1], [0, 0], [0, 0], [0, 0]]
    """
    told = layouts.dealt_by_hand | layouts.counts_ends
    how = [getattr(layouts, name) for name in STAGE_FIELDS] if told.any() else []
    return (layouts.pp, layouts.vpp, layouts.v_shaped, *how)


def _told_number(layouts: Layouts) -> tuple[Int, Layouts | None]:
    """The number of every layout's deal, 0 where nothing is told of it, and one layout of each."""
    told = layouts.dealt_by_hand | layouts.counts_ends
    if not np.any(told):
        return np.zeros(np.shape(layouts.pp), dtype=np.int64), None
    few, which = layouts.distinct_deals()
    return np.where(told, which + 1, 0), few


def _deals(
    blocks: tuple[Block, ...], layouts: Layouts, framework: Framework
) -> tuple[int, Int, list[Deal]]:
    """Layers in all, the number of every layout's deal, and the deals; the framework's is first."""
    layers = [block for block in blocks if block.kind == "layer"]
    total = sum(block.count for block in layers)
    usual = _EVENLY
    if framework.balance == "ends-as-layers":
        usual = Deal(1, 1)
    elif framework.balance == "cost":
        head = sum(_cost(b) for b in blocks if b.kind == "head")
        whole = sum(b.count * _cost(b) for b in layers)
        usual = Deal(0, head * total / whole, by_cost=True)
    number, few = _told_number(layouts)
    deals = [] if few is None else [told_deal(total, few[row], usual) for row in range(len(few))]
    return total, number, [usual, *deals]


def told_deal(num_layers: int, layout: Layout, usual: Deal = _EVENLY) -> Deal:
    """How a layout deals layers, in layers of every chunk or in those that the ends count for [1].

    Counted: what the layout says; `usual` where it says nothing. Left out: whether it is legal.
    method.md#pipeline.

    >>> told_deal(126, Layout(pp=4, first_layers=31, last_layers=29)).told
    (31, 33, 33, 29)
    >>> told_deal(14, Layout(pp=4, vpp=2, first_layers=2, schedule="interleaved-1f1b")).told
    (1, 2, 2, 2, 1, 2, 2, 2)
    """
    if layout.split:
        return Deal(told=layout.chunk_layers)
    if layout.first_layers or layout.last_layers:
        return Deal(told=_with_ends_told(num_layers, layout))
    first, last = layout.embedding_slots, layout.head_slots
    if max(first, last) < 0:
        return usual
    return Deal(first if first >= 0 else usual.first, last if last >= 0 else usual.last)


def _with_ends_told(num_layers: int, layout: Layout) -> tuple[int, ...]:
    """Layers of every chunk, those of the first and the last stage being told: their chunks share
    them evenly, and all other chunks the rest."""
    places = layout.pp * layout.vpp
    stages = [layout.stage_of(place) for place in range(places)]
    told = {0: layout.first_layers, layout.pp - 1: layout.last_layers}
    told = {stage: layers for stage, layers in told.items() if layers}
    counts = np.zeros(places, dtype=np.int64)
    others = [place for place in range(places) if stages[place] not in told]
    groups = [([p for p in range(places) if stages[p] == s], n) for s, n in told.items()]
    for held, layers in [*groups, (others, num_layers - sum(told.values()))]:
        if held:
            base, extra = divmod(layers, len(held))
            counts[held] = [base + (place < extra) for place in range(len(held))]
    return tuple(int(count) for count in counts)


def _cost(block: Block) -> int:
    """What nanotron counts when it deals blocks: matrices, keys and values as large as queries."""
    matrices = [w for w in block.weights if w.columns > 1]
    own = [w for w in matrices if w.part == "attention" and not w.adapter]
    query = sum(w.num_params for w in own if w.matrix == "query")
    grouped = [w for w in own if w.matrix in ("key", "value")]
    repeated = len(grouped) * query - sum(w.num_params for w in grouped)
    return sum(w.num_params for w in matrices) + repeated


def _counts_of(
    blocks: tuple[Block, ...],
    pp: Int,
    stage: Int,
    total: int,
    deal: Deal,
) -> list[Float]:
    """Blocks on the stages of distinct pairs of pp and stage."""
    start, count = layers_on_stage(total, pp, stage, deal)
    counts, passed = [], 0
    for block in blocks:
        if block.kind == "embedding":
            counts.append(np.where(stage == 0, 1.0, 0.0))
        elif block.kind == "head":
            counts.append(np.where(stage == pp - 1, 1.0, 0.0))
        else:
            below = np.minimum(start + count, passed + block.count)
            counts.append(np.maximum(below - np.maximum(start, passed), 0.0))
            passed += block.count
    return counts
