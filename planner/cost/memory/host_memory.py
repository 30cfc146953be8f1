"""Host memory: bytes per node for processes, loading, offloaded states; bytes on the disk."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from planner.cost.arrays import Arrays, Float, broadcast_to
from planner.cost.memory.activations import stage_activations
from planner.cost.memory.weights import resident
from planner.cost.parts import HOST_PARTS
from planner.cost.shards.stages import Stages


def host_memory(stages: Stages, device_bytes: Float | float = 0.0) -> dict[str, Float]:
    """Host memory per node by part, at the larger of checkpoint loading and training step [B].

    `stages`: the first of each layout; `device_bytes`: device memory of a rank, if the device uses
    host memory. Counted: a process per rank; a full checkpoint per rank if the framework reads it
    whole, rank by rank or in shards if these exceed the node; offloaded states, gradients, weights
    and activations; pinned buffers for disk offload. Left out: page cache, data loaders, rounding
    of torch's host allocator. Ren et al. 2021, arXiv:2101.06840;
    offload.md#host-memory-loading-offload.
    """
    load, step = host_memory_phases(stages, device_bytes)
    loading = sum(load.values()) > sum(step.values())
    return {name: np.where(loading, load[name], step[name]) for name in HOST_PARTS}


def host_memory_phases(
    stages: Stages, device_bytes: Float | float = 0.0
) -> tuple[dict[str, Float], dict[str, Float]]:
    """Host memory per node by part, during checkpoint loading and during a training step [B].

    Counted: as in `host_memory`. Left out: as there. offload.md#host-memory-loading-offload.
    """
    device = stages.scenario.machine.device
    # with shared memory the profile's device context already counts the process
    process = stages.scenario.framework.buffers.host_process_bytes.value
    node, layouts = stages.of_states(_node), stages.layouts
    per_node, activations = _ranks_per_node(stages), np.zeros(())
    if np.any(layouts.offloads_activations):
        activations = per_node * stage_activations(stages).offloaded
    processes = per_node * (0.0 if device.uses_host_memory else process)
    # during checkpoint loading the devices hold only weights
    weights = np.minimum(node.weights, device_bytes)
    load = {
        "processes": processes,
        "checkpoint_load": node.load,
        "device_memory": per_node * weights,
    }
    step = {
        "processes": processes,
        "offloaded_states": node.offloaded,
        "offloaded_activations": activations,
        "pinned_buffers": node.pinned,
        "device_memory": per_node * device_bytes,
    }
    return _spread(load, stages.shape), _spread(step, stages.shape)


def _spread(parts: Mapping[str, Float | float], shape: tuple[int, ...]) -> dict[str, Float]:
    """Broadcast the parts in the order of HOST_PARTS; missing parts are 0."""
    return {name: broadcast_to(parts.get(name, 0.0), shape) for name in HOST_PARTS}


@dataclass(frozen=True, slots=True)
class _Node(Arrays):
    """Host memory of a node that does not depend on activations [B]."""

    offloaded: Float
    """Offloaded states, gradients and weights of all ranks."""
    pinned: Float
    weights: Float
    """Weights of one rank on its device, if the device uses host memory; else 0."""
    load: Float
    """Checkpoint data during loading."""


def _node(stages: Stages) -> _Node:
    layouts, per_node = stages.layouts, _ranks_per_node(stages)
    on_disk = layouts.states_on_disk | layouts.weights_on_disk
    pinned = np.where(on_disk, stages.scenario.framework.offloading.swap_buffer_bytes, 0.0)
    shared = stages.scenario.machine.device.uses_host_memory
    return _Node(
        offloaded=per_node * _offloaded_bytes(stages),
        pinned=per_node * pinned,
        weights=resident(stages).weights if shared else np.zeros(stages.shape),
        load=_load_bytes(stages),
    )


def _offloaded_bytes(stages: Stages) -> Float:
    """Host bytes of a rank's offloaded states, gradients and weights [B]."""
    layouts, owned = stages.layouts, stages.params.trainable_sharded
    framework = stages.scenario.framework
    moves, element = framework.offloading, float(stages.scenario.workload.compute_bytes)
    # gradient sums over passes, and below ZeRO-3 a buffer to upload weights
    summed = layouts.shards_weights | (layouts.num_microbatches > 1)
    gradients = owned * np.where(summed, stages.states.gradient_bytes, 0.0)
    buffer = owned * np.where(layouts.shards_weights, 0.0, element)
    offloaded = np.where(layouts.keeps_states, 0.0, gradients + buffer)
    states = stages.optimizer_state_bytes + owned * moves.step_gradient_bytes
    offloaded = offloaded + np.where(layouts.states_on_host, states, 0.0) + stages.paged_bytes
    weights = stages.weight_shard_bytes * moves.weight_copies
    return offloaded + np.where(layouts.weights_on_host, weights, 0.0)


def _ranks_per_node(stages: Stages) -> Float:
    return np.minimum(stages.scenario.machine.node.num_devices, stages.layouts.world)


def _load_bytes(stages: Stages) -> Float:
    """Checkpoint bytes in host memory per node during loading [B]."""
    scenario, params, per_node = stages.scenario, stages.params, _ranks_per_node(stages)
    framework, element = scenario.framework, float(scenario.workload.compute_bytes)
    shards = per_node * params.unsharded * element
    # a rank reads only what it will hold: under ZeRO-3 its shard
    shard_bytes = np.where(
        stages.layouts.shards_weights, per_node * params.sharded * element, shards
    )
    if not framework.loads_full_checkpoint:
        return shard_bytes
    num_params = sum(block.count * block.num_params for block in stages.blocks)
    full_checkpoints = per_node * num_params * element
    processes = per_node * framework.buffers.host_process_bytes.value
    room = scenario.machine.node.host_memory_bytes.value - processes
    one_checkpoint = np.minimum(num_params * element, shards)
    # zero.Init shards each parameter at creation, or sends it to the disk
    initialised = np.where(stages.layouts.weights_on_disk, 0.0, shard_bytes)
    return np.where(
        full_checkpoints <= room,
        full_checkpoints,
        np.where(one_checkpoint <= room, one_checkpoint, initialised),
    )


def disk_bytes(stages: Stages) -> Float:
    """Bytes on the node's local disk: swapped states and gradients, weights with full offload [B].

    `stages`: the first stage of each layout. Counted: data that all ranks of a node swap. Left out:
    checkpoints and data sets. Rajbhandari et al. 2021, arXiv:2104.07857.
    """
    if not np.any(stages.layouts.states_on_disk | stages.layouts.weights_on_disk):
        return np.zeros(stages.shape)
    layouts = stages.layouts
    gradients = stages.scenario.framework.offloading.step_gradient_bytes
    states = stages.optimizer_state_bytes + stages.params.trainable_sharded * gradients
    swapped = np.where(layouts.states_on_disk, states, 0.0)
    swapped = swapped + np.where(layouts.weights_on_disk, stages.weight_shard_bytes, 0.0)
    return _ranks_per_node(stages) * swapped
