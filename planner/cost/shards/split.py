"""Split: how the tensor-parallel group divides a tensor."""

from __future__ import annotations

import numpy as np

from planner.cost.arrays import Float
from planner.cost.shards.layouts import Layouts
from planner.describe.model.block import Split

__all__ = ["split_over"]


def split_over(split: Split, layouts: Layouts, *, gathered: bool = False) -> Float:
    """Into how many parts a tensor falls [1].

    The words are those of `planner.describe.model.block`. `gathered`: whether the framework keeps
    inputs of column-parallel products gathered. Counted: the tensor-parallel group; a part that
    does not exist is infinitely small. Left out: data parallelism, rounding to heads.
    method.md#activations.

    >>> from planner.describe.layout import Layout
    >>> spread = Layouts.of(Layout(tp=4, sequence_parallel=True))
    >>> [float(split_over(word, spread)) for word in ("sharded", "residual", "replicated")]
    [4.0, 4.0, 1.0]
    """
    tp = layouts.tp.astype(float)
    if split == "dispatched":
        return tp / layouts.expert_tp
    if split in ("sharded", "column", "row"):
        return tp
    if split == "residual" or (split == "gathered" and not gathered):
        return np.where(layouts.splits_sequence, tp, 1.0)
    if split in ("scattered", "whole"):
        parts = tp if split == "scattered" else np.ones_like(tp)
        return np.where(layouts.splits_sequence, parts, np.inf)
    return np.ones_like(tp)
