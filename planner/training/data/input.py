"""Input: how long a batch takes to arrive, and what of that no prefetch hides."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from planner.cost.arrays import Float
from planner.describe.dataset import Dataset, Loader
from planner.describe.machine import Machine
from planner.errors import DescriptionError
from planner.training.data.constants import constants
from planner.training.data.node_cache import kept_fraction, staging_time
from planner.training.data.stages import (
    node_read_rate,
    stage_times,
    unknown_stages,
)

__all__ = ["InputTime", "input_time"]


@dataclass(frozen=True, slots=True)
class InputTime:
    """What a training's data takes, in arrays of one shape."""

    delivery_s: Float
    """Time until the samples of one step are there, in epochs after the first [s]."""
    exposed_s: Float
    """What of it a step waits [s]."""
    first_epoch_exposed_s: Float
    """The same in the first epoch, which finds no cache [s]."""
    staging_s: Float
    """Copying the dataset to the local disks, once [s]."""
    utilisation: Float
    """Accelerator utilisation (AU) of DLIO and MLPerf Storage in epochs after the first [1]."""
    stages: dict[str, Float]
    """Time of every stage in epochs after the first [s]."""
    first_epoch_stages: dict[str, Float]
    """The same in the first epoch [s]."""
    kept: Float
    """Part of the reads that a node serves itself in epochs after the first [1]."""
    unknown: tuple[str, ...]
    """Stages that are not counted, because no rate of theirs is known."""

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
    """Time that the samples of a step take to arrive, and what of it the step waits [s].

    Counted: `stage_times`, of which the slowest sets the pace; prefetch hides it behind the step of
    `step_s`, no prefetch or no workers hides nothing; every step fetches a batch that is ready.
    Left out: evaluation, other jobs on the file system, gradients on the same interfaces, samples
    of unlike size in one batch. `ranks_per_node` are those that load; `samples_per_step` those of
    the whole job that are unlike. Shapes: all broadcast.
    Raises DescriptionError for a dataset of tokens that is not cut into sequences, and for local
    disks that are not there; UnknownNameError for a file system that the machine does not list.
    Source: method.md#input.

    >>> from planner.describe.catalogue import load_dataset, load_machine
    >>> found = input_time(load_machine("polaris"), 100, 4, 2800, 0.636, load_dataset("unet3d"),
    ...     Loader(workers=8))
    >>> str(found.bound), round(float(found.delivery_s), 3)
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
            np.asarray(one, float)
            for one in (nodes, ranks_per_node, samples_per_step, step_s, epochs)
        )
    )
    job = machine, nodes, ranks, samples, dataset, loader
    first, later = kept_fraction(machine, nodes, dataset, loader, epochs)
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
        kept=later,
        unknown=unknown_stages(machine, loader),
    )


def _longest(stages: dict[str, Float]) -> Float:
    return np.max(np.stack(list(stages.values())), axis=0)


def _slowest(stages: dict[str, Float]) -> NDArray[np.str_]:
    return np.array(list(stages))[np.argmax(np.stack(list(stages.values())), axis=0)]


def _exposed(stages: dict[str, Float], step: Float, loader: Loader) -> Float:
    """What a step waits for its batch [s]."""
    longest, fetch = _longest(stages), constants().hand_over_s.value
    if not loader.workers:
        return np.sum(np.stack(list(stages.values())), axis=0)
    if not loader.prefetch:
        return longest + fetch
    return fetch + np.maximum(longest - step - fetch, 0)
