"""Stages of the input pipeline: time of each for the samples of one step."""

from __future__ import annotations

import numpy as np

from planner.cost.arrays import Float
from planner.describe.machine import FileSystem, Machine
from planner.describe.training.training_run import Dataset, Loader
from planner.training.data.constants import constants

__all__ = ["node_read_rate", "stage_times", "unknown_stages"]


def node_read_rate(machine: Machine, nodes: Float, system: FileSystem | None) -> Float:
    """Read rate of a node from a shared file system that all nodes read at once [B/s].

    Counted: an equal part of the aggregate bandwidth, the node's interfaces, and the rate of one
    client; infinite if none is known. Left out: other jobs, gradients on the same
    interfaces. Source: definition.

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
    cached: Float,
) -> dict[str, Float]:
    """Time of every stage for the samples of one step, by its name [s].

    Counted: reads that nodes have not `cached` come from the shared file system. Stages work at the
    same time, each on another batch, so that the slowest sets the pace. Left out: other jobs.
    Shapes: all arrays broadcast. Source: method.md#input.

    >>> from planner.describe.catalogue import load_dataset
    >>> job = load_machine("polaris"), np.array(100), np.array(4), np.array(2800)
    >>> times = stage_times(*job, load_dataset("unet3d"), Loader(), np.array(0.0))
    >>> round(float(times["file system"]), 3)
    0.632
    """
    system = machine.file_system(loader.file_system)
    missed, none = samples_per_step * (1 - cached), 0.0 * samples_per_step
    fetched = missed if system else none
    # without a shared file system the dataset lies on the local disk
    from_disk = samples_per_step * cached if loader.staging == "local-disk" else none
    from_disk = from_disk + (none if system else missed)
    times = _shared(machine, nodes, fetched, dataset, loader, system) if system else {}
    times |= _on_node(machine, nodes, samples_per_step, dataset, from_disk)
    busy = _read_time(dataset, loader, system) * fetched + dataset.decode_s.value * samples_per_step
    times["workers"] = busy / (nodes * ranks_per_node * max(loader.workers, 1))
    rate = machine.node.host_link_bytes_per_s.value
    times["host link"] = samples_per_step * dataset.host_bytes / (nodes * ranks_per_node) / rate
    return times


def unknown_stages(machine: Machine, loader: Loader) -> tuple[str, ...]:
    """List the stages for which the machine's description states no rate."""
    system = machine.file_system(loader.file_system)
    if system is None:
        return () if machine.node.local_disk else ("local disk",)
    rates = (
        ("file system", system.reading),
        ("storage targets", system.reading and system.num_targets),
        ("metadata", system.opens_per_s),
    )
    return tuple(name for name, rate in rates if not rate)


def _shared(
    machine: Machine,
    nodes: Float,
    fetched: Float,
    dataset: Dataset,
    loader: Loader,
    system: FileSystem,
) -> dict[str, Float]:
    """Times of stages that all nodes share, and of the interfaces to them [s]."""
    times: dict[str, Float] = {}
    size = fetched * dataset.sample_bytes.value
    if system.reading:
        times["file system"] = size / system.reading.value
    if rate := _target_rate(system):
        files = np.minimum(dataset.num_files, np.maximum(fetched, 1.0))
        targets = np.minimum(files * loader.stripe_count, _targets(system))
        times["storage targets"] = size / (targets * rate)
    rate = machine.node_bytes_per_s or np.inf
    if system.client_bytes_per_s:
        rate = min(rate, system.client_bytes_per_s.value)
    times["interfaces"] = size / nodes / rate
    if system.opens_per_s:
        times["metadata"] = fetched / dataset.samples_per_file.value / system.opens_per_s.value
    return times


def _on_node(
    machine: Machine,
    nodes: Float,
    samples: Float,
    dataset: Dataset,
    from_disk: Float,
) -> dict[str, Float]:
    """Times of stages inside each node [s]."""
    node, size = machine.node, dataset.sample_bytes.value
    times = {}
    if node.local_disk and np.any(from_disk):
        times["local disk"] = from_disk * size / nodes / node.local_disk.read_bytes_per_s.value
    moved_bytes = constants().host_copies.value * dataset.host_bytes + size
    times["host memory"] = samples * moved_bytes / nodes / node.host_memory_bytes_per_s.value
    times["cores"] = samples * dataset.decode_s.value / nodes / node.num_cores.value
    return times


def _targets(system: FileSystem) -> float:
    return system.num_targets.value if system.num_targets else np.inf


def _target_rate(system: FileSystem) -> float:
    """Read rate of one storage target; 0 if it is not known [B/s]."""
    if system.reading and system.num_targets:
        return system.reading.value / system.num_targets.value
    return 0.0


def _read_time(dataset: Dataset, loader: Loader, system: FileSystem | None) -> float:
    """Time that a worker waits for a sample from the shared file system [s]."""
    if system is None:
        return 0.0
    rates, per_file = constants(), dataset.samples_per_file.value
    rate = loader.stripe_count * _target_rate(system)
    random_order = per_file > 1 and (loader.order or dataset.order) == "random"
    return (
        rates.open_s.value / per_file
        + (rates.random_read_s.value if random_order else 0.0)
        + (dataset.sample_bytes.value / rate if rate else 0.0)
    )
