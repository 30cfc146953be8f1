"""Weights: resident bytes on the device, and all-gathered weights through a step."""

from dataclasses import dataclass, replace

import numpy as np

from planner.cost.arrays import Arrays, Float, Mask
from planner.cost.shards.stages import Stages
from planner.cost.shards.states import expert_share


@dataclass(frozen=True, slots=True)
class Resident(Arrays):
    """Resident tensors on the device in the middle of a step [B]."""

    weights: Float
    gradients: Float
    optimizer_states: Float
    copies: Float
    """Part of the weights: gathered copies that stay beside fp32 shards."""


def resident(stages: Stages) -> Resident:
    """Weights, gradients and optimizer states that stay on the device in the middle of a step [B].

    Counted: tensors that stay. Left out: temporarily gathered layers. Rajbhandari et al. 2020,
    arXiv:1910.02054, figure 1, with the framework's bytes per parameter.
    """
    size, params, layouts = stages.states, stages.params, stages.layouts
    framework = stages.scenario.framework
    copies = stages.trained.all_gathered * size.weight_bytes * ~layouts.shards_weights
    if not size.sharded_weight_bytes:
        copies = copies * _keeps_copies(stages)
    weights = np.where(layouts.shards_weights, stages.weight_shard_bytes, copies + frozen(stages))
    weights = weights + params.trainable * size.cached_weight_bytes + eight_bit_copies(stages)
    second_shards = second_shard_bytes(stages, params.all_gathered * stages.element)
    weights = weights + np.where(layouts.keeps_second_shards(framework), second_shards, 0.0)
    # a parameter that exists only as a shard has a sharded gradient after reduction
    shards = layouts.shards_gradients | (layouts.shards_states & (size.sharded_weight_bytes == 0))
    elements = np.where(shards, params.trainable_sharded, params.trainable)
    gradients = elements * size.gradient_bytes * (not framework.kernels.optimizer_in_backward)
    reduced = (layouts.num_replicas > 1) | framework.buffers.reduces_alone
    extra = size.unsharded_gradient_bytes + np.where(reduced, size.bucket_bytes, 0.0)
    gradients = gradients + np.where(layouts.shards_gradients, 0.0, params.trainable * extra)
    gradients = gradients + stages.trained.weight_shapes * framework.buffers.placeholder_bytes
    gradients = gradients + _reduced_twice(stages)
    optimizer = stages.optimizer_state_bytes - stages.paged_bytes
    if not size.sharded_weight_bytes:
        # if the compute copy exists only gathered, the fp32 copy is the parameter itself
        master = stages.updated * size.master_bytes
        weights, optimizer = weights + master, optimizer - master
    # offloaded optimizers keep their gradient shard on the host (ZeRO-Offload, arXiv:2101.06840)
    on_device = layouts.keeps_states | ~layouts.shards_gradients
    return Resident(
        weights=np.where(layouts.offloads_weights & layouts.shards_weights, 0.0, weights),
        gradients=np.where(on_device, gradients, 0.0),
        optimizer_states=np.where(layouts.keeps_states, optimizer, 0.0),
        copies=copies * (not size.sharded_weight_bytes),
    )


def _keeps_copies(stages: Stages) -> Mask:
    """True where compute copies stay beside fp32 shards; one device in fp32 shards nothing."""
    layouts = stages.layouts
    exact = stages.states.weight_bytes >= 4
    return np.asarray(~layouts.shards_weights & ((layouts.dp * layouts.cp > 1) | (not exact)))


def _reduced_twice(stages: Stages) -> Float:
    """Second gradient shard of a tied table: a chunked loss reduces the head's part first [B]."""
    size, layouts, kernels = stages.states, stages.layouts, stages.scenario.framework.kernels
    # the final norm's gradient is in its tensor (torch 2.13, _fsdp_collectives.py: foreach_reduce)
    keeps_second = kernels.loss_chunks > 1 and not kernels.optimizer_in_backward
    keeps_second = keeps_second and not size.sharded_weight_bytes
    shard = stages.trained.tied / layouts.num_shards * size.gradient_bytes
    return np.where(layouts.shards_states, keeps_second * shard, 0.0)


def frozen(stages: Stages) -> Float:
    """Frozen weights that stay on a rank if weights are not sharded (below ZeRO-3) [B].

    Counted: the weights, or shards and gathered copies if the framework computes with copies.
    Left out: trainable weights. memory.md#memory-per-device.
    """
    params, size, layouts = stages.params, stages.states, stages.layouts
    gathered_ones = params.all_gathered - stages.trained.all_gathered
    if size.sharded_weight_bytes:
        return gathered_ones * stages.frozen_bytes
    shard = np.where(
        layouts.shards_states,
        params.sharded - params.trainable_sharded,
        params.unsharded - params.trainable,
    )
    if stages.scenario.workload.base_format.startswith("nf4"):
        # FSDP leaves out 4-bit weights, which are bytes (accelerate 1.15, utils/fsdp_utils.py)
        vocabulary = params.embedding + params.head
        shard = vocabulary / np.where(layouts.shards_states, layouts.num_shards, 1)
    return gathered_ones * size.weight_bytes + shard * stages.frozen_bytes


def eight_bit_copies(stages: Stages) -> Float:
    """Bytes of 8-bit weight copies beyond 16-bit weights; negative where they replace them [B].

    Counted: layer parameters, if GEMMs run in 8 bits and the framework keeps 8-bit copies between
    micro-batches; minus the 16-bit weights if ranks gather in 8 bits, unless shards are fp32.
    Left out: embedding and head, which run in 16 bits; scales; norms, which have no copies.
    Transformer Engine @d0067d0d, module/linear.py: quantize_weight; csrc/quantizer.cpp:
    with_transpose; states.md#states-per-framework.
    """
    params, scenario = stages.params, stages.scenario
    kernels = scenario.framework.kernels
    each = kernels.fp8_weight_bytes * (scenario.workload.precision == "fp8")
    if kernels.fp8_rows_alone and scenario.machine.device.is_of(kernels.fp8_rows_alone):
        each /= 2
    if stages.eight_bits and stages.states.sharded_weight_bytes:
        each = max(each, stages.layer_element) - stages.states.weight_bytes
    layers = params.unsharded - params.embedding - (params.head - params.tied)
    return np.where(stages.layouts.shards_weights, 0.0, layers * each)


def second_shard_bytes(stages: Stages, size: Float) -> Float:
    """Secondary shard of gathered weights on a rank (`reshard`; hpZ in ZeRO++) [B].

    `size`: bytes of weights as ZeRO-3 gathers them. Counted: a rank's part, of experts over ranks
    with the same experts. Left out: padding. Wang et al. 2023, arXiv:2306.10209, section 3.2.
    """
    layouts = stages.layouts
    if not np.any(layouts.reshard):
        return np.zeros(stages.shape)
    routed = np.where(layouts.ep > 1, expert_share(stages.blocks, layouts), 0.0)
    second = layouts.num_second_shards
    share = (1 - routed) / second + routed / np.maximum(second // layouts.ep, 1)
    resharded = layouts.shards_weights & (layouts.reshard > 0)
    return np.where(resharded, size * share, 0.0)


@dataclass(frozen=True, slots=True)
class ResidentWeights(Arrays):
    """Resident weights at successive moments of a step [B]."""

    all: Float
    without_head: Float
    """After the head's backward."""
    without_last_layer: Float
    """After the backward of head and last layer."""
    in_first_layer: Float
    in_reduction: Float
    in_optimizer: Float


def resident_weights(stages: Stages, weights: Float) -> ResidentWeights:
    """Resident weights from the loss to the optimizer step [B].

    Counted: 16-bit copies of fp32 parameters, freed group by group in the last backward pass or in
    the reduction of gradient sums. Left out: gathered weights. memory.md#memory-per-device.
    """
    size, params, layouts = stages.states, stages.params, stages.layouts
    copies = _keeps_copies(stages) & (size.sharded_weight_bytes == 0)
    plain = copies & ~layouts.piped
    once = layouts.sums_gradients(stages.scenario.framework)

    def without(elements: Float, where: Mask) -> Float:
        return weights - np.where(where, elements * size.weight_bytes, 0.0)

    head, layer = params.head - params.tied, params.largest_layer
    spent = without(params.all_gathered, plain)
    group = np.maximum(layer, params.embedding)
    return ResidentWeights(
        all=weights,
        without_head=without(head, plain),
        without_last_layer=without(head + layer, plain),
        in_first_layer=np.where(once, weights, spent),
        in_reduction=np.where(layouts.piped, without(group, copies & once), spent),
        in_optimizer=spent,
    )


@dataclass(frozen=True, slots=True)
class GatheredWeights(Arrays):
    """Temporarily all-gathered weights [B]."""

    in_forward: Float
    """Prefetch window, and flat buffers while gathered weights are copied out (below ZeRO-3)."""
    window: Float
    """Prefetch window: the computing layer, prefetched layers, a tied embedding table."""
    head: Float
    in_second_layer: Float
    in_first_layer: Float
    copied: Float
    """Copy-in buffers of weights that stay gathered between the passes of a pipeline."""
    in_embedding: Float
    in_reduction: Float


def gathered(stages: Stages, busy: Float) -> GatheredWeights:
    """Temporarily all-gathered weights at the moments of a step [B].

    `busy`: other temporaries of a layer, never alive together with copy-in buffers. Counted:
    computing and prefetched layers, a tied table, all weights in a pipeline that reduces once;
    secondary shards of other layers. Left out: resident weights. memory.md#memory-per-device.
    """
    weights = stages.of_states(_gathered)
    if not np.any(weights.copied):
        return weights
    copies = np.maximum(weights.copied - busy, 0.0)
    return replace(weights, in_first_layer=weights.in_second_layer + copies)


def _gathered(stages: Stages) -> GatheredWeights:
    """`gathered` without the copy-in buffers at the first layer."""
    scenario, params, layouts = stages.scenario, stages.params, stages.layouts
    sums = layouts.sums_gradients(scenario.framework)
    element = float(scenario.workload.compute_bytes)
    everything, copied = params.all_gathered * element, params.copied_in * element
    layer = params.largest_layer * stages.layer_element / layouts.tiles
    head, window = _window(stages, everything, layer)
    # a pipeline that reduces once frees nothing between passes
    stays_gathered = layouts.piped & sums
    reduced = everything - np.maximum(layer, params.embedding * element)
    keeps_second = layouts.keeps_second_shards(scenario.framework)
    # the computing layer and the head (or its tied table) are not resharded
    inner = params.largest_layer * stages.layer_element
    other_layers = everything - inner - np.minimum(params.head * element, everything)
    embedding_bytes = np.minimum(params.embedding * element * (params.tied == 0), everything)

    def with_second_shards(size: Float, besides: Float | float = 0.0) -> Float:
        """Gathered weights plus secondary shards of the weights in `besides`."""
        second = np.where(keeps_second, 0.0, second_shard_bytes(stages, np.maximum(besides, 0.0)))
        return np.where(layouts.shards_weights, size, 0.0) + second

    in_backward = with_second_shards(window, other_layers)
    both = with_second_shards(np.where(stays_gathered, everything, window), embedding_bytes)
    copies = layouts.gathers_updates & (stages.states.sharded_weight_bytes == 0) & ~layouts.piped
    # weights are gathered before the first pass, gradient sums exist after it
    return GatheredWeights(
        in_forward=in_backward + np.where(copies & ~sums, 2 * layer + copied, 0.0),
        window=in_backward,
        head=with_second_shards(head, everything - head),
        in_second_layer=both,
        in_first_layer=both,
        copied=np.where(stays_gathered & layouts.shards_weights, 2 * copied, 0.0),
        in_embedding=with_second_shards(
            np.where(stays_gathered, everything, params.tied * element)
        ),
        in_reduction=with_second_shards(np.where(stays_gathered, reduced, 0.0)),
    )


def _window(stages: Stages, everything: Float, layer: Float) -> tuple[Float, Float]:
    """Gathered weights for the head, and for a computing layer with the next one prefetched [B]."""
    params, element = stages.params, float(stages.scenario.workload.compute_bytes)
    live_elements = stages.scenario.framework.buffers.live_elements
    if live_elements:
        live = np.maximum(np.minimum(live_elements * element, everything), layer)
        return live, live
    # a tied table is used at both ends and stays gathered between them
    window = np.minimum(layer * 2 + params.tied * element, everything)
    return np.minimum(params.head * element, everything), window
