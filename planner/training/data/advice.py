"""Advice: what would shorten the wait for data, each change asked of the same model again."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from numpy.typing import ArrayLike

from planner.describe.dataset import Dataset, Loader
from planner.describe.machine import Machine
from planner.training.data.input import InputTime, input_time

__all__ = ["Change", "ChangeName", "changes"]

ChangeName = Literal[
    "workers",
    "prefetch",
    "decoded",
    "larger files",
    "stripes",
    "shards",
    "local disk",
    "memory",
]

_FILE_BYTES = 1e9
# files as large as record files usually are are opened seldom


@dataclass(frozen=True, slots=True)
class Change:
    """One thing done otherwise, and what becomes of the wait for data."""

    name: ChangeName
    dataset: Dataset
    loader: Loader
    found: InputTime


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
    """Everything that can be done otherwise on a machine, each alone, with its times [s].

    Counted: more workers, prefetch, staging, larger files, stripes and sequential reads, as far as
    each is another loader or dataset; a caller compares them with the time of the loader as it is.
    Left out: two changes at once, whether one helps. method.md#input.

    >>> from planner.describe.catalogue import load_dataset, load_machine
    >>> job = load_machine("polaris"), 256, 4, 7168, 0.636, load_dataset("unet3d")
    >>> found = {change.name: change.found for change in changes(*job, Loader())}
    >>> round(float(found["local disk"].utilisation), 2)
    1.0
    """
    job = machine, nodes, ranks_per_node, samples_per_step, step_s
    return [
        Change(name, data, way, input_time(*job, data, way, epochs))
        for name, data, way in _ways(machine, ranks_per_node, dataset, loader)
    ]


def _ways(
    machine: Machine, ranks: float, dataset: Dataset, loader: Loader
) -> Iterator[tuple[ChangeName, Dataset, Loader]]:
    """What can be done otherwise: dataset and loader after each change."""
    workers = max(int(machine.node.num_cores.value / max(ranks, 1)), 1)
    hidden = max(loader.prefetch, 2)
    if workers > loader.workers:
        yield "workers", dataset, loader.replaced(workers=workers, prefetch=hidden)
    if not loader.prefetch or not loader.workers:
        yield "prefetch", dataset, loader.replaced(workers=max(loader.workers, 1), prefetch=hidden)
    if dataset.compressed and dataset.decode_s.value:
        yield "decoded", _decoded(dataset), loader
    per_file = math.ceil(_FILE_BYTES / dataset.sample_bytes.value)
    if per_file > dataset.samples_per_file.value:
        yield "larger files", _packed(dataset, per_file), loader.replaced(order="sequential")
    system = machine.file_system(loader.file_system)
    if system and system.num_targets and system.num_targets.value > loader.stripe_count:
        yield "stripes", dataset, loader.replaced(stripe_count=int(system.num_targets.value))
    yield from _kept(machine, dataset, loader)


def _decoded(dataset: Dataset) -> Dataset:
    """The dataset stored as it is after decoding, which then takes nothing."""
    size, said = dataset.host_bytes, {"kind": "assumed", "source": "stored decoded"}
    return dataset.replaced(
        sample_bytes={"value": size, **said}, decode_s={"value": 0.0, **said}, compressed=False
    )


def _packed(dataset: Dataset, per_file: int) -> Dataset:
    """The dataset in larger files."""
    said = f"record files of {_FILE_BYTES / 1e9:g} GB"
    return dataset.replaced(
        samples_per_file={"value": per_file, "kind": "assumed", "source": said}, order="sequential"
    )


def _kept(
    machine: Machine, dataset: Dataset, loader: Loader
) -> Iterator[tuple[ChangeName, Dataset, Loader]]:
    """Where a node can keep what it reads."""
    if not loader.sharded:
        kept = "memory" if loader.staging == "none" else loader.staging
        yield "shards", dataset, loader.replaced(staging=kept, sharded=True)
    if machine.node.local_disk and loader.staging != "local-disk":
        yield "local disk", dataset, loader.replaced(staging="local-disk")
    if loader.staging != "memory":
        yield "memory", dataset, loader.replaced(staging="memory")
