"""One micro-batch on one pipeline chunk: the passes that a schedule plays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from planner.cost.arrays import Arrays, Float
from planner.cost.network.groups import Groups
from planner.cost.shards.partial_recompute import chunk_block_counts
from planner.cost.shards.stages import Stages
from planner.cost.step.block_pass import Pass
from planner.cost.step.communication.block_traffic import AxisTime, block_traffic

__all__ = ["ChunkPass", "chunk_passes"]


@dataclass(frozen=True, slots=True)
class ChunkPass(Arrays):
    """One micro-batch on every chunk of stages (chunks, S): what a schedule plays [s]."""

    forward_s: Float
    recompute_s: Float
    backward_s: Float
    """Without recompute and weight gradients."""
    weight_gradient_s: Float
    host_forward_s: Float
    """What of waiting for the host stands in the forward pass."""
    host_backward_s: Float
    traffic: dict[str, AxisTime]
    """By part of the step."""

    @property
    def forward_with_traffic_s(self) -> Float:
        """A whole forward pass [s]."""
        sent = sum(axis.forward_s for axis in self.traffic.values())
        return np.asarray(self.forward_s + self.host_forward_s + sent)

    @property
    def backward_with_traffic_s(self) -> Float:
        """A whole backward pass, recompute and weight gradients included [s]."""
        sent = sum(axis.backward_s for axis in self.traffic.values())
        computed = self.recompute_s + self.backward_s + self.weight_gradient_s
        return np.asarray(computed + self.host_backward_s + sent)


def chunk_passes(stages: Stages, passes: list[Pass]) -> ChunkPass:
    """The passes of every chunk of stages (S,) of one layout, from the estimate's own blocks [s].

    Shape (chunks, S). Counted: computation, traffic of layers, waiting for the host (in proportion
    to what waits). Left out: data-parallel traffic, transfers between stages, the optimizer.
    method.md#pipeline.

    >>> from planner.cost.step.block_pass import block_passes
    >>> stages = Stages.of_pipeline(scenario, Layout(pp=4))
    >>> found = chunk_passes(stages, block_passes(scenario, stages.blocks, stages.layouts))
    >>> np.round(1e3 * found.forward_with_traffic_s)[0]        # 8 layers of 4.9 ms; the head
    array([39., 39., 39., 56.])
    """
    scenario, layouts = stages.scenario, stages.layouts
    groups = Groups.of(layouts, scenario.machine)
    counts = chunk_block_counts(stages.blocks, layouts, stages.stage, scenario.framework)

    def total(figures: Sequence[Float]) -> Float:
        pairs = zip(figures, counts, strict=True)
        return np.asarray(sum(figure * count for figure, count in pairs))

    compute = [work.compute for work in passes]
    axes = zip(
        *(
            block_traffic(scenario, block, stages.layouts_of_block(block), groups, time)
            for block, time in zip(stages.blocks, compute, strict=True)
        ),
        strict=True,
    )
    names = ("tensor_parallel", "context_parallel", "expert_parallel")
    forward_waits = [
        work.forward_with_traffic_s - work.compute.forward_s - work.forward_traffic_s
        for work in passes
    ]
    weights = total([time.weight_gradient_s for time in compute])
    return ChunkPass(
        forward_s=total([time.forward_s for time in compute]),
        recompute_s=total([time.recompute_s for time in compute]),
        backward_s=total([time.backward_s for time in compute]) - weights,
        weight_gradient_s=weights,
        host_forward_s=total(forward_waits),
        host_backward_s=total([w.host_s - f for w, f in zip(passes, forward_waits, strict=True)]),
        traffic={
            name: AxisTime(*(total([getattr(b, f.name) for b in axis]) for f in fields(AxisTime)))
            for name, axis in zip(names, axes, strict=True)
        },
    )
