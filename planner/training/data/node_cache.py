"""Node cache: the part of a dataset that a node holds on its disk or in memory."""

from __future__ import annotations

import numpy as np

from planner.cost.arrays import Float
from planner.describe.machine import Machine
from planner.describe.training.training_run import Dataset, Loader
from planner.training.data.constants import constants

__all__ = ["cache_bytes", "cached_fraction", "reread_fraction", "staging_time"]


def cache_bytes(machine: Machine, loader: Loader) -> float:
    """Bytes of a dataset that a node can cache [B].

    Counted: the local disk, or the part of the host's memory that the page cache may take.
    Left out: what else lies on the disk or in the memory.
    Source: definition.

    >>> cache_bytes(load_machine("polaris"), Loader(staging="local-disk"))
    3200000000000.0
    """
    node = machine.node
    if loader.staging == "local-disk":
        return node.local_disk.capacity_bytes.value if node.local_disk else 0.0
    if loader.staging == "memory":
        return constants().page_cache_fraction.value * node.host_memory_bytes.value
    return 0.0


def reread_fraction(nodes: Float, epochs: Float) -> Float:
    """Fraction of an epoch that a node has read before, mean of the epochs after the first [1].

    Counted: a node reads 1/nodes of the samples at random in every epoch, so that after e epochs it
    has read 1 - (1 - 1/nodes)^e of them. Left out: the size of the cache.
    Source: definition.

    >>> [float(reread_fraction(np.array(n), np.array(e))) for n, e in ((4, 2), (1, 9))]
    [0.25, 1.0]
    """
    missed, later = 1 - 1 / nodes, np.maximum(epochs - 1, 1)
    # 1 - mean of missed^1 to missed^later, as the sum of a geometric series
    return 1 - missed * nodes * (1 - missed**later) / later


def cached_fraction(
    machine: Machine, nodes: Float, dataset: Dataset, loader: Loader, epochs: Float
) -> tuple[Float, Float]:
    """Fraction of a node's reads that its cache serves, in the first epoch and in later ones [1].

    Counted: a local disk is filled before the first step; memory as the first epoch reads. With
    shards a node keeps its own part of the dataset, else as much of the whole as it has room for.
    Left out: the files that nodes could pass to each other. Source: definition.

    >>> from planner.describe.catalogue import load_dataset
    >>> job = load_machine("polaris"), np.array(4.0), load_dataset("unet3d")
    >>> [float(part) for part in cached_fraction(*job, Loader(staging="local-disk"), np.array(2.0))]
    [1.0, 1.0]
    """
    nodes, epochs = np.asarray(nodes, float), np.asarray(epochs, float)
    needed_bytes = (
        dataset.total_bytes / nodes if loader.sharded else dataset.total_bytes + 0 * nodes
    )
    fits = np.minimum(cache_bytes(machine, loader) / needed_bytes, 1.0)
    if loader.staging == "memory":
        reread = np.ones_like(fits) if loader.sharded else reread_fraction(nodes, epochs)
        return 0 * fits, np.minimum(fits, reread)
    return fits, fits


def staging_time(
    machine: Machine, nodes: Float, dataset: Dataset, loader: Loader, read_bytes_per_s: Float
) -> Float:
    """Time to copy the dataset, or its shards, to the local disks, once [s].

    Counted: every node reads its own copy of the whole dataset, or its shard, from the shared file
    system, at `read_bytes_per_s` a node, and writes it to its disk meanwhile. Left out: metadata,
    unpacking, broadcasts between nodes. Source: definition.

    >>> from planner.describe.catalogue import load_dataset
    >>> job = load_machine("polaris"), np.array(10.0), load_dataset("imagenet")
    >>> loader = Loader(staging="local-disk", sharded=True)
    >>> round(float(staging_time(*job, loader, np.array(5e9))), 1)
    2.9
    """
    disk = machine.node.local_disk
    if loader.staging != "local-disk" or disk is None:
        return np.zeros(np.broadcast(nodes, read_bytes_per_s).shape)
    has = dataset.total_bytes / nodes if loader.sharded else dataset.total_bytes + 0 * nodes
    has = np.minimum(has, disk.capacity_bytes.value)
    return has / np.minimum(read_bytes_per_s, disk.write_bytes_per_s.value)
