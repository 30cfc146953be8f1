"""Large batch: how the learning rate, its warm-up and the samples needed follow the batch."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike
from pydantic import Field

from planner.cost.arrays import Float
from planner.cost.constants import load
from planner.describe.base import Description

LINEAR = 1.0
"""Goyal et al. 2017, arXiv:1706.02677, section 2.1."""
SQUARE_ROOT = 0.5
"""Krizhevsky 2014, arXiv:1404.5997, section 5."""


class LargeBatch(Description):
    """A published training with a large batch."""

    model: str = Field(min_length=2)
    """The model, by its name in the catalogue."""
    batch: int = Field(ge=1, le=10**9)
    """Samples a step."""
    optimizer: str = Field(min_length=2)
    """What updated the weights, and what was done to make it work."""
    outcome: str = Field(min_length=8)
    """What was reached, beside a smaller batch where one is stated."""
    source: str = Field(min_length=2)
    """Where that was read."""


class LargeBatches(Description):
    """All of them."""

    published: tuple[LargeBatch, ...] = Field(min_length=1)
    """By model, smaller batches first."""


def scaled_rate(
    base_rate: ArrayLike, base_batch: ArrayLike, batch: ArrayLike, power: ArrayLike = LINEAR
) -> Float:
    """Learning rate of a batch, from the one that suits another batch [1].

    Counted: the ratio of the batches (SGD: as many samples move the weights as far) or its square
    root (the gradient's noise stays as strong; usual with Adam and LAMB). Left out: warm-up, decay,
    momentum, where a rule ends. Sources: of `LINEAR`, `SQUARE_ROOT`; method.md#large-batches.

    >>> float(scaled_rate(0.1, 256, 8192)), float(scaled_rate(1e-4, 512, 8192, SQUARE_ROOT))
    (3.2, 0.0004)
    """
    ratio = np.asarray(batch, dtype=float) / np.asarray(base_batch)
    return np.asarray(base_rate * ratio ** np.asarray(power))


def warm_up_steps(samples: ArrayLike, epochs: ArrayLike, batch: ArrayLike) -> Float:
    """Steps of a warm-up that lasts some epochs, whatever the batch [1].

    Counted: whole steps, one at least. Left out: how the rate rises. Goyal et al. 2017,
    arXiv:1706.02677, section 2.2: five epochs; method.md#large-batches.

    >>> float(warm_up_steps(1_281_167, 5, 8192))        # ImageNet
    782.0
    """
    return np.maximum(np.ceil(np.asarray(samples) * np.asarray(epochs) / np.asarray(batch)), 1.0)


def more_samples(batch: ArrayLike, critical_batch: ArrayLike) -> Float:
    """Samples to the same loss over those that a very small batch would take [1].

    Counted: 1 + batch / critical batch, the gradient's noise scale, at which both samples and steps
    are twice their least. Left out: growth of the scale while a model learns. McCandlish et al.
    2018, arXiv:1812.06162, section 2.3, equation 2.11; method.md#large-batches.

    >>> [float(more_samples(size, 1000)) for size in (1, 1000, 8000)]
    [1.001, 2.0, 9.0]
    """
    return 1 + np.asarray(batch, dtype=float) / np.asarray(critical_batch)


@functools.cache
def published() -> tuple[LargeBatch, ...]:
    """Published trainings with large batches, with their sources."""
    return load(Path(__file__).with_name("large_batches.toml"), LargeBatches).published
