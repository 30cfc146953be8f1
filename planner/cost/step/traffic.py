"""Traffic: the bytes that every axis of a layout sends in one step, per rank and per node.

The sizes and counts are those of `planner.cost.step.communication`. Its times are read off
groups whose links all move one byte per second without latency, where seconds are bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.cost.network.topology import GroupView, group_view
from planner.cost.operators.blocks import blocks_of
from planner.cost.shards.layouts import Layouts
from planner.cost.shards.pipeline import candidate_stages, stage_counts
from planner.cost.shards.states import stage_state
from planner.cost.step.communication import (
    Groups,
    context_s,
    data_traffic,
    expert_s,
    reductions_per_step,
    repeated_tensor_s,
    send_stage_s,
    tensor_s,
)
from planner.cost.step.step import expert_share
from planner.describe.layout import RECOMPUTE, Layout
from planner.describe.machine import Machine
from planner.describe.question import Question

__all__ = ["AxisTraffic", "step_traffic"]

Float = NDArray[np.float64]

_FULL = RECOMPUTE.index("full")


@dataclass(frozen=True, slots=True)
class AxisTraffic:
    """What one axis sends in one step, from the ranks of the stage that sends most."""

    device_bytes: float
    """Sent by each rank [B]."""
    inside_bytes: float
    """The part of it that stays on the node [B]."""
    node_bytes: float
    """Leaving one node, all its ranks together [B]."""


def step_traffic(question: Question, layout: Layout) -> dict[str, AxisTraffic]:
    """Bytes that each axis sends in one optimizer step, for axes of more than one rank.

    Counted: every collective of `planner.cost.step.communication` as a ring (each rank sends
    (n-1)/n of the buffer, twice that in an all-reduce), all-to-all and transfers between stages;
    hidden or not. Left out: gradient norms, metrics, headers of messages.

    >>> from planner import Workload
    >>> from planner.describe.catalogue import load_framework, load_machine, load_model
    >>> model = load_model("gpt2-xl")
    >>> job = Question(model, load_machine("polaris"), Workload(), load_framework("ddp"))
    >>> sent = step_traffic(job, Layout(dp=8))["dp"]
    >>> round(sent.device_bytes / (2 * 7 / 8 * model.num_params), 2)  # fp32 gradients
    4.0
    >>> sent.node_bytes == sent.device_bytes                          # one ring passes through
    True
    """
    layouts = Layouts.stack([layout]).take((..., None))
    framework = question.framework
    stages = candidate_stages(blocks_of(question), Layouts.stack([layout]), framework)
    sent = {
        **_activations(question, layouts, stages),
        "dp": _parameters(question, layouts, stages),
        "pp": _transfers(question, layouts),
    }
    places = {
        "tp": (layout.tp, 1),
        "cp": (layout.cp, layout.tp),
        "ep": (layout.ep, layout.tp),
        "dp": (layout.dp * layout.cp, layout.tp),
        "pp": (layout.pp, layout.tp * layout.cp * layout.dp),
    }
    return {
        axis: _placed(axis, float(np.max(sent[axis])), size, stride, question.machine)
        for axis, (size, stride) in places.items()
        if size > 1
    }


def _placed(axis: str, sent: float, size: int, stride: int, machine: Machine) -> AxisTraffic:
    """What of a rank's bytes stays on the node, and what leaves a node with all groups of it."""
    view = group_view(machine, size, stride)
    local, groups = float(view.local), machine.node.num_devices // float(view.local)
    if view.nodes == 1:
        return AxisTraffic(sent, sent, 0.0)
    if axis == "ep":
        # to every other rank alike
        inside = sent * (local - 1) / (size - 1)
        return AxisTraffic(sent, inside, groups * local * (sent - inside))
    # a ring or a chain leaves the node once, by its last rank there
    return AxisTraffic(sent, sent if local > 1 else 0.0, groups * sent)


def _activations(
    question: Question, layouts: Layouts, stages: NDArray[np.int64]
) -> dict[str, Float]:
    """Tensor, context and expert axes: the layers' own traffic, all micro-batches [B]."""
    workload, width = question.workload, question.model.hidden_size
    framework, groups = question.framework, _unit_groups(layouts)
    keeps = framework.kernels.saves_gathered
    full = layouts.recompute == _FULL
    counts = stage_counts(blocks_of(question), layouts, stages, framework)
    sent = {axis: np.zeros(np.shape(stages)) for axis in ("tp", "cp", "ep")}
    for block, count in zip(blocks_of(question), counts, strict=True):
        ahead, back = tensor_s(block, width, layouts, groups, workload, saves_gathered=keeps)
        again = repeated_tensor_s(block, layouts, ahead, framework)
        sent["tp"] = sent["tp"] + count * (ahead + back + again)
        ahead, back = context_s(block, layouts, groups, workload)
        sent["cp"] = sent["cp"] + count * (ahead + back + np.where(full, ahead, 0.0))
        if block.dispatch_top_k:
            ahead, back = expert_s(block, width, layouts, groups, workload)
            sent["ep"] = sent["ep"] + count * (ahead + back + np.where(full, ahead, 0.0))
    return {axis: layouts.grad_accumulation * one for axis, one in sent.items()}


def _parameters(question: Question, layouts: Layouts, stages: NDArray[np.int64]) -> Float:
    """Data-parallel axis: gradients, and weights where they are sharded [B]."""
    blocks, workload, framework = blocks_of(question), question.workload, question.framework
    state = stage_state(blocks, layouts, stages, workload, framework)
    groups = _unit_groups(layouts)
    share = expert_share(blocks, layouts)
    traffic = data_traffic(state, share, layouts, groups, workload, framework)
    # the rates of the groups are exact here: what slows gathering down moves no more bytes
    slowed = framework.communication.gather_fraction.value
    gathers = 2 * layouts.grad_accumulation * traffic.gather_s * slowed
    reduced = traffic.gradients_s + traffic.scatter_s * slowed
    return gathers + traffic.parameters_s + reductions_per_step(layouts, framework) * reduced


def _transfers(question: Question, layouts: Layouts) -> Float:
    """Pipeline axis: a stage's activations forward and gradients back, every chunk [B]."""
    width, workload = question.model.hidden_size, question.workload
    one = send_stage_s(width, layouts, _unit_groups(layouts), workload)
    return 2 * one * layouts.vpp * layouts.grad_accumulation


def _unit_groups(layouts: Layouts) -> Groups:
    """Groups whose ranks send one byte per second and wait for nothing."""
    shard = layouts.dp_shard * layouts.cp
    data = layouts.dp * layouts.cp
    return Groups(
        tensor=_unit_view(layouts.tp),
        context=_unit_view(layouts.cp),
        data=_unit_view(data),
        shard=_unit_view(shard),
        replica=_unit_view(data // shard),
        expert=_unit_view(layouts.ep),
        expert_data=_unit_view(layouts.expert_dp),
        stage=_unit_view(np.minimum(layouts.pp, 2)),
    )


def _unit_view(size: NDArray[np.int64]) -> GroupView:
    ranks = np.asarray(size, dtype=np.float64)
    one, none = np.ones(ranks.shape), np.zeros(ranks.shape)
    return GroupView(
        size=ranks,
        local=one,
        nodes=ranks,
        local_bytes_per_s=one,
        network_bytes_per_s=one,
        local_latency_s=none,
        pairwise_bytes_per_s=one,
        network_latency_s=none,
        large_message_latency_s=none,
        neighbour_bytes_per_s=one,
    )
