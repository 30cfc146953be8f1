"""Optimizer: time of the device's update, from the bytes that it moves."""

from __future__ import annotations

import numpy as np

from planner.cost.arrays import Float
from planner.cost.shards.optimizers import moment_bytes
from planner.cost.shards.stages import Stages
from planner.cost.step.time_constants import constants

__all__ = ["device_optimizer_s", "update_bytes"]


def update_bytes(stages: Stages) -> float:
    """Bytes read and written per parameter by one optimizer update [B/parameter].

    Counted: read gradient, fp32 copy and states; write copy, states and the 16-bit weight. Left
    out: the norm of the gradients. method.md#optimizer.

    >>> scenario = make_scenario("gpt2")
    >>> update_bytes(Stages.of_pipeline(scenario, Layout()))       # 4 + 2 (4 + 8) + 2
    30.0
    """
    size = stages.states
    states = size.master_bytes + moment_bytes(stages.scenario.workload.optimizer, size)
    master = size.master_bytes or size.weight_bytes
    updated = states if size.master_bytes else states + master
    return size.gradient_bytes + 2 * updated + (size.weight_bytes if size.master_bytes else 0.0)


def device_optimizer_s(stages: Stages) -> Float:
    """Optimizer step and gradient norm on the device, from its memory bandwidth [s].

    Counted: gradient, weight and states of every updated parameter, moved once by a fused
    optimizer and more often by others; one read of the gradients for the norm. Left out: Muon's
    matrix products. method.md#optimizer.

    >>> scenario = make_scenario("gpt2-xl")
    >>> round(device_optimizer_s(Stages.of_pipeline(scenario, Layout())).item(), 3)
    0.04
    >>> round((4 + 2 * 12 + 2 + 4) * scenario.model.num_params / (0.85 * 1.555e12), 3)
    0.04
    """
    device = stages.scenario.machine.device
    rate = device.memory_bytes_per_s.value * device.memory_efficiency.value
    kernels = stages.scenario.framework.kernels
    passes = 1.0 if kernels.fused_optimizer else constants().optimizer.unfused_passes.value
    # no norm of gradients that are gone
    norm = 0.0 if kernels.optimizer_in_backward else stages.states.gradient_bytes
    moved = stages.updated * (update_bytes(stages) * passes + norm)
    return np.where(stages.layouts.keeps_states, moved / rate, 0.0)
