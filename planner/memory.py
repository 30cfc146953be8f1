"""Memory: bytes per rank by part, at every pipeline stage, at the moment of the peak.

Five moments of a step compete; the parts reported are those alive at the worst of them, so they
add up to the total:

    loss         all activations and the logits; the head's weights are gathered
    backward     all activations and the last layer's working set; layers gathered and reduced
    first layer  all gradients and the first layer's working set; other activations are gone
    embedding    all gradients, the embedding's being computed and reduced
    optimizer    all gradients, the optimizer's temporaries, updated weights being gathered
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from planner.activations import Activations, stage_activations
from planner.block import Block
from planner.framework import Framework
from planner.layout import OFFLOAD, Layouts
from planner.machine import Machine
from planner.states import StageState, optimizer_state_bytes, stage_state, training_state_bytes
from planner.workload import Workload

__all__ = ["DEVICE_PARTS", "MOMENTS", "device_memory", "state_parts", "training_state_bytes"]

Float = NDArray[np.float64]

DEVICE_PARTS = (
    "weights",
    "gradients",
    "optimizer_states",
    "activations",
    "working_set",
    "logits_and_loss",
    "gathered_parameters",
    "communication_buffers",
    "optimizer_temporaries",
    "runtime_context",
    "allocator_reserve",
)
MOMENTS = ("loss", "backward", "first layer", "embedding", "optimizer")

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
    totals = np.stack([np.asarray(sum(moment.values())) for moment in moments])
    peak = np.argmax(totals, axis=0)
    parts = {"optimizer_states": static["optimizer_states"] + np.zeros_like(totals[0])}
    for name in moments[0]:
        stacked = np.stack([np.broadcast_to(m[name], peak.shape) for m in moments])
        parts[name] = np.take_along_axis(stacked, peak[None], axis=0)[0]
    allocated = np.asarray(sum(parts.values()))
    parts["runtime_context"] = _context_bytes(layouts, machine) + np.zeros_like(allocated)
    parts["allocator_reserve"] = framework.buffers.allocator_fraction.value * allocated
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
    zero = np.zeros_like(kept.layers)
    element, buffers = float(workload.compute_bytes), framework.buffers
    layer = state.largest_layer / layouts.tiles
    reduce = _reduction(state, layer, layouts, workload, framework)
    gradients = static["gradients"]
    before = _gradients_before(state, gradients, layouts, workload, framework)
    at_loss = np.minimum(state.head, state.gathered)
    # a tied table is used at both ends and stays gathered between them
    window = np.minimum(layer * (1 + buffers.num_prefetched_layers) + state.tied, state.gathered)
    if buffers.live_elements:
        at_loss = window = np.maximum(np.minimum(buffers.live_elements, state.whole), layer)
    weights = static["weights"]
    # a copy that is only gathered is freed layer by layer in the last backward pass
    spent = weights - _gathered_copy(state, layouts, workload, framework)
    sequence, ends = kept.sequence_buffer, kept.boundary
    sharded = layouts.zero_stage >= 3

    def moment(
        weight: Float,
        gradient: Float,
        active: Float,
        working: Float,
        logits: Float,
        gathered: Float,
        buffer: Float,
        temporary: Float,
    ) -> dict[str, Float]:
        return {
            "weights": weight + zero,
            "gradients": gradient + zero,
            "activations": active,
            "working_set": working,
            "logits_and_loss": logits,
            "gathered_parameters": np.where(sharded, gathered * element, 0.0) + zero,
            "communication_buffers": buffer + zero,
            "optimizer_temporaries": temporary + zero,
        }

    temporaries = _optimizer_temporaries(state, layouts, framework)
    last = np.maximum(before, gradients)
    return [
        moment(
            weights,
            before,
            kept.layers,
            zero,
            kept.logits,
            at_loss,
            sequence + ends.waiting + reduce.fixed,
            zero,
        ),
        moment(
            weights,
            before,
            kept.layers,
            kept.working,
            zero,
            window,
            sequence + ends.waiting + reduce.at_last_layer,
            zero,
        ),
        moment(
            spent,
            last,
            zero,
            kept.working,
            zero,
            window,
            sequence + ends.after + reduce.at_first_layer,
            zero,
        ),
        moment(spent, last, zero, zero, zero, zero, ends.after + reduce.at_embedding, zero),
        moment(spent, gradients, zero, zero, zero, zero, ends.after + reduce.gather, temporaries),
    ]


def _gathered_copy(
    state: StageState, layouts: Layouts, workload: Workload, framework: Framework
) -> Float:
    """Resident 16-bit copy beside an fp32 parameter, below ZeRO-3 and without a pipeline [B]."""
    size = framework.states(workload.precision)
    if size.sharded_weight_bytes:
        return np.zeros_like(state.whole)
    resident = (layouts.zero_stage < 3) & (layouts.pp == 1)
    return np.where(resident, state.gathered * size.weight_bytes, 0.0)


def _gradients_before(
    state: StageState,
    gradients: Float,
    layouts: Layouts,
    workload: Workload,
    framework: Framework,
) -> Float:
    """Gradients that exist while activations are at their peak [B].

    None before the first backward pass of a step, unless they have a buffer of their own; the
    sum so far with gradient accumulation, whole below ZeRO-2 and where a pipeline reduces once
    a step.
    """
    buffers, size = framework.buffers, framework.states(workload.precision)
    accumulating = layouts.grad_accumulation > 1
    before = np.where(buffers.preallocates_gradients | accumulating, gradients, 0.0)
    once = state.trainable * size.gradient_bytes
    summed = accumulating & (layouts.zero_stage == 1)
    before = np.where(summed, np.maximum(before, once), before)
    if buffers.pipeline_gradients_whole:
        whole = once
        if buffers.whole_embedding_gradient:
            whole = whole + state.embedding * (layouts.tp - 1) * size.gradient_bytes
        before = np.where(accumulating & (layouts.pp > 1), whole, before)
    return before


@dataclass(frozen=True, slots=True)
class _Reduction:
    """Buffers of gradient reduction at the moments of a step [B]."""

    fixed: Float
    at_last_layer: Float
    at_first_layer: Float
    at_embedding: Float
    gather: Float
    """Bucket that gathers updated weights (ZeRO-1 and 2)."""


def _reduction(
    state: StageState, layer: Float, layouts: Layouts, workload: Workload, framework: Framework
) -> _Reduction:
    buffers, size = framework.buffers, framework.states(workload.precision)
    zero = layouts.zero_stage
    parallel = layouts.dp * layouts.cp > 1
    bucket = np.minimum(buffers.reduce_bucket_elements, state.trainable) * size.reduce_bytes
    fixed = np.where(parallel, buffers.num_reduce_buckets * bucket, 0.0)
    # FSDP reduces group by group in fp32 also where it only replicates
    split = parallel & ((zero >= 2) | (size.sharded_weight_bytes == 0))
    current, ahead = buffers.layer_gradient_bytes, buffers.reduce_input_bytes
    # one group's gradients are computed while the group before is being reduced
    last = np.where(split, layer * current + np.maximum(layer, state.head) * ahead, 0.0)
    first = np.where(split, layer * (current + ahead), 0.0)
    embedding = np.where(split, state.embedding * (current + ahead), 0.0)
    if buffers.whole_embedding_gradient:
        embedding = embedding + np.where(
            layouts.tp > 1, state.embedding * layouts.tp * float(workload.compute_bytes), 0.0
        )
    gather = np.where(
        parallel & ((zero == 1) | (zero == 2)),
        np.minimum(buffers.gather_bucket_elements, state.whole) * float(workload.compute_bytes),
        0.0,
    )
    return _Reduction(fixed, fixed + last, fixed + first, fixed + embedding, gather)


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


def _optimizer_temporaries(state: StageState, layouts: Layouts, framework: Framework) -> Float:
    updated = np.where(layouts.zero_stage >= 1, state.trainable_owned, state.trainable)
    temporary = updated * framework.buffers.optimizer_temporary_bytes
    return np.where(layouts.offload == _NONE, temporary, 0.0)


def _context_bytes(layouts: Layouts, machine: Machine) -> Float:
    device = machine.device
    axes = (layouts.dp, layouts.tp, layouts.pp, layouts.cp, layouts.ep)
    communicators = np.sum([(axis > 1).astype(float) for axis in axes], axis=0)
    return device.context_bytes.value + communicators * device.communicator_bytes.value
