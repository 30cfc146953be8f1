"""Layer activations: saved, recomputed and temporary bytes of one layer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.cost.arrays import Arrays, Float, Mask
from planner.cost.memory.saved_tensors import always_saved, saved_bytes
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.cost.shards.states import largest_matrix
from planner.describe.layout import Module
from planner.describe.model.block import Block, Saved

__all__ = ["LayerActivations", "layer_activations"]


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


def layer_activations(scenario: Scenario, block: Block, layouts: Layouts) -> LayerActivations:
    """Saved activations of one layer and micro-batch, and temporaries of its backward [B].

    Counted: tensors that autograd saves, or the layer's input where it is recomputed; recomputed
    activations and gradients at the peak of either half of backward. Left out: other layers.
    method.md#activations.

    >>> layer, layouts = blocks_of(scenario)[1], Layouts.of(Layout(recompute="full"))
    >>> float(layer_activations(scenario, layer, layouts).kept) / 2**20     # its input
    16.0
    """

    def size(items: tuple[Saved, ...]) -> Float:
        return saved_bytes(scenario, items, layouts)

    everything = size(always_saved(block))
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
    most = np.maximum(
        most, _dequantised_matrix(scenario, block, layouts) + np.maximum(in_ffn, in_attention)
    )
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
        _recomputed_bytes(scenario, block, layouts, modules)
        for modules in (_FFN, _ATTENTION, every)
    )
    return (
        np.where(named, everything - both, kept),
        np.where(named, ffn, repeated),
        np.where(named, attention, repeated),
    )


def _recomputed_bytes(
    scenario: Scenario, block: Block, layouts: Layouts, modules: tuple[Module, ...]
) -> Float:
    """What some of the modules that layouts name do not keep of a layer [B]."""
    total = np.zeros(np.shape(layouts.tp))
    for item in always_saved(block):
        names = tuple(name for name in item.again_with if name in modules)
        here = layouts.recomputes_module(names)
        if np.any(here):
            total = total + np.where(here, saved_bytes(scenario, (item,), layouts), 0.0)
    return total


def _dequantised_matrix(scenario: Scenario, block: Block, layouts: Layouts) -> Float:
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
