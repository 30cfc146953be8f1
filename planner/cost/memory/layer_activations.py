"""Layer activations: saved, recomputed and temporary bytes of tensors and layers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from planner.cost.arrays import Arrays, Float, Mask
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.cost.shards.states import largest_matrix
from planner.cost.shards.tensor_split import expert_load, split_over
from planner.describe.layout import Module
from planner.describe.model.block import Block, Saved, Split


def saved_bytes(scenario: Scenario, items: tuple[Saved, ...], layouts: Layouts) -> Float:
    """Size of saved tensors on one rank for one micro-batch [B].

    Counted: bytes per token, divided by the ranks that split a tensor; expert load. Left out: the
    number of layers. memory.md#memory-per-device.
    """
    workload, gathered = scenario.workload, scenario.framework.kernels.saves_gathered
    bytes_by_split: dict[tuple[Split, tuple[str, ...]], float] = {}
    for item in items:
        kind = (item.split, item.only)
        per_key = workload.sequence_length if item.scores else 1
        bytes_by_split[kind] = bytes_by_split.get(kind, 0.0) + item.bytes_per_token * per_key
    total = np.zeros(np.shape(layouts.tp))
    for (split, only), size in bytes_by_split.items():
        parts = size / split_over(split, layouts, gathered=gathered)
        if split in ("dispatched", "expert"):
            parts = parts * expert_load(workload, layouts)
        for condition in only:
            parts = np.where(_CONDITIONS[condition](layouts), parts, 0.0)
        total = total + parts
    return total * layouts.tokens(workload.sequence_length)


_CONDITIONS: dict[str, Callable[[Layouts], Mask]] = {
    "only_split": lambda layouts: layouts.tp > 1,
    "only_context": lambda layouts: layouts.cp > 1,
    "only_spread": lambda layouts: layouts.ep > 1,
    "only_batched": lambda layouts: layouts.micro_batch > 1,
    "only_piped": lambda layouts: layouts.piped,
}
"""Layouts in which a marked tensor exists, by its `only_` mark in `Saved`."""


def always_saved(block: Block) -> tuple[Saved, ...]:
    """Tensors of a block that autograd saves without recompute, in bytes per token [B].

    Counted: all not exclusive to selective recompute. Left out: the split over ranks. Definition.
    """
    return tuple(item for item in block.saved if not item.selective_only)


@dataclass(frozen=True, slots=True)
class LayerActivations(Arrays):
    """Saved activations and temporaries per micro-batch, each of the layer with the most [B]."""

    saved: Float
    """Activations kept on the device from forward to backward."""
    offloaded: Float
    """Activations kept on the host from forward to backward."""
    working: Float
    """Gradients, recomputed and reloaded activations at the peak of the layer's backward."""
    ending: Float
    """Temporaries at the end of the layer's backward (attention), less freed activations."""
    after_ffn: Float
    """Temporaries once feed-forward weight gradients are complete, less freed ones; may be < 0."""
    early_gradients: Float
    """Share of the layer's weight gradients that exist at its largest working set [1]."""
    ffn_gradients: Float
    """Share of the layer's weights in the feed-forward [1]."""

    def or_larger(self, candidate: LayerActivations, present: Mask) -> LayerActivations:
        """Field-wise maximum with `candidate` where `present`; shares follow the working set."""
        larger = present & (candidate.working > self.working)
        return LayerActivations(
            np.where(present, np.maximum(self.saved, candidate.saved), self.saved),
            np.where(present, np.maximum(self.offloaded, candidate.offloaded), self.offloaded),
            np.where(present, np.maximum(self.working, candidate.working), self.working),
            np.where(present, np.maximum(self.ending, candidate.ending), self.ending),
            np.where(present, np.maximum(self.after_ffn, candidate.after_ffn), self.after_ffn),
            np.where(larger, candidate.early_gradients, self.early_gradients),
            np.where(larger, candidate.ffn_gradients, self.ffn_gradients),
        )


def layer_activations(scenario: Scenario, block: Block, layouts: Layouts) -> LayerActivations:
    """Saved activations of one layer and micro-batch, and temporaries of its backward [B].

    Counted: tensors that autograd saves, or the layer's input under recompute; the peak of backward
    in either half. Left out: other layers. activations.md#activations.
    """

    def size(items: tuple[Saved, ...]) -> Float:
        return saved_bytes(scenario, items, layouts)

    all_saved = size(always_saved(block))
    element = max(scenario.framework.kernels.residual_bytes, scenario.workload.compute_bytes)
    layer_input = size((Saved("layer.input", element * block.width, "residual"),))
    on_device, in_ffn, in_attention = _saved_and_recomputed(
        scenario, block, layouts, all_saved, layer_input
    )
    freed = size(tuple(item for item in block.saved if item.until_ffn))
    after_ffn = size(block.after_ffn) + in_attention - freed
    ffn, attention = (size(items) for items in block.working)
    second = np.where(layouts.recompute_modules > 0, 0.0, freed)  # freed before attention's pass
    ffn, attention = ffn + in_ffn, attention + in_attention - second
    # backward starts in the feed-forward: only its last GEMM has a weight gradient then
    down = np.where(ffn >= attention, _ffn_share(block, "down"), 1.0)
    recomputed, peak = size(block.repeating) + in_ffn, np.maximum(ffn, attention)
    recomputed = np.where(layouts.recomputes_layers, recomputed, 0.0)
    peak = np.maximum(
        peak, _dequantised_matrix(scenario, block, layouts) + np.maximum(in_ffn, in_attention)
    )
    offloads, zero = layouts.offloads_activations, np.zeros_like(on_device)
    reloaded = np.where(offloads, on_device, zero)
    return LayerActivations(
        saved=np.where(offloads, zero, on_device),
        offloaded=reloaded,
        working=np.maximum(peak, recomputed) + reloaded,
        # after attention's backward all of the layer's activations but its input are freed
        ending=size(block.working[1]) - np.maximum(on_device - layer_input, 0.0) + reloaded,
        after_ffn=after_ffn + reloaded,
        early_gradients=np.where(recomputed > peak, 0.0, down),
        ffn_gradients=np.full_like(on_device, _ffn_share(block)),
    )


_FFN: tuple[Module, ...] = ("moe_act", "layernorm", "mlp", "moe", "shared_experts")

_ATTENTION: tuple[Module, ...] = ("core_attn", "layernorm", "mla_up_proj")
"""Recompute modules of the two halves of a layer; norms are in both."""


def _saved_and_recomputed(
    scenario: Scenario, block: Block, layouts: Layouts, all_saved: Float, layer_input: Float
) -> tuple[Float, Float, Float]:
    """Saved bytes of a layer, and recomputed bytes for feed-forward's and attention's backward."""
    full, selective = layouts.recomputes_layers, layouts.recomputes_selectively
    span = layouts.recompute_span
    selected = saved_bytes(scenario, tuple(item for item in block.saved if item.selective), layouts)
    on_device = np.where(selective, selected, all_saved)
    on_device = np.where(full, layer_input / span, on_device)
    recomputed = np.where(full, span * all_saved - layer_input, 0.0)
    recomputed = np.where(selective, all_saved - selected, recomputed)
    recomputed = np.maximum(recomputed, 0.0)
    if not np.any(layouts.recompute_modules):
        return on_device, recomputed, recomputed
    named, modules_of_layer = layouts.recompute_modules > 0, (*_FFN, *_ATTENTION)
    ffn, attention, both = (
        _recomputed_bytes(scenario, block, layouts, modules)
        for modules in (_FFN, _ATTENTION, modules_of_layer)
    )
    return (
        np.where(named, all_saved - both, on_device),
        np.where(named, ffn, recomputed),
        np.where(named, attention, recomputed),
    )


def _recomputed_bytes(
    scenario: Scenario, block: Block, layouts: Layouts, modules: tuple[Module, ...]
) -> Float:
    """Activations of a layer that are recomputed with `modules` instead of saved [B]."""
    total = np.zeros(np.shape(layouts.tp))
    for item in always_saved(block):
        names = tuple(name for name in item.recomputed_with if name in modules)
        is_recomputed = layouts.recomputes_module(names)
        if np.any(is_recomputed):
            total = total + np.where(is_recomputed, saved_bytes(scenario, (item,), layouts), 0.0)
    return total


def _dequantised_matrix(scenario: Scenario, block: Block, layouts: Layouts) -> Float:
    """Largest frozen matrix in compute precision (QLoRA, DoRA), with temporaries alive then [B]."""
    workload = scenario.workload
    if not (workload.quantized or workload.dora):
        return np.zeros(np.shape(layouts.tp))
    element = float(workload.compute_bytes)
    matrix = element * largest_matrix(scenario, block, layouts, "stored")
    live_bytes = np.where(matrix > 0, matrix + saved_bytes(scenario, block.unpacking, layouts), 0.0)
    if not workload.dora:
        return live_bytes
    sums = 2 * element * largest_matrix(scenario, block, layouts, "targeted") + matrix
    norms = sums + saved_bytes(scenario, block.unpacking[:1], layouts)
    return np.maximum(live_bytes, np.where(layouts.recomputes_layers, norms, 0.0))


def _ffn_share(block: Block, matrix: str = "") -> float:
    """Share of a layer's parameters in its feed-forward, or in one matrix of it [1]."""
    inside = (w for w in block.weights if w.part in ("feed_forward", "experts"))
    return sum(w.num_params for w in inside if not matrix or w.matrix == matrix) / block.num_params
