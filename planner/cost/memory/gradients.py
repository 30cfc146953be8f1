"""Reduction: gradients and the buffers of their reduction, at the moments of a step.

Where gradients are reduced in every pass they exist for one layer at a time. Where they are
summed over the passes and reduced once, whole sums are alive while activations are.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.cost.memory.activations import Activations
from planner.cost.shards.layouts import Layouts
from planner.cost.shards.states import StageState
from planner.describe.framework import Framework
from planner.describe.workload import Workload

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
    """Beside them: gradients that the layer has already, and the head's reduction."""
    after_last_layer: Float
    """When a layer's gradients are complete and the reduction of some has begun."""
    of_layer: Float
    """Of that, the gradients of the layer itself."""
    copied: Float
    """Of that, what is there only when the layer's backward has ended."""
    in_second_layer: Float
    """When its gradients are complete."""
    in_first_layer: Float
    in_embedding: Float
    of_sums: Float
    """When sums over all passes are reduced."""
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

    Counted: sums over passes, gradients of the layer in backward, inputs and new outputs of
    reductions, buckets. Left out: what is freed between two gradients of one layer.
    """
    return _Stage(state, kept, gradients, layouts, workload, framework).reduction()


class _Stage:
    """Sizes that several moments share [B]."""

    def __init__(
        self,
        state: StageState,
        kept: Activations,
        gradients: Float,
        layouts: Layouts,
        workload: Workload,
        framework: Framework,
    ) -> None:
        self.state, self.kept, self.gradients, self.layouts = state, kept, gradients, layouts
        self.buffers, self.size = framework.buffers, framework.states(workload.precision)
        self.element = float(workload.compute_bytes)
        self.layer = state.largest_layer / layouts.tiles
        self.parallel = layouts.dp * layouts.cp > 1
        # FSDP reduces group by group in fp32 also where it only replicates
        self.sharding = self.size.sharded_weight_bytes == 0
        here = self.parallel | self.buffers.reduces_alone
        self.split = here & ((layouts.zero_stage >= 2) | self.sharding)
        self.once = reduced_once(layouts, framework) & self.sharding
        self.every = self.split & ~self.once
        self.late = self.split & self.once & (layouts.pp == 1)
        ranks = np.where(layouts.zero_stage >= 1, layouts.dp_shard * layouts.cp, 1)
        self.output_bytes = np.where(self.sharding, self.size.gradient_bytes / ranks, 0.0)

    def reduction(self) -> Reduction:
        """All moments."""
        state, buffers = self.state, self.buffers
        current, ahead = buffers.layer_gradient_bytes, buffers.reduce_input_bytes
        fixed, before, sums = self.buckets(), self.before(), self.sums()
        computing = np.where(self.split, self.layer * current, 0.0)
        early = computing * self.kept.early_gradients
        tied = np.where(self.split, state.tied * current, 0.0)
        head = np.where(self.every, (state.head - state.tied) * ahead, 0.0)
        reduced = np.where(self.every, self.layer * ahead, 0.0)
        copies, largest = self.copies(), np.maximum(state.embedding, self.layer)
        late = np.where(self.late, self.layer * ahead, 0.0)
        outputs = np.where(self.every | self.late, self.layer * self.output_bytes, 0.0)
        table = self.table()
        return Reduction(
            before=before,
            at_end=np.where(self.once, sums, np.maximum(before, self.gradients)),
            summed=np.where(self.once, self.summed(), self.gradients),
            fixed=fixed,
            in_last_layer=fixed + early + tied + head,
            after_last_layer=fixed + computing + tied + reduced + late + outputs + copies,
            of_layer=computing,
            copied=copies + late,
            in_second_layer=fixed + np.where(self.once, computing, early + reduced),
            in_first_layer=fixed + early + reduced,
            in_embedding=fixed + table + np.where(self.every, largest * ahead, 0.0),
            of_sums=np.where(self.late, table + state.embedding * ahead, self.groups()),
            gather=self.gather_bucket(),
        )

    def before(self) -> Float:
        """Gradients that exist while activations are at their peak.

        None before the first backward pass of a step, unless they have a buffer of their own;
        the sum so far where more micro-batches follow, whole where it is reduced once.
        """
        following = self.layouts.grad_accumulation > self.kept.in_flight
        there = self.buffers.preallocates_gradients | following
        return np.where(there, np.where(self.once, self.sums(), self.gradients), 0.0)

    def sums(self) -> Float:
        """Whole sums of gradients over the passes of a step."""
        return (self.state.trainable + self.beyond()) * self.size.gradient_bytes

    def beyond(self) -> Float:
        """Elements of a table's gradient sum beyond its share: it is kept whole until reduced.

        A table that the head shares is summed with the head's gradient, which is split.
        """
        whole = float(self.buffers.whole_embedding_gradient)
        return np.where(self.state.tied > 0, 0.0, self.state.table * (self.layouts.tp - 1) * whole)

    def summed(self) -> Float:
        """Gradients when the last sums are reduced: all in a pipeline, else the embedding's."""
        last = (self.state.embedding + self.beyond()) * self.size.gradient_bytes
        left = np.where(self.layouts.zero_stage >= 1, self.gradients + last, self.sums())
        return np.where(self.layouts.pp > 1, self.sums(), left)

    def table(self) -> Float:
        """The embedding's gradient: DTensor computes that of a split table whole, then splits it.

        To a sum it is added whole, unless the head's gradient has split that.
        """
        state, whole = self.state, float(self.buffers.whole_embedding_gradient)
        table = state.table * self.layouts.tp * whole
        unsplit = self.once & (state.tied == 0) & (table > 0)
        rest = state.embedding + state.tied - np.where(unsplit, state.table, 0.0)
        current = self.buffers.layer_gradient_bytes
        return table * self.element + np.where(self.split, rest * current, 0.0)

    def copies(self) -> Float:
        """Copies of gradients that are not split by rows: of fp32 sums, or as computed."""
        buffers = self.buffers
        each = np.where(self.late, buffers.reduce_input_bytes, buffers.layer_gradient_bytes)
        some = (self.every | self.late) & (self.layouts.zero_stage < 3)
        return np.where(some, self.state.restacked * each, 0.0)

    def groups(self) -> Float:
        """Beyond all sums, when a pipeline reduces them group by group: embedding, layers, head.

        A whole sum is split before it is copied; the embedding's is gone when the first layer
        is reduced.
        """
        state, ahead = self.state, self.buffers.reduce_input_bytes
        split = np.where(self.beyond() > 0, state.table * ahead, 0.0)
        first = state.embedding * ahead + np.maximum(state.embedding * self.output_bytes, split)
        then = (self.layer + state.restacked) * ahead + self.layer * self.output_bytes
        gone = state.embedding * (ahead - self.output_bytes) + self.beyond() * ahead
        piped = self.split & self.once & (self.layouts.pp > 1)
        return np.where(piped, np.maximum(first, then - gone), 0.0)

    def buckets(self) -> Float:
        """Buckets of gradients to be reduced."""
        elements = np.minimum(self.buffers.reduce_bucket_elements, self.state.trainable)
        size = self.buffers.num_reduce_buckets * elements * self.size.reduce_bytes
        return np.where(self.parallel, size, 0.0)

    def gather_bucket(self) -> Float:
        """The bucket that gathers updated weights."""
        elements = np.minimum(self.buffers.gather_bucket_elements, self.state.whole)
        zero = self.layouts.zero_stage
        some = self.parallel & ((zero == 1) | (zero == 2))
        return np.where(some, elements * self.element, 0.0)
