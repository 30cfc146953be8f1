"""Large batch: learning rate, warm-up steps and samples needed for a batch size."""

import functools
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike
from pydantic import Field

from planner.cost.arrays import Float
from planner.cost.constants import load
from planner.describe.base import Description

LINEAR = 1.0
"""Exponent of the linear rule: Goyal et al. 2017, arXiv:1706.02677, section 2.1."""
SQUARE_ROOT = 0.5
"""Exponent of the square-root rule: Krizhevsky 2014, arXiv:1404.5997, section 5."""


class LargeBatch(Description):
    """A published training with a large batch."""

    model: str = Field(min_length=2)
    """Catalogue name of the model."""
    batch: int = Field(ge=1, le=10**9)
    """Samples per step."""
    optimizer: str = Field(min_length=2)
    """Optimizer, and the measures that made the large batch work."""
    outcome: str = Field(min_length=8)
    """Result, compared with that of a smaller batch if one is stated."""
    source: str = Field(min_length=2)
    """Source of these figures."""


class LargeBatches(Description):
    """All published trainings with large batches."""

    published: tuple[LargeBatch, ...] = Field(min_length=1)
    """Grouped by model, smaller batches first."""


def scaled_rate(
    base_rate: ArrayLike, base_batch: ArrayLike, batch: ArrayLike, power: ArrayLike = LINEAR
) -> Float:
    """Learning rate for a batch size, scaled from the rate for another batch size [1].

    Left out: warm-up, decay, momentum, the size at which a rule fails.
    large_batches.md#large-batches.
    """
    ratio = np.asarray(batch, dtype=float) / np.asarray(base_batch)
    return np.asarray(base_rate * ratio ** np.asarray(power))


def warm_up_steps(samples: ArrayLike, epochs: ArrayLike, batch: ArrayLike) -> Float:
    """Steps of a learning-rate warm-up of `epochs` epochs, for any batch size [1].

    Goyal et al. 2017, arXiv:1706.02677, section 2.2: five epochs.
    """
    return np.maximum(np.ceil(np.asarray(samples) * np.asarray(epochs) / np.asarray(batch)), 1.0)


def more_samples(batch: ArrayLike, critical_batch: ArrayLike) -> Float:
    """Samples needed to reach the same loss, relative to a very small batch [1].

    McCandlish et al. 2018, arXiv:1812.06162, section 2.3, equation 2.11.
    """
    return 1 + np.asarray(batch, dtype=float) / np.asarray(critical_batch)


@functools.cache
def published() -> tuple[LargeBatch, ...]:
    """Published trainings with large batches, with their sources."""
    return load(Path(__file__).with_name("large_batches.toml"), LargeBatches).published
