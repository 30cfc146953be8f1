"""Layers per stage: how frameworks and users split layers over pipeline stages."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from planner.cost.arrays import Float, Int, Mask, broadcast_to
from planner.cost.shards.layouts import Layouts
from planner.describe.framework.framework import Framework
from planner.describe.layout import STAGE_FIELDS, Layout
from planner.describe.model.block import Block


@dataclass(frozen=True, slots=True)
class LayerSplit:
    """Rule that splits layers over stages, or over their chunks."""

    first: float = 0.0
    """Layers that the embedding counts as."""
    last: float = 0.0
    """Layers that head and loss count as."""
    by_cost: bool = False
    """Stages fill in order and close with the layer that exceeds their share (nanotron; head on the
    last stage); else stages are even and ends count as whole layers (torchtitan, Megatron-LM)."""
    layers_of_chunks: tuple[int, ...] = ()
    """Layers of every chunk in the order of the model, if the user sets them."""


_EVENLY = LayerSplit()


def layers_on_stage(
    num_layers: int, pp: ArrayLike, stage: ArrayLike, split: LayerSplit = _EVENLY
) -> tuple[Float, Float]:
    """Index of a stage's first layer and its number of layers [1].

    Counted: even stages; if ends count as 0 layers, the first num_layers mod pp stages hold one
    more; splits that users set. Left out: cost differences between layers. pipeline.md#pipeline.
    """
    pp, stage = np.broadcast_arrays(np.asarray(pp), np.asarray(stage))
    if split.layers_of_chunks:
        layers = np.array(split.layers_of_chunks, dtype=float)
        return (np.cumsum(layers) - layers)[stage], layers[stage]
    if split.by_cost:
        share = (num_layers + split.last) / pp
        start = np.where(stage > 0, np.floor(share * stage) + 1, 0)
        end = np.where(stage < pp - 1, np.floor(share * (stage + 1)) + 1, num_layers)
        start, end = np.minimum(start, num_layers), np.minimum(end, num_layers)
        return start.astype(float), (end - start).astype(float)
    # ends count as whole layers: split all evenly, then subtract the ends
    first, last = int(split.first), int(split.last)
    base, extra = np.divmod(num_layers + first + last, pp)
    count = base + (stage < extra) - first * (stage == 0) - last * (stage == pp - 1)
    start = stage * base + np.minimum(stage, extra) - first * (stage > 0)
    return start.astype(float), count.astype(float)


def chunk_counts(
    blocks: tuple[Block, ...], layouts: Layouts, stage: Int, framework: Framework
) -> list[Float]:
    """Block counts of every chunk of a pipeline stage. Shape (chunks, ...) [1].

    Counted: layers split over all chunks as over as many stages; 0 for chunks that a layout does
    not have. Left out: nothing. pipeline.md#pipeline.
    """
    total, split_index, splits = _layer_splits(blocks, layouts, framework)
    most = int(np.max(layouts.vpp, initial=1))
    number = np.arange(most).reshape(-1, *[1] * np.ndim(stage))
    shape = (most, *np.shape(stage))
    pp = broadcast_to(layouts.pp * layouts.vpp, shape)
    exists = broadcast_to(number < layouts.vpp, shape)
    chunk = np.where(exists, layouts.chunk(stage, number), 0)
    counts = [np.zeros(shape) for _ in blocks]
    for number_of_split, split in enumerate(splits):
        selected = exists & (split_index == number_of_split)
        block_counts = _counts_of(blocks, pp[selected], chunk[selected], total, split)
        for count, values in zip(counts, block_counts, strict=True):
            count[selected] = values
    return counts


def split_columns(layouts: Layouts) -> tuple[Int | Mask, ...]:
    """Columns that determine the split of layers over chunks: degrees, order, user settings."""
    is_custom = layouts.has_custom_split | layouts.counts_embedding_or_head
    custom_columns = [getattr(layouts, name) for name in STAGE_FIELDS] if is_custom.any() else []
    return (layouts.pp, layouts.vpp, layouts.v_shaped, *custom_columns)


def _layer_splits(
    blocks: tuple[Block, ...], layouts: Layouts, framework: Framework
) -> tuple[int, Int, list[LayerSplit]]:
    """Number of layers, index of every layout's split, and the splits; the default is first."""
    layers = [block for block in blocks if block.kind == "layer"]
    total = sum(block.count for block in layers)
    default = _EVENLY
    if framework.balance == "ends-as-layers":
        default = LayerSplit(1, 1)
    elif framework.balance == "cost":
        head = sum(_cost(b) for b in blocks if b.kind == "head")
        total_cost = sum(b.count * _cost(b) for b in layers)
        default = LayerSplit(0, head * total / total_cost, by_cost=True)
    is_custom = layouts.has_custom_split | layouts.counts_embedding_or_head
    if not np.any(is_custom):
        return total, np.zeros(np.shape(layouts.pp), dtype=np.int64), [default]
    unique, index = layouts.distinct_splits()
    splits = [layer_split(total, unique[row], default) for row in range(len(unique))]
    return total, np.where(is_custom, index + 1, 0), [default, *splits]


def layer_split(num_layers: int, layout: Layout, usual: LayerSplit = _EVENLY) -> LayerSplit:
    """Layer split that a layout sets: layers per chunk, or layers that the ends count as [1].

    Counted: the layout's settings, else `usual`. Left out: their validity. pipeline.md#pipeline.
    """
    if layout.split:
        return LayerSplit(layers_of_chunks=layout.chunk_layers)
    if layout.first_layers or layout.last_layers:
        return LayerSplit(layers_of_chunks=_with_explicit_end_stages(num_layers, layout))
    first, last = layout.embedding_slots, layout.head_slots
    if max(first, last) < 0:
        return usual
    return LayerSplit(first if first >= 0 else usual.first, last if last >= 0 else usual.last)


def _with_explicit_end_stages(num_layers: int, layout: Layout) -> tuple[int, ...]:
    """Layers per chunk; chunks of a first or last stage of explicit size share it evenly."""
    places = layout.pp * layout.vpp
    stages = [layout.stage_of(place) for place in range(places)]
    end_layers = {0: layout.first_layers, layout.pp - 1: layout.last_layers}
    end_layers = {stage: layers for stage, layers in end_layers.items() if layers}
    counts = np.zeros(places, dtype=np.int64)
    inner_places = [place for place in range(places) if stages[place] not in end_layers]
    groups = [([p for p in range(places) if stages[p] == s], n) for s, n in end_layers.items()]
    for stage_places, layers in [*groups, (inner_places, num_layers - sum(end_layers.values()))]:
        if stage_places:
            base, extra = divmod(layers, len(stage_places))
            counts[stage_places] = [base + (place < extra) for place in range(len(stage_places))]
    return tuple(int(count) for count in counts)


def _cost(block: Block) -> int:
    """Cost of a block in nanotron's split: matrix elements, with K and V as large as Q."""
    matrices = [w for w in block.weights if w.columns > 1]
    attention_weights = [w for w in matrices if w.part == "attention" and not w.adapter]
    query = sum(w.num_params for w in attention_weights if w.matrix == "query")
    grouped = [w for w in attention_weights if w.matrix in ("key", "value")]
    repeated = len(grouped) * query - sum(w.num_params for w in grouped)
    return sum(w.num_params for w in matrices) + repeated


def _counts_of(
    blocks: tuple[Block, ...], pp: Int, stage: Int, total: int, split: LayerSplit
) -> list[Float]:
    """Block counts of stages, for pairs of pp and stage."""
    start, count = layers_on_stage(total, pp, stage, split)
    before, after = start, start + count
    counts, left = [], total
    for block in blocks:
        if block.kind == "embedding":
            counts.append(np.where(stage == 0, 1.0, 0.0))
        elif block.kind == "head":
            counts.append(np.where(stage == pp - 1, 1.0, 0.0))
        elif block.places:
            first, end = np.searchsorted(block.places, (start, start + count))
            counts.append((end - first).astype(float))
        else:
            skipped, passed = (_layers_among(block, layers, left) for layers in (before, after))
            counts.append(passed - skipped)
            before, after, left = before - skipped, after - passed, left - block.count
    return counts


def _layers_among(block: Block, first: Float, total: int) -> Float:
    """Layers of a block among the `first` ones of `total`: spread evenly, or before the others."""
    if block.interleaved:
        return np.ceil(first * block.count / total)
    return np.minimum(first, block.count)
