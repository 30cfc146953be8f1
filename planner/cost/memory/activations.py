"""Activations: saved tensors of all micro-batches in flight, and working sets, per stage."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.cost.arrays import Arrays, Float, Mask
from planner.cost.memory.in_flight import InFlight, passes_in_flight
from planner.cost.memory.layer_activations import (
    LayerActivations,
    always_saved,
    layer_activations,
    saved_bytes,
)
from planner.cost.scenario import Scenario
from planner.cost.schedules.bubble import runs_forward_ahead
from planner.cost.shards.layouts import Layouts
from planner.cost.shards.partial_recompute import chunk_block_counts
from planner.cost.shards.stages import Stages
from planner.describe.model.block import Block


@dataclass(frozen=True, slots=True)
class StageBuffers(Arrays):
    """Send and receive buffers of pipeline stages, apart from saved activations [B]."""

    at_peak: Float
    """Unused receive buffers and kept outputs with the most micro-batches in flight."""
    receive: Float
    """Receive buffers when no activations are left."""
    sent_gradient: Float
    """Last gradient sent to the previous stage."""


@dataclass(frozen=True, slots=True)
class HeadTensors(Arrays):
    """Tensors of head and loss on one rank [B]."""

    at_loss: Float
    """Saved by head and loss, and the loss gradient."""
    in_backward: Float
    """Alive during the layers' backward: of other micro-batches, and a stage's output."""
    until_loss: Float
    """Part of `at_loss` that is freed when the loss's backward ends."""

    def plus(self, other: HeadTensors, count: Float) -> HeadTensors:
        """Add `count` times the tensors of another head."""
        return HeadTensors(
            self.at_loss + count * other.at_loss,
            self.in_backward + count * other.in_backward,
            self.until_loss + count * other.until_loss,
        )


@dataclass(frozen=True, slots=True)
class Activations(Arrays):
    """Activations of a stage on one rank [B]."""

    saved: Float
    """Saved by embedding and layers for all micro-batches in flight."""
    other_micro_batches: Float
    """Saved for the other micro-batches in flight when one finishes its backward pass."""
    in_flight: Float
    """Micro-batches whose activations are held at once [1]."""
    offloaded: Float
    """Layer activations on the host for all micro-batches in flight."""
    layer: LayerActivations
    """Largest layer of the kind whose backward runs first."""
    following: LayerActivations
    """Largest layer of the kind whose backward runs second."""
    first: LayerActivations
    """Largest layer of the kind whose backward runs last; kinds differ with partial recompute."""
    head: HeadTensors
    sequence_buffer: Float
    """Residual stream gathered for a tensor-parallel region (sequence parallelism)."""
    buffers: StageBuffers
    """Send and receive buffers of the stage."""


def stage_activations(stages: Stages) -> Activations:
    """Activations in flight, working set, logits and gather buffer of a stage [B].

    Counted: what autograd keeps, operator by operator (Korthikanti et al. 2022,
    arXiv:2205.05198, section 4), for all micro-batches in flight. Left out: gathered weights.
    """
    scenario, layouts, flight = stages.scenario, stages.layouts, passes_in_flight(stages)
    zero, share = np.zeros(stages.shape), np.ones(stages.shape)
    saved_sum, one_micro_batch, offloaded = zero, zero, zero
    head = HeadTensors(zero, zero, zero)
    last = following = first = LayerActivations(zero, zero, zero, zero, zero, share, share)
    for number, (block, count) in enumerate(zip(stages.blocks, stages.counts, strict=True)):
        if block.kind == "head":
            head = head.plus(_head_tensors(stages, block, flight), count)
            continue
        if block.kind == "layer":
            layer = layer_activations(scenario, block, stages.layouts_of_block(block))
            ends = _at_ends(stages, block)
            last = last.or_larger(layer, (count > 0) & ends[0])
            if ends[0] is ends[1]:
                following = first = last
            else:
                following = following.or_larger(layer, (count > 0) & ends[1])
                first = first.or_larger(layer, (count > 0) & ends[2])
            layer_bytes = layer.saved
            offloaded = offloaded + flight.blocks[number] * layer.offloaded
        else:
            layer_bytes = saved_bytes(scenario, always_saved(block), layouts)
        saved_sum = saved_sum + flight.blocks[number] * layer_bytes
        one_micro_batch = one_micro_batch + flight.smallest[number] * layer_bytes
    stream = stages.tokens * stages.blocks[0].width * scenario.workload.compute_bytes
    gathered = np.where(layouts.splits_sequence & (layouts.tp > 1), stream, 0.0)
    return Activations(
        saved=saved_sum + scenario.framework.offloading.activation_layers * last.offloaded,
        other_micro_batches=saved_sum - one_micro_batch,
        in_flight=flight.micro_batches,
        offloaded=offloaded,
        layer=last,
        following=following,
        first=first,
        head=head,
        sequence_buffer=gathered + np.zeros_like(saved_sum),
        buffers=_stage_buffers(stages, stream, flight),
    )


def _head_tensors(stages: Stages, head: Block, flight: InFlight) -> HeadTensors:
    """Tensors of one head and its loss [B]."""
    scenario, layouts = stages.scenario, stages.layouts
    waiting = np.where(runs_forward_ahead(layouts), flight.micro_batches, 1.0)
    sizes = [saved_bytes(scenario, items, layouts) for items in head.working]
    working = np.asarray(np.max(sizes, axis=0) if sizes else np.zeros(np.shape(layouts.tp)))
    saved, outputs, used = (
        saved_bytes(scenario, items, layouts)
        for items in (
            always_saved(head),
            tuple(item for item in head.saved if item.only_piped),
            tuple(item for item in head.saved if item.until_loss),
        )
    )
    return HeadTensors(
        at_loss=saved * waiting + working,
        in_backward=saved * (waiting - 1) + outputs,
        until_loss=used + working,
    )


def _at_ends(stages: Stages, block: Block) -> tuple[Mask | bool, ...]:
    """True where a chunk's last, next-to-last or first layer is of `block`'s recompute kind."""
    layouts = stages.layouts
    if not any(candidate.kept_whole for candidate in stages.blocks):
        return True, True, True
    num_saved, num_recomputed = np.zeros(stages.shape), np.zeros(stages.shape)
    for candidate, count in zip(stages.blocks, stages.counts, strict=True):
        num_saved = num_saved + count * candidate.kept_whole
        num_recomputed = num_recomputed + count * (
            candidate.kind == "layer" and not candidate.kept_whole
        )
    depth, interval = np.round((num_saved + num_recomputed) / layouts.vpp), layouts.recompute_every
    position_saved = (
        np.where(interval > 1, depth % interval > 0, num_saved > 0),
        np.where(interval > 1, (depth - 1) % interval > 0, num_saved > layouts.vpp),
        np.where(interval > 1, num_saved > 0, num_recomputed == 0),
    )
    return tuple(
        ~layouts.recomputes_partly | (is_saved == block.kept_whole) for is_saved in position_saved
    )


def kept_bytes(scenario: Scenario, block: Block, layouts: Layouts) -> Float:
    """Saved activations of one block and micro-batch on one rank [B].

    Counted: saved tensors after recompute. Left out: the head. activations.md#activations.
    """
    if block.kind == "head":
        return np.zeros(np.shape(layouts.tp))
    if block.kind == "layer":
        return layer_activations(scenario, block, layouts).saved
    return saved_bytes(scenario, always_saved(block), layouts)


def chunk_kept_bytes(stages: Stages) -> Float:
    """Saved activations of one micro-batch by chunk and stage, shape (chunks, S) [B].

    Counted: embedding and layers. Left out: the head, receive buffers. activations.md#activations.
    """
    counts = chunk_block_counts(
        stages.blocks, stages.layouts, stages.stage, stages.scenario.framework
    )
    sizes = [
        kept_bytes(stages.scenario, block, stages.layouts_of_block(block))
        for block in stages.blocks
    ]
    return np.asarray(sum(size * count for size, count in zip(sizes, counts, strict=True)))


def moved_bytes(stages: Stages) -> Float:
    """Activations that one micro-batch offloads to the host and reloads in backward [B].

    Counted: layers. Left out: embedding and head. offload.md#host-memory-loading-offload.
    """
    if not np.any(stages.layouts.offloads_activations):
        return np.zeros(stages.shape)
    pairs = [(block, stages.layouts_of_block(block)) for block in stages.blocks]
    layers = [
        layer_activations(stages.scenario, block, layouts).offloaded
        if block.kind == "layer"
        else np.zeros(())
        for block, layouts in pairs
    ]
    return stages.total(layers)


def _stage_buffers(stages: Stages, stream: Float, flight: InFlight) -> StageBuffers:
    """Send and receive buffers of a stage, if allocated for all micro-batches of a step [B]."""
    layouts, stage, num = stages.layouts, stages.stage, flight.micro_batches
    if not stages.scenario.framework.buffers.pipeline_buffers_whole:
        return StageBuffers(*(np.zeros_like(num) for _ in range(3)))
    size = np.where(layouts.piped, stream, 0.0)
    size = size / np.where(layouts.splits_sequence, layouts.tp, 1)
    inputs = layouts.vpp - (stage == 0)
    outputs = layouts.vpp - (stage == layouts.stage_of(layouts.pp * layouts.vpp - 1))
    m = layouts.num_microbatches
    # inputs of passes in flight are already counted as activations
    at_peak = inputs * m - flight.received + outputs * m + flight.sent
    return StageBuffers(
        at_peak=size * at_peak,
        receive=size * m * (inputs + outputs),
        sent_gradient=size * ((stage > 0) & (m > num)),
    )
