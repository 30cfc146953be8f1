"""Passes: what one micro-batch takes on a block and on a pipeline stage.

Work is measured per block, once per distinct shape of a rank's work. The step adds the passes up;
a schedule plays them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from planner.cost.arrays import Arrays, Float, Int, distinct
from planner.cost.network.groups import Groups
from planner.cost.network.topology import GroupView
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.cost.shards.partial_recompute import chunk_parts
from planner.cost.shards.stages import Stages
from planner.cost.step.communication import (
    StreamTraffic,
    context_s,
    heads_s,
    repeated_tensor_s,
    send_stage_s,
    transfer_wait_s,
)
from planner.cost.step.compute import BlockTime, block_time
from planner.cost.step.expert_parallel import expert_s, exposed_experts_s, split_expert_s
from planner.cost.step.kernel_launch import awaited_s
from planner.describe.model.block import Block

__all__ = [
    "Axis",
    "ChunkPass",
    "Pass",
    "Transfer",
    "block_passes",
    "block_traffic",
    "chunk_passes",
    "stage_transfer",
]


@dataclass(frozen=True, slots=True)
class Pass(Arrays):
    """One block and micro-batch: computation, and traffic that nothing hides [s]."""

    compute: BlockTime
    tensor_s: Float
    context_s: Float
    expert_s: Float
    forward_traffic_s: Float
    """What of the traffic stands in the forward pass."""
    behind_forward_s: Float
    """Traffic between nodes that runs behind the computation of the forward pass."""
    behind_backward_s: Float
    """The same of the backward pass, recompute included."""
    host_s: Float
    """Waiting for the host."""

    @property
    def total_s(self) -> Float:
        """Everything that one micro-batch takes on the block [s]."""
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
        """Traffic between nodes behind the computation of both passes [s]."""
        return self.behind_forward_s + self.behind_backward_s

    @property
    def drawn_forward_s(self) -> Float:
        """The forward pass with its traffic and its share of waiting for the host [s]."""
        # it stretches whatever runs
        busy = np.maximum(self.total_s - self.host_s, np.finfo(float).tiny)
        return (self.compute.forward_s + self.forward_traffic_s) * (1 + self.host_s / busy)


_SHAPES = (
    "micro_batch",
    "tp",
    "cp",
    "ulysses",
    "ep",
    "etp",
    "sequence_parallel",
    "recompute",
    "recompute_layers",
    "recompute_every",
    "recompute_span",
    "recompute_modules",
)
"""Columns that decide what a rank does in one pass of a block."""


def block_passes(scenario: Scenario, blocks: tuple[Block, ...], layouts: Layouts) -> list[Pass]:
    """Time of each block, worked out once per distinct shape of a rank's work [s].

    Counted: computation, traffic of layers that nothing hides, waiting for the host. Left out:
    data-parallel traffic, transfers between stages. method.md#computation;
    method.md#traffic-per-axis-and-overlap.

    >>> from planner import Layout, Workload, load_framework, load_machine, load_model
    >>> from planner.cost.network.collectives import all_reduce_s
    >>> from planner.cost.operators.blocks import blocks_of
    >>> model, machine = load_model("llama-3-8b"), load_machine("polaris")
    >>> job = Scenario(model, machine, Workload(), load_framework("megatron-lm"))
    >>> layouts = Layouts.of(Layout(tp=4))
    >>> _, layer, _ = block_passes(job, blocks_of(job), layouts)
    >>> reduce_s = all_reduce_s(Groups.of(layouts, machine).tensor, 2**24)  # a stream of 16 MiB
    >>> round(float(layer.tensor_s / reduce_s), 3)    # two awaited, two hidden but a fifth
    2.4
    """
    settled = layouts.settled(scenario.framework)
    columns = [getattr(settled, name) for name in _SHAPES]
    # of the pipeline and the number of passes no more than this
    columns += [settled.piped, settled.num_microbatches > 1]
    parted = any(block.kept_whole for block in blocks)
    seen = (settled, settled.keeping()) if parted else (settled,)
    merges = [each.merges_passes(scenario.framework) for each in seen]
    first, index = distinct(*columns, *merges)
    few = settled.map(np.ravel).take(first) if len(first) < len(settled) else settled
    groups = Groups.of(few, scenario.machine)
    kept = few.keeping() if parted else few
    stream = StreamTraffic.of(scenario, few, groups)
    passes = [
        _block_pass(scenario, block, kept if block.kept_whole else few, groups, stream)
        for block in blocks
    ]
    return passes if few is settled else [work.take(index) for work in passes]


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
    return replace(busy, host_s=awaited_s(scenario, block, layouts, groups, busy.total_s))


def block_traffic(
    scenario: Scenario,
    block: Block,
    layouts: Layouts,
    groups: Groups,
    compute: BlockTime,
    stream: StreamTraffic | None = None,
) -> tuple[Axis, Axis, Axis]:
    """Traffic of one block and micro-batch over tensor, context and expert axes [s].

    `layouts` are as the block sees them, `stream` is what all blocks share where it is known.
    Counted: what runs beside `compute`, and what nothing hides. Left out: data-parallel
    traffic, transfers between stages. method.md#traffic-per-axis-and-overlap.

    >>> from planner import Layout, Workload, load_framework, load_machine, load_model
    >>> from planner.cost.operators.blocks import blocks_of
    >>> model, machine = load_model("llama-3-8b"), load_machine("polaris")
    >>> job = Scenario(model, machine, Workload(), load_framework("megatron-lm"))
    >>> layouts, layer = Layouts.of(Layout(tp=4)), blocks_of(job)[1]
    >>> compute, groups = block_time(job, layer, layouts), Groups.of(layouts, machine)
    >>> tensor, _, _ = block_traffic(job, layer, layouts, groups, compute)
    >>> round(float(tensor.backward_s / tensor.sent_backward_s), 3)     # a fifth of it contends
    0.2
    """
    stream = stream or StreamTraffic.of(scenario, layouts, groups)
    return (
        _tensor(scenario, block, layouts, groups.tensor, stream, compute),
        _ring(scenario, block, layouts, groups, compute),
        _expert(scenario, block, layouts, groups, compute),
    )


@dataclass(frozen=True, slots=True)
class Axis(Arrays):
    """Traffic of one axis in a block: what nothing hides, and what leaves the node behind
    computation; recompute's with the backward pass [s]."""

    forward_s: Float
    backward_s: Float
    behind_forward_s: Float
    behind_backward_s: Float
    sent_forward_s: Float
    """All of it, hidden or not."""
    sent_backward_s: Float

    @classmethod
    def nothing(cls, compute: BlockTime) -> Axis:
        """That of an axis which sends nothing."""
        return cls(*[np.zeros_like(compute.forward_s)] * 6)

    @classmethod
    def split(cls, group: GroupView, sent: tuple[Float, Float], left: tuple[Float, Float]) -> Axis:
        """Of what is `sent` forward and backward, what is `left` over beside computation."""
        across = group.nodes > 1
        ahead, back = (
            np.where(across, whole - part, 0.0) for whole, part in zip(sent, left, strict=True)
        )
        return cls(*left, ahead, back, *sent)


def _tensor(
    scenario: Scenario,
    block: Block,
    layouts: Layouts,
    group: GroupView,
    stream: StreamTraffic,
    compute: BlockTime,
) -> Axis:
    """Tensor-parallel traffic: what no product of a column-parallel layer hides, and a part of the
    rest where the framework overlaps it otherwise."""
    rules = scenario.framework.communication
    visible = 1 - rules.overlap_tensor.value
    forward, backward = stream.tensor_s(scenario, block, layouts)
    backward = backward + repeated_tensor_s(scenario, block, layouts, forward)
    left = backward
    if rules.overlap_tensor_backward:
        gather, reduce = stream.column_backward_s(scenario, block, layouts)
        hidden = np.minimum(gather, compute.column_input_s)
        hidden = hidden + np.minimum(reduce, compute.column_weight_s)
        left = backward - (1 - rules.contention.value) * hidden
    both = (visible * forward, visible * left)
    return Axis.split(group, (forward, backward), both)


def _ring(
    scenario: Scenario, block: Block, layouts: Layouts, groups: Groups, compute: BlockTime
) -> Axis:
    """Keys and values that pass around behind attention to those that are there: all but one of
    the pieces; behind the first of them, or none, where they are gathered at once. Exchanging
    tokens for heads has nothing to hide behind."""
    if not np.any(layouts.cp > 1):
        return Axis.nothing(compute)
    sent = context_s(scenario, block, layouts, groups)
    one, others = 1 / layouts.ring, 1 - 1 / layouts.ring
    core = (compute.core_forward_s, compute.core_backward_s)
    exchange = scenario.framework.kernels.context_exchange
    if exchange == "pass":
        ahead = np.maximum(sent[0] - others * core[0], 0.0)
        back = np.maximum(sent[1] - others * core[1], 0.0)
    elif exchange == "gather-pass":
        # gradients are passed on behind the next piece, those of the last behind none
        passed = sent[1] - sent[0]
        ahead = np.maximum(sent[0] - one * core[0], 0.0)
        back = np.maximum(sent[0] - one * core[1], 0.0)
        back = back + one * passed + np.maximum(others * (passed - core[1]), 0.0)
    else:
        # nothing is attended to before all is there
        ahead, back = sent
    exchanged = heads_s(scenario, block, layouts, groups)
    repeated = layouts.attends_again(scenario.framework)
    first = sent[0] + exchanged[0]
    both = (first, sent[1] + exchanged[1] + np.where(repeated, first, 0.0))
    ahead, back = ahead + exchanged[0], back + exchanged[1]
    return Axis.split(groups.context, both, (ahead, back + np.where(repeated, ahead, 0.0)))


def _expert(
    scenario: Scenario, block: Block, layouts: Layouts, groups: Groups, compute: BlockTime
) -> Axis:
    """Dispatch and combine, with what ranks that split an expert gather, behind another
    micro-batch's computation or behind none."""
    if not block.dispatch_top_k:
        return Axis.nothing(compute)
    ahead, back = expert_s(scenario, block, layouts, groups)
    inside = split_expert_s(scenario, block, layouts, groups)
    ahead, back = ahead + inside[0], back + inside[1]
    back = back + np.where(layouts.exchanges_again, ahead, 0.0)
    sent, busy_s = ahead + back, compute.forward_s + compute.backward_s
    left = exposed_experts_s(scenario, layouts, sent, busy_s)
    part = left / np.maximum(sent, np.finfo(float).tiny)
    return Axis.split(groups.expert, (ahead, back), (part * ahead, part * back))


@dataclass(frozen=True, slots=True)
class Transfer(Arrays):
    """Handing one chunk's activations, or their gradient, to the neighbouring stage [s]."""

    arrives_s: Float
    """Until they are there."""
    fills: Int
    """How often a pipeline waits for that, to fill and once more to drain."""
    blocks_s: Float
    """While the stage can do nothing else; less where transfers run behind computation."""
    behind_s: Float
    """The part that leaves the node behind computation."""


def stage_transfer(scenario: Scenario, layouts: Layouts, groups: Groups, free_s: Float) -> Transfer:
    """One transfer between stages, as it delays the next stage and its own [s].

    `free_s` is the time of one micro-batch on the stage, both ways, less what else leaves the node
    behind it. Counted: the message, and the wait that runs on the machine have shown; behind
    computation, where the framework overlaps those of stages with several chunks, what a chunk's
    pass does not cover. Left out: latency of launching it. method.md#pipeline.

    >>> from planner import Layout, Workload, load_framework, load_machine, load_model
    >>> model, machine = load_model("llama-3-8b"), load_machine("polaris")
    >>> job = Scenario(model, machine, Workload(), load_framework("megatron-lm"))
    >>> layouts = Layouts.of(Layout(tp=4, pp=2))
    >>> transfer = stage_transfer(job, layouts, Groups.of(layouts, machine), np.asarray(0.1))
    >>> round(1e6 * float(transfer.arrives_s))              # 160 us + 4 MiB at 9 GB/s
    626
    """
    if not layouts.piped.any():
        nothing = np.zeros(free_s.shape)
        return Transfer(nothing, layouts.pp - 1, nothing, nothing)
    one, wait = send_stage_s(scenario, layouts, groups), transfer_wait_s(scenario, layouts)
    # both directions of a link move at once; waits follow each other, at each neighbour of a stage
    awaited = one + wait * np.minimum(layouts.pp - 1, 2)
    hides = scenario.framework.communication.overlap_pipeline & (layouts.vpp > 1)
    left = np.maximum(one - free_s / (2 * layouts.vpp), 0.0)
    across = hides & (groups.pipeline.nodes > 1)
    return Transfer(
        arrives_s=one + wait,
        # the first micro-batch passes all chunks before its backward pass; where stages await
        # their transfers, those of their own passes last as long as its way round
        fills=np.where(hides, _hops(layouts), layouts.pp - 1),
        blocks_s=np.where(hides, left, awaited),
        behind_s=np.where(across, one - left, 0.0),
    )


def _hops(layouts: Layouts) -> Int:
    """Transfers that a pipeline waits for to fill, and again to drain, behind whose chunks others
    run: of all chunks, but not at the turn of a V; there many micro-batches pass the first chunks
    once more in the middle, but in pairs. Left out: pairs that wait for transfers in the middle,
    where no stage is slower than its neighbours."""
    whole = layouts.pp * layouts.vpp - 1
    again = np.where((layouts.num_microbatches > layouts.pp) & ~layouts.paired, layouts.pp - 2, 0)
    return np.where(layouts.v_shaped, whole - 1 + again, whole)


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
    traffic: dict[str, Axis]
    """By part of the step."""

    @property
    def drawn_forward_s(self) -> Float:
        """A whole forward pass [s]."""
        sent = sum(axis.forward_s for axis in self.traffic.values())
        return np.asarray(self.forward_s + self.host_forward_s + sent)

    @property
    def drawn_backward_s(self) -> Float:
        """A whole backward pass, recompute and weight gradients included [s]."""
        sent = sum(axis.backward_s for axis in self.traffic.values())
        computed = self.recompute_s + self.backward_s + self.weight_gradient_s
        return np.asarray(computed + self.host_backward_s + sent)


def chunk_passes(stages: Stages, passes: list[Pass]) -> ChunkPass:
    """The passes of every chunk of stages (S,) of one layout, from the estimate's own blocks [s].

    Shape (chunks, S). Counted: computation, traffic of layers, waiting for the host (in proportion
    to what waits). Left out: data-parallel traffic, transfers between stages, the optimizer.
    method.md#pipeline.

    >>> from planner import Layout, Workload, load_framework, load_machine, load_model
    >>> model, machine = load_model("llama-3-8b"), load_machine("polaris")
    >>> job = Scenario(model, machine, Workload(), load_framework("megatron-lm"))
    >>> stages = Stages.every(job, Layout(pp=4))
    >>> found = chunk_passes(stages, block_passes(job, stages.blocks, stages.layouts))
    >>> np.round(1e3 * found.drawn_forward_s)[0]        # 8 layers of 4.9 ms; the head
    array([39., 39., 39., 56.])
    """
    scenario, layouts = stages.scenario, stages.layouts
    groups = Groups.of(layouts, scenario.machine)
    counts = chunk_parts(stages.blocks, layouts, stages.stage, scenario.framework)

    def total(figures: Sequence[Float]) -> Float:
        pairs = zip(figures, counts, strict=True)
        return np.asarray(sum(figure * count for figure, count in pairs))

    compute = [work.compute for work in passes]
    axes = zip(
        *(
            block_traffic(scenario, block, stages.seen_by(block), groups, time)
            for block, time in zip(stages.blocks, compute, strict=True)
        ),
        strict=True,
    )
    names = ("tensor_parallel", "context_parallel", "expert_parallel")
    waits = [
        work.drawn_forward_s - work.compute.forward_s - work.forward_traffic_s for work in passes
    ]
    weights = total([time.weight_gradient_s for time in compute])
    return ChunkPass(
        forward_s=total([time.forward_s for time in compute]),
        recompute_s=total([time.recompute_s for time in compute]),
        backward_s=total([time.backward_s for time in compute]) - weights,
        weight_gradient_s=weights,
        host_forward_s=total(waits),
        host_backward_s=total([w.host_s - f for w, f in zip(passes, waits, strict=True)]),
        traffic={
            name: Axis(*(total([getattr(b, f.name) for b in axis]) for f in fields(Axis)))
            for name, axis in zip(names, axes, strict=True)
        },
    )
