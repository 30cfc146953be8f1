"""Weights: resident bytes on the device, and all-gathered weights through a step."""

from __future__ import annotations

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


def resident(stages: Stages) -> Resident:
    """Weights, gradients and optimizer states that stay on the device in the middle of a step [B].

    Counted: what is resident. Left out: layers gathered for a while. Rajbhandari et al. 2020,
    arXiv:1910.02054, figure 1, with the framework's bytes.

    >>> scenario = make_scenario("gpt2-xl", "deepspeed")
    >>> stay = resident(Stages.of_pipeline(scenario, Layout()))
    >>> parts = (stay.weights, stay.gradients, stay.optimizer_states)
    >>> [part.item() / scenario.model.num_params for part in parts]
    [2.0, 2.0, 12.0]
    """
    size, params, layouts = stages.states, stages.params, stages.layouts
    framework = stages.scenario.framework
    copies = np.where(layouts.shards_weights, 0.0, stages.trained.all_gathered * size.weight_bytes)
    weights = np.where(layouts.shards_weights, stages.weight_shard_bytes, copies + frozen(stages))
    weights = weights + params.trainable * size.cached_weight_bytes + eight_bit_copies(stages)
    second_shards = second_shard_bytes(stages, params.all_gathered * stages.element)
    weights = weights + np.where(layouts.keeps_second_shards(framework), second_shards, 0.0)
    # the gradient of a parameter that is itself a shard is one, once it is reduced
    shards = layouts.shards_gradients | (layouts.shards_states & (size.sharded_weight_bytes == 0))
    elements = np.where(shards, params.trainable_sharded, params.trainable)
    gradients = elements * size.gradient_bytes * (not framework.kernels.optimizer_in_backward)
    reduced = (layouts.num_replicas > 1) | framework.buffers.reduces_alone
    further = size.unsharded_gradient_bytes + np.where(reduced, size.bucket_bytes, 0.0)
    gradients = gradients + np.where(layouts.shards_gradients, 0.0, params.trainable * further)
    gradients = gradients + stages.trained.weight_shapes * framework.buffers.placeholder_bytes
    gradients = gradients + _reduced_twice(stages)
    optimizer = stages.optimizer_state_bytes - stages.paged_bytes
    if not size.sharded_weight_bytes:
        # where the compute copy is only ever gathered, the fp32 copy is the parameter itself
        master = stages.updated * size.master_bytes
        weights, optimizer = weights + master, optimizer - master
    # offloaded optimizers take their gradient shard with them (ZeRO-Offload, arXiv:2101.06840)
    stay = layouts.keeps_states | ~layouts.shards_gradients
    return Resident(
        weights=np.where(layouts.offloads_weights & layouts.shards_weights, 0.0, weights),
        gradients=np.where(stay, gradients, 0.0),
        optimizer_states=np.where(layouts.keeps_states, optimizer, 0.0),
    )


def _reduced_twice(stages: Stages) -> Float:
    """A tied table's second gradient shard, where a loss in pieces reduces the head's part
    first."""
    size, layouts, kernels = stages.states, stages.layouts, stages.scenario.framework.kernels
    # the norm's gradient lies in its tensor (torch 2.13, _fsdp_collectives.py: foreach_reduce)
    keeps_second = kernels.loss_chunks > 1 and not kernels.optimizer_in_backward
    keeps_second = keeps_second and not size.sharded_weight_bytes
    shard = stages.trained.tied / layouts.num_shards * size.gradient_bytes
    return np.where(layouts.shards_states, keeps_second * shard, 0.0)


def frozen(stages: Stages) -> Float:
    """Frozen weights that stay on a rank where weights are not sharded [B].

    Counted: the weights, and gathered copies of their shards where a framework computes with these.
    Left out: weights that train. method.md#memory-per-device.

    >>> scenario = make_scenario("gpt2-xl", "ddp", lora_rank=8)
    >>> stages = Stages.of_pipeline(scenario, Layout(dp=4))
    >>> frozen(stages).item() / scenario.model.num_params       # DDP keeps 4 of trained ones
    2.0
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
    return gathered_ones * size.weight_bytes + shard * stages.frozen_bytes


def eight_bit_copies(stages: Stages) -> Float:
    """Bytes of 8-bit weight copies beyond 16-bit weights; negative where they replace them [B].

    Counted: parameters of layers, where products run in 8 bits and the framework keeps its copies
    between micro-batches; without the 16-bit ones where ranks gather 8 bits, unless these are
    copies of fp32 shards. Left out: embedding and head, which run in 16 bits; scales; that norms
    have none; that Blackwell's per-tensor scaling needs no copy by columns. Transformer Engine
    @d0067d0d, module/linear.py: quantize_weight; method.md#states-per-framework.

    >>> stages = Stages.of_pipeline(make_scenario(machine="dgx-h100", precision="fp8"), Layout())
    >>> eight_bit_copies(stages).item() / 2 / 32            # a layer of Llama 3 8B
    218112000.0
    """
    params, scenario = stages.params, stages.scenario
    each = scenario.framework.kernels.fp8_weight_bytes * (scenario.workload.precision == "fp8")
    if stages.eight_bits and stages.states.sharded_weight_bytes:
        each = max(each, stages.layer_element) - stages.states.weight_bytes
    layers = params.unsharded - params.embedding - (params.head - params.tied)
    return np.where(stages.layouts.shards_weights, 0.0, layers * each)


def second_shard_bytes(stages: Stages, size: Float) -> Float:
    """Secondary shard of gathered weights on a rank (`reshard`; hpZ in ZeRO++) [B].

    `size` is that of weights as ZeRO-3 gathers them. Counted: a rank's part, experts over the ranks
    that hold the same ones. Left out: padding. Wang et al. 2023, arXiv:2306.10209, section 3.2.

    >>> scenario = make_scenario("llama-3-8b", "deepspeed")
    >>> stages = Stages.of_pipeline(scenario, Layout(dp=64, zero_stage=3, reshard=4))
    >>> second_shard_bytes(stages, 2.0 * stages.params.unsharded).item() / scenario.model.num_params
    0.5
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
    """Weights that are still there while a step goes on [B]."""

    all: Float
    without_head: Float
    """When the head's backward has ended."""
    without_last_layer: Float
    """When that of the last layer has ended too."""
    in_first_layer: Float
    in_reduction: Float
    in_optimizer: Float


def resident_weights(stages: Stages, weights: Float) -> ResidentWeights:
    """Resident weights from the loss to the optimizer [B].

    Counted: a 16-bit copy beside an fp32 parameter is freed group by group in the last backward
    pass, after which sums over several passes are reduced. Left out: weights gathered for a while.
    method.md#memory-per-device.

    >>> stages = Stages.of_pipeline(make_scenario(framework="fsdp2"), Layout(dp=8, zero_stage=2))
    >>> there = resident_weights(stages, resident(stages).weights)
    >>> (there.all - there.without_head).item() == 2 * (128256 * 4096 + 4096)   # table and norm
    True
    """
    size, params, layouts = stages.states, stages.params, stages.layouts
    copies = ~layouts.shards_weights & (size.sharded_weight_bytes == 0)
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
    """All-gathered weights that do not stay [B]."""

    in_forward: Float
    """The window, and flat buffers while weights are copied out to stay (below ZeRO-3)."""
    window: Float
    """The layer that computes, those gathered ahead, and a table that both ends use."""
    head: Float
    in_second_layer: Float
    in_first_layer: Float
    copied: Float
    """Copies with which all of them are gathered where they then stay."""
    in_embedding: Float
    in_reduction: Float


def gathered(stages: Stages, busy: Float) -> GatheredWeights:
    """Gathered weights that do not stay, through a step [B].

    `busy` are the other temporaries of a layer, which do not coincide with copies. Counted: the
    layer that computes, those fetched ahead, a tied table, all of a pipeline that reduces once;
    the others' second shards, from a forward pass to its backward pass. Left out: resident weights.
    method.md#memory-per-device.

    >>> stages = Stages.of_pipeline(make_scenario(framework="fsdp2"), Layout(dp=8, zero_stage=3))
    >>> window = gathered(stages, np.zeros(())).window      # 16 bits of a layer and of the next
    >>> window.item() / (2 * 218_112_000)
    2.0
    """
    weights = stages.of_states(_gathered)
    if not np.any(weights.copied):
        return weights
    copies = np.maximum(weights.copied - busy, 0.0)
    return replace(weights, in_first_layer=weights.in_second_layer + copies)


def _gathered(stages: Stages) -> GatheredWeights:
    """The same, without copies for the first layer."""
    scenario, params, layouts = stages.scenario, stages.params, stages.layouts
    sums = layouts.sums_gradients(scenario.framework)
    element = float(scenario.workload.compute_bytes)
    everything, copied = params.all_gathered * element, params.copied_in * element
    layer = params.largest_layer * stages.layer_element / layouts.tiles
    head, window = _window(stages, everything, layer)
    # between passes of a pipeline that reduces once, nothing is freed
    stays_gathered = layouts.piped & sums
    reduced = everything - np.maximum(layer, params.embedding * element)
    stays = layouts.keeps_second_shards(scenario.framework)
    # neither the layer that computes is sharded again nor the head, or the table that it shares
    inner = params.largest_layer * stages.layer_element
    other_layers = everything - inner - np.minimum(params.head * element, everything)
    embedding_bytes = np.minimum(params.embedding * element * (params.tied == 0), everything)

    def with_second_shards(size: Float, besides: Float | float = 0.0) -> Float:
        """Gathered weights, and secondary shards of the rest."""
        second = np.where(stays, 0.0, second_shard_bytes(stages, np.maximum(besides, 0.0)))
        return np.where(layouts.shards_weights, size, 0.0) + second

    in_backward = with_second_shards(window, other_layers)
    both = with_second_shards(np.where(stays_gathered, everything, window), embedding_bytes)
    copies = layouts.gathers_updates & (stages.states.sharded_weight_bytes == 0) & ~layouts.piped
    # gathered before the first pass, gradients are summed after it
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
    """Weights gathered for the head, and for a layer that computes while the next is fetched."""
    params, element = stages.params, float(stages.scenario.workload.compute_bytes)
    live_elements = stages.scenario.framework.buffers.live_elements
    if live_elements:
        live = np.maximum(np.minimum(live_elements * element, everything), layer)
        return live, live
    # a tied table is used at both ends and stays gathered between them
    window = np.minimum(layer * 2 + params.tied * element, everything)
    return np.minimum(params.head * element, everything), window
