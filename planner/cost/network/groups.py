"""Groups: the ranks of every parallel axis, where they sit, and what they see of the machine.

Ranks are numbered with tp fastest, then cp, dp and pp, the order of Megatron-LM and torchtitan's
mesh; size and stride of every group follow from that, and stand here only.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from planner.cost.arrays import Int, distinct
from planner.cost.network.topology import GroupView, group_view, unit_view
from planner.cost.shards.layouts import Layouts
from planner.describe.machine import Machine

__all__ = ["AXES", "Groups", "geometry"]

AXES = {
    "tp": "tensor",
    "etp": "expert_tensor",
    "cp": "context",
    "ep": "expert",
    "dp": "data",
    "pp": "pipeline",
}
"""The group in which the ranks of an axis communicate; context ranks share weights, so their
gradients are reduced over dp and cp together."""


def geometry(layouts: Layouts) -> dict[str, tuple[Int, Int]]:
    """Size and stride of the groups of every kind, in ranks [1].

    Counted: every axis, with tp fastest, then cp, dp and pp; those of experts with etp fastest,
    then ep and replicas. Left out: other orders of ranks. method.md#what-a-group-sees.

    >>> from planner.describe.layout import Layout
    >>> size, stride = geometry(Layouts.of(Layout(tp=4, dp=8, pp=2)))["data"]
    >>> int(size), int(stride)
    (8, 4)
    """
    tp, replicas, shards = layouts.tp, layouts.num_replicas, layouts.num_shards
    pipeline = tp * replicas
    # experts are laid over the same ranks in an order of their own: etp, ep, replicas
    experts, expert_shards = layouts.expert_tp * layouts.ep, layouts.expert_shards
    second, ulysses = layouts.num_second_shards, layouts.ulysses
    return {
        "tensor": (tp, np.ones_like(tp)),
        "context": (layouts.cp, tp),
        "heads": (ulysses, tp),
        "ring": (layouts.ring, tp * ulysses),
        "data": (replicas, tp),
        "shard": (shards, tp),
        "second_shard": (second, tp),
        "replica": (replicas // shards, tp * shards),
        "expert": (layouts.ep, layouts.expert_tp),
        "expert_tensor": (layouts.expert_tp, np.ones_like(tp)),
        "expert_data": (layouts.expert_dp, experts),
        "expert_shard": (expert_shards, experts),
        "expert_second_shard": (layouts.expert_second_shards, experts),
        "expert_replica": (layouts.expert_dp // expert_shards, experts * expert_shards),
        "pipeline": (layouts.pp, pipeline),
    }


_TOGETHER = (
    ("tensor", "context", "heads", "ring", "expert", "expert_tensor"),
    (
        "data",
        "shard",
        "second_shard",
        "replica",
        "expert_data",
        "expert_shard",
        "expert_second_shard",
        "expert_replica",
    ),
    ("pipeline",),
)
"""Kinds that are asked together: those of layers, of parameters, and of stages."""


class Groups:
    """What the groups of every kind see, worked out with their like when one is first asked for."""

    tensor: GroupView
    context: GroupView
    heads: GroupView
    """Context ranks that exchange tokens for heads (Ulysses)."""
    ring: GroupView
    """Those between which keys and values travel: one of each such group."""
    data: GroupView
    """All replicas, context ranks included (they share weights)."""
    shard: GroupView
    """Ranks that ZeRO or FSDP shards over."""
    second_shard: GroupView
    """Those of them over which weights stay sharded from forward to backward."""
    replica: GroupView
    """Ranks that hold the same shard (hybrid sharding)."""
    expert: GroupView
    expert_tensor: GroupView
    """Ranks that split an expert."""
    expert_data: GroupView
    """Replicas of one expert."""
    expert_shard: GroupView
    """Those of them that share one expert's states."""
    expert_second_shard: GroupView
    """Those over which its weights stay sharded from forward to backward."""
    expert_replica: GroupView
    """Those that hold the same shard of it (hybrid sharding)."""
    pipeline: GroupView
    """The stages of a pipeline, each a neighbour of the next."""

    def __init__(self, layouts: Layouts, view: Callable[[Int, Int], GroupView]) -> None:
        self._places, self._view = geometry(layouts), view
        self._shape = np.shape(layouts.dp)

    @classmethod
    def of(cls, layouts: Layouts, machine: Machine) -> Groups:
        """Groups of every layout on a machine."""
        return cls(layouts, functools.partial(_seen, machine))

    @classmethod
    def unit(cls, layouts: Layouts) -> Groups:
        """Groups whose ranks send one byte per second and wait for nothing: seconds are bytes."""
        return cls(layouts, lambda size, _: unit_view(size))

    def __getattr__(self, kind: str) -> GroupView:
        # Python asks this for what is no attribute yet
        if kind not in Groups.__annotations__:
            raise AttributeError(kind)
        kinds = next(kinds for kinds in _TOGETHER if kind in kinds)
        places = zip(*(self._places[one] for one in kinds), strict=True)
        seen = self._view(
            *(np.stack(figures) for figures in places)
        )
        for number, one in enumerate(kinds):
            vars(self).setdefault(one, seen.take(number))
        found: GroupView = vars(self)[kind]
        return found


def _seen(machine: Machine, size: Int, stride: Int) -> GroupView:
    """What groups see, looked up once per pair of size and stride: few differ."""
    first, which = distinct(size, stride)
    return group_view(machine, np.ravel(size)[first], np.ravel(stride)[first]).take(which)
