"""Groups: size and stride of the ranks of every parallel axis, and their view of the machine."""

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
"""The group of an axis; gradients of context ranks, which share weights, go over dp and cp."""


def geometry(layouts: Layouts) -> dict[str, tuple[Int, Int]]:
    """Size and stride of the groups of every kind, in ranks [1].

    Counted: tp fastest, then cp, dp and pp; of experts etp fastest, then ep and replicas. Left out:
    other orders of ranks. method.md#what-a-group-sees.

    >>> size, stride = geometry(Layouts.of(Layout(tp=4, dp=8, pp=2)))["data"]
    >>> int(size), int(stride)
    (8, 4)
    """
    return {kind: place for places in _TOGETHER for kind, place in places(layouts).items()}


def _of_layers(layouts: Layouts) -> dict[str, tuple[Int, Int]]:
    """Groups in which the ranks of a layer work together."""
    tp, etp, ulysses = layouts.tp, layouts.expert_tp, layouts.ulysses
    return {
        "tensor": (tp, np.ones_like(tp)),
        "context": (layouts.cp, tp),
        "heads": (ulysses, tp),
        "ring": (layouts.ring, tp * ulysses),
        # experts are laid over the same ranks in an order of their own: etp, ep, replicas
        "expert": (layouts.ep, etp),
        "expert_tensor": (etp, np.ones_like(tp)),
    }


def _of_parameters(layouts: Layouts) -> dict[str, tuple[Int, Int]]:
    """Groups that share parameters, or hold copies of them."""
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
    """The stages of a pipeline."""
    return {"pipeline": (layouts.pp, layouts.tp * layouts.num_replicas)}


_TOGETHER = (_of_layers, _of_parameters, _of_stages)
"""Kinds of groups that are asked for together."""


class Groups:
    """Network views of the groups of every kind, computed on first use."""

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
        self._layouts, self._view = layouts, view
        self._together: dict[str, tuple[GroupView, int]] = {}
        """Views of several kinds, and the place of each among them."""

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
        if kind not in self._together:
            places = next(at for places_of in _TOGETHER if kind in (at := places_of(self._layouts)))
            sizes, strides = zip(*places.values(), strict=True)
            seen = self._view(np.stack(sizes), np.stack(strides))
            self._together |= {name: (seen, number) for number, name in enumerate(places)}
        seen, number = self._together[kind]
        view = seen.take(number)
        setattr(self, kind, view)
        return view


def _seen(machine: Machine, size: Int, stride: Int) -> GroupView:
    """Network views of groups, computed once per size and stride."""
    first, index = distinct(size, stride)
    return group_view(machine, np.ravel(size)[first], np.ravel(stride)[first]).take(index)
