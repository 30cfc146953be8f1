"""Fitting: latency and rate from measured times, with the error of the fit stated.

Times span four decades, so squares of relative errors are minimised: a plain fit would serve
only the largest size (and often makes the latency negative). R2 is no help: it is near one for
fits that miss small messages fivefold.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from planner.errors import CatalogueError

__all__ = ["AlphaBeta", "alpha_beta", "interpolate", "relative_least_squares"]

Float = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class AlphaBeta:
    """t = alpha + bytes / rate."""

    alpha_s: float
    bytes_per_s: float
    mape: float
    """Mean of |fit / measured - 1| over the fitted points."""

    def time_s(self, size_bytes: ArrayLike) -> Float:
        """Time of a size by the fit [s]."""
        return self.alpha_s + np.asarray(size_bytes, dtype=float) / self.bytes_per_s


def relative_least_squares(columns: ArrayLike, times_s: ArrayLike) -> tuple[Float, float]:
    """Non-negative coefficients c that minimise sum ((columns @ c) / t - 1)^2, and the MAPE.

    Raises CatalogueError without scipy, whose non-negative least squares are used.

    >>> c, mape = relative_least_squares([[1, 0], [1, 10], [1, 1000]], [2, 7, 502])
    >>> [round(float(x), 6) for x in c], round(mape, 9)
    ([2.0, 0.5], 0.0)
    """
    try:
        from scipy.optimize import nnls
    except ImportError:
        raise CatalogueError(
            "fits need scipy, which is not installed; run pip install 'parallelism-planner[torch]'"
        ) from None
    matrix, times = np.asarray(columns, dtype=float), np.asarray(times_s, dtype=float)
    weighted = matrix / times[:, None]
    # columns span many decades; the solver's tolerance is one for all
    scale = np.linalg.norm(weighted, axis=0)
    scale[scale == 0] = 1.0
    solved = nnls(weighted / scale, np.ones(len(times)))[0] / scale
    mape = float(np.mean(np.abs(weighted @ solved - 1)))
    return solved, mape


def alpha_beta(sizes_bytes: Sequence[float], times_s: Sequence[float]) -> AlphaBeta:
    """Latency and rate of one operation.

    >>> fit = alpha_beta([1e3, 1e5, 1e7], [1.01e-4, 2e-4, 1.01e-2])
    >>> round(fit.alpha_s * 1e6), round(fit.bytes_per_s / 1e9, 3), fit.mape < 1e-6
    (100, 1.0, True)
    """
    columns = np.stack([np.ones(len(sizes_bytes)), np.asarray(sizes_bytes, dtype=float)], axis=1)
    (alpha, beta), mape = relative_least_squares(columns, times_s)
    return AlphaBeta(float(alpha), 1 / float(beta) if beta > 0 else math.inf, mape)


def interpolate(
    size_bytes: ArrayLike, sizes_bytes: Sequence[float], times_s: Sequence[float]
) -> Float:
    """Interpolate times of sizes in a measured table, linear in logarithms.

    Below the smallest size its time is taken; above the largest the last slope goes on.
    """
    x, sizes = np.asarray(size_bytes, dtype=float), np.asarray(sizes_bytes, dtype=float)
    times = np.asarray(times_s, dtype=float)
    inside = np.exp(np.interp(np.log(np.maximum(x, 1e-9)), np.log(sizes), np.log(times)))
    slope = (times[-1] - times[-2]) / (sizes[-1] - sizes[-2]) if len(sizes) > 1 else 0.0
    beyond = times[-1] + max(slope, times[-1] / sizes[-1] * 0.5) * (x - sizes[-1])
    return np.where(x > sizes[-1], beyond, inside)
