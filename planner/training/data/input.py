"""Input: time to deliver a batch, and the part of it that prefetch does not hide."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from planner.cost.arrays import Float
from planner.describe.machine import Machine
from planner.describe.training.training_run import Dataset, Loader
from planner.errors import DescriptionError
from planner.training.data.input_stages import (
    cached_fraction,
    constants,
    node_read_rate,
    stage_times,
    staging_time,
    unknown_stages,
)

__all__ = ["Change", "ChangeName", "InputTime", "changes", "input_time"]


@dataclass(frozen=True, slots=True)
class InputTime:
    """Input of one step, in arrays of one shape: of epochs after the first, unless named so [s]."""

    delivery_s: Float
    exposed_s: Float
    """Part of the delivery that a step waits [s]."""
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
    """Stages that are not counted, because their rate is not known."""

    @property
    def bound(self) -> NDArray[np.str_]:
        """The slowest stage in epochs after the first."""
        return _slowest(self.stages)

    @property
    def first_epoch_bound(self) -> NDArray[np.str_]:
        """The slowest stage in the first epoch."""
        return _slowest(self.first_epoch_stages)


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
    """Time to deliver the samples of a step, and the part of it that the step waits [s].

    Counted: the slowest of `stage_times`, which prefetch hides behind a step of `step_s`; fetching
    a ready batch in every step. Without prefetch or workers nothing is hidden. Left out:
    evaluation, other jobs on the file system, gradients on the same interfaces, samples of unlike
    size in one batch. `ranks_per_node` counts ranks that load, `samples_per_step` different samples
    of the whole job. Raises DescriptionError for datasets of tokens that are not cut and missing
    local disks; UnknownNameError for unknown file systems. method.md#input.

    >>> job = load_machine("polaris"), 100, 4, 2800, 0.636, planner.load_dataset("unet3d")
    >>> time = input_time(*job, Loader(workers=8))
    >>> str(time.bound), round(float(time.delivery_s), 3)
    ('file system', 0.632)
    """
    if dataset.unit == "token":
        raise DescriptionError(
            f"{dataset.name} counts tokens: cut it into samples with dataset.of_sequences(length)"
        )
    if loader.staging == "local-disk" and machine.node.local_disk is None:
        raise DescriptionError(
            f"staging = 'local-disk': nodes of {machine.name} have no disk of their own; "
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
        unknown=unknown_stages(machine, loader),
    )


def _longest(stages: dict[str, Float]) -> Float:
    return np.max(list(stages.values()), axis=0)


def _slowest(stages: dict[str, Float]) -> NDArray[np.str_]:
    return np.array(list(stages))[np.argmax(list(stages.values()), axis=0)]


def _exposed(stages: dict[str, Float], step: Float, loader: Loader) -> Float:
    """Time that a step waits for its batch [s]."""
    longest, fetch = _longest(stages), constants().hand_over_s.value
    if not loader.workers:
        return np.sum(list(stages.values()), axis=0)
    if not loader.prefetch:
        return longest + fetch
    return fetch + np.maximum(longest - step - fetch, 0)


ChangeName = Literal[
    "workers", "prefetch", "decoded", "larger files", "stripes", "shards", "local disk", "memory"
]

_FILE_BYTES = 1e9
# a usual size of record files: they are opened seldom


@dataclass(frozen=True, slots=True)
class Change:
    """One change of loader or dataset, and the input time with it."""

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
    """Every possible single change of loader and dataset, with its input time [s].

    Counted: more workers, prefetch, staging, larger files, stripes, sequential reads. Left out: two
    changes at once. method.md#input.

    >>> job = load_machine("polaris"), 256, 4, 7168, 0.636, planner.load_dataset("unet3d")
    >>> [change.name for change in changes(*job, Loader())][-2:]
    ['local disk', 'memory']
    """
    job = machine, nodes, ranks_per_node, samples_per_step, step_s
    return [
        Change(name, data, new_loader, input_time(*job, data, new_loader, epochs))
        for name, data, new_loader in _variants(machine, ranks_per_node, dataset, loader)
    ]


def _variants(
    machine: Machine, ranks: float, dataset: Dataset, loader: Loader
) -> Iterator[tuple[ChangeName, Dataset, Loader]]:
    """Dataset and loader after each change."""
    workers = max(int(machine.node.num_cores.value / max(ranks, 1)), 1)
    hidden = max(loader.prefetch, 2)
    if workers > loader.workers:
        yield "workers", dataset, loader.replaced(workers=workers, prefetch=hidden)
    if not loader.prefetch or not loader.workers:
        yield "prefetch", dataset, loader.replaced(workers=max(loader.workers, 1), prefetch=hidden)
    if dataset.compressed and dataset.decode_s.value:
        origin = {"kind": "assumed", "source": "stored decoded"}
        size = {"value": dataset.host_bytes, **origin}
        stored = {"sample_bytes": size, "decode_s": {"value": 0.0, **origin}}
        yield "decoded", dataset.replaced(**stored, compressed=False), loader
    per_file = math.ceil(_FILE_BYTES / dataset.sample_bytes.value)
    if per_file > dataset.samples_per_file.value:
        source = f"record files of {_FILE_BYTES / 1e9:g} GB"
        number = {"value": per_file, "kind": "assumed", "source": source}
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
