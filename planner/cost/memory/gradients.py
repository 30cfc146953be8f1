"""Gradients: live gradients and reduction buffers at the moments of a step."""

from dataclasses import dataclass, replace

import numpy as np

from planner.cost.arrays import Arrays, Float, Mask
from planner.cost.memory.activations import Activations
from planner.cost.shards.stages import Stages


@dataclass(frozen=True, slots=True)
class Reduction(Arrays):
    """Gradients and reduction buffers at the moments of a step [B]."""

    before: Float
    """Gradients at the activation peak."""
    at_end: Float
    """Gradients when a backward pass reaches its first layer."""
    summed: Float
    """Gradients while sums over all passes are reduced; else those the optimizer reads."""
    buckets: Float
    """Buckets that exist throughout the step, not only in backward passes."""
    in_loss: Float
    """Gradient of the head at the loss, if the loss is chunked or fused with the head's GEMM."""
    in_last_layer: Float
    """Buckets, gradients that the layer already has, and the head's reduction."""
    in_next_to_last_layer: Float
    """Buckets, gradients that this layer already has, and the last layer's reduction."""
    after_last_layer: Float
    """Buckets, the last layer's complete gradients, and the reductions that have begun."""
    of_layer: Float
    """Part of `after_last_layer`: the layer's own gradients."""
    copied: Float
    """Part of `after_last_layer` that exists only once the layer's backward has ended."""
    in_second_layer: Float
    """Buckets and gradients once the second layer's gradients are complete."""
    in_first_layer: Float
    """Buckets and gradients during the first layer's backward."""
    in_embedding: Float
    """Buckets and gradients while the embedding's gradient is computed and reduced."""
    of_sums: Float
    """Reduction buffers while sums over all passes are reduced."""
    gather_bucket: Float
    """Bucket that gathers updated weights (ZeRO-1 and 2)."""


@dataclass(frozen=True, slots=True)
class Unreduced(Arrays):
    """A `Reduction` without activations, and what completes it with those [B]."""

    base: Reduction
    """With no activations, and with gradients in flight before the activation peak."""
    preallocates: bool
    """True if gradients have a preallocated buffer."""
    in_pieces: bool
    """True if the loss runs in chunks and sums their gradients."""
    reduces_once: Mask
    """True where unsharded sums over all passes are reduced once per step."""
    split: Mask
    """True where the gradients of an FSDP group are reduced together."""
    of_piece: Float
    """Gradient sum of the head over loss chunks."""
    of_last_piece: Float
    """Input and output of the reduction of this sum."""

    def with_activations(self, stages: Stages, activations: Activations) -> Reduction:
        """Complete the `Reduction` with the stage's activations."""
        base, once = self.base, self.reduces_once
        early = base.of_layer * activations.layer.early_gradients
        following = stages.layouts.num_microbatches > activations.in_flight
        before = np.where(self.preallocates | following, base.before, 0.0)
        in_first_layer = base.in_first_layer + early
        return replace(
            base,
            before=before,
            at_end=np.where(once, base.at_end, np.maximum(before, base.at_end)),
            in_loss=self._in_loss(before, activations) if self.in_pieces else base.in_loss,
            in_last_layer=base.in_last_layer + early,
            in_next_to_last_layer=base.in_next_to_last_layer + early,
            in_second_layer=np.where(once, base.in_second_layer, in_first_layer),
            in_first_layer=in_first_layer,
        )

    def _in_loss(self, before: Float, activations: Activations) -> Float:
        """Head gradient of a chunked loss: its sum over chunks, or its reduction if larger [B]."""
        # a sum over earlier passes already exists
        summed = np.where(self.reduces_once & (before > 0), 0.0, self.of_piece)
        reducing = summed + self.of_last_piece - activations.head.until_loss
        return np.where(self.split, np.maximum(summed, reducing), 0.0)


def unreduced(stages: Stages, gradients: Float) -> Unreduced:
    """Gradients and reduction buffers of a stage; `gradients`: those that the optimizer reads [B].

    Counted: sums over passes, gradients of the layer in backward, inputs and outputs of reductions,
    buckets. Left out: tensors freed within a layer. memory.md#memory-per-device.
    """
    return _Sizes(stages, gradients).unreduced()


class _Sizes:
    """Sizes that several moments share [B]."""

    def __init__(self, stages: Stages, gradients: Float) -> None:
        self.gradients = gradients
        self.params, self.layouts, self.size = stages.trained, stages.layouts, stages.states
        framework, layouts = stages.scenario.framework, stages.layouts
        self.buffers, self.loss_chunks = framework.buffers, framework.kernels.loss_chunks
        self.gradient_in_loss = framework.kernels.loss == "fused-linear"
        self.element = float(stages.scenario.workload.compute_bytes)
        self.of_layer_bytes = self.in_precision(self.buffers.layer_gradient_bytes)
        self.input_bytes = self.in_precision(self.buffers.reduce_input_bytes)
        self.layer = self.params.largest_layer / layouts.tiles
        self.in_backward = framework.kernels.optimizer_in_backward
        self.largest_group = stages.largest_group
        self.parallel = layouts.num_replicas > 1
        # FSDP reduces group by group in fp32, even if it only replicates
        self.sharding = self.size.sharded_weight_bytes == 0
        reduces = self.parallel | self.buffers.reduces_alone
        self.split = reduces & (layouts.shards_gradients | self.sharding)
        self.reduces_once = layouts.sums_gradients(framework) & self.sharding
        self.reduces_every_pass = self.split & ~self.reduces_once
        self.reduces_late = self.split & self.reduces_once & ~layouts.piped
        # gradients in the format of their sums are added to the sums one by one
        self.adds_in_place = self.reduces_once & (self.size.reduce_bytes <= self.of_layer_bytes)
        ranks = np.where(layouts.shards_states, layouts.num_shards, 1)
        self.output_bytes = np.where(self.sharding, self.size.gradient_bytes / ranks, 0.0)
        # plus the wider output that is narrowed to it
        narrower = self.size.gradient_bytes < self.size.reduce_bytes
        wide = np.where(self.sharding & narrower, self.size.reduce_bytes / ranks, 0.0)
        self.reduced_bytes = self.output_bytes + wide

    def in_precision(self, size_bytes: float) -> float:
        """Bytes per element of a gradient that is 16 bits wide, or 32 in fp32 training [B]."""
        return max(size_bytes, self.element) if size_bytes else 0.0

    def unreduced(self) -> Unreduced:
        """Collect the sizes in an `Unreduced`."""
        params, buffers, layer = self.params, self.buffers, self.layer
        current, ahead = self.of_layer_bytes, self.input_bytes
        buckets, sums = self.buckets(), self.sums()
        each = self.layouts.shards_gradients | (self.layouts.num_microbatches == 1)
        only_in_backward = buffers.buckets_in_backward & each & ~self.layouts.shards_weights
        computing = np.where(self.split & ~self.adds_in_place, layer * current, 0.0)
        tied = np.where(self.split, params.tied * current, 0.0)
        # a chunked loss reduces the head with its last chunk; the norm's reduction then frees it
        late_head = (params.head - params.tied) * (self.loss_chunks == 1)
        reduced, table = np.where(self.reduces_every_pass, layer * ahead, 0.0), self.table()
        copies, largest = self.copies(), np.maximum(params.embedding, layer)
        late = np.where(self.reduces_late, layer * ahead, 0.0)
        filling, in_loss = buckets + self.bucket_copy(), self.gradient_in_loss
        base = Reduction(
            before=np.where(self.reduces_once, sums, self.gradients),
            at_end=np.where(self.reduces_once, sums, self.gradients + self.largest_live_gradient()),
            summed=np.where(self.reduces_once, self.summed(), self.gradients),
            buckets=np.where(only_in_backward, 0.0, buckets),
            # a loss fused with the head's GEMM computes its gradient in the weights' precision
            in_loss=params.head * self.element * in_loss,
            in_last_layer=buckets + tied + np.where(self.reduces_every_pass, late_head * ahead, 0),
            in_next_to_last_layer=buckets + tied + reduced,
            after_last_layer=buckets + computing + tied + reduced + late + self.outputs() + copies,
            of_layer=computing,
            copied=copies + late,
            in_second_layer=filling + computing,
            in_first_layer=filling + reduced,
            in_embedding=filling + table + np.where(self.reduces_every_pass, largest * ahead, 0.0),
            of_sums=np.where(self.reduces_late, table + params.embedding * ahead, self.groups()),
            gather_bucket=self.gather_bucket(),
        )
        return Unreduced(
            base,
            preallocates=buffers.preallocates_gradients,
            in_pieces=not in_loss and self.loss_chunks > 1,
            reduces_once=self.reduces_once,
            split=self.split,
            of_piece=params.head * ahead,
            of_last_piece=params.head * (ahead + self.reduced_bytes),
        )

    def outputs(self) -> Float:
        """Outputs of a layer's reductions; only narrowed copies with an optimizer in backward."""
        reduces = self.reduces_every_pass | self.reduces_late
        narrower = self.size.gradient_bytes < self.size.reduce_bytes
        size = np.where(reduces, self.layer * self.output_bytes, 0.0)
        return size * (narrower + (not self.in_backward))

    def sums(self) -> Float:
        """Unsharded gradient sums over the passes of a step, in the reduction's precision [B]."""
        return (self.params.trainable + self.unsplit_extra_elements()) * self.size.reduce_bytes

    def unsplit_extra_elements(self) -> Float:
        """Extra elements of an untied embedding's gradient sum, unsplit over tp (DTensor)."""
        unsplit, params = float(self.buffers.whole_embedding_gradient), self.params
        return np.where(params.tied > 0, 0.0, params.table * (self.layouts.tp - 1) * unsplit)

    def largest_live_gradient(self) -> Float:
        """Largest gradient that an optimizer in backward frees after its update, without FSDP."""
        each = self.size.gradient_bytes if self.in_backward and not self.sharding else 0.0
        return np.asarray(self.largest_group * each)

    def summed(self) -> Float:
        """Gradients while the last sums are reduced: all sums, or shards and embedding's sum."""
        last = (self.params.embedding + self.unsplit_extra_elements()) * self.size.reduce_bytes
        left = np.where(self.layouts.shards_states, self.gradients + last, self.sums())
        return np.where(self.layouts.piped, self.sums(), left)

    def table(self) -> Float:
        """Gradient of the embedding; a table split over tp has an unsplit one with DTensor [B]."""
        params, computed_whole = self.params, float(self.buffers.whole_embedding_gradient)
        table = params.table * self.layouts.tp * computed_whole
        unsplit = self.reduces_once & (params.tied == 0) & (table > 0)
        rest = params.embedding + params.tied - np.where(unsplit, params.table, 0.0)
        current = self.of_layer_bytes
        return table * self.element + np.where(self.split, rest * current, 0.0)

    def copies(self) -> Float:
        """Copy-in of gradients not sharded by rows: from fp32 sums, or as computed [B]."""
        each = np.where(self.reduces_late, self.input_bytes, self.of_layer_bytes)
        copied = (self.reduces_every_pass | self.reduces_late) & ~self.layouts.shards_weights
        return np.where(copied, self.params.copied_in * each, 0.0)

    def groups(self) -> Float:
        """Buffers beyond the sums while a pipeline reduces group by group, embedding first [B]."""
        params, ahead = self.params, self.input_bytes
        extra = self.unsplit_extra_elements()
        split = np.where(extra > 0, params.table * ahead, 0.0)
        first = params.embedding * ahead + np.maximum(params.embedding * self.output_bytes, split)
        then = (self.layer + params.copied_in) * ahead + self.layer * self.output_bytes
        freed = params.embedding * (ahead - self.output_bytes) + extra * ahead
        piped = self.split & self.reduces_once & self.layouts.piped
        return np.where(piped, np.maximum(first, then - freed), 0.0)

    def buckets(self) -> Float:
        """Buckets for gradient reduction [B]."""
        buffers, bucket_elements = self.buffers, self.buffers.reduce_bucket_elements
        elements = (
            bucket_elements
            if buffers.whole_buckets
            else np.minimum(bucket_elements, self.params.trainable)
        )
        sharded = buffers.num_sharded_buckets or buffers.num_reduce_buckets
        number = np.where(self.layouts.shards_weights, sharded, buffers.num_reduce_buckets)
        return np.where(self.parallel, number * elements * self.size.reduce_bytes, 0.0)

    def bucket_copy(self) -> Float:
        """Copy of a bucket while it is reduced [B]."""
        elements = np.minimum(self.buffers.reduce_bucket_elements, self.params.trainable)
        is_copied = self.parallel & self.layouts.gathers_updates & self.buffers.copies_bucket
        return np.where(is_copied, elements * self.size.reduce_bytes, 0.0)

    def gather_bucket(self) -> Float:
        """Bucket that gathers updated weights [B]."""
        elements = np.minimum(self.buffers.gather_bucket_elements, self.params.unsharded)
        gathers = self.parallel & self.layouts.gathers_updates
        return np.where(gathers, elements * self.element, 0.0)
