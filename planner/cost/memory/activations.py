"""Activations: bytes kept from forward to backward, and working sets, per rank and stage."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.cost.arrays import Arrays, Float, Mask
from planner.cost.memory.in_flight import InFlight, in_flight_on
from planner.cost.memory.layer_activations import LayerActivations, layer_activations
from planner.cost.memory.saved_tensors import always_saved, saved_bytes
from planner.cost.scenario import Scenario
from planner.cost.schedules.bubble import runs_forward_ahead
from planner.cost.shards.layouts import Layouts
from planner.cost.shards.stages import Stages
from planner.describe.model.block import Block

__all__ = ["Activations", "StageBuffers", "kept_bytes", "moved_bytes", "stage_activations"]


@dataclass(frozen=True, slots=True)
class StageBuffers(Arrays):
    """What passing the stream between pipeline stages takes, beside saved activations [B]."""

    at_peak: Float
    """With most micro-batches in flight: receive buffers not yet in use, outputs kept."""
    receive: Float
    """When no activations are left: the receive buffers."""
    sent_gradient: Float
    """The gradient that was sent back last."""


@dataclass(frozen=True, slots=True)
class Activations(Arrays):
    """What a stage's activations take on one rank [B]."""

    kept: Float
    """Kept by embedding and layers, for all micro-batches in flight."""
    of_others: Float
    """Kept for the other micro-batches in flight while one ends its backward pass."""
    in_flight: Float
    """Micro-batches whose activations are kept at once."""
    moved: Float
    """Of layers, on the host for all micro-batches in flight."""
    layer: LayerActivations
    """The largest of the layers whose backward comes first."""
    following: LayerActivations
    """Of those whose backward follows."""
    first: LayerActivations
    """The largest of those whose backward comes last: they differ with partial recompute."""
    logits: Float
    """Kept by the head, and its loss gradient."""
    loss: Float
    """Of that, what is gone when the loss's backward ends."""
    sequence_buffer: Float
    """The stream gathered for a tensor-parallel region (sequence parallelism)."""
    buffers: StageBuffers
    """At both ends of the stage."""


def stage_activations(stages: Stages) -> Activations:
    """Activations in flight, working set, logits and gather buffer of a stage [B].

    Counted: what autograd keeps, operator by operator (Korthikanti et al. 2022,
    arXiv:2205.05198, section 4), for all micro-batches in flight. Left out: gathered weights.

    >>> model, job = load_model("gpt3-175b"), Workload(attention="eager")
    >>> megatron = load_framework("megatron-lm-2021")
    >>> scenario = Scenario(model, load_machine("polaris"), job, megatron)
    >>> layer = stage_activations(Stages.every(scenario, Layout())).layer
    >>> layer.kept.item() / (2048 * model.hidden_size)      # 34 + 5 a s / h, a = 96, h = 12288
    114.0
    """
    layouts, workload = stages.layouts, stages.scenario.workload
    flight = in_flight_on(stages)
    sums = _sums(stages, flight)
    stream = stages.tokens * stages.blocks[0].width * workload.compute_bytes
    gathered = np.where(layouts.splits_sequence & (layouts.tp > 1), stream, 0.0)
    return Activations(
        kept=sums.kept + sums.passing,
        of_others=sums.kept - sums.once,
        in_flight=flight.micro_batches,
        moved=sums.moved,
        layer=sums.layer,
        following=sums.following,
        first=sums.first,
        logits=sums.logits,
        loss=sums.loss,
        sequence_buffer=gathered + np.zeros_like(sums.kept),
        buffers=_stage_buffers(stages, stream, flight),
    )


@dataclass(frozen=True, slots=True)
class _Sums(Arrays):
    """Activations of a stage, and of its largest layer [B]."""

    kept: Float
    once: Float
    """Kept for one micro-batch in the smallest chunk."""
    moved: Float
    """On the host."""
    passing: Float
    """On the device, between it and the host."""
    logits: Float
    loss: Float
    layer: LayerActivations
    following: LayerActivations
    first: LayerActivations


def _sums(stages: Stages, flight: InFlight) -> _Sums:
    """Activations in flight, logits and loss of a stage, and its largest layer."""
    scenario, layouts = stages.scenario, stages.layouts
    zero, one = np.zeros(stages.shape), np.ones(stages.shape)
    kept, once, moved, logits, loss = zero, zero, zero, zero, zero
    last = following = first = LayerActivations(zero, zero, zero, zero, zero, one, one)
    for number, (block, count) in enumerate(zip(stages.blocks, stages.counts, strict=True)):
        if block.kind == "head":
            waiting = np.where(runs_forward_ahead(layouts), flight.micro_batches, 1.0)
            each = saved_bytes(scenario, always_saved(block), layouts)
            working = _loss(scenario, block, layouts)
            used = tuple(item for item in block.saved if item.until_loss)
            logits = logits + count * (each * waiting + working)
            loss = loss + count * (saved_bytes(scenario, used, layouts) + working)
            continue
        if block.kind == "layer":
            layer = layer_activations(scenario, block, stages.seen_by(block))
            ends = _at_ends(stages, block)
            last = last.or_larger(layer, (count > 0) & ends[0])
            if ends[0] is ends[1]:
                following = first = last
            else:
                following = following.or_larger(layer, (count > 0) & ends[1])
                first = first.or_larger(layer, (count > 0) & ends[2])
            size = layer.kept
            moved = moved + flight.blocks[number] * layer.moved
        else:
            size = saved_bytes(scenario, always_saved(block), layouts)
        kept = kept + flight.blocks[number] * size
        once = once + flight.smallest[number] * size
    passing = scenario.framework.offloading.activation_layers * last.moved
    return _Sums(kept, once, moved, passing, logits, loss, last, following, first)


def _at_ends(stages: Stages, block: Block) -> tuple[Mask | bool, ...]:
    """Whether the last layer of a chunk, the one before it and the first are of a kind, where a
    partial recompute repeats some and leaves others."""
    layouts = stages.layouts
    if not any(other.kept_whole for other in stages.blocks):
        return True, True, True
    left, again = np.zeros(stages.shape), np.zeros(stages.shape)
    for other, count in zip(stages.blocks, stages.counts, strict=True):
        left = left + count * other.kept_whole
        again = again + count * (other.kind == "layer" and not other.kept_whole)
    deep, every = np.round((left + again) / layouts.vpp), layouts.recompute_every
    kept = (
        np.where(every > 1, deep % every > 0, left > 0),
        np.where(every > 1, (deep - 1) % every > 0, left > layouts.vpp),
        np.where(every > 1, left > 0, again == 0),
    )
    return tuple(~layouts.recomputes_partly | (each == block.kept_whole) for each in kept)


def kept_bytes(scenario: Scenario, block: Block, layouts: Layouts) -> Float:
    """What embedding or layer keep of one micro-batch from forward to backward on one rank [B].

    Counted: everything or what recompute leaves. Left out: the head, whose loss follows at once.
    method.md#activations.

    >>> scenario = make_scenario("llama-3-8b", "fsdp2", sequence_length=1)
    >>> layer, again = blocks_of(scenario)[1], Layouts.of(Layout(recompute="full"))
    >>> float(kept_bytes(scenario, layer, again))                # its input: 4096 of two bytes
    8192.0
    """
    if block.kind == "head":
        return np.zeros(np.shape(layouts.tp))
    if block.kind == "layer":
        return layer_activations(scenario, block, layouts).kept
    return saved_bytes(scenario, always_saved(block), layouts)


def moved_bytes(stages: Stages) -> Float:
    """What one micro-batch sends to the host on a stage, and gets back in its backward pass [B].

    Counted: what its layers keep, where activations are offloaded. Left out: embedding and head,
    whose backward is far off or at once. method.md#host-memory-loading-offload.

    >>> scenario = make_scenario("llama-3-8b", "deepspeed")
    >>> layout = Layout(recompute="full", offload_activations=True)
    >>> moved_bytes(Stages.every(scenario, layout)).item() / 2048  # 32 inputs, 4096 of two bytes
    262144.0
    """
    if not np.any(stages.layouts.offloads_activations):
        return np.zeros(stages.shape)
    pairs = [(block, stages.seen_by(block)) for block in stages.blocks]
    layers = [
        layer_activations(stages.scenario, block, seen).moved
        if block.kind == "layer"
        else np.zeros(())
        for block, seen in pairs
    ]
    return stages.total(layers)


def _loss(scenario: Scenario, block: Block, layouts: Layouts) -> Float:
    """Temporaries of the loss, the largest of its alternatives [B]."""
    sizes = [saved_bytes(scenario, items, layouts) for items in block.working]
    return np.asarray(np.max(sizes, axis=0) if sizes else np.zeros(np.shape(layouts.tp)))


def _stage_buffers(stages: Stages, stream: Float, flight: InFlight) -> StageBuffers:
    """Buffers at both ends of a stage, where a framework makes them for all micro-batches."""
    layouts, stage, num = stages.layouts, stages.stage, flight.micro_batches
    if not stages.scenario.framework.buffers.pipeline_buffers_whole:
        return StageBuffers(*(np.zeros_like(num) for _ in range(3)))
    size = np.where(layouts.piped, stream, 0.0)
    size = size / np.where(layouts.splits_sequence, layouts.tp, 1)
    inputs = layouts.vpp - (stage == 0)
    outputs = layouts.vpp - (stage == layouts.stage_of(layouts.pp * layouts.vpp - 1))
    m = layouts.num_microbatches
    # activations in flight count their inputs themselves
    at_peak = inputs * m - flight.received + outputs * m + flight.sent
    return StageBuffers(
        at_peak=size * at_peak,
        receive=size * m * (inputs + outputs),
        sent_gradient=size * ((stage > 0) & (m > num)),
    )
