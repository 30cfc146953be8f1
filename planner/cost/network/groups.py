"""Groups: size and stride of the groups of every parallel axis, and their network view."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from planner.cost.arrays import Int, distinct
from planner.cost.network.topology import GroupView, group_view, unit_view
from planner.cost.shards.layouts import Layouts
from planner.describe.machine import Machine

AXES = {
    "tp": "tensor",
    "etp": "expert_tensor",
    "cp": "context",
    "ep": "expert",
    "dp": "data",
    "pp": "pipeline",
}
"""Group of each axis; `data` spans dp and cp, because context ranks share weights."""


def geometry(layouts: Layouts) -> dict[str, tuple[Int, Int]]:
    """Size and stride, in ranks, of the groups of every kind [1].

    Counted: ranks with tp fastest, then cp, dp and pp; for experts etp fastest, then ep and
    replicas. Left out: other orders of ranks. network.md#what-a-group-sees.
    """
    return {kind: place for places in _GROUP_KINDS for kind, place in places(layouts).items()}


def _of_layers(layouts: Layouts) -> dict[str, tuple[Int, Int]]:
    """Groups whose ranks compute a layer together."""
    tp, etp, ulysses = layouts.tp, layouts.expert_tp, layouts.ulysses
    return {
        "tensor": (tp, np.ones_like(tp)),
        "context": (layouts.cp, tp),
        "heads": (ulysses, tp),
        "ring": (layouts.ring, tp * ulysses),
        # experts use the same ranks in another order: etp, ep, replicas
        "expert": (layouts.ep, etp),
        "expert_tensor": (etp, np.ones_like(tp)),
    }


def _of_parameters(layouts: Layouts) -> dict[str, tuple[Int, Int]]:
    """Groups that shard parameters, or hold replicas of them."""
    tp, replicas, shards = layouts.tp, layouts.num_replicas, layouts.num_shards
    experts = layouts.expert_tp * layouts.ep
    copies, expert_shards = layouts.expert_dp, layouts.expert_shards
    return {
        "data": (replicas, tp),
        "shard": (shards, tp),
        "second_shard": (layouts.num_second_shards, tp),
        "replica": (replicas // shards, tp * shards),
        "expert_data": (copies, experts),
        "expert_shard": (expert_shards, experts),
        "expert_second_shard": (layouts.expert_second_shards, experts),
        "expert_replica": (copies // expert_shards, experts * expert_shards),
    }


def _of_stages(layouts: Layouts) -> dict[str, tuple[Int, Int]]:
    return {"pipeline": (layouts.pp, layouts.tp * layouts.num_replicas)}


_GROUP_KINDS = (_of_layers, _of_parameters, _of_stages)
"""Kinds of groups whose views are computed together."""


class Groups:
    """Network views of the groups of every kind, computed on first use."""

    tensor: GroupView
    context: GroupView
    heads: GroupView
    """Context ranks that exchange tokens for heads (Ulysses)."""
    ring: GroupView
    """Context ranks that exchange keys and values: one of each Ulysses group."""
    data: GroupView
    """All replicas, context ranks included (they share weights)."""
    shard: GroupView
    """Ranks that ZeRO or FSDP shards over."""
    second_shard: GroupView
    """Ranks over which weights stay sharded from forward to backward."""
    replica: GroupView
    """Ranks that hold the same shard (hybrid sharding)."""
    expert: GroupView
    expert_tensor: GroupView
    """Ranks that split an expert."""
    expert_data: GroupView
    """Replicas of one expert."""
    expert_shard: GroupView
    """Ranks that shard one expert's states."""
    expert_second_shard: GroupView
    """Ranks over which an expert's weights stay sharded from forward to backward."""
    expert_replica: GroupView
    """Ranks that hold the same shard of an expert (hybrid sharding)."""
    pipeline: GroupView
    """Pipeline stages; each sends to the next."""

    def __init__(self, layouts: Layouts, view: Callable[[Int, Int], GroupView]) -> None:
        self._layouts, self._view = layouts, view
        self._stacked_views: dict[str, tuple[GroupView, int]] = {}
        """Stacked views of several kinds, and the index of each kind in them."""

    @classmethod
    def of(cls, layouts: Layouts, machine: Machine) -> Groups:
        """Groups of every layout on a machine."""
        return cls(layouts, functools.partial(_network_views, machine))

    @classmethod
    def unit(cls, layouts: Layouts) -> Groups:
        """Groups with a rate of 1 B/s and no latency, so that seconds are bytes."""
        return cls(layouts, lambda size, _: unit_view(size))

    def __getattr__(self, kind: str) -> GroupView:
        # Python calls this only for attributes that are not set yet
        if kind not in Groups.__annotations__:
            raise AttributeError(kind)
        if kind not in self._stacked_views:
            places = next(
                at for places_of in _GROUP_KINDS if kind in (at := places_of(self._layouts))
            )
            sizes, strides = zip(*places.values(), strict=True)
            views = self._view(np.stack(sizes), np.stack(strides))
            self._stacked_views |= {name: (views, number) for number, name in enumerate(places)}
        views, number = self._stacked_views[kind]
        view = views.take(number)
        setattr(self, kind, view)
        return view


def _network_views(machine: Machine, size: Int, stride: Int) -> GroupView:
    """Network views of groups, computed once per size and stride."""
    first, index = distinct(size, stride)
    return group_view(machine, np.ravel(size)[first], np.ravel(stride)[first]).take(index)
