"""Checkpoints: how large they are, who writes them, and how long ranks wait."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from planner.cost.arrays import Arrays, Float, shaped
from planner.cost.network.collectives import all_gather_s
from planner.cost.network.rooted_collectives import broadcast_s
from planner.cost.network.topology import group_view
from planner.cost.operators.blocks import blocks_of
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.cost.shards.optimizers import moment_bytes
from planner.cost.shards.states import untied, without_frozen
from planner.describe.base import Description, Quantity
from planner.describe.files import read_toml
from planner.describe.machine import Machine
from planner.describe.model.block import Block
from planner.describe.training_run import Checkpoints, Loading
from planner.errors import DescriptionError

__all__ = [
    "Checkpoint",
    "CheckpointConstants",
    "bounds_s",
    "checkpoint_of",
    "constants",
    "loading_s",
    "moving_s",
    "nodes_of",
    "saved_bytes",
]


class CheckpointConstants(Description):
    """What one process writes and reads, whatever the storage."""

    writer_bytes_per_s: Quantity
    """What one process of torch.save writes [B/s]."""
    reader_bytes_per_s: Quantity
    """What one process reads [B/s]."""
    staging_s: Quantity
    """What an asynchronous checkpoint takes besides the copy to the host [s]."""
    behind_rank_s: Quantity
    """What each rank adds in the background: ranks agree on who writes what, and that it is done
    [s]."""


@functools.cache
def constants() -> CheckpointConstants:
    """The constants, with kind and source.

    >>> constants().writer_bytes_per_s.value
    700000000.0
    """
    found = read_toml(Path(__file__).with_name("operation.toml"))["checkpoints"]
    return CheckpointConstants.described(found, where="operation.toml: checkpoints")


@dataclass(frozen=True, slots=True)
class Checkpoint(Arrays):
    """A checkpoint of layouts: its size, and the time it takes."""

    parts_bytes: dict[str, Float]
    """`weights`, `master_weights` and `moments`."""
    files: Float
    """Files of tensors."""
    writers: Float
    """Ranks that write."""
    most_bytes: Float
    """What the rank that has most to write writes [B]."""
    write_s: Float
    """From the last step before it until all is written [s]."""
    blocking_s: Float
    """What steps wait for it [s]."""
    behind_s: Float
    """How long it is then still being written while steps go on [s]."""

    @property
    def total_bytes(self) -> Float:
        """All of it [B]."""
        return np.asarray(sum(self.parts_bytes.values()))


def nodes_of(machine: Machine, layouts: Layouts) -> Float:
    """Nodes that layouts run on [1].

    Counted: whole nodes. Left out: spare ones. Definition.

    >>> from planner import Layout, load_machine
    >>> float(nodes_of(load_machine("polaris"), Layouts.of(Layout(dp=6))))
    2.0
    """
    return np.ceil(layouts.world / machine.node.num_devices)


def saved_bytes(scenario: Scenario, layouts: Layouts, contents: str = "states") -> dict[str, Float]:
    """Bytes of a checkpoint by part, all files together [B].

    Counted: the weights as the framework keeps them; with `states` also the fp32 copies that the
    optimizer updates and its moments, of what is trained. Of adapters only these. Left out: random
    states, schedulers, what files and archives add; copies of tied weights on two pipeline stages;
    optimizers' states per tensor (Adafactor). ZeRO-3 leaves out the 16-bit copy: its partitions
    have no elements of their own in a state dict (DeepSpeed 0.19, runtime/engine.py).
    method.md#checkpoints.

    >>> from planner import Layout, Workload, load_framework, load_machine, load_model
    >>> model, machine = load_model("gpt2-xl"), load_machine("polaris")
    >>> def per_parameter(framework, **layout):
    ...     scenario = Scenario(model, machine, Workload(), load_framework(framework))
    ...     found = saved_bytes(scenario, Layouts.of(Layout(**layout)))
    ...     return float(sum(found.values())) / model.num_params
    >>> per_parameter("megatron-lm"), per_parameter("ddp"), per_parameter("fsdp2", zero_stage=3)
    (14.0, 12.0, 12.0)
    >>> [per_parameter("deepspeed", zero_stage=z, dp=8) for z in (1, 3)]
    [14.0, 12.0]
    """
    workload, states = scenario.workload, scenario.framework.states(scenario.workload.precision)
    blocks, shape = blocks_of(scenario), np.shape(layouts.dp)
    trained = _elements([without_frozen(block) for block in blocks])
    weights = trained if workload.lora_rank else _elements(blocks)
    nothing = np.zeros(shape)
    if contents == "weights":
        alone = np.full(shape, weights * float(workload.compute_bytes))
        return {"weights": alone, "master_weights": nothing, "moments": nothing}
    # shards that are fp32 copies themselves are saved once
    copy = states.sharded_weight_bytes if states.master_bytes else states.weight_bytes
    rebuilt = layouts.shards_weights & bool(states.master_bytes)
    return {
        "weights": np.where(rebuilt, nothing, copy * weights),
        "master_weights": np.full(shape, states.master_bytes * trained),
        "moments": np.full(shape, moment_bytes(workload.optimizer, states) * trained),
    }


def _elements(blocks: Sequence[Block]) -> float:
    """Parameters of a model, tied ones once [elements]."""
    return float(sum(block.count * untied(block).num_params for block in blocks))


def bounds_s(
    machine: Machine,
    checkpoints: Checkpoints,
    total_bytes: ArrayLike,
    most_bytes: ArrayLike,
    num_nodes: ArrayLike,
    *,
    process_bytes_per_s: float,
    reading: bool = False,
) -> dict[str, Float]:
    """Time to write or read files from some nodes, by what could hold it up [s].

    `most_bytes` is what the busiest process moves. Counted: one process, the nodes' interfaces, the
    job's share of the file system's aggregate rate; of `reading` also what one node is known to
    reach. Left out: other jobs, metadata, stripes, what one node reaches in writing; where a
    profile knows no rate of the file system it is no limit.
    method.md#checkpoints.

    >>> from planner import load_machine
    >>> polaris = load_machine("polaris")       # 650 GB/s, two interfaces of 25 GB/s a node
    >>> args = {"num_nodes": 4, "process_bytes_per_s": 1e9}
    >>> found = bounds_s(polaris, Checkpoints(), 1e12, 1e9, **args)
    >>> {name: round(float(seconds), 2) for name, seconds in found.items()}
    {'process': 1.0, 'interfaces': 5.0, 'file_system': 1.54}
    """
    found = machine.file_system(checkpoints.file_system)
    total, most, nodes = np.broadcast_arrays(
        *(np.asarray(each, dtype=float) for each in (total_bytes, most_bytes, num_nodes))
    )
    bounds = {"process": most / process_bytes_per_s}
    node = machine.node_bytes_per_s
    if reading and found is not None and found.client_bytes_per_s is not None:
        node = min(node or np.inf, found.client_bytes_per_s.value)
    if node:
        bounds["interfaces"] = total / (nodes * node)
    whole = None if found is None else found.reading if reading else found.bytes_per_s
    if whole is not None:
        bounds["file_system"] = total / (checkpoints.share * whole.value)
    return bounds


def moving_s(
    machine: Machine,
    checkpoints: Checkpoints,
    total_bytes: ArrayLike,
    most_bytes: ArrayLike,
    num_nodes: ArrayLike,
    *,
    process_bytes_per_s: float,
    reading: bool = False,
) -> Float:
    """Time to write or read files from some nodes on the file system [s].

    Counted: the slowest of `bounds_s`. Left out: what these leave out. method.md#checkpoints.

    >>> from planner import load_machine
    >>> polaris = load_machine("polaris")
    >>> float(moving_s(polaris, Checkpoints(), 1e12, 1e9, 4, process_bytes_per_s=1e9))
    5.0
    """
    args = (machine, checkpoints, total_bytes, most_bytes, num_nodes)
    found = bounds_s(*args, process_bytes_per_s=process_bytes_per_s, reading=reading)
    return functools.reduce(np.maximum, found.values())


def checkpoint_of(
    scenario: Scenario, layouts: Layouts, checkpoints: Checkpoints | None = None
) -> Checkpoint:
    """A checkpoint: bytes [B], files [1], and seconds of ranks and of storage [s].

    Counted: ranks that hold a part of the model write their weights once, ranks that hold a part of
    the optimizer's states write these; or one rank gathers and writes all. Asynchronous ones wait
    for the copy to the host alone; local ones are brought to the file system while steps go on.
    Left out: files of metadata, frameworks that deal weights to all replicas, barriers.
    method.md#checkpoints.

    >>> from planner import Layout, Workload, load_framework, load_machine, load_model
    >>> model, machine = load_model("llama-3-8b"), load_machine("polaris")
    >>> scenario = Scenario(model, machine, Workload(), load_framework("fsdp2"))
    >>> layouts = Layouts.of(Layout(dp=64, zero_stage=3))
    >>> one = checkpoint_of(scenario, layouts)
    >>> float(one.total_bytes) / model.num_params, float(one.files)
    (12.0, 64.0)
    >>> whole = checkpoint_of(scenario, layouts, Checkpoints(full=True))
    >>> bool(whole.write_s > 50 * one.write_s)
    True
    """
    asked = checkpoints or Checkpoints()
    parts = saved_bytes(scenario, layouts, asked.contents)
    states = parts["master_weights"] + parts["moments"]
    total = parts["weights"] + states
    of_weights, of_states = _holders(layouts, asked.full)
    most = parts["weights"] / of_weights + states / of_states
    writers = np.maximum(of_weights, np.where(states > 0, of_states, 1.0))
    apart = (of_weights < of_states) & (parts["weights"] > 0) & (states > 0)
    files = np.where(apart, of_weights + of_states, writers)
    machine, rates = scenario.machine, constants()
    nodes = np.minimum(nodes_of(machine, layouts), writers)
    copy = most / machine.node.host_link_bytes_per_s.value
    if asked.full:
        group = group_view(machine, layouts.world, np.ones_like(layouts.world))
        copy = copy + all_gather_s(group, total)
    writer = rates.writer_bytes_per_s.value
    shared = moving_s(machine, asked, total, most, nodes, process_bytes_per_s=writer)
    waited = copy + shared
    behind = np.zeros(np.shape(total))
    if asked.storage == "local-disk":
        local = np.maximum(most / writer, total / (nodes * _disk_rate(machine)))
        waited, behind = copy + local, shared
    if asked.asynchronous:
        behind = behind + waited - copy + rates.behind_rank_s.value * writers
        waited = copy + rates.staging_s.value
    shape = np.shape(layouts.dp)
    found = (files, writers, most, waited + behind, waited, behind)
    return Checkpoint(parts, *(shaped(np.asarray(each), shape) for each in found))


def _holders(layouts: Layouts, full: bool) -> tuple[Float, Float]:
    """Ranks over which weights are spread, and over which the optimizer's states are [1]."""
    one = np.ones(np.shape(layouts.dp))
    if full:
        return one, one
    parts = one * layouts.tp * layouts.pp
    shards = parts * layouts.num_shards
    # experts of different ranks are different weights
    weights = np.where(layouts.shards_weights, shards, parts * layouts.ep)
    return weights, np.where(layouts.shards_states, shards, weights)


def _disk_rate(machine: Machine) -> float:
    disk = machine.node.local_disk
    if disk is None:
        raise DescriptionError(
            f"storage = local-disk: nodes of {machine.name} have no disk of their own; use "
            "file-system"
        )
    return disk.write_bytes_per_s.value


def loading_s(
    scenario: Scenario,
    layouts: Layouts,
    loading: Loading = "sharded",
    checkpoints: Checkpoints | None = None,
) -> Float:
    """Time to go on from a checkpoint, or to make the first weights equal everywhere [s].

    Counted: `sharded`: every rank reads what it holds; `every-rank`: all of it, once over the
    network for a node; `rank-0`: one rank reads all and broadcasts it; `none`: rank 0 broadcasts
    weights that it made, where ranks do not shard them. Left out: resharding, conversion.
    method.md#checkpoints.

    >>> from planner import Layout, Workload, load_framework, load_machine, load_model
    >>> model, machine = load_model("llama-3-8b"), load_machine("polaris")
    >>> scenario = Scenario(model, machine, Workload(), load_framework("fsdp2"))
    >>> layouts = Layouts.of(Layout(dp=64, zero_stage=3))
    >>> ways = ("none", "sharded", "rank-0", "every-rank")
    >>> [round(float(loading_s(scenario, layouts, way))) for way in ways]
    [0, 2, 140, 138]
    """
    asked = checkpoints or Checkpoints()
    machine, reader = scenario.machine, constants().reader_bytes_per_s.value
    parts = saved_bytes(scenario, layouts, asked.contents)
    states = parts["master_weights"] + parts["moments"]
    total, nodes = parts["weights"] + states, nodes_of(machine, layouts)
    group = group_view(machine, layouts.world, np.ones_like(layouts.world))
    if loading == "none":
        weights = saved_bytes(scenario, layouts, "weights")["weights"]
        whole = weights / (layouts.tp * layouts.pp)
        replicas = group_view(machine, layouts.num_replicas, layouts.tp)
        return np.where(layouts.shards_weights, 0.0, broadcast_s(replicas, whole))
    read_s = functools.partial(moving_s, machine, asked, process_bytes_per_s=reader, reading=True)
    if loading == "rank-0":
        return read_s(total, total, 1.0) + broadcast_s(group, total)
    if loading == "every-rank":
        return read_s(total * nodes, total, nodes)
    of_weights, of_states = _holders(layouts, full=False)
    each = parts["weights"] / of_weights + states / of_states
    return read_s(each * layouts.world, each, nodes)
