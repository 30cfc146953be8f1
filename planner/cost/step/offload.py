"""Offload: time of host transfers, of the optimizer on the CPU, and of NVMe.

The host link is shared by the ranks of a node as the profile's `host_link_bytes_per_s` says
(all ranks active); host memory and disks are shared by the whole node.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from planner.cost.shards.layouts import Layouts
from planner.cost.shards.states import OPTIMIZER_BYTES, StageState
from planner.describe.framework import Framework
from planner.describe.layout import OFFLOAD
from planner.describe.machine import Machine
from planner.describe.workload import Workload

__all__ = ["device_optimizer_s", "offload_step_s", "parameter_transfer_s"]

Float = NDArray[np.float64]

_NONE, _OPT_CPU, _OPT_NVME, _ALL_CPU, _ALL_NVME = range(len(OFFLOAD))


def _update_bytes(workload: Workload, framework: Framework) -> float:
    """Bytes read and written per parameter by one optimizer update [B/parameter].

    Read gradient, fp32 copy and states; write copy, states and the 16-bit weight.
    """
    size = framework.states(workload.precision)
    states = size.master_bytes + OPTIMIZER_BYTES[workload.optimizer]
    master = size.master_bytes or size.weight_bytes
    kept = states if size.master_bytes else states + master
    return size.gradient_bytes + 2 * kept + (size.weight_bytes if size.master_bytes else 0.0)


def device_optimizer_s(
    state: StageState, layouts: Layouts, machine: Machine, workload: Workload, framework: Framework
) -> Float:
    """Optimizer step and gradient norm on the device, from its memory bandwidth [s]."""
    rate = machine.device.memory_bytes_per_s.value * machine.device.memory_efficiency.value
    size = framework.states(workload.precision)
    updated = np.where(layouts.zero_stage >= 1, state.trainable_owned, state.trainable)
    passes = 1.0 if framework.kernels.fused_optimizer else 2.5
    moved = updated * (_update_bytes(workload, framework) * passes + size.gradient_bytes)
    return np.where(layouts.offload == _NONE, moved / rate, 0.0)


def offload_step_s(
    state: StageState, layouts: Layouts, machine: Machine, workload: Workload, framework: Framework
) -> Float:
    """Optimizer step off the device: gradients down, update on the CPU, weights up [s].

    Ren et al. 2021 (ZeRO-Offload, arXiv:2101.06840); with NVMe every state is read and written
    once per step (Rajbhandari et al. 2021, ZeRO-Infinity, arXiv:2104.07857).
    """
    node = machine.node
    per_node = np.minimum(node.num_devices, layouts.world)
    size = framework.states(workload.precision)
    owned = state.trainable_owned
    link = node.host_link_bytes_per_s.value
    transfers = owned * (size.gradient_bytes + workload.compute_bytes) / link
    update = per_node * owned * _update_bytes(workload, framework)
    on_cpu = update / node.host_memory_bytes_per_s.value
    states = per_node * owned * (size.master_bytes + OPTIMIZER_BYTES[workload.optimizer])
    disk = node.local_disk
    if disk is not None:
        on_disk = states / disk.read_bytes_per_s.value + states / disk.write_bytes_per_s.value
    else:
        on_disk = np.full_like(states, np.inf)
    swapped = np.where(
        (layouts.offload == _OPT_NVME) | (layouts.offload == _ALL_NVME), on_disk, 0.0
    )
    return np.where(layouts.offload > _NONE, transfers + np.maximum(on_cpu, swapped), 0.0)


def parameter_transfer_s(
    state: StageState, layouts: Layouts, machine: Machine, workload: Workload
) -> Float:
    """Bringing a rank's share of the parameters up once, before it is gathered [s]."""
    node = machine.node
    size = state.owned * float(workload.compute_bytes)
    link = size / node.host_link_bytes_per_s.value
    per_node = np.minimum(node.num_devices, layouts.world)
    disk = node.local_disk
    read = per_node * size / disk.read_bytes_per_s.value if disk else np.full_like(size, np.inf)
    transfer = np.where(layouts.offload == _ALL_NVME, np.maximum(link, read), link)
    return np.where(layouts.offload >= _ALL_CPU, transfer, 0.0)
