"""Moments: live tensors on the device at the eleven moments of a step where memory may peak."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from planner.cost.arrays import Arrays, Float, broadcast_to
from planner.cost.memory.activations import Activations, stage_activations
from planner.cost.memory.deferred_weight_gradients import DeferredGradients, deferred_gradients
from planner.cost.memory.gradients import Reduction, Unreduced, unreduced
from planner.cost.memory.layer_activations import LayerActivations
from planner.cost.memory.weights import (
    GatheredWeights,
    Resident,
    ResidentWeights,
    gathered,
    resident,
    resident_weights,
)
from planner.cost.shards.stages import Stages

_ZERO = functools.partial(np.zeros, ())


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveTensors(Arrays):
    """Live device memory at one moment of a step, by part [B]."""

    weights: Float
    gradients: Float
    activations: Float = field(default_factory=_ZERO)
    working_set: Float = field(default_factory=_ZERO)
    logits_and_loss: Float = field(default_factory=_ZERO)
    communication_buffers: Float
    optimizer_temporaries: Float = field(default_factory=_ZERO)
    gathered_parameters: Float = field(default_factory=_ZERO)


@dataclass(frozen=True, slots=True)
class _ResidentTensors(Arrays):
    """Weights, gradients and optimizer temporaries: tensors independent of activations [B]."""

    resident: Resident
    weights: ResidentWeights
    unreduced: Unreduced
    temporaries: Float


def _resident_tensors(stages: Stages) -> _ResidentTensors:
    resident_state = resident(stages)
    return _ResidentTensors(
        resident_state,
        resident_weights(stages, resident_state.weights),
        unreduced(stages, resident_state.gradients),
        _optimizer_temporaries(stages),
    )


@dataclass(frozen=True, slots=True)
class PeakInputs:
    """Tensors that several moments share, computed once [B]."""

    stages: Stages
    resident: Resident
    weights: ResidentWeights
    gathered: GatheredWeights
    activations: Activations
    reduction: Reduction
    deferred_gradients: DeferredGradients
    temporaries: Float
    """Temporary copies in the optimizer step of the parameters that a rank updates."""

    @classmethod
    def of(cls, stages: Stages) -> PeakInputs:
        """Compute the inputs of all moments for pipeline stages."""
        tensors, activations = (
            stages.of_states(_resident_tensors),
            stages.of_work(stage_activations),
        )
        reduction = tensors.unreduced.with_activations(stages, activations)
        window = gathered(stages, activations.first.working + reduction.in_first_layer)
        return cls(
            stages,
            tensors.resident,
            tensors.weights,
            window,
            activations,
            reduction,
            deferred_gradients(stages),
            tensors.temporaries,
        )

    @property
    def without_one_layer(self) -> Float:
        """Saved activations without those of the last layer."""
        return self.activations.saved - self.activations.layer.saved

    @property
    def stage_buffers(self) -> Float:
        """Gathered residual stream and send/receive buffers at the activation peak."""
        ends = self.activations.buffers
        return self.activations.sequence_buffer + ends.at_peak + ends.sent_gradient

    @property
    def loss_buffers(self) -> Float:
        """`stage_buffers` at the loss, without the gathered stream if saved as the head's input."""
        keeps_gathered = self.stages.scenario.framework.kernels.saves_gathered
        return self.stage_buffers - self.activations.sequence_buffer * keeps_gathered

    @property
    def stage_buffers_after(self) -> Float:
        """Gathered residual stream and receive buffers near the end of a backward pass."""
        return self.activations.sequence_buffer + self.activations.buffers.receive

    def ending(self, layer: LayerActivations) -> Float:
        """Temporaries of a layer once its weight gradients are complete."""
        reduce = self.reduction
        after_ffn = layer.after_ffn - reduce.of_layer * (1 - layer.ffn_gradients)
        return np.maximum(np.maximum(layer.ending, after_ffn) - reduce.copied, 0.0)


def _forward(inputs: PeakInputs) -> LiveTensors:
    """Start of the last layer's forward: weights are gathered, activations not yet saved."""
    return LiveTensors(
        weights=inputs.weights.all,
        gathered_parameters=inputs.gathered.in_forward,
        gradients=inputs.reduction.before + inputs.deferred_gradients.ahead,
        activations=inputs.without_one_layer,
        logits_and_loss=inputs.activations.head.in_backward,
        communication_buffers=inputs.stage_buffers + inputs.reduction.buckets,
    )


def _loss(inputs: PeakInputs) -> LiveTensors:
    """Loss: all activations and the logits; the head's weights are gathered."""
    return LiveTensors(
        weights=inputs.weights.all,
        gathered_parameters=inputs.gathered.head,
        gradients=inputs.reduction.before + inputs.deferred_gradients.ahead,
        activations=inputs.activations.saved,
        logits_and_loss=inputs.activations.head.at_loss,
        communication_buffers=inputs.loss_buffers
        + inputs.reduction.buckets
        + inputs.reduction.in_loss,
    )


def _backward(inputs: PeakInputs) -> LiveTensors:
    """Backward of the last layer: all activations, and its working set."""
    return LiveTensors(
        weights=inputs.weights.without_head,
        gathered_parameters=inputs.gathered.window,
        gradients=inputs.reduction.before + inputs.deferred_gradients.ahead,
        activations=inputs.activations.saved,
        working_set=inputs.activations.layer.working,
        logits_and_loss=inputs.activations.head.in_backward,
        communication_buffers=inputs.stage_buffers + inputs.reduction.in_last_layer,
    )


def _next_to_last_layer(inputs: PeakInputs) -> LiveTensors:
    """Working set of the next-to-last layer; the last one is freed, its gradients in reduction."""
    return LiveTensors(
        weights=inputs.weights.without_last_layer,
        gathered_parameters=inputs.gathered.window,
        gradients=inputs.reduction.before + inputs.deferred_gradients.ahead,
        activations=inputs.without_one_layer,
        working_set=inputs.activations.following.working,
        logits_and_loss=inputs.activations.head.in_backward,
        communication_buffers=inputs.stage_buffers + inputs.reduction.in_next_to_last_layer,
    )


def _end_of_last_layer(inputs: PeakInputs) -> LiveTensors:
    """End of the last layer's backward: activations freed, gradients complete and in reduction."""
    return LiveTensors(
        weights=inputs.weights.without_last_layer,
        gathered_parameters=inputs.gathered.window,
        gradients=inputs.reduction.before + inputs.deferred_gradients.ahead,
        activations=inputs.without_one_layer,
        working_set=inputs.ending(inputs.activations.layer),
        logits_and_loss=inputs.activations.head.in_backward,
        communication_buffers=inputs.stage_buffers + inputs.reduction.after_last_layer,
    )


def _second_layer(inputs: PeakInputs) -> LiveTensors:
    """End of the second layer's backward; the first layer's activations are still alive."""
    first_layer_saved = np.where(inputs.stages.layouts.piped, inputs.activations.first.saved, 0.0)
    return LiveTensors(
        weights=inputs.weights.in_first_layer,
        gathered_parameters=inputs.gathered.in_second_layer,
        gradients=inputs.reduction.at_end + inputs.deferred_gradients.ahead,
        activations=inputs.activations.other_micro_batches + first_layer_saved,
        working_set=inputs.ending(inputs.activations.first),
        logits_and_loss=inputs.activations.head.in_backward,
        communication_buffers=inputs.stage_buffers_after + inputs.reduction.in_second_layer,
    )


def _first_layer(inputs: PeakInputs) -> LiveTensors:
    """All gradients, the first layer's working set, and activations of other micro-batches."""
    return LiveTensors(
        weights=inputs.weights.in_first_layer,
        gathered_parameters=inputs.gathered.in_first_layer,
        gradients=inputs.reduction.at_end + inputs.deferred_gradients.ahead,
        activations=inputs.activations.other_micro_batches,
        working_set=inputs.activations.first.working,
        logits_and_loss=inputs.activations.head.in_backward,
        communication_buffers=inputs.stage_buffers_after + inputs.reduction.in_first_layer,
    )


def _embedding(inputs: PeakInputs) -> LiveTensors:
    """All gradients, while the embedding's is computed and reduced."""
    return LiveTensors(
        weights=inputs.weights.in_first_layer,
        gathered_parameters=inputs.gathered.in_embedding,
        gradients=inputs.reduction.at_end + inputs.deferred_gradients.ahead,
        activations=inputs.activations.other_micro_batches,
        logits_and_loss=inputs.activations.head.in_backward,
        communication_buffers=inputs.activations.buffers.receive + inputs.reduction.in_embedding,
    )


def _cool_down(inputs: PeakInputs) -> LiveTensors:
    """Cool-down: no forward pass follows, and most deferred weight gradients are pending."""
    deferred, zero = inputs.deferred_gradients, np.zeros(())
    if not np.any(deferred.waiting):
        none = {"weights": zero, "gradients": zero, "communication_buffers": zero}
        return LiveTensors(activations=deferred.saved + np.zeros(inputs.stages.shape), **none)
    turned = np.where(deferred.waiting > 0, 1.0, 0.0)
    pending = np.maximum(deferred.one_pending - deferred.one_waiting, 0.0)
    return LiveTensors(
        weights=turned * inputs.weights.all,
        gathered_parameters=turned * inputs.gathered.window,
        gradients=turned * (inputs.reduction.summed + pending),
        activations=deferred.saved,
        working_set=deferred.waiting,
        communication_buffers=turned * inputs.stage_buffers_after,
    )


def _reduction(inputs: PeakInputs) -> LiveTensors:
    """Reduction of the gradient sums over all passes of a step."""
    return LiveTensors(
        weights=inputs.weights.in_reduction,
        gathered_parameters=inputs.gathered.in_reduction,
        gradients=inputs.reduction.summed + inputs.deferred_gradients.pending,
        communication_buffers=inputs.activations.buffers.receive + inputs.reduction.of_sums,
    )


def _optimizer(inputs: PeakInputs) -> LiveTensors:
    """Optimizer step: all gradients, temporaries, and the bucket that gathers updated weights."""
    return LiveTensors(
        weights=inputs.weights.in_optimizer,
        gradients=inputs.resident.gradients,
        communication_buffers=inputs.activations.buffers.receive + inputs.reduction.gather_bucket,
        optimizer_temporaries=inputs.temporaries,
    )


def _optimizer_temporaries(stages: Stages) -> Float:
    """Temporary copies in the optimizer step of the parameters that a rank updates [B]."""
    size, params, updated = stages.states, stages.params, stages.updated_at_once
    largest = np.minimum(np.maximum(params.embedding, params.head), updated)
    copied = 4.0 if size.copies_narrow_gradients and size.gradient_bytes < 4 else 0.0
    each = max(size.optimizer_temporary_bytes, copied)
    temporary = np.maximum(updated * each, largest * size.norm_bytes)
    return np.where(stages.layouts.keeps_states, temporary, 0.0)


MOMENTS: dict[str, Callable[[PeakInputs], LiveTensors]] = {
    "forward": _forward,
    "loss": _loss,
    "backward": _backward,
    "layer before last": _end_of_last_layer,
    "next to last layer": _next_to_last_layer,
    "second layer": _second_layer,
    "first layer": _first_layer,
    "embedding": _embedding,
    "cool-down": _cool_down,
    "reduction": _reduction,
    "optimizer": _optimizer,
}


def resident_bytes(stages: Stages) -> Float:
    """Resident bytes of a stage between passes [B].

    Counted: weights, gradients and states during the last layer's backward. Left out: activations,
    temporaries and buffers, driver context, allocator reserve. memory.md#memory-per-device.
    """
    inputs = PeakInputs.of(stages)
    alive = _backward(inputs)
    resident_total = alive.weights + alive.gradients + inputs.resident.optimizer_states
    return broadcast_to(resident_total, stages.shape)
