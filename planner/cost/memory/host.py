"""Host memory: bytes per node for processes, loading, offloaded states; and node-local disk."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from planner.cost.shards.layouts import Layouts
from planner.cost.shards.states import StageState, optimizer_state_bytes, stage_state
from planner.describe.framework import Framework
from planner.describe.layout import OFFLOAD
from planner.describe.machine import Machine
from planner.describe.model.block import Block
from planner.describe.workload import Workload

__all__ = ["disk_bytes", "host_memory"]

Float = NDArray[np.float64]

_NONE, _OPT_CPU, _OPT_NVME, _ALL_CPU, _ALL_NVME = range(len(OFFLOAD))


def host_memory(
    blocks: tuple[Block, ...],
    layouts: Layouts,
    machine: Machine,
    workload: Workload,
    framework: Framework,
) -> dict[str, Float]:
    """Bytes of host memory per node, by part, at the worse of loading and stepping [B].

    Counted: one process per rank; a checkpoint per rank where the framework reads it whole;
    offloaded states, gradients and parameters; pinned buffers. Left out: the page cache and
    data loader workers' own data. Where whole checkpoints exceed the node, loading rank by
    rank is taken instead.
    """
    per_node = np.minimum(machine.node.num_devices, layouts.world)
    state = stage_state(blocks, layouts, np.asarray(0), workload, framework)
    size, offload = framework.states(workload.precision), layouts.offload
    processes = per_node * framework.buffers.host_process_bytes.value
    load = _load_bytes(blocks, state, layouts, machine, workload, framework)
    states = optimizer_state_bytes(state, layouts, workload, framework)
    on_cpu = (offload == _OPT_CPU) | (offload == _ALL_CPU)
    # the optimizer's share of the gradients lies beside its states, in fp32
    moved = np.where(on_cpu, states + 4.0 * state.trainable_owned, 0.0)
    moved = moved + np.where(offload == _ALL_CPU, state.owned * size.sharded_weight_bytes, 0.0)
    pinned = np.where(offload > _NONE, framework.buffers.pinned_host_bytes, 0.0)
    step = per_node * (moved + pinned)
    loading = load > step
    return {
        "processes": processes + np.zeros_like(step),
        "checkpoint_load": np.where(loading, load, 0.0),
        "offloaded_states": np.where(loading, 0.0, per_node * moved),
        "pinned_buffers": np.where(loading, 0.0, per_node * pinned),
    }


def _load_bytes(
    blocks: tuple[Block, ...],
    state: StageState,
    layouts: Layouts,
    machine: Machine,
    workload: Workload,
    framework: Framework,
) -> Float:
    """Host bytes per node while a checkpoint is loaded."""
    per_node = np.minimum(machine.node.num_devices, layouts.world)
    element = float(workload.compute_bytes)
    shards = per_node * state.whole * element
    if not framework.loads_full_checkpoint:
        # a rank reads what it will hold, which under ZeRO-3 is its shard
        return np.where(layouts.zero_stage >= 3, per_node * state.owned * element, shards)
    params = sum(block.count * block.num_params for block in blocks)
    whole = per_node * params * element
    processes = per_node * framework.buffers.host_process_bytes.value
    room = machine.node.host_memory_bytes.value - processes
    return np.where(whole <= room, whole, np.minimum(params * element, shards))


def disk_bytes(
    blocks: tuple[Block, ...],
    layouts: Layouts,
    machine: Machine,
    workload: Workload,
    framework: Framework,
) -> Float:
    """Bytes on the node's local disk: swapped states, and parameters with full offload [B]."""
    size, offload = framework.states(workload.precision), layouts.offload
    if not np.any((offload == _OPT_NVME) | (offload == _ALL_NVME)):
        return np.zeros(np.shape(offload))
    per_node = np.minimum(machine.node.num_devices, layouts.world)
    state = stage_state(blocks, layouts, np.asarray(0), workload, framework)
    states = optimizer_state_bytes(state, layouts, workload, framework)
    swapped = np.where((offload == _OPT_NVME) | (offload == _ALL_NVME), states, 0.0)
    swapped = swapped + np.where(offload == _ALL_NVME, state.owned * size.sharded_weight_bytes, 0.0)
    return per_node * swapped
