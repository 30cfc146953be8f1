"""Tensor parallelism: all-reduces, or all-gathers and reduce-scatters, of the residual stream."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.cost.arrays import Float, where_any
from planner.cost.constants import step_constants
from planner.cost.network.collectives import all_gather_s, all_reduce_s, reduce_scatter_s
from planner.cost.network.groups import Groups
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.describe.model.block import Block


def stream_bytes(scenario: Scenario, layouts: Layouts) -> Float:
    """Residual stream of one micro-batch on a context rank [B].

    Counted: tokens of the rank, times the hidden size, in the compute precision. Left out: its
    split over tensor-parallel ranks. Definition.
    """
    tokens = layouts.tokens(scenario.workload.sequence_length)
    return tokens * scenario.model.hidden_size * float(scenario.workload.compute_bytes)


@dataclass(frozen=True, slots=True)
class StreamTraffic:
    """Collectives of a micro-batch's residual stream over tensor-parallel ranks [s]."""

    reduce_s: Float
    """All-reduce, without sequence parallelism; the two others are used with it."""
    gather_s: Float
    scatter_s: Float

    @classmethod
    def of(cls, scenario: Scenario, layouts: Layouts, groups: Groups) -> StreamTraffic:
        """Compute the collective times of the scenario's residual stream."""
        group, size, split = groups.tensor, stream_bytes(scenario, layouts), layouts.splits_sequence
        return cls(
            where_any(~split, lambda: all_reduce_s(group, size)),
            where_any(split, lambda: all_gather_s(group, size)),
            where_any(split, lambda: reduce_scatter_s(group, size)),
        )

    def tensor_s(self, scenario: Scenario, block: Block, layouts: Layouts) -> tuple[Float, Float]:
        """Forward and backward traffic of a block, as the function `tensor_s` [s]."""
        pair, sequence = self.gather_s + self.scatter_s, layouts.splits_sequence
        forward = np.where(sequence, pair, self.reduce_s) * block.num_tp_collectives
        second_gather = 0.0 if scenario.framework.kernels.saves_gathered else self.gather_s
        backward = np.where(sequence, pair + second_gather, self.reduce_s)
        return forward, backward * block.num_tp_collectives

    def column_backward_s(
        self, scenario: Scenario, block: Block, layouts: Layouts
    ) -> tuple[Float, Float]:
        """Gather of the input and reduction of its gradient in column-parallel backward [s]."""
        sequence, regions = layouts.splits_sequence, block.num_tp_collectives
        gather = np.where(sequence, self.gather_s, 0.0)
        second_gather = (
            np.zeros_like(gather) if scenario.framework.kernels.saves_gathered else gather
        )
        reduced = np.where(sequence, self.scatter_s, self.reduce_s)
        return second_gather * regions, reduced * regions


def tensor_s(
    scenario: Scenario, block: Block, layouts: Layouts, groups: Groups
) -> tuple[Float, Float]:
    """Tensor-parallel traffic of one block and micro-batch: forward, backward [s].

    Counted: each region is one all-reduce of the stream, forward and backward; with sequence
    parallelism an all-gather and a reduce-scatter of the same size, plus a second all-gather in
    backward unless the gathered input was kept. Left out: overlap. Shoeybi et al. 2019,
    arXiv:1909.08053; Korthikanti et al. 2022, arXiv:2205.05198, section 4.2.2.
    """
    return StreamTraffic.of(scenario, layouts, groups).tensor_s(scenario, block, layouts)


def repeated_tensor_s(
    scenario: Scenario, block: Block, layouts: Layouts, forward_s: Float
) -> Float:
    """Tensor-parallel traffic of recompute: repeated collectives of the forward pass [s].

    Counted: with full recompute the forward traffic, less the layer's last reduction if recompute
    stops before it; with selective recompute the gathers. Left out: overlap.
    overlap.md#traffic-per-axis-and-overlap.
    """
    if block.kind != "layer":
        return np.zeros_like(forward_s)
    full, selective = layouts.recomputes_layers, layouts.recomputes_selectively
    kernels = scenario.framework.kernels
    if not kernels.saves_gathered:
        half = layouts.recomputes_module(("moe",) if block.dispatch_top_k else ("mlp",))
        one_region = np.where(selective & half, 1 / max(block.num_tp_collectives, 1), 0.0)
        return np.where(full, 1.0, one_region) * forward_s
    # recompute stops at the last tensor it needs, before the layer's last reduction, unless it
    # runs to the end; kept products avoid repeated reductions but not gathers
    last = 0.0 if kernels.repeats_to_end else 1 / (2 * max(block.num_tp_collectives, 1))
    part = 1 - last
    gathers = step_constants().recompute.gathers_repeated_fraction.value
    return np.where(full, part * forward_s, np.where(selective, gathers * forward_s, 0.0))
