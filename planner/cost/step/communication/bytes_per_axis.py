"""Traffic: the bytes that every axis of a layout sends in one step, per rank and per node.

The sizes and counts are those of `planner.cost.step.communication`. Its times are read off
groups whose links all move one byte per second without latency, where seconds are bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.cost.arrays import Float, Int, shaped
from planner.cost.network.groups import AXES, Groups, geometry
from planner.cost.network.topology import group_view
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.cost.shards.stages import Stages
from planner.cost.step.communication.context_parallel import context_s, heads_s
from planner.cost.step.communication.data_parallel import data_traffic
from planner.cost.step.communication.expert_parallel import expert_s, split_expert_s
from planner.cost.step.communication.pipeline_p2p import send_stage_s
from planner.cost.step.communication.tensor_parallel import repeated_tensor_s, tensor_s
from planner.describe.layout import Layout
from planner.describe.machine import Machine

__all__ = ["AxisTraffic", "step_traffic"]


_KINDS = {"cp": ("ring", "heads"), "dp": ("data", "second_shard")}
"""Groups of several kinds in which the ranks of an axis communicate."""


@dataclass(frozen=True, slots=True)
class AxisTraffic:
    """What one axis sends in one step, from the ranks of the stage that sends most."""

    device_bytes: float
    """Sent by each rank [B]."""
    inside_bytes: float
    """The part of it that stays on the node [B]."""
    node_bytes: float
    """Leaving one node, all its ranks together [B]."""


def step_traffic(scenario: Scenario, layout: Layout) -> dict[str, AxisTraffic]:
    """Bytes that each axis sends in one optimizer step, for axes of more than one rank.

    Counted: every collective of `planner.cost.step.communication` as a ring (each rank sends
    (n-1)/n of the buffer, twice that in an all-reduce), all-to-all and transfers between stages;
    hidden or not. Left out: gradient norms, metrics, headers of messages.
    method.md#traffic-per-axis-and-overlap.

    >>> model = load_model("gpt2-xl")
    >>> job = Scenario(model, load_machine("polaris"), Workload(), load_framework("ddp"))
    >>> sent = step_traffic(job, Layout(dp=8))["dp"]
    >>> round(sent.device_bytes / (2 * 7 / 8 * model.num_params), 2)  # fp32 gradients
    4.0
    >>> sent.node_bytes == sent.device_bytes                          # one ring passes through
    True
    """
    stages = Stages.candidates(scenario, Layouts.of(layout))
    every = {**_activations(stages), **_parameters(stages), "pipeline": _transfers(stages)}
    sent = {kind: shaped(figure, stages.shape) for kind, figure in every.items()}
    places = geometry(Layouts.of(layout).settled(scenario.framework))
    found = {}
    for axis, whole in AXES.items():
        kinds = _KINDS.get(axis, (whole,))
        total = np.ravel(sum(sent[kind] for kind in kinds))
        # experts that are split as the layers around them exchange nothing of their own
        if places[whole][0] == 1 or (axis == "etp" and not np.any(total)):
            continue
        most = np.argmax(total)
        parts = [
            _placed(kind, float(np.ravel(sent[kind])[most]), places[kind], scenario.machine)
            for kind in kinds
        ]
        found[axis] = AxisTraffic(
            sum(part.device_bytes for part in parts),
            sum(part.inside_bytes for part in parts),
            sum(part.node_bytes for part in parts),
        )
    return found


def _placed(kind: str, sent: float, place: tuple[Int, Int], machine: Machine) -> AxisTraffic:
    """What of a rank's bytes stays on the node, and what leaves a node with all groups of it."""
    size, stride = (int(figure) for figure in place)
    view = group_view(machine, size, stride)
    local, groups = float(view.local), machine.node.num_devices // float(view.local)
    if view.nodes == 1:
        return AxisTraffic(sent, sent, 0.0)
    if kind in ("expert", "heads"):
        # to every other rank alike
        inside = sent * (local - 1) / (size - 1)
        return AxisTraffic(sent, inside, groups * local * (sent - inside))
    # a ring or a chain leaves the node once, by its last rank there
    return AxisTraffic(sent, sent if local > 1 else 0.0, groups * sent)


def _activations(stages: Stages) -> dict[str, Float]:
    """Groups of the tensor, context and expert axes: the layers' own traffic, all micro-batches
    [B]."""
    scenario, groups = stages.scenario, Groups.unit(stages.layouts)
    kinds = ("tensor", "ring", "heads", "expert", "expert_tensor")
    sent = {kind: np.zeros(stages.shape) for kind in kinds}
    for block, count in zip(stages.blocks, stages.counts, strict=True):
        layouts = stages.seen_by(block)
        attends_again = layouts.attends_again(scenario.framework)
        ahead, back = tensor_s(scenario, block, layouts, groups)
        again = repeated_tensor_s(scenario, block, layouts, ahead)
        sent["tensor"] = sent["tensor"] + count * (ahead + back + again)
        for kind, traffic_s in (("ring", context_s), ("heads", heads_s)):
            ahead, back = traffic_s(scenario, block, layouts, groups)
            again = np.where(attends_again, ahead, 0.0)
            sent[kind] = sent[kind] + count * (ahead + back + again)
        if block.dispatch_top_k:
            for kind, exchange in (("expert", expert_s), ("expert_tensor", split_expert_s)):
                ahead, back = exchange(scenario, block, layouts, groups)
                again = np.where(layouts.exchanges_again, ahead, 0.0)
                sent[kind] = sent[kind] + count * (ahead + back + again)
    return {kind: stages.layouts.num_microbatches * one for kind, one in sent.items()}


def _parameters(stages: Stages) -> dict[str, Float]:
    """Data-parallel axis: gradients, and weights where they are sharded; of these what is gathered
    from fewer ranks apart [B]."""
    framework, layouts = stages.scenario.framework, stages.layouts
    traffic = data_traffic(stages, Groups.unit(layouts))
    # the rates of the groups are exact here: what slows gathering down moves no more bytes
    slowed = framework.communication.gather_fraction.value
    later = layouts.gathers_per_step(framework) - 1
    again = layouts.gathers_again_per_step(framework)
    kept = layouts.keeps_second_shards(framework)
    near = np.where(kept, later * traffic.before_later_forward_s, 0.0)
    near = slowed * (near + again * traffic.before_backward_s)
    far = traffic.before_forward_s + np.where(kept, 0.0, later * traffic.before_later_forward_s)
    reduced = traffic.gradients_s + traffic.after_backward_s * slowed
    reduced = layouts.reductions_per_step(framework) * reduced
    far = far + traffic.around_loss_s
    return {"data": slowed * far + traffic.parameters_s + reduced, "second_shard": near}


def _transfers(stages: Stages) -> Float:
    """Pipeline axis: a stage's activations forward and gradients back, every chunk [B]."""
    layouts = stages.layouts
    one = send_stage_s(stages.scenario, layouts, Groups.unit(layouts))
    return 2 * one * layouts.vpp * layouts.num_microbatches
