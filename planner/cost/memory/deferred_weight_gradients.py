"""Deferred weight gradients: memory of schedules that compute them in separate passes."""

from dataclasses import dataclass

import numpy as np

from planner.cost.arrays import Arrays, Float
from planner.cost.memory.activations import kept_bytes
from planner.cost.memory.in_flight import passes_in_flight
from planner.cost.memory.layer_activations import saved_bytes
from planner.cost.schedules.bubble import defers_weight_gradients
from planner.cost.shards.stages import Stages
from planner.cost.shards.states import local_params


@dataclass(frozen=True, slots=True)
class DeferredGradients(Arrays):
    """Memory of a stage with separate weight-gradient passes [B]."""

    pending: Float
    """Weight gradients of every chunk's last pass, not yet added to the sums over passes."""
    one_pending: Float
    """Part of `pending` in the first chunk."""
    ahead: Float
    """`pending` while most passes are in flight; 0 if the schedule pairs passes."""
    saved: Float
    """Activations in cool-down, when no forward pass follows."""
    waiting: Float
    """Output gradients of GEMMs and norms in cool-down that wait for a weight-gradient pass."""
    one_waiting: Float
    """Part of `waiting` from one pass through the first chunk."""


def deferred_gradients(stages: Stages) -> DeferredGradients:
    """Memory that separate weight-gradient passes keep alive on a stage [B].

    Counted: activations, and gradients of GEMM and norm outputs, of passes whose weight gradients
    are not computed yet; weight gradients in compute precision until the chunk's next backward pass
    adds them to the sums. The model's first chunk does not split its backward pass.
    Left out: other schedules. torch 2.13, pipelining/_backward.py: stage_backward_input;
    fsdp/_fully_shard/_fsdp_param_group.py: post_backward; memory.md#memory-per-device.
    """
    layouts, zero = stages.layouts, np.zeros(())
    defers = defers_weight_gradients(layouts)
    if not np.any(defers):
        return DeferredGradients(zero, zero, zero, zero, zero, zero)
    cool_down, gradients = stages.of_work(_cool_down), stages.of_states(_pending_gradients)
    # paired schedules do not split their backward passes
    ahead = np.where(layouts.paired, 0.0, gradients.pending)
    figures = (
        gradients.pending,
        gradients.one_pending,
        ahead,
        cool_down.saved,
        cool_down.waiting,
        cool_down.one_waiting,
    )
    return DeferredGradients(*(np.where(defers, x, 0.0) for x in figures))


@dataclass(frozen=True, slots=True)
class _CoolDown(Arrays):
    """Activations and output gradients in cool-down, when no forward pass follows [B]."""

    saved: Float
    waiting: Float
    one_waiting: Float


def _cool_down(stages: Stages) -> _CoolDown:
    flight, layouts = passes_in_flight(stages), stages.layouts
    saved = waiting = one_waiting = np.zeros(stages.shape)
    for number, block in enumerate(stages.blocks):
        size = kept_bytes(stages.scenario, block, stages.layouts_of_block(block))
        gradient = saved_bytes(stages.scenario, block.deferred, layouts)
        saved = saved + flight.cool_down[number] * size
        waiting = waiting + flight.waiting[number] * gradient
        one_waiting = one_waiting + flight.first_chunk[number] * gradient
    return _CoolDown(saved, waiting, one_waiting)


@dataclass(frozen=True, slots=True)
class _PendingGradients(Arrays):
    """Weight gradients of every chunk's last pass [B]."""

    pending: Float
    one_pending: Float


def _pending_gradients(stages: Stages) -> _PendingGradients:
    framework = stages.scenario.framework
    # torch's input-gradient passes add pending weight gradients to the fp32 sums
    summed = stages.layouts.sums_gradients(framework) & framework.buffers.pipeline_gradients_whole
    first = _gradients(stages, passes_in_flight(stages).first_chunk)
    everything = stages.trained.trainable * stages.scenario.workload.compute_bytes
    opens = (stages.stage == 0) + np.zeros(stages.shape)
    return _PendingGradients(
        pending=np.where(summed, everything - opens * first, 0.0),
        one_pending=np.where(summed, (1 - opens) * first, 0.0),
    )


def _gradients(stages: Stages, counts: tuple[Float, ...]) -> Float:
    """Weight gradients of `counts` of each block, in compute precision [B]."""
    scenario = stages.scenario
    pairs = zip(stages.blocks, counts, strict=True)
    elements = sum(
        count * local_params(scenario, block, stages.layouts).trainable for block, count in pairs
    )
    return np.asarray(elements) * scenario.workload.compute_bytes
