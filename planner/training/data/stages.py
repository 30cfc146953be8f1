"""Stages of the input pipeline: seconds that each takes for one step's samples, all at once."""

from __future__ import annotations

import numpy as np

from planner.cost.arrays import Float
from planner.describe.dataset import Dataset, Loader
from planner.describe.machine import FileSystem, Machine
from planner.training.data.constants import constants

__all__ = ["node_read_rate", "stage_times", "unknown_stages"]


def node_read_rate(machine: Machine, nodes: Float, system: FileSystem | None) -> Float:
    """What each of some nodes reads from a shared file system when all read [B/s].

    Counted: the aggregate bandwidth in equal parts, the node's interfaces, and what one client is
    known to reach; infinite where nothing is known. Left out: other jobs, gradients on the same
    interfaces. Source: definition.

    >>> from planner.describe.catalogue import load_machine
    >>> polaris = load_machine("polaris")
    >>> eagle = polaris.file_system()
    >>> [float(node_read_rate(polaris, np.array(n), eagle)) / 1e9 for n in (1, 100)]
    [14.7, 6.5]
    """
    nodes = np.asarray(nodes, float)
    rate = np.full(nodes.shape, machine.node_bytes_per_s or np.inf)
    if system and system.client_bytes_per_s:
        rate = np.minimum(rate, system.client_bytes_per_s.value)
    if system and system.reading:
        rate = np.minimum(rate, system.reading.value / nodes)
    return rate


def stage_times(
    machine: Machine,
    nodes: Float,
    ranks_per_node: Float,
    samples_per_step: Float,
    dataset: Dataset,
    loader: Loader,
    kept: Float,
) -> dict[str, Float]:
    """Time of every stage for the samples of one step, by its name [s].

    Counted: what is not `kept` by the nodes comes from the shared file system. Stages work at the
    same time, each on another batch, so that the slowest sets the pace. Left out: other jobs.
    Shapes: all arrays broadcast. Source: method.md#input.

    >>> from planner.describe.catalogue import load_dataset, load_machine
    >>> job = load_machine("polaris"), np.array(100), np.array(4), np.array(2800)
    >>> times = stage_times(*job, load_dataset("unet3d"), Loader(), np.array(0.0))
    >>> round(float(times["file system"]), 3)
    0.632
    """
    system = machine.file_system(loader.file_system)
    missed, none = samples_per_step * (1 - kept), 0.0 * samples_per_step
    fetched = missed if system else none
    # without a shared file system the dataset lies on the local disk
    from_disk = samples_per_step * kept if loader.staging == "local-disk" else none
    from_disk = from_disk + (none if system else missed)
    found = _shared(machine, nodes, fetched, dataset, loader, system) if system else {}
    found |= _on_node(machine, nodes, samples_per_step, dataset, from_disk)
    busy = _read_time(dataset, loader, system) * fetched + dataset.decode_s.value * samples_per_step
    found["workers"] = busy / (nodes * ranks_per_node * max(loader.workers, 1))
    rate = machine.node.host_link_bytes_per_s.value
    found["host link"] = samples_per_step * dataset.host_bytes / (nodes * ranks_per_node) / rate
    return found


def unknown_stages(machine: Machine, loader: Loader) -> tuple[str, ...]:
    """Stages for which the machine's description states no rate."""
    system = machine.file_system(loader.file_system)
    if system is None:
        return () if machine.node.local_disk else ("local disk",)
    stated = (
        ("file system", system.reading),
        ("storage targets", system.reading and system.num_targets),
        ("metadata", system.opens_per_s),
    )
    return tuple(name for name, rate in stated if not rate)


def _shared(
    machine: Machine,
    nodes: Float,
    fetched: Float,
    dataset: Dataset,
    loader: Loader,
    system: FileSystem,
) -> dict[str, Float]:
    """Stages that all nodes share, and each node's way to them [s]."""
    found: dict[str, Float] = {}
    size = fetched * dataset.sample_bytes.value
    if system.reading:
        found["file system"] = size / system.reading.value
    if rate := _target_rate(system):
        files = np.minimum(dataset.num_files, np.maximum(fetched, 1.0))
        targets = np.minimum(files * loader.stripe_count, _targets(system))
        found["storage targets"] = size / (targets * rate)
    rate = machine.node_bytes_per_s or np.inf
    if system.client_bytes_per_s:
        rate = min(rate, system.client_bytes_per_s.value)
    found["interfaces"] = size / nodes / rate
    if system.opens_per_s:
        found["metadata"] = fetched / dataset.samples_per_file.value / system.opens_per_s.value
    return found


def _on_node(
    machine: Machine,
    nodes: Float,
    samples: Float,
    dataset: Dataset,
    from_disk: Float,
) -> dict[str, Float]:
    """Stages that each node has to itself [s]."""
    node, size = machine.node, dataset.sample_bytes.value
    found = {}
    if node.local_disk and np.any(from_disk):
        found["local disk"] = from_disk * size / nodes / node.local_disk.read_bytes_per_s.value
    passed = constants().host_copies.value * dataset.host_bytes + size
    found["host memory"] = samples * passed / nodes / node.host_memory_bytes_per_s.value
    found["cores"] = samples * dataset.decode_s.value / nodes / node.num_cores.value
    return found


def _targets(system: FileSystem) -> float:
    return system.num_targets.value if system.num_targets else np.inf


def _target_rate(system: FileSystem) -> float:
    """What one storage target delivers; 0 where that is not known [B/s]."""
    if system.reading and system.num_targets:
        return system.reading.value / system.num_targets.value
    return 0.0


def _read_time(dataset: Dataset, loader: Loader, system: FileSystem | None) -> float:
    """What one worker waits for one sample from the shared file system [s]."""
    if system is None:
        return 0.0
    known, per_file = constants(), dataset.samples_per_file.value
    rate = loader.stripe_count * _target_rate(system)
    alone = per_file > 1 and (loader.order or dataset.order) == "random"
    return (
        known.open_s.value / per_file
        + (known.random_read_s.value if alone else 0.0)
        + (dataset.sample_bytes.value / rate if rate else 0.0)
    )
