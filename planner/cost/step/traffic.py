"""Traffic: the bytes that every axis of a layout sends in one step, per rank and per node.

The sizes and counts are those of `planner.cost.step.communication`. Its times are read off
groups whose links all move one byte per second without latency, where seconds are bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.cost.arrays import Float
from planner.cost.network.groups import AXES, Groups, geometry
from planner.cost.network.topology import group_view
from planner.cost.question import Question
from planner.cost.shards.layouts import Layouts
from planner.cost.shards.stages import Stages
from planner.cost.step.communication import (
    context_s,
    data_traffic,
    repeated_tensor_s,
    send_stage_s,
    tensor_s,
)
from planner.cost.step.experts import expert_s, split_expert_s
from planner.describe.layout import Layout
from planner.describe.machine import Machine

__all__ = ["AxisTraffic", "step_traffic"]


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
    method.md#traffic-per-axis-and-overlap.

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
    stages = Stages.candidates(question, Layouts.of(layout))
    sent = {**_activations(stages), "dp": _parameters(stages), "pp": _transfers(stages)}
    places = geometry(Layouts.of(layout).settled(question.framework))
    found = {}
    for axis in AXES:
        size, stride = (int(figure) for figure in places[AXES[axis]])
        if size > 1 and (axis != "etp" or np.any(sent[axis])):
            most = float(np.max(sent[axis]))
            found[axis] = _placed(axis, most, size, stride, question.machine)
    return found


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


def _activations(stages: Stages) -> dict[str, Float]:
    """Tensor, context and expert axes: the layers' own traffic, all micro-batches [B]."""
    question, layouts, groups = stages.question, stages.layouts, Groups.unit(stages.layouts)
    full = layouts.recomputes_layers
    sent = {axis: np.zeros(stages.shape) for axis in ("tp", "cp", "ep", "etp")}
    for block, count in zip(stages.blocks, stages.counts, strict=True):
        ahead, back = tensor_s(question, block, layouts, groups)
        again = repeated_tensor_s(question, block, layouts, ahead)
        sent["tp"] = sent["tp"] + count * (ahead + back + again)
        ahead, back = context_s(question, block, layouts, groups)
        sent["cp"] = sent["cp"] + count * (ahead + back + np.where(full, ahead, 0.0))
        if block.dispatch_top_k:
            for axis, exchange in (("ep", expert_s), ("etp", split_expert_s)):
                ahead, back = exchange(question, block, layouts, groups)
                sent[axis] = sent[axis] + count * (ahead + back + np.where(full, ahead, 0.0))
    return {axis: layouts.num_microbatches * one for axis, one in sent.items()}


def _parameters(stages: Stages) -> Float:
    """Data-parallel axis: gradients, and weights where they are sharded [B]."""
    framework, layouts = stages.question.framework, stages.layouts
    traffic = data_traffic(stages, Groups.unit(layouts))
    # the rates of the groups are exact here: what slows gathering down moves no more bytes
    slowed = framework.communication.gather_fraction.value
    gathers = layouts.gathers_per_step(framework) * traffic.before_forward_s
    again = layouts.gathers_again_per_step(framework) * traffic.before_backward_s
    gathers = slowed * (gathers + again)
    reduced = traffic.gradients_s + traffic.after_backward_s * slowed
    return gathers + traffic.parameters_s + layouts.reductions_per_step(framework) * reduced


def _transfers(stages: Stages) -> Float:
    """Pipeline axis: a stage's activations forward and gradients back, every chunk [B]."""
    layouts = stages.layouts
    one = send_stage_s(stages.question, layouts, Groups.unit(layouts))
    return 2 * one * layouts.vpp * layouts.num_microbatches
