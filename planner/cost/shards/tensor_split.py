"""Tensor split: division of tensors over tensor-parallel ranks, and token load of experts."""

import numpy as np

from planner.cost.arrays import Float
from planner.cost.shards.layouts import Layouts
from planner.describe.model.block import Split
from planner.describe.workload import Workload


def split_over(split: Split, layouts: Layouts, *, gathered: bool = False) -> Float:
    """Number of parts into which tensor parallelism splits a tensor [1].

    `split`: see `planner.describe.model.block`. `gathered`: inputs of column-parallel GEMMs are
    saved gathered. Counted: the tensor-parallel group; infinity for a tensor that does not exist.
    Left out: data parallelism, rounding to heads. activations.md#activations.
    """
    tp = layouts.tp.astype(float)
    if split == "dispatched":
        return tp / layouts.expert_tp
    if split in ("sharded", "expert", "column", "row"):
        return tp
    if split == "residual" or (split == "gathered" and not gathered):
        return np.where(layouts.splits_sequence, tp, 1.0)
    if split == "rotated":  # every rank of a ring holds the whole sequence
        return tp / layouts.cp
    if split in ("scattered", "whole"):
        parts = tp if split == "scattered" else np.ones_like(tp)
        return np.where(layouts.splits_sequence, parts, np.inf)
    return np.ones_like(tp)


def expert_load(workload: Workload, layouts: Layouts) -> Float:
    """Tokens on the expert rank with the highest load / mean over ranks [1].

    Counted: uneven routing over ranks, at most the expert capacity, or the capacity itself with
    padding. Left out: imbalance among the experts of one rank. Lepikhin et al. 2020,
    arXiv:2006.16668, section 2.2; experts.md#experts.
    """
    uneven = np.where(layouts.ep > 1, workload.expert_imbalance, 1.0)
    capacity = workload.expert_capacity
    if workload.pad_experts:
        return np.full_like(uneven, capacity)
    return np.minimum(uneven, capacity) if capacity else uneven


def kept_share(workload: Workload, layouts: Layouts) -> Float:
    """Upper bound of the tokens that experts process / tokens routed to them [1].

    Counted: tokens above capacity are dropped, on the rank with the highest load and on the others,
    which share the rest evenly. Left out: further imbalance, which drops more tokens. Lepikhin et
    al. 2020, arXiv:2006.16668, section 2.2; experts.md#experts.
    """
    capacity, ranks = workload.expert_capacity, layouts.ep.astype(float)
    if not capacity:
        return np.ones_like(ranks)
    fullest = np.where(ranks > 1, workload.expert_imbalance, 1.0)
    other_ranks = np.maximum(ranks - fullest, 0.0)
    accepted = np.minimum(fullest, capacity) + np.minimum(other_ranks, (ranks - 1) * capacity)
    return np.minimum(accepted / ranks, 1.0)
