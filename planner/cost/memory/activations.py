"""Activations: bytes kept from forward to backward, and working sets, per rank and stage."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from planner.cost.arrays import Arrays, Float, Mask
from planner.cost.memory.in_flight import InFlight, in_flight_on
from planner.cost.scenario import Scenario
from planner.cost.schedules.bubble import runs_forward_ahead
from planner.cost.shards.layouts import Layouts
from planner.cost.shards.stages import Stages
from planner.cost.shards.states import largest_matrix
from planner.cost.shards.tensor_split import expert_load, split_over
from planner.describe.layout import Module
from planner.describe.model.block import Block, Saved, Split

__all__ = [
    "Activations",
    "LayerActivations",
    "StageBuffers",
    "kept_bytes",
    "moved_bytes",
    "saved_bytes",
    "stage_activations",
]


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
class LayerActivations(Arrays):
    """What the largest layer of a stage keeps and needs for one micro-batch [B].

    Of layers that differ it is the largest in everything.
    """

    kept: Float
    """From forward to backward, on the device."""
    moved: Float
    """From forward to backward, on the host."""
    working: Float
    """Repeated activations and gradients during its backward, and what comes back for it."""
    ending: Float
    """Its gradients when its backward ends, in attention, beyond what it has freed."""
    after_ffn: Float
    """Its temporaries when the gradients of its feed-forward's weights are complete; less than
    nothing where more activations were freed by then."""
    early_gradients: Float
    """Share of its weights' gradients that exist when its working set is largest."""
    ffn_gradients: Float
    """Share of its weights in the feed-forward."""

    def or_larger(self, other: LayerActivations, here: Mask) -> LayerActivations:
        """The larger of both in everything, where the other is on the stage."""
        larger = here & (other.working > self.working)
        return LayerActivations(
            np.where(here, np.maximum(self.kept, other.kept), self.kept),
            np.where(here, np.maximum(self.moved, other.moved), self.moved),
            np.where(here, np.maximum(self.working, other.working), self.working),
            np.where(here, np.maximum(self.ending, other.ending), self.ending),
            np.where(here, np.maximum(self.after_ffn, other.after_ffn), self.after_ffn),
            np.where(larger, other.early_gradients, self.early_gradients),
            np.where(larger, other.ffn_gradients, self.ffn_gradients),
        )


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

    >>> from planner import Layout, Workload, load_framework, load_machine, load_model
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
            each = saved_bytes(scenario, _always(block), layouts)
            working = _loss(scenario, block, layouts)
            used = tuple(item for item in block.saved if item.until_loss)
            logits = logits + count * (each * waiting + working)
            loss = loss + count * (saved_bytes(scenario, used, layouts) + working)
            continue
        if block.kind == "layer":
            layer = _layer(scenario, block, stages.seen_by(block))
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
            size = saved_bytes(scenario, _always(block), layouts)
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


def saved_bytes(scenario: Scenario, items: tuple[Saved, ...], layouts: Layouts) -> Float:
    """What tensors take on one rank for one micro-batch [B].

    Counted: their bytes per token, over the ranks that split them. Left out: how many layers keep
    them. method.md#memory-per-device.

    >>> from planner import Layout, Workload, load_framework, load_machine, load_model
    >>> from planner.describe.model.block import Saved
    >>> asked = load_model("llama-3-8b"), load_machine("polaris"), Workload()
    >>> job = Scenario(*asked, load_framework("megatron-lm"))       # sequences of 2048 tokens
    >>> queries = Saved("queries", 2 * 4096, "sharded")
    >>> float(saved_bytes(job, (queries,), Layouts.of(Layout(tp=4)))) / 2**20
    4.0
    """
    workload, gathered = scenario.workload, scenario.framework.kernels.saves_gathered
    alike: dict[tuple[Split, tuple[str, ...]], float] = {}
    for item in items:
        kind = (item.split, item.only)
        per_key = workload.sequence_length if item.scores else 1
        alike[kind] = alike.get(kind, 0.0) + item.bytes_per_token * per_key
    total = np.zeros(np.shape(layouts.tp))
    for (split, only), size in alike.items():
        parts = size / split_over(split, layouts, gathered=gathered)
        if split in ("dispatched", "expert"):
            parts = parts * expert_load(workload, layouts)
        for condition in only:
            parts = np.where(_ONLY[condition](layouts), parts, 0.0)
        total = total + parts
    return total * layouts.tokens(workload.sequence_length)


_ONLY: dict[str, Callable[[Layouts], Mask]] = {
    "only_split": lambda layouts: layouts.tp > 1,
    "only_context": lambda layouts: layouts.cp > 1,
    "only_spread": lambda layouts: layouts.ep > 1,
    "only_batched": lambda layouts: layouts.micro_batch > 1,
    "only_piped": lambda layouts: layouts.piped,
}
"""Where tensors exist that do not exist everywhere, by the mark of `Saved`."""


def kept_bytes(scenario: Scenario, block: Block, layouts: Layouts) -> Float:
    """What embedding or layer keep of one micro-batch from forward to backward on one rank [B].

    Counted: everything or what recompute leaves. Left out: the head, whose loss follows at once.
    method.md#activations.

    >>> from planner import Layout, Workload, load_framework, load_machine, load_model
    >>> from planner.cost.operators.blocks import blocks_of
    >>> model, machine = load_model("llama-3-8b"), load_machine("polaris")
    >>> job = Scenario(model, machine, Workload(sequence_length=1), load_framework("fsdp2"))
    >>> layer, again = blocks_of(job)[1], Layouts.of(Layout(recompute="full"))
    >>> float(kept_bytes(job, layer, again))                # its input: 4096 of two bytes
    8192.0
    """
    if block.kind == "head":
        return np.zeros(np.shape(layouts.tp))
    if block.kind == "layer":
        return _layer(scenario, block, layouts).kept
    return saved_bytes(scenario, _always(block), layouts)


def moved_bytes(stages: Stages) -> Float:
    """What one micro-batch sends to the host on a stage, and gets back in its backward pass [B].

    Counted: what its layers keep, where activations are offloaded. Left out: embedding and head,
    whose backward is far off or at once. method.md#host-memory-loading-offload.

    >>> from planner import Layout, Workload, load_framework, load_machine, load_model
    >>> model, machine = load_model("llama-3-8b"), load_machine("polaris")
    >>> job = Scenario(model, machine, Workload(), load_framework("deepspeed"))
    >>> layout = Layout(recompute="full", offload_activations=True)
    >>> moved_bytes(Stages.every(job, layout)).item() / 2048        # 32 inputs, 4096 of two bytes
    262144.0
    """
    if not np.any(stages.layouts.offloads_activations):
        return np.zeros(stages.shape)
    pairs = [(block, stages.seen_by(block)) for block in stages.blocks]
    layers = [
        _layer(stages.scenario, block, seen).moved if block.kind == "layer" else np.zeros(())
        for block, seen in pairs
    ]
    return stages.total(layers)


def _always(block: Block) -> tuple[Saved, ...]:
    """What a block keeps where nothing is recomputed."""
    return tuple(item for item in block.saved if not item.selective_only)


def _loss(scenario: Scenario, block: Block, layouts: Layouts) -> Float:
    """Temporaries of the loss, the largest of its alternatives [B]."""
    sizes = [saved_bytes(scenario, items, layouts) for items in block.working]
    return np.asarray(np.max(sizes, axis=0) if sizes else np.zeros(np.shape(layouts.tp)))


def _layer(scenario: Scenario, block: Block, layouts: Layouts) -> LayerActivations:
    """A layer by what it keeps, repeats and gets, and its gradients in both halves of backward."""

    def size(items: tuple[Saved, ...]) -> Float:
        return saved_bytes(scenario, items, layouts)

    everything = size(_always(block))
    element = max(scenario.framework.kernels.residual_bytes, scenario.workload.compute_bytes)
    entering = size((Saved("layer.input", element * block.width, "residual"),))
    kept, in_ffn, in_attention = _kept_and_repeated(scenario, block, layouts, everything, entering)
    freed = size(tuple(item for item in block.saved if item.until_ffn))
    after_ffn = size(block.after_ffn) + in_attention - freed
    ffn, attention = (size(items) for items in block.working)
    ffn, attention = ffn + in_ffn, attention + in_attention
    # feed-forward comes first in backward: only its last product has a gradient then
    down = np.where(ffn >= attention, _ffn_share(block, "down"), 1.0)
    again, most = size(block.repeating) + in_ffn, np.maximum(ffn, attention)
    again = np.where(layouts.recomputes_layers, again, 0.0)
    most = np.maximum(most, _unpacked(scenario, block, layouts) + np.maximum(in_ffn, in_attention))
    leaves, zero = layouts.offloads_activations, np.zeros_like(kept)
    comes_back = np.where(leaves, kept, zero)
    return LayerActivations(
        kept=np.where(leaves, zero, kept),
        moved=comes_back,
        working=np.maximum(most, again) + comes_back,
        # but for its input the layer's own activations are freed when attention's backward ends
        ending=size(block.working[1]) - np.maximum(kept - entering, 0.0) + comes_back,
        after_ffn=after_ffn + comes_back,
        early_gradients=np.where(again > most, 0.0, down),
        ffn_gradients=np.full_like(kept, _ffn_share(block)),
    )


_FFN: tuple[Module, ...] = ("moe_act", "layernorm", "mlp", "moe", "shared_experts")
_ATTENTION: tuple[Module, ...] = ("core_attn", "layernorm", "mla_up_proj")
"""Modules of both halves of a layer; norms stand in both."""


def _kept_and_repeated(
    scenario: Scenario, block: Block, layouts: Layouts, everything: Float, entering: Float
) -> tuple[Float, Float, Float]:
    """What a layer keeps, and what is repeated for the feed-forward's and attention's backward."""
    full, selective = layouts.recomputes_layers, layouts.recomputes_selectively
    span = layouts.recompute_span
    selected = saved_bytes(scenario, tuple(item for item in block.saved if item.selective), layouts)
    kept = np.where(selective, selected, everything)
    kept = np.where(full, entering / span, kept)
    repeated = np.where(full, span * everything - entering, 0.0)
    repeated = np.where(selective, everything - selected, repeated)
    repeated = np.maximum(repeated, 0.0)
    if not np.any(layouts.recompute_modules):
        return kept, repeated, repeated
    named, every = layouts.recompute_modules > 0, (*_FFN, *_ATTENTION)
    ffn, attention, both = (
        _again(scenario, block, layouts, modules) for modules in (_FFN, _ATTENTION, every)
    )
    return (
        np.where(named, everything - both, kept),
        np.where(named, ffn, repeated),
        np.where(named, attention, repeated),
    )


def _again(
    scenario: Scenario, block: Block, layouts: Layouts, modules: tuple[Module, ...]
) -> Float:
    """What some of the modules that layouts name do not keep of a layer [B]."""
    total = np.zeros(np.shape(layouts.tp))
    for item in _always(block):
        names = tuple(name for name in item.again_with if name in modules)
        here = layouts.recomputes_module(names)
        if np.any(here):
            total = total + np.where(here, saved_bytes(scenario, (item,), layouts), 0.0)
    return total


def _unpacked(scenario: Scenario, block: Block, layouts: Layouts) -> Float:
    """A frozen matrix in the precision that computes, and what is alive beside it [B].

    Of DoRA also the product of the adapters and its sum with the matrix, where full recompute takes
    the norms again.
    """
    workload = scenario.workload
    if not (workload.quantized or workload.dora):
        return np.zeros(np.shape(layouts.tp))
    element = float(workload.compute_bytes)
    matrix = element * largest_matrix(scenario, block, layouts, "stored")
    found = np.where(matrix > 0, matrix + saved_bytes(scenario, block.unpacking, layouts), 0.0)
    if not workload.dora:
        return found
    sums = 2 * element * largest_matrix(scenario, block, layouts, "targeted") + matrix
    norms = sums + saved_bytes(scenario, block.unpacking[:1], layouts)
    return np.maximum(found, np.where(layouts.recomputes_layers, norms, 0.0))


def _ffn_share(block: Block, matrix: str = "") -> float:
    """Part of a layer's parameters in its feed-forward, or in one matrix of it."""
    inside = (w for w in block.weights if w.part in ("feed_forward", "experts"))
    return sum(w.num_params for w in inside if not matrix or w.matrix == matrix) / block.num_params


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
