"""Block pass: computation, exposed traffic and host waits of a micro-batch on a block or chunk."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from planner.cost.arrays import Arrays, Float, distinct
from planner.cost.network.groups import Groups
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.cost.shards.partial_recompute import chunk_block_counts
from planner.cost.shards.stages import Stages
from planner.cost.step.communication.block_traffic import AxisTime, block_traffic
from planner.cost.step.communication.tensor_parallel import StreamTraffic
from planner.cost.step.compute.block_time import BlockTime, block_time
from planner.cost.step.kernel_launch import host_wait_s
from planner.describe.model.block import Block


@dataclass(frozen=True, slots=True)
class Pass(Arrays):
    """Computation, exposed traffic and host waits of one micro-batch on one block [s]."""

    compute: BlockTime
    tensor_s: Float
    context_s: Float
    expert_s: Float
    forward_traffic_s: Float
    """Exposed traffic of the forward pass."""
    behind_forward_s: Float
    """Inter-node traffic that is hidden behind the computation of the forward pass."""
    behind_backward_s: Float
    """Inter-node traffic that is hidden behind the backward pass, recompute included."""
    host_s: Float
    """Time that the device waits for the host."""

    @property
    def total_s(self) -> Float:
        """Total time of one micro-batch on the block [s]."""
        compute = self.compute
        return (
            compute.forward_s
            + compute.backward_s
            + compute.recompute_s
            + self.tensor_s
            + self.context_s
            + self.expert_s
            + self.host_s
        )

    @property
    def behind_s(self) -> Float:
        """Inter-node traffic that is hidden behind the computation of both passes [s]."""
        return self.behind_forward_s + self.behind_backward_s

    @property
    def forward_with_traffic_s(self) -> Float:
        """Forward pass with its exposed traffic and its share of host waits [s]."""
        # waiting for the host stretches all parts in proportion
        busy = np.maximum(self.total_s - self.host_s, np.finfo(float).tiny)
        return (self.compute.forward_s + self.forward_traffic_s) * (1 + self.host_s / busy)


_SHAPES = (
    "micro_batch", "tp", "cp", "ulysses", "ep", "etp", "sequence_parallel", "recompute", "tiles",
    "recompute_layers", "recompute_every", "recompute_span", "recompute_modules",
)  # fmt: skip
"""Layout columns that determine a rank's work in one pass of a block."""


def block_passes(scenario: Scenario, blocks: tuple[Block, ...], layouts: Layouts) -> list[Pass]:
    """Time of one micro-batch on each block, computed once per distinct shape of the work [s].

    Counted: computation, exposed traffic of layers, waiting for the host. Left out: data-parallel
    traffic, transfers between stages. compute.md#computation;
    overlap.md#traffic-per-axis-and-overlap.
    """
    with_etp = layouts.with_default_etp(scenario.framework)
    columns = [getattr(with_etp, name) for name in _SHAPES]
    # only these two facts of the pipeline and the micro-batches matter
    columns += [with_etp.piped, with_etp.num_microbatches > 1]
    is_partial = any(block.kept_whole for block in blocks)
    variants = (with_etp, with_etp.without_partial_recompute()) if is_partial else (with_etp,)
    merges = [each.merges_passes(scenario.framework) for each in variants]
    first, index = distinct(*columns, *merges)
    unique = with_etp.map(np.ravel).take(first) if len(first) < len(with_etp) else with_etp
    groups = Groups.of(unique, scenario.machine)
    without_recompute = unique.without_partial_recompute() if is_partial else unique
    stream = StreamTraffic.of(scenario, unique, groups)
    pairs = [(block, without_recompute if block.kept_whole else unique) for block in blocks]
    passes = [_block_pass(scenario, block, layouts, groups, stream) for block, layouts in pairs]
    return passes if unique is with_etp else [work.take(index) for work in passes]


def _block_pass(
    scenario: Scenario, block: Block, layouts: Layouts, groups: Groups, stream: StreamTraffic
) -> Pass:
    compute = block_time(scenario, block, layouts)
    axes = block_traffic(scenario, block, layouts, groups, compute, stream)
    tensor, ring, expert = axes
    busy = Pass(
        compute=compute,
        tensor_s=tensor.forward_s + tensor.backward_s,
        context_s=ring.forward_s + ring.backward_s,
        expert_s=expert.forward_s + expert.backward_s,
        forward_traffic_s=tensor.forward_s + ring.forward_s + expert.forward_s,
        behind_forward_s=np.asarray(sum(axis.behind_forward_s for axis in axes)),
        behind_backward_s=np.asarray(sum(axis.behind_backward_s for axis in axes)),
        host_s=np.zeros_like(tensor.forward_s),
    )
    return replace(busy, host_s=host_wait_s(scenario, block, layouts, groups, busy.total_s))


@dataclass(frozen=True, slots=True)
class ChunkPass(Arrays):
    """Pass times of one micro-batch on every chunk of stages (chunks, S), for simulation [s]."""

    forward_s: Float
    recompute_s: Float
    backward_s: Float
    """Backward pass without recompute and weight gradients."""
    weight_gradient_s: Float
    host_forward_s: Float
    """Waiting for the host in the forward pass."""
    host_backward_s: Float
    traffic: dict[str, AxisTime]
    """Traffic of tensor, context and expert axes, by part of the step."""

    @property
    def forward_with_traffic_s(self) -> Float:
        """Whole forward pass, with traffic and host waits [s]."""
        sent = sum(axis.forward_s for axis in self.traffic.values())
        return np.asarray(self.forward_s + self.host_forward_s + sent)

    @property
    def backward_with_traffic_s(self) -> Float:
        """Whole backward pass, with recompute, weight gradients, traffic and host waits [s]."""
        sent = sum(axis.backward_s for axis in self.traffic.values())
        computed = self.recompute_s + self.backward_s + self.weight_gradient_s
        return np.asarray(computed + self.host_backward_s + sent)


def chunk_passes(stages: Stages, passes: list[Pass]) -> ChunkPass:
    """Pass times of every chunk of stages (S,) of one layout, from the estimate's block times [s].

    Shape (chunks, S). Counted: computation, traffic of layers, waiting for the host (split between
    the passes in proportion). Left out: data-parallel traffic, transfers between stages, the
    optimizer. pipeline.md#pipeline.
    """
    scenario, layouts = stages.scenario, stages.layouts
    groups = Groups.of(layouts, scenario.machine)
    counts = chunk_block_counts(stages.blocks, layouts, stages.stage, scenario.framework)

    def total(figures: Sequence[Float]) -> Float:
        pairs = zip(figures, counts, strict=True)
        return np.asarray(sum(figure * count for figure, count in pairs))

    compute = [work.compute for work in passes]
    traffic = (
        block_traffic(scenario, block, stages.layouts_of_block(block), groups, time)
        for block, time in zip(stages.blocks, compute, strict=True)
    )
    axes = zip(*traffic, strict=True)
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
