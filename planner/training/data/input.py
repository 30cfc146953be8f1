"""Input: time to deliver a batch, and the part of it that prefetch does not hide."""

import functools
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from planner.cost.arrays import Float
from planner.cost.constants import load
from planner.describe.base import Description, Duration, Fraction, Quantity, assumed
from planner.describe.machine import FileSystem, Machine
from planner.describe.training.training_run import Dataset, Loader
from planner.errors import DescriptionError


class DataConstants(Description):
    """Constants of the input pipeline, from `constants.toml`."""

    page_cache_fraction: Fraction
    """Fraction of a node's memory that the page cache may take."""
    host_copies: Quantity
    """Number of times that the bytes of a sample cross host memory."""
    open_s: Duration
    """Time to open a file of a shared file system [s]."""
    random_read_s: Duration
    """Time of a small read at a random place of an open file there [s]."""
    hand_over_s: Duration
    """Time to fetch a ready batch in a step [s]."""
    epoch_steps: Quantity
    """Steps that an epoch of a benchmark's dataset has at least."""
    memory_multiple: Quantity
    """Size of a benchmark's dataset over the memory of all nodes, at least."""


@functools.cache
def constants() -> DataConstants:
    """Constants of the input pipeline."""
    return load(Path(__file__).with_name("constants.toml"), DataConstants)


def node_read_rate(machine: Machine, nodes: Float, system: FileSystem | None) -> Float:
    """Read rate of a node from a file system that all nodes read at once; inf if unknown [B/s]."""
    aggregate = system.reading.value if system and system.reading else np.inf
    return np.minimum(aggregate / np.asarray(nodes, float), _interfaces_rate(machine, system))


def _interfaces_rate(machine: Machine, system: FileSystem | None) -> float:
    """Read rate of one node: its interfaces or one client's rate; infinite if unknown [B/s]."""
    client = system.client_bytes_per_s.value if system and system.client_bytes_per_s else np.inf
    return min(machine.node_bytes_per_s or np.inf, client)


def stage_times(
    machine: Machine,
    nodes: Float,
    ranks_per_node: Float,
    samples_per_step: Float,
    dataset: Dataset,
    loader: Loader,
    cached: Float,
) -> dict[str, Float]:
    """Time of each input stage for the samples of one step, by name (input.md#input) [s]."""
    system = machine.file_system(loader.file_system)
    missed, none = samples_per_step * (1 - cached), 0.0 * samples_per_step
    fetched = missed if system else none
    # without a shared file system the dataset lies on the local disk
    from_disk = samples_per_step * cached if loader.staging == "local-disk" else none
    from_disk = from_disk + (none if system else missed)
    times = _shared(machine, nodes, fetched, dataset, loader, system) if system else {}
    node, size = machine.node, dataset.sample_bytes.value
    if node.local_disk and np.any(from_disk):
        times["local disk"] = from_disk * size / nodes / node.local_disk.read_bytes_per_s.value
    moved_bytes = constants().host_copies.value * dataset.host_bytes + size
    memory_rate = node.host_memory_bytes_per_s.value
    times["host memory"] = samples_per_step * moved_bytes / nodes / memory_rate
    times["cores"] = samples_per_step * dataset.decode_s.value / nodes / node.num_cores.value
    busy = _read_time(dataset, loader, system) * fetched + dataset.decode_s.value * samples_per_step
    times["workers"] = busy / (nodes * ranks_per_node * max(loader.workers, 1))
    link_rate, num_bytes = node.host_link_bytes_per_s.value, samples_per_step * dataset.host_bytes
    times["host link"] = num_bytes / (nodes * ranks_per_node) / link_rate
    return times


def _unknown_stages(machine: Machine, loader: Loader) -> tuple[str, ...]:
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
    if system.reading and system.num_targets:
        files = np.minimum(dataset.num_files, np.maximum(fetched, 1.0))
        targets = np.minimum(files * loader.stripe_count, system.num_targets.value)
        times["storage targets"] = size / (targets * _target_rate(system))
    times["interfaces"] = size / nodes / _interfaces_rate(machine, system)
    if system.opens_per_s:
        times["metadata"] = fetched / dataset.samples_per_file.value / system.opens_per_s.value
    return times


def _target_rate(system: FileSystem) -> float:
    """Read rate of one storage target; 0 if unknown [B/s]."""
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


def _cache_bytes(machine: Machine, loader: Loader) -> float:
    """Bytes of a dataset that a node can cache, on its disk or in its page cache [B]."""
    node = machine.node
    if loader.staging == "local-disk":
        return node.local_disk.capacity_bytes.value if node.local_disk else 0.0
    if loader.staging == "memory":
        return constants().page_cache_fraction.value * node.host_memory_bytes.value
    return 0.0


def reread_fraction(nodes: Float, epochs: Float) -> Float:
    """Mean part of reads that a node has read before: 1 - (1 - 1/nodes)^e after e epochs [1]."""
    missed, later = 1 - 1 / nodes, np.maximum(epochs - 1, 1)
    # 1 - mean of missed^1 to missed^later, as the sum of a geometric series
    return 1 - missed * nodes * (1 - missed**later) / later


def cached_fraction(
    machine: Machine, nodes: Float, dataset: Dataset, loader: Loader, epochs: Float
) -> tuple[Float, Float]:
    """Fraction of a node's reads that its cache serves, in the first and in later epochs [1]."""
    nodes, epochs = np.asarray(nodes, float), np.asarray(epochs, float)
    fits = np.minimum(_cache_bytes(machine, loader) / _node_bytes(dataset, loader, nodes), 1.0)
    if loader.staging == "memory":
        reread = np.ones_like(fits) if loader.sharded else reread_fraction(nodes, epochs)
        return 0 * fits, np.minimum(fits, reread)
    return fits, fits


def fill_epochs(nodes: int, share: float) -> int:
    """Epochs after which a node has read a share of a dataset that is shuffled over all nodes."""
    return math.ceil(math.log1p(-share) / math.log1p(-1 / nodes)) if nodes > 1 else 1


def benchmark_dataset(
    machine: Machine, nodes: float, samples_per_step: float, dataset: Dataset
) -> Dataset:
    """Dataset with as many samples as MLPerf Storage requires, by steps and by memory of nodes."""
    rules, memory_bytes = constants(), nodes * machine.node.host_memory_bytes.value
    by_memory = rules.memory_multiple.value * memory_bytes / dataset.sample_bytes.value
    samples = max(rules.epoch_steps.value * samples_per_step, by_memory)
    return dataset.replaced(num_samples=assumed(samples, "the rule of MLPerf Storage"))


def _node_bytes(dataset: Dataset, loader: Loader, nodes: Float) -> Float:
    return dataset.total_bytes / nodes if loader.sharded else dataset.total_bytes + 0 * nodes


def staging_time(
    machine: Machine, nodes: Float, dataset: Dataset, loader: Loader, read_bytes_per_s: Float
) -> Float:
    """Time to copy the dataset, or its shards, to the local disks, once; metadata left out [s]."""
    disk = machine.node.local_disk
    if loader.staging != "local-disk" or disk is None:
        return np.zeros(np.broadcast(nodes, read_bytes_per_s).shape)
    copy_bytes = np.minimum(_node_bytes(dataset, loader, nodes), disk.capacity_bytes.value)
    return copy_bytes / np.minimum(read_bytes_per_s, disk.write_bytes_per_s.value)


@dataclass(frozen=True, slots=True)
class InputTime:
    """Input times of one step, arrays of one shape; after the first epoch unless named so [s]."""

    delivery_s: Float
    exposed_s: Float
    first_epoch_exposed_s: Float
    staging_s: Float
    """Copying the dataset to the local disks, once [s]."""
    utilisation: Float
    """Accelerator utilisation (AU) of DLIO and MLPerf Storage [1]."""
    stages: dict[str, Float]
    first_epoch_stages: dict[str, Float]
    cached: Float
    """Fraction of reads that the node cache serves [1]."""
    unknown: tuple[str, ...]
    """Stages that are not counted because their rate is unknown."""

    @property
    def bound(self) -> NDArray[np.str_]:
        """The slowest stage in epochs after the first."""
        return np.array(list(self.stages))[np.argmax(list(self.stages.values()), axis=0)]


def input_time(
    machine: Machine,
    nodes: ArrayLike,
    ranks_per_node: ArrayLike,
    samples_per_step: ArrayLike,
    step_s: ArrayLike,
    dataset: Dataset,
    loader: Loader,
    epochs: ArrayLike = 2.0,
) -> InputTime:
    """Time to deliver a step's samples behind a step of `step_s`, and the wait for them [s]."""
    if dataset.unit == "token":
        raise DescriptionError(
            f"{dataset.name} counts tokens: cut it into samples with dataset.of_sequences(length)"
        )
    if loader.staging == "local-disk" and machine.node.local_disk is None:
        raise DescriptionError(
            f"staging = 'local-disk': nodes of {machine.name} have no local disk; "
            "use none or memory"
        )
    values = (nodes, ranks_per_node, samples_per_step, step_s, epochs)
    nodes, ranks, samples, step, epochs = np.broadcast_arrays(
        *(np.asarray(each, float) for each in values)
    )
    job = machine, nodes, ranks, samples, dataset, loader
    first, later = cached_fraction(machine, nodes, dataset, loader, epochs)
    cold, warm = stage_times(*job, first), stage_times(*job, later)
    exposed = _exposed(warm, step, loader)
    system = machine.file_system(loader.file_system)
    rate = node_read_rate(machine, nodes, system)
    return InputTime(
        delivery_s=_longest(warm),
        exposed_s=exposed,
        first_epoch_exposed_s=_exposed(cold, step, loader),
        staging_s=staging_time(machine, nodes, dataset, loader, rate) * bool(system),
        utilisation=step / (step + exposed),
        stages=warm,
        first_epoch_stages=cold,
        cached=later,
        unknown=_unknown_stages(machine, loader),
    )


def _longest(stages: dict[str, Float]) -> Float:
    return np.max(list(stages.values()), axis=0)


def _exposed(stages: dict[str, Float], step: Float, loader: Loader) -> Float:
    longest, fetch = _longest(stages), constants().hand_over_s.value
    if not loader.workers:
        return np.sum(list(stages.values()), axis=0)
    if not loader.prefetch:
        return longest + fetch
    return fetch + np.maximum(longest - step - fetch, 0)
