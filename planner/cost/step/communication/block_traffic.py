"""Block traffic: time on tensor, context and expert axes in one block, and its exposed part."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.cost.arrays import Arrays, Float
from planner.cost.network.groups import Groups
from planner.cost.network.topology import GroupView
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.cost.step.communication.context_parallel import context_s, heads_s
from planner.cost.step.communication.expert_parallel import (
    expert_s,
    exposed_experts_s,
    split_expert_s,
)
from planner.cost.step.communication.tensor_parallel import StreamTraffic, repeated_tensor_s
from planner.cost.step.compute.block_time import BlockTime
from planner.describe.model.block import Block


@dataclass(frozen=True, slots=True)
class AxisTime(Arrays):
    """Traffic of one axis in a block: exposed; hidden between nodes (`behind`); total [s]."""

    forward_s: Float
    backward_s: Float
    behind_forward_s: Float
    behind_backward_s: Float
    sent_forward_s: Float
    """All traffic, hidden or not."""
    sent_backward_s: Float

    @classmethod
    def zero(cls, compute: BlockTime) -> AxisTime:
        """Return zero times, for an axis without traffic."""
        return cls(*[np.zeros_like(compute.forward_s)] * 6)

    @classmethod
    def split(
        cls, group: GroupView, sent: tuple[Float, Float], left: tuple[Float, Float]
    ) -> AxisTime:
        """Split traffic `sent` forward and backward into its exposed part `left` and the rest."""
        across = group.nodes > 1
        ahead, back = (
            np.where(across, total - part, 0.0) for total, part in zip(sent, left, strict=True)
        )
        return cls(*left, ahead, back, *sent)


def block_traffic(
    scenario: Scenario,
    block: Block,
    layouts: Layouts,
    groups: Groups,
    compute: BlockTime,
    stream: StreamTraffic | None = None,
) -> tuple[AxisTime, AxisTime, AxisTime]:
    """Traffic of one block and micro-batch over tensor, context and expert axes [s].

    `layouts`: as the block sees them; `stream`: times of the residual stream, computed here if
    None. Counted: traffic that `compute` can hide, and exposed traffic. Left out: data-parallel
    traffic, transfers between stages. overlap.md#traffic-per-axis-and-overlap.
    """
    stream = stream or StreamTraffic.of(scenario, layouts, groups)
    return (
        _tensor_parallel(scenario, block, layouts, groups.tensor, stream, compute),
        _context_parallel(scenario, block, layouts, groups, compute),
        _expert_parallel(scenario, block, layouts, groups, compute),
    )


def _tensor_parallel(
    scenario: Scenario,
    block: Block,
    layouts: Layouts,
    group: GroupView,
    stream: StreamTraffic,
    compute: BlockTime,
) -> AxisTime:
    """Tensor-parallel traffic, exposed unless column-parallel products or overlap hide it."""
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
    return AxisTime.split(group, (forward, backward), both)


def _context_parallel(
    scenario: Scenario, block: Block, layouts: Layouts, groups: Groups, compute: BlockTime
) -> AxisTime:
    """Context-parallel traffic: keys and values, hidden behind attention, and Ulysses exchanges."""
    if not np.any(layouts.cp > 1):
        return AxisTime.zero(compute)
    sent = context_s(scenario, block, layouts, groups)
    piece, other_pieces = 1 / layouts.ring, 1 - 1 / layouts.ring
    core = (compute.core_forward_s, compute.core_backward_s)
    exchange = scenario.framework.kernels.context_exchange
    if exchange == "pass":
        ahead = np.maximum(sent[0] - other_pieces * core[0], 0.0)
        back = np.maximum(sent[1] - other_pieces * core[1], 0.0)
    elif exchange == "gather-pass":
        # gradients travel behind attention to the next piece; those of the last piece are exposed
        passed = sent[1] - sent[0]
        ahead = np.maximum(sent[0] - piece * core[0], 0.0)
        back = np.maximum(sent[0] - piece * core[1], 0.0)
        back = back + piece * passed + np.maximum(other_pieces * (passed - core[1]), 0.0)
    else:
        # attention starts only after the whole gather
        ahead, back = sent
    exchanged = heads_s(scenario, block, layouts, groups)
    repeated = layouts.recomputes_attention(scenario.framework)
    first = sent[0] + exchanged[0]
    both = (first, sent[1] + exchanged[1] + np.where(repeated, first, 0.0))
    ahead, back = ahead + exchanged[0], back + exchanged[1]
    return AxisTime.split(groups.context, both, (ahead, back + np.where(repeated, ahead, 0.0)))


def _expert_parallel(
    scenario: Scenario, block: Block, layouts: Layouts, groups: Groups, compute: BlockTime
) -> AxisTime:
    """Expert-parallel traffic: dispatch, combine and gathers of split experts."""
    if not block.dispatch_top_k:
        return AxisTime.zero(compute)
    ahead, back = expert_s(scenario, block, layouts, groups)
    inside = split_expert_s(scenario, block, layouts, groups)
    ahead, back = ahead + inside[0], back + inside[1]
    back = back + np.where(layouts.repeats_dispatch, ahead, 0.0)
    sent, busy_s = ahead + back, compute.forward_s + compute.backward_s
    left = exposed_experts_s(scenario, layouts, sent, busy_s)
    part = left / np.maximum(sent, np.finfo(float).tiny)
    return AxisTime.split(groups.expert, (ahead, back), (part * ahead, part * back))
