"""Deferred: what schedules whose weight gradients are passes of their own hold beside others."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.cost.arrays import Arrays, Float
from planner.cost.memory.activations import kept_bytes
from planner.cost.memory.in_flight import in_flight_on
from planner.cost.memory.saved_tensors import saved_bytes
from planner.cost.schedules.bubble import defers_weight_gradients
from planner.cost.shards.stages import Stages
from planner.cost.shards.states import local_params

__all__ = ["Deferred", "deferred"]


@dataclass(frozen=True, slots=True)
class Deferred(Arrays):
    """Memory of a stage whose weight gradients are passes of their own [B]."""

    pending: Float
    """Weight gradients that are not in the sums over passes yet: those of every chunk's last."""
    one_pending: Float
    """Of that, the first chunk's."""
    ahead: Float
    """Those that are there while most passes are in flight."""
    kept: Float
    """Activations when no forward pass follows."""
    waiting: Float
    """Gradients of products and norms then, of which those of weights are still to be made."""
    one_waiting: Float
    """Of that, one pass through the first chunk."""


def deferred(stages: Stages) -> Deferred:
    """What waits for weight gradients on a stage [B].

    Counted: the gradient of every product's and every norm's result, and activations, of passes
    whose weight gradients are not computed; weight gradients in the precision that computes until
    the next backward pass of their chunk adds them to the sums. The model's first chunk, which has
    no stream to hand a gradient to, runs its backward pass whole. Left out: other schedules. torch
    2.13, pipelining/_backward.py: stage_backward_input; fsdp/_fully_shard/_fsdp_param_group.py:
    post_backward; method.md#memory-per-device.

    >>> scenario = make_scenario("llama-3-8b", "fsdp2")
    >>> layout = Layout(pp=2, vpp=2, schedule="zero-bubble-v", grad_accumulation=8, zero_stage=2)
    >>> found = deferred(Stages.every(scenario, layout))
    >>> layer = 2 * sum(w.num_params for w in Stages.every(scenario, layout).blocks[1].weights)
    >>> (found.pending[1] / layer).item()           # 17 layers, each of 16 bits
    17.0
    """
    layouts, zero = stages.layouts, np.zeros(())
    here = defers_weight_gradients(layouts)
    if not np.any(here):
        return Deferred(zero, zero, zero, zero, zero, zero)
    late, made = stages.of_work(_late), stages.of_states(_made)
    # in pairs backward passes are whole
    ahead = np.where(layouts.paired, 0.0, made.pending)
    found = (made.pending, made.one_pending, ahead, late.kept, late.waiting, late.one_waiting)
    return Deferred(*(np.where(here, x, 0.0) for x in found))


@dataclass(frozen=True, slots=True)
class _Late(Arrays):
    """Activations and gradients of results when no forward pass follows [B]."""

    kept: Float
    waiting: Float
    one_waiting: Float


def _late(stages: Stages) -> _Late:
    flight, layouts = in_flight_on(stages), stages.layouts
    kept = waiting = one_waiting = np.zeros(stages.shape)
    for number, block in enumerate(stages.blocks):
        size = kept_bytes(stages.scenario, block, stages.seen_by(block))
        gradient = saved_bytes(stages.scenario, block.deferred, layouts)
        kept = kept + flight.cooling[number] * size
        waiting = waiting + flight.waiting[number] * gradient
        one_waiting = one_waiting + flight.first[number] * gradient
    return _Late(kept, waiting, one_waiting)


@dataclass(frozen=True, slots=True)
class _Made(Arrays):
    """Weight gradients of every chunk's last pass [B]."""

    pending: Float
    one_pending: Float


def _made(stages: Stages) -> _Made:
    framework = stages.scenario.framework
    # torch's backward passes of inputs add what the weights' passes have left to fp32 sums
    summed = stages.layouts.sums_gradients(framework) & framework.buffers.pipeline_gradients_whole
    first = _gradients(stages, in_flight_on(stages).first)
    everything = stages.trained.trainable * stages.scenario.workload.compute_bytes
    opens = (stages.stage == 0) + np.zeros(stages.shape)
    return _Made(
        pending=np.where(summed, everything - opens * first, 0.0),
        one_pending=np.where(summed, (1 - opens) * first, 0.0),
    )


def _gradients(stages: Stages, counts: tuple[Float, ...]) -> Float:
    """Weight gradients of some blocks in the precision that computes."""
    scenario = stages.scenario
    pairs = zip(stages.blocks, counts, strict=True)
    elements = sum(
        count * local_params(scenario, block, stages.layouts).trainable for block, count in pairs
    )
    return np.asarray(elements) * scenario.workload.compute_bytes
