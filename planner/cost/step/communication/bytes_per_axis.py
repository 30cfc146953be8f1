"""Traffic: bytes that every axis of a layout sends in one step, per rank and per node."""

from dataclasses import dataclass

import numpy as np

from planner.cost.arrays import Float, Int, broadcast_to
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

_KINDS = {"cp": ("ring", "heads"), "dp": ("data", "second_shard")}
"""Axes whose ranks communicate in groups of several kinds."""


@dataclass(frozen=True, slots=True)
class AxisTraffic:
    """Bytes that one axis sends in one step, on the stage that sends most."""

    device_bytes: float
    """Sent by each rank [B]."""
    inside_bytes: float
    """Part of `device_bytes` that stays on the node [B]."""
    node_bytes: float
    """Bytes that leave one node, from all its ranks together [B]."""


def step_traffic(scenario: Scenario, layout: Layout) -> dict[str, AxisTraffic]:
    """Bytes that each axis sends in one optimizer step, for axes of more than one rank.

    Counted: every collective of `planner.cost.step.communication` as a ring (each rank sends
    (n-1)/n of the buffer, twice that in an all-reduce), all-to-all and transfers between stages;
    hidden or not. Left out: gradient norms, metrics, headers of messages.
    overlap.md#traffic-per-axis-and-overlap.
    """
    stages = Stages.candidates(scenario, Layouts.of(layout))
    kinds_sent = {**_activations(stages), **_parameters(stages), "pipeline": _transfers(stages)}
    sent = {kind: broadcast_to(figure, stages.shape) for kind, figure in kinds_sent.items()}
    places = geometry(Layouts.of(layout).with_default_etp(scenario.framework))
    traffic = {}
    for axis, group in AXES.items():
        kinds = _KINDS.get(axis, (group,))
        total = np.ravel(sum(sent[kind] for kind in kinds))
        # experts split like the layers around them have no collectives of their own
        if places[group][0] == 1 or (axis == "etp" and not np.any(total)):
            continue
        most = np.argmax(total)
        parts = [
            _placed(kind, float(np.ravel(sent[kind])[most]), places[kind], scenario.machine)
            for kind in kinds
        ]
        traffic[axis] = AxisTraffic(
            sum(part.device_bytes for part in parts),
            sum(part.inside_bytes for part in parts),
            sum(part.node_bytes for part in parts),
        )
    return traffic


def _placed(kind: str, sent: float, place: tuple[Int, Int], machine: Machine) -> AxisTraffic:
    """Split a rank's bytes into those that stay on the node and those that leave it."""
    size, stride = (int(figure) for figure in place)
    view = group_view(machine, size, stride)
    local, groups = float(view.local), machine.node.num_devices // float(view.local)
    if view.nodes == 1:
        return AxisTraffic(sent, sent, 0.0)
    if kind in ("expert", "heads"):
        # the same amount to every other rank
        inside = sent * (local - 1) / (size - 1)
        return AxisTraffic(sent, inside, groups * local * (sent - inside))
    # a ring or a chain leaves the node once, by its last rank there
    return AxisTraffic(sent, sent if local > 1 else 0.0, groups * sent)


def _activations(stages: Stages) -> dict[str, Float]:
    """Bytes of layers in a step, by kind of group of tensor, context and expert axes [B]."""
    scenario, groups = stages.scenario, Groups.unit(stages.layouts)
    kinds = ("tensor", "ring", "heads", "expert", "expert_tensor")
    sent = {kind: np.zeros(stages.shape) for kind in kinds}
    for block, count in zip(stages.blocks, stages.counts, strict=True):
        layouts = stages.layouts_of_block(block)
        recomputes_attention = layouts.recomputes_attention(scenario.framework)
        forward, backward = tensor_s(scenario, block, layouts, groups)
        recomputed = repeated_tensor_s(scenario, block, layouts, forward)
        sent["tensor"] = sent["tensor"] + count * (forward + backward + recomputed)
        for kind, traffic_s in (("ring", context_s), ("heads", heads_s)):
            forward, backward = traffic_s(scenario, block, layouts, groups)
            recomputed = np.where(recomputes_attention, forward, 0.0)
            sent[kind] = sent[kind] + count * (forward + backward + recomputed)
        if block.dispatch_top_k:
            for kind, exchange in (("expert", expert_s), ("expert_tensor", split_expert_s)):
                forward, backward = exchange(scenario, block, layouts, groups)
                recomputed = np.where(layouts.repeats_dispatch, forward, 0.0)
                sent[kind] = sent[kind] + count * (forward + backward + recomputed)
    return {
        kind: stages.layouts.num_microbatches * per_micro_batch
        for kind, per_micro_batch in sent.items()
    }


def _parameters(stages: Stages) -> dict[str, Float]:
    """Bytes of gradients and sharded weights in a step; `second_shard` gathers separate [B]."""
    framework, layouts = stages.scenario.framework, stages.layouts
    traffic = data_traffic(stages, Groups.unit(layouts))
    # undo the slowdown of gathers, which moves no additional bytes
    slowed = framework.communication.gather_fraction.value
    later = layouts.gathers_per_step(framework) - 1
    backward_gathers = layouts.backward_gathers_per_step(framework)
    stays_sharded = layouts.keeps_second_shards(framework)
    second_shard = np.where(stays_sharded, later * traffic.before_later_forward_s, 0.0)
    second_shard = slowed * (second_shard + backward_gathers * traffic.before_backward_s)
    first_shard = traffic.before_forward_s + np.where(
        stays_sharded, 0.0, later * traffic.before_later_forward_s
    )
    reduced = traffic.gradients_s + traffic.after_backward_s * slowed
    reduced = layouts.reductions_per_step(framework) * reduced
    first_shard = first_shard + traffic.around_loss_s
    return {
        "data": slowed * first_shard + traffic.parameters_s + reduced,
        "second_shard": second_shard,
    }


def _transfers(stages: Stages) -> Float:
    """Bytes of a stage's pipeline transfers in a step: activations and gradients [B]."""
    layouts = stages.layouts
    transfer = send_stage_s(stages.scenario, layouts, Groups.unit(layouts))
    return 2 * transfer * layouts.vpp * layouts.num_microbatches
