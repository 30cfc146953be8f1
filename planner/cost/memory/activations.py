"""Activations: bytes kept from forward to backward, and working sets, per rank and stage."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from planner.cost.shards.layouts import Layouts
from planner.cost.shards.pipeline import in_flight, stage_counts
from planner.cost.step.compute import share
from planner.describe.framework import Framework
from planner.describe.layout import RECOMPUTE, SCHEDULES
from planner.describe.model.block import Block, Saved, Split
from planner.describe.workload import Workload

__all__ = ["Activations", "Boundary", "stage_activations"]

Float = NDArray[np.float64]

_GPIPE = SCHEDULES.index("gpipe")
_FULL, _SELECTIVE = RECOMPUTE.index("full"), RECOMPUTE.index("selective")


@dataclass(frozen=True, slots=True)
class Boundary:
    """What passing the stream between pipeline stages takes, beside saved activations [B]."""

    waiting: Float
    """With most micro-batches in flight: receive buffers not yet in use, outputs kept."""
    after: Float
    """When no activations are left: the receive buffers."""
    returned: Float
    """The gradient that was sent back last."""


@dataclass(frozen=True, slots=True)
class Activations:
    """What a stage's activations take on one rank [B]."""

    layers: Float
    """Kept by embedding and layers, for all micro-batches in flight."""
    working: Float
    """The largest layer's repeated activations and gradients during its backward."""
    ending: Float
    """Its gradients when its backward ends, in attention, beyond what it has freed."""
    after_ffn: Float
    """Its temporaries when the gradients of its feed-forward's weights are complete; less than
    nothing where more activations were freed by then."""
    early_gradients: Float
    """Share of its weights' gradients that exist when its working set is largest."""
    ffn_gradients: Float
    """Share of its weights in the feed-forward."""
    in_flight: Float
    """Micro-batches whose activations are kept at once."""
    others: Float
    """Kept for the other micro-batches in flight while one ends its backward pass."""
    logits: Float
    """Kept by the head, and its loss gradient."""
    one_layer: Float
    """What the largest layer keeps of one micro-batch."""
    sequence_buffer: Float
    """The stream gathered for a tensor-parallel region (sequence parallelism)."""
    boundary: Boundary


def _share(split: Split, layouts: Layouts, gathered: bool) -> Float:
    """Part of a saved tensor that one tp rank holds, as a divisor."""
    if split != "dispatched":
        return share(split, layouts, gathered=gathered)
    together = share("gathered", layouts, gathered=gathered)
    return np.where(layouts.ep > 1, share("residual", layouts), together)


def _saved_bytes(
    items: tuple[Saved, ...],
    tokens: Float,
    layouts: Layouts,
    workload: Workload,
    framework: Framework,
) -> Float:
    gathered = framework.kernels.saves_gathered
    total = np.zeros(np.shape(tokens))
    for item in items:
        per_key = workload.sequence_length if item.scores else 1
        size = item.bytes_per_token * per_key * tokens
        size = size / _share(item.split, layouts, gathered)
        if item.only_split:
            size = np.where(layouts.tp > 1, size, 0.0)
        if item.only_piped:
            size = np.where(layouts.pp > 1, size, 0.0)
        total = total + size
    return total


def _block_activations(
    block: Block, tokens: Float, layouts: Layouts, workload: Workload, framework: Framework
) -> tuple[Float, Float, Float]:
    """Bytes kept per micro-batch, repeated ones while recomputing, and those of a layer's input."""

    def size(items: tuple[Saved, ...]) -> Float:
        return _saved_bytes(items, tokens, layouts, workload, framework)

    everything = size(tuple(item for item in block.saved if not item.selective_only))
    selected = size(tuple(item for item in block.saved if item.selective))
    if block.kind != "layer":
        return everything, np.zeros_like(everything), np.zeros_like(everything)
    layer_input = size(
        (Saved("layer.input", _stream_bytes(workload, framework) * block.width, "residual"),)
    )
    kept = np.where(layouts.recompute == _SELECTIVE, selected, everything)
    kept = np.where(layouts.recompute == _FULL, layer_input, kept)
    repeated = np.where(layouts.recompute == _FULL, everything - layer_input, 0.0)
    repeated = np.where(
        layouts.recompute == _SELECTIVE, np.maximum(everything - selected, 0), repeated
    )
    return kept, np.maximum(repeated, 0.0), layer_input


def _stream_bytes(workload: Workload, framework: Framework) -> int:
    return max(framework.kernels.residual_bytes, workload.compute_bytes)


@dataclass(frozen=True, slots=True)
class _Layer:
    """What one layer keeps and needs, as in `Activations` [B]."""

    kept: Float
    working: Float
    ending: Float
    after_ffn: Float
    early_gradients: Float
    ffn_gradients: Float

    def or_larger(self, other: _Layer, here: NDArray[np.bool_]) -> _Layer:
        """The larger of both in everything, where the other is on the stage."""
        larger = here & (other.working > self.working)
        return _Layer(
            np.where(here, np.maximum(self.kept, other.kept), self.kept),
            np.where(here, np.maximum(self.working, other.working), self.working),
            np.where(here, np.maximum(self.ending, other.ending), self.ending),
            np.where(here, np.maximum(self.after_ffn, other.after_ffn), self.after_ffn),
            np.where(larger, other.early_gradients, self.early_gradients),
            np.where(larger, other.ffn_gradients, self.ffn_gradients),
        )


def _layer(
    block: Block, sizes: tuple[Float, Float, Float], alternatives: list[Float], after_ffn: Float
) -> _Layer:
    """A layer by what it keeps, repeats and gets, and its gradients in both halves of backward."""
    kept, repeated, entering = sizes
    if not alternatives:
        zero, one = np.zeros_like(kept), np.ones_like(kept)
        return _Layer(kept, repeated, zero, zero, one, one)
    ffn, attention = alternatives
    # feed-forward comes first in backward: only its last product has a gradient then
    down = np.where(ffn >= attention, _share_of(block, "down"), 1.0)
    share = np.full_like(kept, _share_of(block))
    # but for its input the layer's own activations are freed when attention's backward ends
    ending = attention - (kept - entering)
    return _Layer(kept, repeated + np.maximum(ffn, attention), ending, after_ffn, down, share)


def _share_of(block: Block, matrix: str = "") -> float:
    """Part of a layer's parameters in its feed-forward, or in one matrix of it."""
    inside = (w for w in block.weights if w.part in ("feed_forward", "experts"))
    return sum(w.num_params for w in inside if not matrix or w.matrix == matrix) / block.num_params


def _boundary(
    stream: Float, held: Float, layouts: Layouts, stage: ArrayLike, framework: Framework
) -> Boundary:
    """Buffers at both ends of a stage, where a framework makes them for all micro-batches."""
    if not framework.buffers.pipeline_buffers_whole:
        return Boundary(*(np.zeros_like(held) for _ in range(3)))
    stage = np.asarray(stage)
    size = np.where(layouts.pp > 1, stream, 0.0)
    size = size / np.where(layouts.sequence_parallel > 0, layouts.tp, 1)
    inputs = layouts.vpp - (stage == 0)
    outputs = layouts.vpp - (stage == layouts.pp - 1)
    passes = layouts.grad_accumulation
    # activations in flight count their inputs themselves
    waiting = inputs * (passes - held) + outputs * (passes + held)
    returned = size * ((stage > 0) & (passes > held))
    return Boundary(size * waiting, size * passes * (inputs + outputs), returned)


def _sums(
    blocks: tuple[Block, ...],
    counts: list[Float],
    held: Float,
    tokens: Float,
    layouts: Layouts,
    workload: Workload,
    framework: Framework,
) -> tuple[Float, Float, _Layer]:
    """Activations in flight and logits of a stage, and its largest layer."""

    def size(items: tuple[Saved, ...]) -> Float:
        return _saved_bytes(items, tokens, layouts, workload, framework)

    shape = np.broadcast_shapes(np.shape(tokens), np.shape(held))
    zero, whole = np.zeros(shape), np.ones(shape)
    activations, logits, largest = zero, zero, _Layer(zero, zero, zero, zero, whole, whole)
    for block, count in zip(blocks, counts, strict=True):
        sizes = _block_activations(block, tokens, layouts, workload, framework)
        kept = sizes[0]
        alternatives = [size(items) for items in block.working]
        if block.kind == "head":
            # only GPipe runs forward passes ahead of the last stage's backward
            waiting = np.where(layouts.schedule == _GPIPE, held, 1.0)
            loss = np.max(alternatives, axis=0) if alternatives else np.zeros_like(kept)
            logits = logits + count * (kept * waiting + loss)
            continue
        activations = activations + count * kept * held
        if block.kind == "layer":
            freed = tuple(item for item in block.saved if item.until_ffn)
            rest = size(block.after_ffn) + sizes[1] - size(freed)
            largest = largest.or_larger(_layer(block, sizes, alternatives, rest), count > 0)
    return activations, logits, largest


def stage_activations(
    blocks: tuple[Block, ...],
    layouts: Layouts,
    stage: ArrayLike,
    workload: Workload,
    framework: Framework,
) -> Activations:
    """Activations in flight, working set, logits and gather buffer of a stage."""
    tokens = layouts.micro_batch * workload.sequence_length / layouts.cp
    counts = stage_counts(blocks, layouts, stage, framework)
    held = in_flight(layouts, stage)
    activations, logits, largest = _sums(blocks, counts, held, tokens, layouts, workload, framework)
    stream = tokens * blocks[0].width * workload.compute_bytes
    gathered = np.where((layouts.sequence_parallel > 0) & (layouts.tp > 1), stream, 0.0)
    return Activations(
        activations,
        largest.working,
        largest.ending,
        largest.after_ffn,
        largest.early_gradients,
        largest.ffn_gradients,
        held,
        activations * (1 - 1 / (held * layouts.vpp)),
        logits,
        largest.kept,
        gathered + np.zeros_like(activations),
        _boundary(stream, held, layouts, stage, framework),
    )
