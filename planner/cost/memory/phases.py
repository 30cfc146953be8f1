"""Moments: what is alive on the device at the eleven moments of a step that compete for the peak.

Each moment is a function of one worksheet; `MOMENTS` lists them in the order of the step.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from planner.cost.arrays import Arrays, Float
from planner.cost.memory.activations import Activations, stage_activations
from planner.cost.memory.deferred_weight_gradients import Deferred, deferred
from planner.cost.memory.gradients import Reduction, Unreduced
from planner.cost.memory.layer_activations import LayerActivations
from planner.cost.memory.weights import (
    GatheredWeights,
    Resident,
    ResidentWeights,
    gathered,
    resident,
    unfreed,
)
from planner.cost.shards.stages import Stages

__all__ = ["MOMENTS", "LiveTensors", "PeakInputs"]

_NOTHING = functools.partial(np.zeros, ())


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveTensors(Arrays):
    """The parts of device memory that come and go, at one moment [B]."""

    weights: Float
    gradients: Float
    activations: Float = field(default_factory=_NOTHING)
    working_set: Float = field(default_factory=_NOTHING)
    logits_and_loss: Float = field(default_factory=_NOTHING)
    communication_buffers: Float
    optimizer_temporaries: Float = field(default_factory=_NOTHING)
    gathered_parameters: Float = field(default_factory=_NOTHING)


@dataclass(frozen=True, slots=True)
class _ResidentTensors(Arrays):
    """What of a worksheet no activations decide [B]."""

    resident: Resident
    weights: ResidentWeights
    unreduced: Unreduced
    temporaries: Float


def _held(stages: Stages) -> _ResidentTensors:
    stay = resident(stages)
    return _ResidentTensors(
        stay,
        unfreed(stages, stay.weights),
        Unreduced.of(stages, stay.gradients),
        _optimizer_temporaries(stages),
    )


@dataclass(frozen=True, slots=True)
class PeakInputs:
    """What the moments share, worked out once [B]."""

    stages: Stages
    resident: Resident
    weights: ResidentWeights
    gathered: GatheredWeights
    kept: Activations
    reduction: Reduction
    deferred: Deferred
    temporaries: Float
    """Copies that the optimizer step makes of what a rank updates."""

    @classmethod
    def of(cls, stages: Stages) -> PeakInputs:
        """The worksheet of stages."""
        held, kept = stages.of_states(_held), stages.of_work(stage_activations)
        reduce = held.unreduced.beside(stages, kept)
        window = gathered(stages, kept.first.working + reduce.in_first_layer)
        late = deferred(stages)
        return cls(
            stages, held.resident, held.weights, window, kept, reduce, late, held.temporaries
        )

    @property
    def without_one_layer(self) -> Float:
        """Activations before the last layer has kept its own, or after it has used them."""
        return self.kept.kept - self.kept.layer.kept

    @property
    def stage_buffers(self) -> Float:
        """The gathered stream and the stage's buffers, while activations are at their peak."""
        ends = self.kept.buffers
        return self.kept.sequence_buffer + ends.at_peak + ends.sent_gradient

    @property
    def loss_buffers(self) -> Float:
        """The same at the loss, whose gathered stream is the head's input where that is kept."""
        kept = self.stages.scenario.framework.kernels.saves_gathered
        return self.stage_buffers - self.kept.sequence_buffer * kept

    @property
    def stage_buffers_after(self) -> Float:
        """The same when a backward pass nears its end."""
        return self.kept.sequence_buffer + self.kept.buffers.receive

    def ending(self, layer: LayerActivations) -> Float:
        """Temporaries of a layer when its gradients are complete."""
        reduce = self.reduction
        after_ffn = layer.after_ffn - reduce.of_layer * (1 - layer.ffn_gradients)
        return np.maximum(np.maximum(layer.ending, after_ffn) - reduce.copied, 0.0)


def forward(w: PeakInputs) -> LiveTensors:
    """The last layer's weights are gathered; its activations are still to come."""
    return LiveTensors(
        weights=w.weights.all,
        gathered_parameters=w.gathered.in_forward,
        gradients=w.reduction.before + w.deferred.ahead,
        activations=w.without_one_layer,
        communication_buffers=w.stage_buffers + w.reduction.buckets,
    )


def loss(w: PeakInputs) -> LiveTensors:
    """All activations and the logits; the head's weights are gathered."""
    return LiveTensors(
        weights=w.weights.all,
        gathered_parameters=w.gathered.head,
        gradients=w.reduction.before + w.deferred.ahead,
        activations=w.kept.kept,
        logits_and_loss=w.kept.logits,
        communication_buffers=w.loss_buffers + w.reduction.buckets + w.reduction.in_loss,
    )


def backward(w: PeakInputs) -> LiveTensors:
    """All activations, and the last layer's working set."""
    return LiveTensors(
        weights=w.weights.without_head,
        gathered_parameters=w.gathered.window,
        gradients=w.reduction.before + w.deferred.ahead,
        activations=w.kept.kept,
        working_set=w.kept.layer.working,
        communication_buffers=w.stage_buffers + w.reduction.in_last_layer,
    )


def next_to_last_layer(w: PeakInputs) -> LiveTensors:
    """The last layer's activations are gone and its gradients reduced; the next working set."""
    return LiveTensors(
        weights=w.weights.without_last_layer,
        gathered_parameters=w.gathered.window,
        gradients=w.reduction.before + w.deferred.ahead,
        activations=w.without_one_layer,
        working_set=w.kept.following.working,
        communication_buffers=w.stage_buffers + w.reduction.in_next_to_last_layer,
    )


def layer_before_last(w: PeakInputs) -> LiveTensors:
    """The last layer's activations are gone, its gradients complete and reduced."""
    return LiveTensors(
        weights=w.weights.without_last_layer,
        gathered_parameters=w.gathered.window,
        gradients=w.reduction.before + w.deferred.ahead,
        activations=w.without_one_layer,
        working_set=w.ending(w.kept.layer),
        communication_buffers=w.stage_buffers + w.reduction.after_last_layer,
    )


def second_layer(w: PeakInputs) -> LiveTensors:
    """Its gradients are complete, the first layer's activations still there."""
    own = np.where(w.stages.layouts.piped, w.kept.first.kept, 0.0)
    return LiveTensors(
        weights=w.weights.in_first_layer,
        gathered_parameters=w.gathered.in_second_layer,
        gradients=w.reduction.at_end + w.deferred.ahead,
        activations=w.kept.of_others + own,
        working_set=w.ending(w.kept.first),
        communication_buffers=w.stage_buffers_after + w.reduction.in_second_layer,
    )


def first_layer(w: PeakInputs) -> LiveTensors:
    """All gradients, and the first layer's working set.

    Other activations are gone, but for those of other micro-batches in a pipeline.
    """
    return LiveTensors(
        weights=w.weights.in_first_layer,
        gathered_parameters=w.gathered.in_first_layer,
        gradients=w.reduction.at_end + w.deferred.ahead,
        activations=w.kept.of_others,
        working_set=w.kept.first.working,
        communication_buffers=w.stage_buffers_after + w.reduction.in_first_layer,
    )


def embedding(w: PeakInputs) -> LiveTensors:
    """All gradients, the embedding's being computed and reduced."""
    return LiveTensors(
        weights=w.weights.in_first_layer,
        gathered_parameters=w.gathered.in_embedding,
        gradients=w.reduction.at_end + w.deferred.ahead,
        activations=w.kept.of_others,
        communication_buffers=w.kept.buffers.receive + w.reduction.in_embedding,
    )


def cooling_down(w: PeakInputs) -> LiveTensors:
    """No forward pass follows: most weight gradients wait, where they have passes of their own.

    Those of one pass are being computed, from gradients that they take the place of.
    """
    late, nothing = w.deferred, np.zeros(())
    if not np.any(late.waiting):
        none = {"weights": nothing, "gradients": nothing, "communication_buffers": nothing}
        return LiveTensors(activations=late.kept + np.zeros(w.stages.shape), **none)
    turned = np.where(late.waiting > 0, 1.0, 0.0)
    summed = w.reduction.summed + np.maximum(late.one_pending - late.one_waiting, 0.0)
    return LiveTensors(
        weights=turned * w.weights.all,
        gathered_parameters=turned * w.gathered.window,
        gradients=turned * summed,
        activations=late.kept,
        working_set=late.waiting,
        communication_buffers=turned * w.stage_buffers_after,
    )


def reducing(w: PeakInputs) -> LiveTensors:
    """Sums of gradients over the passes of a step being reduced."""
    return LiveTensors(
        weights=w.weights.in_reduction,
        gathered_parameters=w.gathered.in_reduction,
        gradients=w.reduction.summed + w.deferred.pending,
        communication_buffers=w.kept.buffers.receive + w.reduction.of_sums,
    )


def optimizer(w: PeakInputs) -> LiveTensors:
    """All gradients, the optimizer's temporaries, updated weights being gathered."""
    return LiveTensors(
        weights=w.weights.in_optimizer,
        gradients=w.resident.gradients,
        communication_buffers=w.kept.buffers.receive + w.reduction.gather_bucket,
        optimizer_temporaries=w.temporaries,
    )


def _optimizer_temporaries(stages: Stages) -> Float:
    """Copies that the optimizer step makes of what a rank updates [B]."""
    size, params, updated = stages.states, stages.params, stages.updated_at_once
    largest = np.minimum(np.maximum(params.embedding, params.head), updated)
    copied = 4.0 if size.copies_narrow_gradients and size.gradient_bytes < 4 else 0.0
    each = max(size.optimizer_temporary_bytes, copied)
    temporary = np.maximum(updated * each, largest * size.norm_bytes)
    return np.where(stages.layouts.keeps_states, temporary, 0.0)


MOMENTS: dict[str, Callable[[PeakInputs], LiveTensors]] = {
    "forward": forward,
    "loss": loss,
    "backward": backward,
    "layer before last": layer_before_last,
    "next to last layer": next_to_last_layer,
    "second layer": second_layer,
    "first layer": first_layer,
    "embedding": embedding,
    "cool-down": cooling_down,
    "reduction": reducing,
    "optimizer": optimizer,
}
