"""Input: time to deliver a batch, and the part of it that prefetch does not hide."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from planner.cost.arrays import Float
from planner.describe.machine import Machine
from planner.describe.training.training_run import Dataset, Loader
from planner.errors import DescriptionError
from planner.training.data.constants import constants
from planner.training.data.input_stages import (
    node_read_rate,
    stage_times,
    unknown_stages,
)
from planner.training.data.node_cache import cached_fraction, staging_time

__all__ = ["InputTime", "input_time"]


@dataclass(frozen=True, slots=True)
class InputTime:
    """Times of the input pipeline for one step, in arrays of one shape."""

    delivery_s: Float
    """Time to deliver the samples of one step, in epochs after the first [s]."""
    exposed_s: Float
    """Part of it that a step waits [s]."""
    first_epoch_exposed_s: Float
    """The same in the first epoch, when caches are empty [s]."""
    staging_s: Float
    """Copying the dataset to the local disks, once [s]."""
    utilisation: Float
    """Accelerator utilisation (AU) of DLIO and MLPerf Storage in epochs after the first [1]."""
    stages: dict[str, Float]
    """Time of every stage in epochs after the first [s]."""
    first_epoch_stages: dict[str, Float]
    """The same in the first epoch [s]."""
    cached: Float
    """Fraction of reads that the node cache serves in epochs after the first [1]."""
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
    of the whole job. Shapes: all broadcast.
    Raises DescriptionError for a dataset of tokens that is not cut into sequences, and for missing
    local disks; UnknownNameError for a file system that the machine does not list.
    Source: method.md#input.

    >>> from planner.describe.catalogue import load_dataset
    >>> time = input_time(load_machine("polaris"), 100, 4, 2800, 0.636, load_dataset("unet3d"),
    ...     Loader(workers=8))
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
    nodes, ranks, samples, step, epochs = np.broadcast_arrays(
        *(
            np.asarray(values, float)
            for values in (nodes, ranks_per_node, samples_per_step, step_s, epochs)
        )
    )
    job = machine, nodes, ranks, samples, dataset, loader
    first, later = cached_fraction(machine, nodes, dataset, loader, epochs)
    cold, warm = stage_times(*job, first), stage_times(*job, later)
    exposed = _exposed(warm, step, loader)
    system = machine.file_system(loader.file_system)
    rate = node_read_rate(machine, nodes, system)
    staging = staging_time(machine, nodes, dataset, loader, rate)
    return InputTime(
        delivery_s=_longest(warm),
        exposed_s=exposed,
        first_epoch_exposed_s=_exposed(cold, step, loader),
        staging_s=staging if system else 0 * staging,
        utilisation=step / (step + exposed),
        stages=warm,
        first_epoch_stages=cold,
        cached=later,
        unknown=unknown_stages(machine, loader),
    )


def _longest(stages: dict[str, Float]) -> Float:
    return np.max(np.stack(list(stages.values())), axis=0)


def _slowest(stages: dict[str, Float]) -> NDArray[np.str_]:
    return np.array(list(stages))[np.argmax(np.stack(list(stages.values())), axis=0)]


def _exposed(stages: dict[str, Float], step: Float, loader: Loader) -> Float:
    """Time that a step waits for its batch [s]."""
    longest, fetch = _longest(stages), constants().hand_over_s.value
    if not loader.workers:
        return np.sum(np.stack(list(stages.values())), axis=0)
    if not loader.prefetch:
        return longest + fetch
    return fetch + np.maximum(longest - step - fetch, 0)
