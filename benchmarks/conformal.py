"""Conformal quantiles of measured / estimated, from which intervals are made."""

from __future__ import annotations

import math

_PARTS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)


def quantiles(ratios: list[float], coverage: float = 0.9) -> tuple[float, float]:
    """Finite-sample conformal quantiles of measured / estimated.

    For n runs, returns the k-th smallest and largest, k = floor((n + 1) (1 - coverage) / 2), so
    that another exchangeable run lies between them with at least this coverage (Vovk et al. 2005;
    Lei et al. 2018, arXiv:1604.04173). If there are too few runs, the extremes are widened by a
    fifth.

    >>> low, high = quantiles([0.9, 1.0, 1.1] * 20)
    >>> (low, high)
    (0.9, 1.1)
    """
    ordered = sorted(ratios)
    k = math.floor((len(ordered) + 1) * (1 - coverage) / 2 + 1e-9)  # 20 * (1 - 0.9) is below 2
    if k < 1:
        return ordered[0] / 1.2, ordered[-1] * 1.2
    return ordered[k - 1], ordered[-k]


def distribution(ratios: list[float]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Cumulative distribution of ratios: probabilities, and the ratio below which each lies.

    The k-th of n ratios has probability k/(n + 1), as in `quantiles`.

    >>> parts, below = distribution([0.9, 1.0, 1.1])
    >>> [(round(part, 2), ratio) for part, ratio in zip(parts, below)][:2]
    [(0.25, 0.9), (0.3, 1.0)]
    """
    ordered, highest = sorted(ratios), len(ratios) / (len(ratios) + 1)
    inner = (part for part in _PARTS if 1 - highest < part < highest)
    parts = tuple(sorted({1 - highest, highest, *inner}))
    ranks = (min(math.ceil(part * (len(ordered) + 1) - 1e-9), len(ordered)) for part in parts)
    return parts, tuple(ordered[rank - 1] for rank in ranks)
