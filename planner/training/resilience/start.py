"""Start-up: time of a job before its first step, by part."""

import functools
from pathlib import Path

import numpy as np

from planner.cost.arrays import Float
from planner.cost.network.groups import geometry
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.describe.base import Description, Quantity
from planner.describe.files import read_toml
from planner.describe.training.training_run import Checkpoints, Failures, StartUp
from planner.training.resilience.checkpoints import loading_s, nodes_of
from planner.training.resilience.failures import detection_s

_DATA = read_toml(Path(__file__).with_name("operation.toml"))
START_PARTS: dict[str, str] = _DATA["start_parts"]
"""Parts of the start of a job, in order."""

_AXES = ("tensor", "context", "pipeline", "shard", "replica")
_EXPERT_AXES = ("expert", "expert_tensor")
# shard and replica groups of experts are not counted: they lie within the dense ones


class StartConstants(Description):
    """Start-up times and rates, the same for every machine."""

    launch_s: Quantity
    """Starting the processes [s]."""
    import_s: Quantity
    """Importing torch from local disks [s]."""
    file_system_import_s: Quantity
    """Importing torch from a parallel file system with cold caches [s]."""
    nfs_import_s: Quantity
    """Importing torch from NFS [s]."""
    import_operations: Quantity
    """Files that one process looks up or opens to import torch."""
    metadata_operations_per_s: Quantity
    """Operations per second of a metadata server."""
    first_communicator_s: Quantity
    """Creating the first communicator of a few ranks, with kernels and buffers [s]."""
    communicator_s: Quantity
    """Creating each further communicator [s]."""
    communicator_rank_s: Quantity
    """Time that each rank adds to a communicator [s]."""
    built_elements_per_s: Quantity
    """Parameters per second that a process initialises on the host."""


@functools.cache
def constants() -> StartConstants:
    """Constants of start-up, from `operation.toml`."""
    return StartConstants.described(_DATA["start"], where="operation.toml: start")


def imports_s(num_nodes: Float, start: StartUp) -> Float:
    """Time until all processes have imported torch; training.md#start-up [s]."""
    rates = constants()
    if start.environment == "local-disk":
        return np.full(np.shape(num_nodes), rates.import_s.value)
    measured = rates.nfs_import_s if start.environment == "nfs" else rates.file_system_import_s
    storm = num_nodes * rates.import_operations.value / rates.metadata_operations_per_s.value
    return np.maximum(measured.value, storm)


def communicators_s(layouts: Layouts) -> Float:
    """Time to set up a rank's communicators, by NCCL's timings; training.md#start-up [s]."""
    rates, world = constants(), np.asarray(layouts.world, dtype=float)
    each, rank = rates.communicator_s.value, rates.communicator_rank_s.value
    time = np.where(world > 1, rates.first_communicator_s.value + rank * world, 0.0)
    for size in _sizes(layouts):
        time = time + np.where(size > 1, each + rank * size, 0.0)
    return time


def _sizes(layouts: Layouts) -> list[Float]:
    axes = geometry(layouts)
    sizes = [axes[name][0] for name in _AXES]
    sizes += [np.where(layouts.ep > 1, axes[name][0], 1) for name in _EXPERT_AXES]
    return [np.where(size < layouts.world, size, 1).astype(float) for size in sizes]


def start_up(
    scenario: Scenario,
    layouts: Layouts,
    start: StartUp | None = None,
    checkpoints: Checkpoints | None = None,
) -> dict[str, Float]:
    """Time of a job before its first step, by part as in START_PARTS; training.md#start-up [s]."""
    options, rates, shape = start or StartUp(), constants(), np.shape(layouts.dp)
    if scenario.machine.num_nodes.value == 1 and options.environment == "file-system":
        options = options.replaced(environment="local-disk")
    full_model = scenario.model.num_params if scenario.framework.loads_full_checkpoint else 0.0
    parts: dict[str, Float | float] = {
        "launch": rates.launch_s.value,
        "imports": imports_s(nodes_of(scenario.machine, layouts), options),
        "communicators": communicators_s(layouts),
        "model": full_model / rates.built_elements_per_s.value,
        "weights": loading_s(scenario, layouts, options.loading, checkpoints),
        "data_index": options.data_index_s,
        "compile": options.compile_s,
        "warm_up": options.warm_up_s,
    }
    arrays = {name: np.asarray(part, dtype=float) for name, part in parts.items()}
    return {name: np.broadcast_to(part, shape) for name, part in arrays.items()}


def restart_s(
    scenario: Scenario,
    layouts: Layouts,
    failures: Failures | None = None,
    checkpoints: Checkpoints | None = None,
) -> Float:
    """Time from a failure to the first step after it, without lost work [s]."""
    parts = start_up(scenario, layouts, StartUp(loading="sharded"), checkpoints)
    return np.asarray(sum(parts.values()) + detection_s(failures or Failures()))
