"""Reduction: gradients and the buffers of their reduction, at the moments of a step.

Where gradients are reduced in every pass they exist for one layer at a time. Where they are
summed over the passes and reduced once, whole sums are alive while activations are.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.activations import Activations
from planner.framework import Framework
from planner.layout import Layouts
from planner.states import StageState
from planner.workload import Workload

__all__ = ["Reduction", "reduced_once", "reduction"]

Float = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Reduction:
    """Gradients and buffers at the moments of a step [B]."""

    before: Float
    """Gradients while activations are at their peak."""
    at_end: Float
    """Gradients when a backward pass reaches its first layer."""
    summed: Float
    """Gradients when sums over all passes are reduced; the sharded ones without such sums."""
    fixed: Float
    """Buckets that exist throughout."""
    in_last_layer: Float
    after_last_layer: Float
    """When a layer's gradients are complete and the reduction of some has begun."""
    of_layer: Float
    """Of that, the gradients of the layer itself."""
    copied: Float
    """Of that, what is there only when the layer's backward has ended."""
    in_second_layer: Float
    in_first_layer: Float
    in_embedding: Float
    of_sums: Float
    gather: Float
    """Bucket that gathers updated weights (ZeRO-1 and 2)."""


def reduced_once(layouts: Layouts, framework: Framework) -> NDArray[np.bool_]:
    """Whether gradients are summed over the passes of a step and reduced once."""
    buffers, communication = framework.buffers, framework.communication
    every = np.isin(layouts.zero_stage, communication.reduce_every_micro_batch)
    piped = (layouts.pp > 1) & buffers.pipeline_gradients_whole
    return (layouts.grad_accumulation > 1) & (piped | ~every)


def reduction(
    state: StageState,
    kept: Activations,
    gradients: Float,
    layouts: Layouts,
    workload: Workload,
    framework: Framework,
) -> Reduction:
    """Gradients and their buffers on a stage; `gradients` are those that the optimizer reads.

    Counted: sums over passes, gradients of the layer in backward, inputs of reductions, buckets.
    Left out: outputs of reductions beyond the sharded gradients.
    """
    buffers, size = framework.buffers, framework.states(workload.precision)
    parallel = layouts.dp * layouts.cp > 1
    # FSDP reduces group by group in fp32 also where it only replicates
    sharding = size.sharded_weight_bytes == 0
    split = (parallel | buffers.reduces_alone) & ((layouts.zero_stage >= 2) | sharding)
    once = reduced_once(layouts, framework) & sharding
    synced, late = split & ~once, split & once & (layouts.pp == 1)
    current, ahead = buffers.layer_gradient_bytes, buffers.reduce_input_bytes
    layer, element = state.largest_layer / layouts.tiles, float(workload.compute_bytes)
    computing = np.where(split, layer * current, 0.0)
    early = computing * kept.early_gradients
    tied = np.where(split, state.tied * current, 0.0)
    # DTensor computes the gradient of a split table whole before it splits it
    whole_table = state.table * layouts.tp * float(buffers.whole_embedding_gradient)
    # and adds it whole to a sum, unless the head's gradient has split that
    unsplit = once & (state.tied == 0) & (whole_table > 0)
    alone = state.embedding - np.where(unsplit, state.table, 0.0)
    table = whole_table * element + np.where(split, (alone + state.tied) * current, 0.0)
    before = _before(state, gradients, once, layouts, workload, framework)
    ranks = np.where(layouts.zero_stage >= 1, layouts.dp_shard * layouts.cp, 1)
    reduced = np.where(sharding, size.gradient_bytes / ranks, 0.0)
    beyond = _whole_beyond(state, layouts, framework)
    # of sums in fp32, else of gradients as they are computed
    copied = state.restacked * np.where(late, ahead, current)
    restacked = np.where(layouts.zero_stage < 3, copied, 0.0)
    bucket = np.minimum(buffers.reduce_bucket_elements, state.trainable) * size.reduce_bytes
    fixed = np.where(parallel, buffers.num_reduce_buckets * bucket, 0.0)
    return Reduction(
        before,
        np.where(once, before, np.maximum(before, gradients)),
        np.where(once, _summed(state, before, gradients, layouts, workload, framework), gradients),
        fixed,
        fixed + early + tied + np.where(synced, (state.head - state.tied) * ahead, 0.0),
        fixed
        + computing
        + tied
        + np.where(synced | late, layer * (ahead + reduced) + restacked, 0.0),
        computing,
        np.where(synced | late, restacked, 0.0) + np.where(late, layer * ahead, 0.0),
        fixed + np.where(once, computing, early + np.where(synced, layer * ahead, 0.0)),
        fixed + early + np.where(synced, layer * ahead, 0.0),
        fixed + table + np.where(synced, np.maximum(state.embedding, layer) * ahead, 0.0),
        np.where(late, table + state.embedding * ahead, 0.0)
        + np.where(
            split & once & (layouts.pp > 1), _of_groups(state, layer, beyond, ahead, reduced), 0.0
        ),
        _gather_bucket(state, parallel, layouts, workload, framework),
    )


def _whole_beyond(state: StageState, layouts: Layouts, framework: Framework) -> Float:
    """Elements of a table's gradient sum beyond its share, where it is kept whole until reduced.

    A table that the head shares is summed with the head's gradient, which is split.
    """
    beyond = state.table * (layouts.tp - 1) * float(framework.buffers.whole_embedding_gradient)
    return np.where(state.tied > 0, 0.0, beyond)


def _before(
    state: StageState,
    gradients: Float,
    once: NDArray[np.bool_],
    layouts: Layouts,
    workload: Workload,
    framework: Framework,
) -> Float:
    """Gradients that exist while activations are at their peak [B].

    None before the first backward pass of a step, unless they have a buffer of their own; the
    sum so far with gradient accumulation, whole where it is reduced once.
    """
    size, accumulating = framework.states(workload.precision), layouts.grad_accumulation > 1
    before = np.where(framework.buffers.preallocates_gradients | accumulating, gradients, 0.0)
    sums = state.trainable + _whole_beyond(state, layouts, framework)
    return np.where(once, sums * size.gradient_bytes, before)


def _summed(
    state: StageState,
    before: Float,
    gradients: Float,
    layouts: Layouts,
    workload: Workload,
    framework: Framework,
) -> Float:
    """Gradients when the last sums are reduced: all in a pipeline, else the embedding's [B]."""
    size = framework.states(workload.precision)
    last = (state.embedding + _whole_beyond(state, layouts, framework)) * size.gradient_bytes
    left = np.where(layouts.zero_stage >= 1, gradients + last, before)
    return np.where(layouts.pp > 1, before, left)


def _of_groups(
    state: StageState, layer: Float, beyond: Float, ahead: float, reduced: Float
) -> Float:
    """Beyond all sums, when a pipeline reduces them group by group: embedding, layers, head [B].

    The embedding's sum is gone when the first layer is reduced.
    """
    # a whole sum is split before it is copied to be reduced
    split = np.where(beyond > 0, state.table * ahead, 0.0)
    first = state.embedding * ahead + np.maximum(state.embedding * reduced, split)
    then = (layer + state.restacked) * ahead + layer * reduced
    return np.maximum(first, then - state.embedding * (ahead - reduced) - beyond * ahead)


def _gather_bucket(
    state: StageState,
    parallel: NDArray[np.bool_],
    layouts: Layouts,
    workload: Workload,
    framework: Framework,
) -> Float:
    bucket = np.minimum(framework.buffers.gather_bucket_elements, state.whole)
    some = parallel & ((layouts.zero_stage == 1) | (layouts.zero_stage == 2))
    return np.where(some, bucket * float(workload.compute_bytes), 0.0)
