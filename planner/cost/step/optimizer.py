"""Optimizer: its update on the device, or on the host with transfers and NVMe."""

import numpy as np

from planner.cost.arrays import Float
from planner.cost.constants import step_constants
from planner.cost.memory.activations import moved_bytes
from planner.cost.shards.optimizers import moment_bytes
from planner.cost.shards.stages import Stages


def update_bytes(stages: Stages) -> float:
    """Bytes read and written per parameter by one optimizer update [B/parameter].

    Counted: reads of gradient, fp32 copy and states; writes of copy, states and 16-bit weight. Left
    out: the norm of the gradients. compute.md#optimizer.
    """
    size = stages.states
    states = size.master_bytes + moment_bytes(stages.scenario.workload.optimizer, size)
    master = size.master_bytes or size.weight_bytes
    updated = states if size.master_bytes else states + master
    return size.gradient_bytes + 2 * updated + (size.weight_bytes if size.master_bytes else 0.0)


def device_optimizer_s(stages: Stages) -> Float:
    """Optimizer step and gradient norm on the device, at its memory bandwidth [s].

    Counted: gradient, weight and states of every updated parameter, moved once by a fused optimizer
    and `unfused_passes` times by others; one read of the gradients for the norm. Left out: Muon's
    matrix products. compute.md#optimizer.
    """
    device = stages.scenario.machine.device
    rate = device.memory_bytes_per_s.value * device.memory_efficiency.value
    kernels = stages.scenario.framework.kernels
    passes = 1.0 if kernels.fused_optimizer else step_constants().optimizer.unfused_passes.value
    # an update inside backward leaves no gradients for a norm
    norm = 0.0 if kernels.optimizer_in_backward else stages.states.gradient_bytes
    moved = stages.updated * (update_bytes(stages) * passes + norm)
    return np.where(stages.layouts.keeps_states, moved / rate, 0.0)


def host_update_bytes(stages: Stages) -> float:
    """Host memory traffic per parameter in one update [B/parameter].

    Counted: reads of fp32 gradient, copy and states, writes of copy and states; unscaling, clipping
    and the 16-bit copy if they are separate; further passes if the optimizer is not fused. Left
    out: caches. Ren et al. 2021, arXiv:2101.06840, section 5.1; compute.md#optimizer.
    """
    size, framework = stages.states, stages.scenario.framework
    updated = (size.master_bytes or size.weight_bytes) + _moments(stages)
    fused = framework.kernels.fused_optimizer and framework.offloading.fused_update
    passes = 1.0 if fused else step_constants().optimizer.unfused_passes.value
    return (4.0 + 2 * updated) * passes + framework.offloading.step_host_bytes


def _moments(stages: Stages) -> float:
    return moment_bytes(stages.scenario.workload.optimizer, stages.states)


def host_copy_s(stages: Stages, size: Float) -> Float:
    """Time to copy `size` bytes of a rank over the host link [s].

    Counted: the link's rate; of pageable memory first the staging copy. Left out: NUMA, ranks that
    fill the host's memory bandwidth. offload.md#copies-between-device-and-host.
    """
    link = size / stages.scenario.machine.node.host_link_bytes_per_s.value
    staging = step_constants().optimizer.staging_bytes_per_s.value
    return link if stages.scenario.framework.offloading.pinned else link + size / staging


def offload_step_s(stages: Stages) -> Float:
    """Offloaded optimizer step: update on the CPU, then upload of weights [s].

    Counted: host memory traffic at the fraction of its peak that Adam was measured to reach, less
    if ranks share cores; disk reads and writes of gradients and states, once each; upload of
    weights that live on the device. Left out: NUMA, a delayed update, reading ahead. Ren et al.
    2021 (ZeRO-Offload, arXiv:2101.06840); Rajbhandari et al. 2021 (arXiv:2104.07857).
    """
    workload, node = stages.scenario.workload, stages.scenario.machine.node
    layouts, size = stages.layouts, stages.states
    per_node = np.minimum(node.num_devices, layouts.world)
    owned = stages.params.trainable_sharded
    returned = host_copy_s(stages, owned * workload.compute_bytes)
    constants, moves = step_constants().optimizer, stages.scenario.framework.offloading
    rate = node.host_memory_bytes_per_s.value * constants.host_fraction.value
    shares = (per_node > 1) & (not moves.bound)
    rates = rate * np.where(shares, constants.unbound_fraction.value, 1.0)
    on_cpu = per_node * owned * host_update_bytes(stages) / rates
    states = per_node * owned * (size.master_bytes + _moments(stages) + moves.step_gradient_bytes)
    on_disk = np.full_like(states, np.inf)
    if disk := node.local_disk:
        on_disk = states / disk.read_bytes_per_s.value + states / disk.write_bytes_per_s.value
    swapped = np.where(layouts.states_on_disk, on_disk, 0.0)
    returned = np.where(layouts.offloads_weights, 0.0, returned)
    return np.where(layouts.keeps_states, 0.0, returned + on_cpu + swapped)


def gradient_transfer_s(stages: Stages) -> Float:
    """Gradient transfers of one pass: to the host, and back for accumulation [s].

    Counted: every pass if gradients accumulate or weights are sharded; fp32 gradients of the last
    pass, spread over all. Left out: overlap with backward; accumulation on the CPU (FSDP2).
    DeepSpeed 0.19.8, stage3.py: partition_grads; offload.md#host-memory-loading-offload.
    """
    layouts, moves = stages.layouts, stages.scenario.framework.offloading
    m = layouts.num_microbatches
    summed = layouts.shards_weights | (m > 1)
    size = np.where(summed, stages.states.gradient_bytes * moves.gradient_transfers, 0.0)
    size = stages.params.trainable_sharded * (size + moves.step_gradient_bytes / m)
    return np.where(layouts.keeps_states, 0.0, host_copy_s(stages, size))


def parameter_transfer_s(stages: Stages) -> Float:
    """Upload of a rank's parameter shard to the device, once, before it is gathered [s].

    Counted: weights in their stored format, fp32 if the optimizer's copy is the only one; launch
    and wait of each matrix's copy that the host awaits, each the host time of a kernel; the slower
    of the host link and, for weights on disk, the node's disk, which its ranks share. Left out:
    overlap with computation, vectors, which DeepSpeed keeps on the device. Rajbhandari et al. 2021,
    arXiv:2104.07857; offload.md#copies-between-device-and-host.
    """
    layouts, node = stages.layouts, stages.scenario.machine.node
    size = stages.weight_shard_bytes
    if not stages.states.sharded_weight_bytes:
        size = size + stages.params.trainable_sharded * stages.states.master_bytes
    framework, launch = stages.scenario.framework, stages.scenario.machine.device.launch_s.value
    waits = 0.0 if framework.offloading.overlap_weights else 2 * framework.host.dispatch_ratio.value
    counts = [np.asarray(sum(w.copies for w in b.weights if w.columns > 1)) for b in stages.blocks]
    link = host_copy_s(stages, size) + waits * launch * stages.total(counts)
    per_node = np.minimum(node.num_devices, layouts.world)
    disk = node.local_disk
    read = per_node * size / disk.read_bytes_per_s.value if disk else np.full_like(size, np.inf)
    transfer = np.where(layouts.weights_on_disk, np.maximum(link, read), link)
    return np.where(layouts.offloads_weights, transfer, 0.0)


def offload_pass_s(stages: Stages, forward_s: Float, backward_s: Float) -> Float:
    """Exposed transfers of one micro-batch, with passes of `forward_s` and `backward_s` [s].

    Counted: upload of weights before forward and backward, gradient transfers; activations down and
    up over the host link, all ranks of a node at once (torchtune 0.6,
    training/_activation_offloading.py); transfers that the framework overlaps hide behind the
    passes. Left out: kernels queued before an awaited copy. offload.md#host-memory-loading-offload.
    """
    moves = stages.scenario.framework.offloading
    fetch, sent = parameter_transfer_s(stages), gradient_transfer_s(stages)
    activation_transfer = host_copy_s(stages, moved_bytes(stages))
    # the host stages pageable memory itself, so that it launches nothing meanwhile
    hidden = np.where(moves.overlap_weights and moves.pinned, fetch, 0.0)
    behind = hidden + np.where(moves.overlap_gradients and moves.pinned, sent, 0.0)
    # activations use one direction of the link per pass: down in forward, up in backward
    overlapped = np.where(moves.overlap_activations, activation_transfer, 0.0)
    left = np.maximum(np.maximum(hidden, overlapped) - forward_s, 0.0)
    left = left + np.maximum(np.maximum(behind, hidden + overlapped) - backward_s, 0.0)
    return 2 * (fetch + activation_transfer - overlapped) + sent - hidden - behind + left
