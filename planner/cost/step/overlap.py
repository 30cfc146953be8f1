"""Overlap: exposed time of data-parallel and parameter traffic in a step."""

from dataclasses import dataclass

import numpy as np

from planner.cost.arrays import Arrays, Float, is_in
from planner.cost.shards.stages import Stages
from planner.cost.step.communication.data_parallel import DataTraffic
from planner.cost.step.optimizer import offload_pass_s


@dataclass(frozen=True, slots=True)
class Exposed(Arrays):
    """Exposed data-parallel and parameter traffic of a step [s]."""

    gradients_s: Float
    """Reduction of gradients (ZeRO-0 to 2)."""
    updates_s: Float
    """Gathering updated weights (ZeRO-1 and 2)."""
    gather_s: Float
    """Weight gathers (ZeRO-3, or FSDP units below it), gradient reductions (ZeRO-3), quantising."""
    offload_s: Float
    """Transfers of offloaded weights to the device, and of gradients to the host."""
    before_forward_s: Float
    """Weight gathering that the first forward pass of a step waits for."""
    before_later_forward_s: Float
    """Weight gathering that each later forward pass waits for."""
    around_backward_s: Float
    """Weight gathering and gradient reduction that each backward pass waits for."""


def exposed_traffic(
    stages: Stages, traffic: DataTraffic, forward_s: Float, backward_s: Float
) -> Exposed:
    """Exposed data-parallel traffic of a stage, given one micro-batch's computation [s].

    Counted: traffic that computation cannot hide, contention of hidden traffic, half a cycle of a
    thread that polls for gradients, quantising. Left out: traffic of layers and between stages,
    agreement of ranks before they reduce. overlap.md#traffic-per-axis-and-overlap.
    """
    layouts, framework = stages.layouts, stages.scenario.framework
    rules, m = framework.communication, layouts.num_microbatches
    reductions = layouts.reductions_per_step(framework)
    unhidden, contention = stages.of_states(_unhidden_shares), rules.contention.value
    first = unhidden.first
    # a pipeline that reduces once per step: one m-th of it per micro-batch
    reduced = traffic.after_backward_s * np.where(layouts.shards_weights, reductions, m) / m
    backward_gathers = layouts.backward_gathers_per_step(framework) / m
    around_backward = traffic.before_backward_s * backward_gathers + reduced
    ahead = _behind(traffic.before_forward_s, forward_s, first, contention)
    later = _behind(traffic.before_later_forward_s, forward_s, first, contention)
    gathers = layouts.gathers_per_step(framework)
    back = _behind(around_backward, backward_s, first, contention)
    if not (framework.offloading.overlap_weights and framework.offloading.pinned):
        # the host awaits each copy to the device, and with it the gather queued before it
        awaits, reducing = layouts.offloads_weights, _behind(reduced, backward_s, first, contention)
        ahead = np.where(awaits, traffic.before_forward_s, ahead)
        later = np.where(awaits, traffic.before_later_forward_s, later)
        back = np.where(awaits, around_backward - reduced + reducing, back)
    updates = traffic.parameters_s
    if rules.overlap_parameters:
        updates = np.maximum(updates - forward_s, 0.0)
    busy_ahead = np.maximum(traffic.before_forward_s, forward_s)
    busy_back = np.maximum(around_backward, backward_s)
    gather_s = ahead + (gathers - 1) * later + m * back + traffic.around_loss_s
    return Exposed(
        gradients_s=reductions * _gradients(stages, unhidden.last, traffic.gradients_s, backward_s),
        updates_s=updates,
        gather_s=gather_s + _quantising_s(stages),
        offload_s=m * offload_pass_s(stages, busy_ahead, busy_back),
        before_forward_s=ahead,
        before_later_forward_s=later,
        around_backward_s=back,
    )


@dataclass(frozen=True, slots=True)
class _UnhiddenShares(Arrays):
    """Shares of a stage's traffic that no computation can hide [1]."""

    first: Float
    """Weights of the first layer, gathered before computation starts."""
    last: Float
    """Last bucket of gradients, reduced after the backward pass ends."""


def _unhidden_shares(stages: Stages) -> _UnhiddenShares:
    params = stages.params
    bucket = stages.scenario.framework.buffers.reduce_bucket_elements or params.largest_layer
    return _UnhiddenShares(
        np.minimum(params.largest_layer / np.maximum(params.unsharded, 1), 1.0),
        np.minimum(bucket / np.maximum(params.trainable, 1), 1.0),
    )


def _quantising_s(stages: Stages) -> Float:
    """Device time to quantise and dequantise ZeRO++ weights and gradients in a step [s]."""
    scenario, layouts = stages.scenario, stages.layouts
    rules, framework = scenario.framework.communication, scenario.framework
    if not (rules.gather_bytes or rules.scatter_bytes):
        return np.zeros(())
    device, element = scenario.machine.device, float(scenario.workload.compute_bytes)
    # weights are read narrow and written wide; gradients read wide, written and read narrow
    weights = stages.params.unsharded * (rules.gather_bytes + element) * bool(rules.gather_bytes)
    reduced = stages.params.trainable * (stages.states.reduce_bytes + 2 * rules.scatter_bytes)
    gathers = layouts.gathers_per_step(framework) + layouts.backward_gathers_per_step(framework)
    moved = gathers * weights
    moved = moved + layouts.reductions_per_step(framework) * reduced * bool(rules.scatter_bytes)
    rate = device.memory_bytes_per_s.value * device.memory_efficiency.value
    return np.where(layouts.shards_weights & (layouts.num_shards > 1), moved / rate, 0.0)


def _gradients(stages: Stages, tail: Float, traffic_s: Float, backward_s: Float) -> Float:
    """Exposed time of one gradient reduction [s]."""
    framework = stages.scenario.framework
    rules, contention = framework.reduction, framework.communication.contention.value
    # on average the last gradient waits half a polling cycle
    awaited = np.where(traffic_s > 0, 0.5 * rules.cycle_s, 0.0)
    if not framework.communication.overlap_gradients:
        return traffic_s + awaited
    hidden = backward_s * (1 - tail)
    left = np.maximum(traffic_s - hidden, traffic_s * tail)
    behind = left + contention * np.minimum(traffic_s, hidden)
    after = is_in(stages.layouts.zero_stage, rules.after_backward)
    return np.where(after, traffic_s, behind) + awaited


def _behind(traffic_s: Float, compute_s: Float, first: Float, contention: float) -> Float:
    """Exposed time of traffic prefetched layer by layer [s]."""
    left = np.maximum(traffic_s - compute_s, traffic_s * first)
    return left + contention * np.minimum(traffic_s, compute_s)
