"""Offload: time of host transfers, of the optimizer on the CPU, and of NVMe.

The host link is shared by the ranks of a node as the profile's `host_link_bytes_per_s` says
(all ranks active); host memory and disks are shared by the whole node.
"""

from __future__ import annotations

import numpy as np

from planner.cost.arrays import Float
from planner.cost.shards.stages import Stages
from planner.cost.shards.states import OPTIMIZER_BYTES
from planner.cost.step.optimizer import update_bytes

__all__ = ["offload_step_s", "parameter_transfer_s"]


def offload_step_s(stages: Stages) -> Float:
    """Optimizer step off the device: gradients down, update on the CPU, weights up [s].

    Counted: transfers over the host link, then the slower of host memory and NVMe, where every
    state is read and written once. Left out: the CPU's arithmetic, NUMA, a delayed update. Ren et
    al. 2021 (ZeRO-Offload, arXiv:2101.06840); Rajbhandari et al. 2021 (ZeRO-Infinity,
    arXiv:2104.07857).

    >>> from planner import Layout, Workload, load_framework, load_machine, load_model
    >>> from planner.describe.question import Question
    >>> model, machine = load_model("gpt2-xl"), load_machine("polaris")
    >>> job = Question(model, machine, Workload(), load_framework("deepspeed"))
    >>> layout = Layout(dp=4, zero_stage=2, offload="optimizer-cpu")
    >>> round(offload_step_s(Stages.every(job, layout)).item(), 3)
    0.275
    >>> round(model.num_params * ((2 + 2) / 4 / 25e9 + (2 + 2 * 12 + 2) / 204.8e9), 3)
    0.275
    """
    workload, node = stages.question.workload, stages.question.machine.node
    layouts, size = stages.layouts, stages.states
    per_node = np.minimum(node.num_devices, layouts.world)
    owned = stages.params.trainable_sharded
    link = node.host_link_bytes_per_s.value
    transfers = owned * (size.gradient_bytes + workload.compute_bytes) / link
    update = per_node * owned * update_bytes(stages)
    on_cpu = update / node.host_memory_bytes_per_s.value
    states = per_node * owned * (size.master_bytes + OPTIMIZER_BYTES[workload.optimizer])
    disk = node.local_disk
    if disk is not None:
        on_disk = states / disk.read_bytes_per_s.value + states / disk.write_bytes_per_s.value
    else:
        on_disk = np.full_like(states, np.inf)
    swapped = np.where(layouts.states_on_disk, on_disk, 0.0)
    return np.where(layouts.keeps_states, 0.0, transfers + np.maximum(on_cpu, swapped))


def parameter_transfer_s(stages: Stages) -> Float:
    """Bringing a rank's share of the parameters up once, before it is gathered [s].

    Counted: the slower of the host link and, for weights on disk, the node's disk, which its ranks
    share. Left out: overlap with computation. Rajbhandari et al. 2021, arXiv:2104.07857;
    method.md#host-memory-loading-offload.

    >>> from planner import Layout, Workload, load_framework, load_machine, load_model
    >>> from planner.describe.question import Question
    >>> model, machine = load_model("gpt2-xl"), load_machine("polaris")
    >>> job = Question(model, machine, Workload(), load_framework("deepspeed"))
    >>> layout = Layout(dp=4, zero_stage=3, offload="all-cpu")
    >>> round(parameter_transfer_s(Stages.every(job, layout)).item(), 4)    # a fourth at 25 GB/s
    0.0312
    """
    layouts, node = stages.layouts, stages.question.machine.node
    size = stages.params.sharded * float(stages.question.workload.compute_bytes)
    link = size / node.host_link_bytes_per_s.value
    per_node = np.minimum(node.num_devices, layouts.world)
    disk = node.local_disk
    read = per_node * size / disk.read_bytes_per_s.value if disk else np.full_like(size, np.inf)
    transfer = np.where(layouts.weights_on_disk, np.maximum(link, read), link)
    return np.where(layouts.offloads_weights, transfer, 0.0)
