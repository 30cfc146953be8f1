"""Saved tensors: bytes that autograd saves on one rank."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from planner.cost.arrays import Float, Mask
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.cost.shards.tensor_split import expert_load, split_over
from planner.describe.model.block import Block, Saved, Split

__all__ = ["always_saved", "saved_bytes"]


def saved_bytes(scenario: Scenario, items: tuple[Saved, ...], layouts: Layouts) -> Float:
    """Saved tensors on one rank for one micro-batch [B].

    Counted: their bytes per token, over the ranks that split them. Left out: how many layers keep
    them. method.md#memory-per-device.

    >>> from planner.describe.model.block import Saved
    >>> queries = Saved("queries", 2 * 4096, "sharded")             # sequences of 2048 tokens
    >>> float(saved_bytes(scenario, (queries,), Layouts.of(Layout(tp=4)))) / 2**20
    4.0
    """
    workload, gathered = scenario.workload, scenario.framework.kernels.saves_gathered
    alike: dict[tuple[Split, tuple[str, ...]], float] = {}
    for item in items:
        kind = (item.split, item.only)
        per_key = workload.sequence_length if item.scores else 1
        alike[kind] = alike.get(kind, 0.0) + item.bytes_per_token * per_key
    total = np.zeros(np.shape(layouts.tp))
    for (split, only), size in alike.items():
        parts = size / split_over(split, layouts, gathered=gathered)
        if split in ("dispatched", "expert"):
            parts = parts * expert_load(workload, layouts)
        for condition in only:
            parts = np.where(_CONDITIONS[condition](layouts), parts, 0.0)
        total = total + parts
    return total * layouts.tokens(workload.sequence_length)


_CONDITIONS: dict[str, Callable[[Layouts], Mask]] = {
    "only_split": lambda layouts: layouts.tp > 1,
    "only_context": lambda layouts: layouts.cp > 1,
    "only_spread": lambda layouts: layouts.ep > 1,
    "only_batched": lambda layouts: layouts.micro_batch > 1,
    "only_piped": lambda layouts: layouts.piped,
}
"""Where tensors exist that do not exist everywhere, by the mark of `Saved`."""


def always_saved(block: Block) -> tuple[Saved, ...]:
    """Tensors of a block that autograd saves without recompute: their bytes per token [B].

    Counted: all but those that exist with selective recompute only. Left out: ranks that split
    them. Definition.

    >>> any(item.selective_only for item in always_saved(blocks_of(scenario)[1]))
    False
    """
    return tuple(item for item in block.saved if not item.selective_only)
