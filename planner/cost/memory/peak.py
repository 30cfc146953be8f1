"""Memory: bytes per rank by part, at every pipeline stage, at the moment of the peak.

Nine moments of a step compete; the parts reported are those alive at the worst of them, so
they add up to the total:

    forward            the last layer's weights are gathered; its activations are still to come
    loss               all activations and the logits; the head's weights are gathered
    backward           all activations, and the last layer's working set
    layer before last  the last layer's activations are gone, its gradients complete and reduced
    second layer       its gradients are complete, the first layer's activations still there
    first layer        all gradients, and the first layer's working set; other activations are
                       gone, but for those of other micro-batches in a pipeline
    embedding          all gradients, the embedding's being computed and reduced
    reduction          sums of gradients over the passes of a step being reduced
    optimizer          all gradients, the optimizer's temporaries, updated weights being gathered
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from planner.cost.memory.activations import Activations, stage_activations
from planner.cost.memory.gradients import reduced_once, reduction
from planner.cost.parts import DEVICE_PARTS
from planner.cost.shards.layouts import Layouts
from planner.cost.shards.states import (
    StageState,
    optimizer_state_bytes,
    stage_state,
    training_state_bytes,
)
from planner.describe.framework import Framework
from planner.describe.layout import OFFLOAD
from planner.describe.machine import Machine
from planner.describe.model.block import Block
from planner.describe.workload import Workload

__all__ = ["MOMENTS", "device_memory", "state_parts", "training_state_bytes"]

Float = NDArray[np.float64]

MOMENTS = (
    "forward",
    "loss",
    "backward",
    "layer before last",
    "second layer",
    "first layer",
    "embedding",
    "reduction",
    "optimizer",
)

_PASSING = (
    "gradients",
    "activations",
    "working_set",
    "logits_and_loss",
    "communication_buffers",
    "optimizer_temporaries",
)
_NONE, _OPT_CPU, _OPT_NVME, _ALL_CPU, _ALL_NVME = range(len(OFFLOAD))


def device_memory(
    blocks: tuple[Block, ...],
    layouts: Layouts,
    stage: ArrayLike,
    machine: Machine,
    workload: Workload,
    framework: Framework,
) -> tuple[dict[str, Float], NDArray[np.int64]]:
    """Bytes per rank of a pipeline stage, by part, at the peak, and the moment of the peak [B].

    `layouts` and `stage` broadcast: (L, 1) against (S,) gives every stage of every layout.
    Counted: everything in DEVICE_PARTS. Left out: memory of other jobs on the device.
    """
    state = stage_state(blocks, layouts, stage, workload, framework)
    kept = stage_activations(blocks, layouts, stage, workload, framework)
    static = state_parts(state, layouts, workload, framework)
    moments = _moments(state, kept, static, layouts, workload, framework)
    totals = np.broadcast_arrays(*[np.asarray(sum(moment.values())) for moment in moments])
    peak = np.argmax(totals, axis=0)
    parts = {"optimizer_states": static["optimizer_states"] + np.zeros(peak.shape)}
    for name in moments[0]:
        parts[name] = np.choose(peak, [moment[name] for moment in moments])
    allocated = np.asarray(sum(parts.values()))
    parts["runtime_context"] = _context_bytes(layouts, machine) + np.zeros_like(allocated)
    parts["allocator_reserve"] = framework.buffers.allocator_fraction.value * allocated
    if framework.buffers.keeps_temporaries:
        # what activations leave behind is too small for them: the allocator takes more while
        # there is room, and gives the small pieces back when there is none
        room = machine.device.memory_bytes.value - sum(parts.values())
        later = moments[-1]["optimizer_temporaries"] - parts["optimizer_temporaries"]
        parts["allocator_reserve"] += np.clip(later, 0.0, np.maximum(room, 0.0))
    return {name: parts[name] for name in DEVICE_PARTS}, peak


def _moments(
    state: StageState,
    kept: Activations,
    static: dict[str, Float],
    layouts: Layouts,
    workload: Workload,
    framework: Framework,
) -> list[dict[str, Float]]:
    """The parts that come and go, at each of MOMENTS [B]."""
    reduce = reduction(state, kept, static["gradients"], layouts, workload, framework)
    weights = _weights(state, static["weights"], layouts, workload, framework)
    busy = kept.working + reduce.in_first_layer
    gathered = _gathered(state, busy, layouts, workload, framework)
    ends, stream = kept.boundary, kept.sequence_buffer
    flight = stream + ends.waiting + ends.returned
    temporaries = _optimizer_temporaries(state, layouts, workload, framework)
    zero = np.zeros(())
    before, following = reduce.before, kept.layers - kept.one_layer
    second = kept.others + np.where(layouts.pp > 1, kept.one_layer, 0.0)
    after_ffn = kept.after_ffn - reduce.of_layer * (1 - kept.ffn_gradients)
    ending = np.maximum(np.maximum(kept.ending, after_ffn) - reduce.copied, 0.0)
    after = stream + ends.after
    rows = (
        (before, following, zero, zero, flight + reduce.fixed, zero),
        (before, kept.layers, zero, kept.logits, flight + reduce.fixed, zero),
        (before, kept.layers, kept.working, zero, flight + reduce.in_last_layer, zero),
        (before, following, ending, zero, flight + reduce.after_last_layer, zero),
        (reduce.at_end, second, ending, zero, after + reduce.in_second_layer, zero),
        (reduce.at_end, kept.others, kept.working, zero, after + reduce.in_first_layer, zero),
        (reduce.at_end, kept.others, zero, zero, ends.after + reduce.in_embedding, zero),
        (reduce.summed, zero, zero, zero, ends.after + reduce.of_sums, zero),
        (static["gradients"], zero, zero, zero, ends.after + reduce.gather, temporaries),
    )
    return [
        {
            "weights": weight,
            **dict(zip(_PASSING, row, strict=True)),
            "gathered_parameters": window,
        }
        for row, weight, window in zip(rows, weights, gathered, strict=True)
    ]


def _weights(
    state: StageState,
    weights: Float,
    layouts: Layouts,
    workload: Workload,
    framework: Framework,
) -> tuple[Float, ...]:
    """Resident weights at each of MOMENTS [B].

    A 16-bit copy beside an fp32 parameter is freed group by group in the last backward pass,
    after which sums over several passes are reduced.
    """
    size, layer = framework.states(workload.precision), state.largest_layer
    copies = (layouts.zero_stage < 3) & (size.sharded_weight_bytes == 0)
    plain = copies & (layouts.pp == 1)
    once = reduced_once(layouts, framework)

    def without(elements: Float, where: NDArray[np.bool_]) -> Float:
        return weights - np.where(where, elements * size.weight_bytes, 0.0)

    head = state.head - state.tied
    spent = without(state.gathered, plain)
    at_first = np.where(once, weights, spent)
    group = np.maximum(layer, state.embedding)
    reduced = np.where(layouts.pp > 1, without(group, copies & once), spent)
    second = without(head + layer, plain)
    return (
        weights,
        weights,
        without(head, plain),
        second,
        at_first,
        at_first,
        at_first,
        reduced,
        spent,
    )


def _gathered(
    state: StageState, busy: Float, layouts: Layouts, workload: Workload, framework: Framework
) -> tuple[Float, ...]:
    """Gathered weights that do not stay, at each of MOMENTS [B].

    `busy` are the other temporaries of a layer, which do not coincide with copies.
    """
    size = framework.states(workload.precision)
    buffers, element = framework.buffers, float(workload.compute_bytes)
    layer = state.largest_layer / layouts.tiles
    head = np.minimum(state.head, state.gathered)
    # a tied table is used at both ends and stays gathered between them
    window = layer * (1 + buffers.num_prefetched_layers) + state.tied
    window = np.minimum(window, state.gathered)
    if buffers.live_elements:
        head = window = np.maximum(np.minimum(buffers.live_elements, state.gathered), layer)
    # between passes of a pipeline that reduces once, nothing is freed
    kept = (layouts.pp > 1) & reduced_once(layouts, framework)
    copying = state.gathered + np.maximum(2 * state.restacked - busy / element, 0.0)
    first, last = np.where(kept, copying, window), np.where(kept, state.gathered, state.tied)
    second = np.where(kept, state.gathered, window)
    reduced = np.where(kept, state.gathered - np.maximum(layer, state.embedding), 0.0)
    rows = (window, head, window, window, second, first, last, reduced, 0.0)
    found = [np.where(layouts.zero_stage >= 3, row * element, 0.0) for row in rows]
    # below ZeRO-3 two flat buffers are alive while weights are copied out to stay
    some = (layouts.zero_stage > 0) & (layouts.zero_stage < 3) & (size.sharded_weight_bytes == 0)
    copies = np.where(some & (layouts.pp == 1), 2 * layer + state.restacked, 0.0)
    return found[0] + copies * element, *found[1:]


def state_parts(
    state: StageState, layouts: Layouts, workload: Workload, framework: Framework
) -> dict[str, Float]:
    """Weights, gradients and optimizer states that stay on the device [B].

    Counted: what is resident in the middle of a step. Left out: layers gathered for a while.
    """
    size, zero, offload = framework.states(workload.precision), layouts.zero_stage, layouts.offload
    frozen_owned = state.owned - state.trainable_owned
    # weights that are sharded keep either their compute copy or, where that is only ever
    # gathered, the fp32 copy that the optimizer updates
    shard_bytes = size.sharded_weight_bytes or size.master_bytes
    weights = (
        np.where(
            zero >= 3,
            state.trainable_owned * size.sharded_weight_bytes + frozen_owned * shard_bytes,
            state.gathered * size.weight_bytes,
        )
        + state.trainable * size.cached_weight_bytes
    )
    # the gradient of a parameter that is itself a shard is one, once it is reduced
    shards = (zero >= 2) | ((zero == 1) & (size.sharded_weight_bytes == 0))
    gradients = np.where(shards, state.trainable_owned, state.trainable) * size.gradient_bytes
    gradients = gradients + np.where(zero < 3, state.trainable * size.unsharded_gradient_bytes, 0.0)
    gradients = gradients + state.weight_shapes * framework.buffers.placeholder_bytes
    optimizer = optimizer_state_bytes(state, layouts, workload, framework)
    if not size.sharded_weight_bytes:
        # where the compute copy is only ever gathered, the fp32 copy is the parameter itself
        master = np.where(zero >= 1, state.trainable_owned, state.trainable) * size.master_bytes
        weights, optimizer = weights + master, optimizer - master
    on_device = offload == _NONE
    # offloaded optimizers take their gradient shard with them (ZeRO-Offload, arXiv:2101.06840)
    gradients = np.where(on_device | (zero < 2), gradients, 0.0)
    weights = np.where((offload >= _ALL_CPU) & (zero >= 3), 0.0, weights)
    return {
        "weights": weights,
        "gradients": gradients,
        "optimizer_states": np.where(on_device, optimizer, 0.0),
    }


def _optimizer_temporaries(
    state: StageState, layouts: Layouts, workload: Workload, framework: Framework
) -> Float:
    size = framework.states(workload.precision)
    updated = np.where(layouts.zero_stage >= 1, state.trainable_owned, state.trainable)
    largest = np.minimum(np.maximum(state.embedding, state.head), updated)
    temporary = np.maximum(updated * size.optimizer_temporary_bytes, largest * size.norm_bytes)
    return np.where(layouts.offload == _NONE, temporary, 0.0)


def _context_bytes(layouts: Layouts, machine: Machine) -> Float:
    device = machine.device
    axes = (layouts.dp, layouts.tp, layouts.pp, layouts.cp, layouts.ep)
    communicators = np.sum([(axis > 1).astype(float) for axis in axes], axis=0)
    return device.context_bytes.value + communicators * device.communicator_bytes.value
