"""Checkpoints: their size, the ranks that write them, and the time that steps wait."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from planner.cost.arrays import Arrays, Float
from planner.cost.network.collectives import all_gather_s
from planner.cost.network.rooted_collectives import broadcast_s
from planner.cost.network.topology import group_view
from planner.cost.operators.blocks import blocks_of
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.cost.shards.optimizers import moment_bytes
from planner.cost.shards.states import without_frozen, without_tied
from planner.describe.base import Description, Quantity
from planner.describe.files import read_toml
from planner.describe.machine import Machine
from planner.describe.model.block import Block
from planner.describe.training.training_run import Checkpoints, Loading
from planner.errors import DescriptionError


class CheckpointConstants(Description):
    """Rates of a process that writes or reads checkpoints, and overheads, for any storage."""

    writer_bytes_per_s: Quantity
    """Write rate of one process with torch.save [B/s]."""
    reader_bytes_per_s: Quantity
    """Read rate of one process [B/s]."""
    staging_s: Quantity
    """Blocking time of an asynchronous checkpoint, in addition to the copy to the host [s]."""
    behind_rank_s: Quantity
    """Background time per rank, in which ranks agree on shards and on completion [s]."""


@functools.cache
def constants() -> CheckpointConstants:
    """Constants of checkpoints, from `operation.toml`."""
    data = read_toml(Path(__file__).with_name("operation.toml"))["checkpoints"]
    return CheckpointConstants.described(data, where="operation.toml: checkpoints")


@dataclass(frozen=True, slots=True)
class Checkpoint(Arrays):
    """Checkpoint of each layout: bytes by part, files, writers, bytes of the busiest, times."""

    parts_bytes: dict[str, Float]
    files: Float
    writers: Float
    most_bytes: Float
    write_s: Float
    """Time until the checkpoint is complete: `blocking_s` + `behind_s` [s]."""
    blocking_s: Float
    """Time that steps wait for the checkpoint [s]."""
    behind_s: Float
    """Time of writing in the background while steps continue [s]."""

    @property
    def total_bytes(self) -> Float:
        """Size of all files [B]."""
        return np.asarray(sum(self.parts_bytes.values()))


def nodes_of(machine: Machine, layouts: Layouts) -> Float:
    """Number of nodes that layouts run on, without spare nodes [1]."""
    return np.ceil(layouts.world / machine.node.num_devices)


def saved_bytes(scenario: Scenario, layouts: Layouts, contents: str = "states") -> dict[str, Float]:
    """Bytes of a checkpoint by part, all files together; training.md#checkpoints [B]."""
    workload, states = scenario.workload, scenario.framework.states(scenario.workload.precision)
    blocks, shape = blocks_of(scenario), np.shape(layouts.dp)
    trained = _elements([without_frozen(block) for block in blocks])
    weights = trained if workload.lora_rank else _elements(blocks)
    nothing = np.zeros(shape)
    if contents == "weights":
        only_weights = np.full(shape, weights * float(workload.compute_bytes))
        return {"weights": only_weights, "master_weights": nothing, "moments": nothing}
    # sharded weights that are the fp32 copy themselves are saved once
    copy = states.sharded_weight_bytes if states.master_bytes else states.weight_bytes
    rebuilt = layouts.shards_weights & bool(states.master_bytes)
    return {
        "weights": np.where(rebuilt, nothing, copy * weights),
        "master_weights": np.full(shape, states.master_bytes * trained),
        "moments": np.full(shape, moment_bytes(workload.optimizer, states) * trained),
    }


def _elements(blocks: Sequence[Block]) -> float:
    """Parameters of a model, tied weights counted once [elements]."""
    return float(sum(block.count * without_tied(block).num_params for block in blocks))


def transfer_bounds_s(
    machine: Machine,
    checkpoints: Checkpoints,
    total_bytes: ArrayLike,
    most_bytes: ArrayLike,
    num_nodes: ArrayLike,
    *,
    process_bytes_per_s: float,
    reading: bool = False,
) -> dict[str, Float]:
    """Lower bounds of the time to move files of nodes, by cause; training.md#checkpoints [s]."""
    system = machine.file_system(checkpoints.file_system)
    total, most, nodes = np.broadcast_arrays(
        *(np.asarray(each, dtype=float) for each in (total_bytes, most_bytes, num_nodes))
    )
    bounds, node_rate = {"process": most / process_bytes_per_s}, machine.node_bytes_per_s
    if reading and system and system.client_bytes_per_s:
        node_rate = min(node_rate or np.inf, system.client_bytes_per_s.value)
    if node_rate:
        bounds["interfaces"] = total / (nodes * node_rate)
    if system and (system_rate := system.reading if reading else system.bytes_per_s):
        bounds["file_system"] = total / (checkpoints.share * system_rate.value)
    return bounds


def transfer_s(*job: Any, **rates: Any) -> Float:
    """Time to write or read files from several nodes: the largest of `transfer_bounds_s` [s]."""
    return functools.reduce(np.maximum, transfer_bounds_s(*job, **rates).values())


def checkpoint_of(
    scenario: Scenario, layouts: Layouts, checkpoints: Checkpoints | None = None
) -> Checkpoint:
    """Size, files and times of a checkpoint; training.md#checkpoints [B, 1, s]."""
    options = checkpoints or Checkpoints()
    parts = saved_bytes(scenario, layouts, options.contents)
    states = parts["master_weights"] + parts["moments"]
    total = parts["weights"] + states
    of_weights, of_states = _shard_counts(layouts, options.full)
    most = parts["weights"] / of_weights + states / of_states
    writers = np.maximum(of_weights, np.where(states > 0, of_states, 1.0))
    separate_files = (of_weights < of_states) & (parts["weights"] > 0) & (states > 0)
    files = np.where(separate_files, of_weights + of_states, writers)
    machine, rates = scenario.machine, constants()
    nodes = np.minimum(nodes_of(machine, layouts), writers)
    copy = most / machine.node.host_link_bytes_per_s.value
    if options.full:
        group = group_view(machine, layouts.world, np.ones_like(layouts.world))
        copy = copy + all_gather_s(group, total)
    writer = rates.writer_bytes_per_s.value
    shared = transfer_s(machine, options, total, most, nodes, process_bytes_per_s=writer)
    blocking, behind = copy + shared, np.zeros(np.shape(total))
    if options.storage == "local-disk":
        local = np.maximum(most / writer, total / (nodes * _disk_rate(machine)))
        blocking, behind = copy + local, shared
    if options.asynchronous:
        behind = behind + blocking - copy + rates.behind_rank_s.value * writers
        blocking = copy + rates.staging_s.value
    shape = np.shape(layouts.dp)
    figures = (files, writers, most, blocking + behind, blocking, behind)
    return Checkpoint(parts, *(np.broadcast_to(each, shape) for each in figures))


def _shard_counts(layouts: Layouts, full: bool) -> tuple[Float, Float]:
    unit = np.ones(np.shape(layouts.dp))
    if full:
        return unit, unit
    parts = unit * layouts.tp * layouts.pp
    shards = parts * layouts.num_shards
    # expert-parallel ranks hold different weights
    weights = np.where(layouts.shards_weights, shards, parts * layouts.ep)
    return weights, np.where(layouts.shards_states, shards, weights)


def _disk_rate(machine: Machine) -> float:
    disk = machine.node.local_disk
    if disk is None:
        raise DescriptionError(
            f"storage = local-disk: nodes of {machine.name} have no local disk; use file-system"
        )
    return disk.write_bytes_per_s.value


def loading_s(
    scenario: Scenario,
    layouts: Layouts,
    loading: Loading = "sharded",
    checkpoints: Checkpoints | None = None,
) -> Float:
    """Time to load a checkpoint, or to broadcast first weights; training.md#checkpoints [s]."""
    options, machine = checkpoints or Checkpoints(), scenario.machine
    parts = saved_bytes(scenario, layouts, options.contents)
    states = parts["master_weights"] + parts["moments"]
    total, nodes = parts["weights"] + states, nodes_of(machine, layouts)
    if loading == "none":
        weights = saved_bytes(scenario, layouts, "weights")["weights"]
        rank_bytes = weights / (layouts.tp * layouts.pp)
        replicas = group_view(machine, layouts.num_replicas, layouts.tp)
        return np.where(layouts.shards_weights, 0.0, broadcast_s(replicas, rank_bytes))
    rate = constants().reader_bytes_per_s.value
    read_s = functools.partial(transfer_s, machine, options, process_bytes_per_s=rate, reading=True)
    if loading == "rank-0":
        group = group_view(machine, layouts.world, np.ones_like(layouts.world))
        return read_s(total, total, 1.0) + broadcast_s(group, total)
    if loading == "every-rank":
        return read_s(total * nodes, total, nodes)
    of_weights, of_states = _shard_counts(layouts, full=False)
    each = parts["weights"] / of_weights + states / of_states
    return read_s(each * layouts.world, each, nodes)
