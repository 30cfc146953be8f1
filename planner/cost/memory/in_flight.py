"""In flight: micro-batches whose activations a stage holds at its peak, chunk by chunk."""

import functools
from dataclasses import dataclass

import numpy as np

from planner.cost.arrays import Float, Int, broadcast_to, distinct
from planner.cost.schedules.bubble import chunks_in_flight, chunks_waiting
from planner.cost.shards.layouts import Layouts
from planner.cost.shards.partial_recompute import chunk_block_counts, recompute_columns
from planner.cost.shards.stages import Stages


@dataclass(frozen=True)
class InFlight:
    """Passes whose activations unique stages hold at peak; `index` expands to all stages [1]."""

    layouts: Layouts
    stage: Int
    counts: list[Float]
    """Block counts of every chunk, in the order of the blocks."""
    layers: Float
    """Layers of every chunk."""
    passes: Float
    """Passes in flight through every chunk."""
    index: Int

    @functools.cached_property
    def micro_batches(self) -> Float:
        """Micro-batches in flight on the stage; a pass through one of v chunks counts as 1 / v."""
        return (np.sum(self.passes, axis=0) / self.layouts.vpp)[self.index]

    @functools.cached_property
    def blocks(self) -> tuple[Float, ...]:
        """Block counts times the passes in flight through their chunk, in block order."""
        return self._summed(self.passes)

    @functools.cached_property
    def smallest(self) -> tuple[Float, ...]:
        """Block counts of the chunk with the fewest layers, whose backward pass frees the least."""
        fewest = np.argmin(np.where(self.layers > 0, self.layers, np.inf), axis=0)[None]
        chosen = (np.take_along_axis(count, fewest, axis=0)[0] for count in self.counts)
        return tuple(count[self.index] for count in chosen)

    @functools.cached_property
    def received(self) -> Float:
        """Passes in flight whose input came from an earlier chunk of the model."""
        return np.sum(self.passes * (self._chunk > 0), axis=0)[self.index]

    @functools.cached_property
    def sent(self) -> Float:
        """Passes in flight whose output went to another stage."""
        layouts, chunk = self.layouts, self._chunk
        inside = chunk < layouts.pp * layouts.vpp - 1
        goes = inside & (layouts.stage_of(chunk + 1) != self.stage)
        return np.sum(self.passes * goes, axis=0)[self.index]

    @functools.cached_property
    def first_chunk(self) -> tuple[Float, ...]:
        """Block counts of the stage's first chunk."""
        return tuple(count[0][self.index] for count in self.counts)

    @functools.cached_property
    def cool_down(self) -> tuple[Float, ...]:
        """As `blocks`, in cool-down when most deferred weight gradients are pending."""
        return self._summed(chunks_waiting(self.layouts, self.stage, self.layers)[0])

    @functools.cached_property
    def waiting(self) -> tuple[Float, ...]:
        """Part of `cool_down` that waits only for its weight-gradient passes."""
        return self._summed(chunks_waiting(self.layouts, self.stage, self.layers)[1])

    @property
    def _chunk(self) -> Int:
        return self.layouts.chunk(self.stage, np.arange(len(self.passes))[:, None])

    def _summed(self, passes: Float) -> tuple[Float, ...]:
        return tuple(np.sum(passes * count, axis=0)[self.index] for count in self.counts)


def passes_in_flight(stages: Stages) -> InFlight:
    """Passes whose activations each stage holds at its peak [1].

    Counted: per chunk, as the first or last may hold fewer layers than the others; one more pass
    where passes of neighbouring micro-batches overlap. Left out: passes in backward.
    Megatron-LM, schedules.py: num_warmup_microbatches; pipeline.md#pipeline.
    """
    layouts = stages.layouts
    # paired schedules already count the extra pass
    merged = layouts.merges_passes(stages.scenario.framework) & ~layouts.paired
    counted = (layouts.pp, layouts.vpp, layouts.schedule, layouts.grad_accumulation)
    columns = (*counted, *recompute_columns(layouts), *layouts.split_settings, stages.stage)
    first_rows, index = distinct(*columns, merged)
    pairs = layouts.of_each(first_rows, index.size)
    stage = broadcast_to(stages.stage, stages.shape).ravel()[first_rows]
    counts = chunk_block_counts(stages.blocks, pairs, stage, stages.scenario.framework)
    kinds = zip(stages.blocks, counts, strict=True)
    layers = np.sum([count for block, count in kinds if block.kind == "layer"], axis=0)
    passes = chunks_in_flight(pairs, stage, layers)
    extra = broadcast_to(merged, stages.shape).ravel()[first_rows]
    largest = np.arange(len(passes))[:, None] == np.argmax(layers, axis=0)
    passes = passes + extra * largest * (passes < pairs.num_microbatches)
    return InFlight(pairs, stage, counts, layers, passes, index)
