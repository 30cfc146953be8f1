"""Host memory: bytes per node for processes, loading, offloaded states; and node-local disk."""

from __future__ import annotations

import numpy as np

from planner.cost.arrays import Float
from planner.cost.parts import HOST_PARTS, recorded
from planner.cost.shards.stages import Stages

__all__ = ["disk_bytes", "host_memory"]


def host_memory(stages: Stages) -> dict[str, Float]:
    """Bytes of host memory per node, by part, at the worse of loading and stepping [B].

    `stages` are the first of each layout. Counted: one process per rank; a checkpoint per rank
    where the framework reads it whole; offloaded states, gradients and parameters; pinned
    buffers. Left out: the page cache and data loader workers' own data. Where whole checkpoints
    exceed the node, loading rank by rank is taken instead. Ren et al. 2021, arXiv:2101.06840;
    method.md#host-memory-loading-offload.

    >>> from planner import Layout, Workload, load_framework, load_machine, load_model
    >>> from planner.describe.question import Question
    >>> model, machine = load_model("gpt2-xl"), load_machine("polaris")
    >>> job = Question(model, machine, Workload(), load_framework("deepspeed"))
    >>> stages = Stages.every(job, Layout(dp=4, zero_stage=2, offload="optimizer-cpu"))
    >>> host_memory(stages)["offloaded_states"].item() / model.num_params   # Adam 12, gradients 4
    16.0
    """
    layouts, params, buffers = stages.layouts, stages.params, stages.question.framework.buffers
    per_node = _ranks_per_node(stages)
    processes = per_node * buffers.host_process_bytes.value
    load = _load_bytes(stages)
    # the optimizer's share of the gradients lies beside its states, in fp32
    states = stages.optimizer_state_bytes + 4.0 * params.trainable_sharded
    moved = np.where(layouts.states_on_host, states, 0.0)
    moved = moved + np.where(layouts.weights_on_host, stages.weight_shard_bytes, 0.0)
    pinned = np.where(layouts.keeps_states, 0.0, buffers.pinned_host_bytes)
    step = per_node * (moved + pinned)
    loading = load > step
    found = {
        "processes": processes + np.zeros_like(step),
        "checkpoint_load": np.where(loading, load, 0.0),
        "offloaded_states": np.where(loading, 0.0, per_node * moved),
        "pinned_buffers": np.where(loading, 0.0, per_node * pinned),
    }
    return recorded(found, HOST_PARTS)


def _ranks_per_node(stages: Stages) -> Float:
    return np.minimum(stages.question.machine.node.num_devices, stages.layouts.world)


def _load_bytes(stages: Stages) -> Float:
    """Host bytes per node while a checkpoint is loaded."""
    question, params, per_node = stages.question, stages.params, _ranks_per_node(stages)
    framework, element = question.framework, float(question.workload.compute_bytes)
    shards = per_node * params.unsharded * element
    if not framework.loads_full_checkpoint:
        # a rank reads what it will hold, which under ZeRO-3 is its shard
        own = per_node * params.sharded * element
        return np.where(stages.layouts.shards_weights, own, shards)
    num_params = sum(block.count * block.num_params for block in stages.blocks)
    whole = per_node * num_params * element
    processes = per_node * framework.buffers.host_process_bytes.value
    room = question.machine.node.host_memory_bytes.value - processes
    return np.where(whole <= room, whole, np.minimum(num_params * element, shards))


def disk_bytes(stages: Stages) -> Float:
    """Bytes on the node's local disk: swapped states, and parameters with full offload [B].

    `stages` are the first of each layout. Counted: what all ranks of a node swap. Left out:
    checkpoints and data. Rajbhandari et al. 2021, arXiv:2104.07857;
    method.md#host-memory-loading-offload.

    >>> from planner import Layout, Workload, load_framework, load_machine, load_model
    >>> from planner.describe.question import Question
    >>> model, machine = load_model("gpt2-xl"), load_machine("polaris")
    >>> job = Question(model, machine, Workload(), load_framework("deepspeed"))
    >>> stages = Stages.every(job, Layout(dp=4, zero_stage=3, offload="all-nvme"))
    >>> disk_bytes(stages).item() / model.num_params        # Adam and its fp32 copy 12, weights 2
    14.0
    """
    layouts = stages.layouts
    swapped = np.where(layouts.states_on_disk, stages.optimizer_state_bytes, 0.0)
    swapped = swapped + np.where(layouts.weights_on_disk, stages.weight_shard_bytes, 0.0)
    return _ranks_per_node(stages) * swapped
