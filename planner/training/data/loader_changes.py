"""Loader changes: single changes of loader or dataset, and the input time after each."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from numpy.typing import ArrayLike

from planner.describe.base import assumed
from planner.describe.machine import Machine
from planner.describe.training.training_run import Dataset, Loader
from planner.training.data.input import InputTime, input_time

ChangeName = Literal[
    "workers", "prefetch", "decoded", "larger files", "stripes", "shards", "local disk", "memory"
]

_FILE_BYTES = 1e9
# usual size of record files, large enough that opening them costs little


@dataclass(frozen=True, slots=True)
class Change:
    """One change of loader or dataset, and the input time after it."""

    name: ChangeName
    dataset: Dataset
    loader: Loader
    time: InputTime


def changes(
    machine: Machine,
    nodes: ArrayLike,
    ranks_per_node: float,
    samples_per_step: ArrayLike,
    step_s: ArrayLike,
    dataset: Dataset,
    loader: Loader,
    epochs: ArrayLike = 2.0,
) -> list[Change]:
    """Single changes of loader or dataset that apply, each with its input time [s]."""
    job = machine, nodes, ranks_per_node, samples_per_step, step_s
    return [
        Change(name, data, new_loader, input_time(*job, data, new_loader, epochs))
        for name, data, new_loader in _variants(machine, ranks_per_node, dataset, loader)
    ]


def _variants(
    machine: Machine, ranks: float, dataset: Dataset, loader: Loader
) -> Iterator[tuple[ChangeName, Dataset, Loader]]:
    """Yield the name of each change that applies, with dataset and loader after it."""
    workers = max(int(machine.node.num_cores.value / max(ranks, 1)), 1)
    hidden = max(loader.prefetch, 2)
    if workers > loader.workers:
        yield "workers", dataset, loader.replaced(workers=workers, prefetch=hidden)
    if not loader.prefetch or not loader.workers:
        yield "prefetch", dataset, loader.replaced(workers=max(loader.workers, 1), prefetch=hidden)
    if dataset.compressed and dataset.decode_s.value:
        sizes = {"sample_bytes": dataset.host_bytes, "decode_s": 0.0}
        stored = {name: assumed(size, "stored decoded") for name, size in sizes.items()}
        yield "decoded", dataset.replaced(**stored, compressed=False), loader
    per_file = math.ceil(_FILE_BYTES / dataset.sample_bytes.value)
    if per_file > dataset.samples_per_file.value:
        number = assumed(per_file, f"record files of {_FILE_BYTES / 1e9:g} GB")
        packed = dataset.replaced(samples_per_file=number, order="sequential")
        yield "larger files", packed, loader.replaced(order="sequential")
    system = machine.file_system(loader.file_system)
    if system and system.num_targets and system.num_targets.value > loader.stripe_count:
        yield "stripes", dataset, loader.replaced(stripe_count=int(system.num_targets.value))
    if not loader.sharded:
        cache = "memory" if loader.staging == "none" else loader.staging
        yield "shards", dataset, loader.replaced(staging=cache, sharded=True)
    if machine.node.local_disk and loader.staging != "local-disk":
        yield "local disk", dataset, loader.replaced(staging="local-disk")
    if loader.staging != "memory":
        yield "memory", dataset, loader.replaced(staging="memory")
