"""Run traits: features of a run that decide the spread of its error."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.cost.arrays import Arrays, Float

__all__ = ["Traits"]


@dataclass(frozen=True, slots=True)
class Traits(Arrays):
    """Of n runs."""

    shares: Float
    """(n, 3) parts of the estimated step: computation, traffic, the host's time."""
    size: Float
    """(n, 2) logarithms of parameters and sequence length."""
    shape: Float
    """(n, 6) binary logarithms of tp, pp, ep, micro-batch and dp * cp; twice whether layers are
    recomputed whole."""
    growth: Float
    """(n,) doublings of the devices beyond a node of eight."""
    assumed_rate: Float
    """(n,) whether nobody measured what the device sustains."""
    assumed_links: Float
    """(n,) whether nobody measured what the network reaches, or in a node its links."""
    experts: Float
    """(n,) whether the model has experts."""
    guessed: Float
    """(n,) whether model, software, devices or layout had to be guessed."""
    machine: NDArray[np.str_]
    """(n,) names."""
    framework: NDArray[np.str_]
    """(n,) names."""

    def __len__(self) -> int:
        return len(self.growth)
