"""Strategies: the field's classic ways to spread a job, each a condition on layouts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from planner.choose.search import TILES
from planner.cost.arrays import Mask
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts

__all__ = ["CLASSIC", "Strategy"]


def _plain(x: Layouts) -> Mask:
    return (x.tp == 1) & (x.pp == 1) & (x.cp == 1) & (x.ep == 1)


def _whole(x: Layouts) -> Mask:
    return _plain(x) & x.keeps_states & (x.tiles == 1)


def _shared(x: Layouts) -> Mask:
    return _whole(x) & (x.dp > 1)


def _unsharded(x: Layouts) -> Mask:
    return (x.cp == 1) & ~x.shards_states & x.keeps_states


def _model_parallel(x: Layouts) -> Mask:
    return (x.tp > 1) & x.piped & (x.cp == 1) & x.keeps_states


def _in_tiles(scenario: Scenario, x: Layouts) -> Layouts:
    """The largest matrix in tiles."""
    return Layouts.joined([replace(x, tiles=np.full(len(x), count)) for count in TILES])


def _in_nodes(scenario: Scenario, x: Layouts) -> Layouts:
    """Sharded inside a node, and replicated across them."""
    kept = replace(x, offload=np.zeros(len(x), dtype=np.int64))
    return replace(kept, dp_shard=np.gcd(x.dp, scenario.machine.node.num_devices))


@dataclass(frozen=True, slots=True)
class Strategy:
    """A classic strategy: its name, frameworks in order of preference, its layouts."""

    name: str
    frameworks: tuple[str, ...]
    holds: Callable[[Layouts], Mask]
    needs: str = "several devices"
    """The devices without which there is no such layout, whatever the job."""
    single: bool = False
    """Whether it uses one device only."""
    of_sharded: Callable[[Scenario, Layouts], Layouts] | None = None
    """How its layouts are made of those with sharded weights, where the search tries none."""


_MODEL_PARALLEL = ("megatron-lm", "megatron-deepspeed", "fsdp2")

CLASSIC: tuple[Strategy, ...] = (
    Strategy(
        "single device",
        ("ddp", "deepspeed"),
        lambda x: _whole(x) & ~x.shards_states,
        "one device",
        single=True,
    ),
    Strategy("DDP", ("ddp",), lambda x: _shared(x) & ~x.shards_states),
    Strategy("ZeRO-1", ("deepspeed",), lambda x: _shared(x) & (x.zero_stage == 1)),
    Strategy("ZeRO-2", ("deepspeed",), lambda x: _shared(x) & (x.zero_stage == 2)),
    Strategy(
        "ZeRO-3 / FSDP",
        ("fsdp2", "deepspeed"),
        lambda x: _shared(x) & x.shards_weights & (x.dp_shard == x.dp),
    ),
    Strategy(
        "hybrid FSDP",
        ("fsdp2",),
        lambda x: _shared(x) & x.shards_weights & (x.dp_shard < x.dp) & (x.dp_shard > 1),
        "several nodes that groups of whole nodes divide",
        of_sharded=_in_nodes,
    ),
    Strategy(
        "ZeRO + CPU offload",
        ("deepspeed",),
        lambda x: _plain(x) & x.states_on_host & (x.tiles == 1),
        "one device",
    ),
    Strategy(
        "ZeRO + NVMe offload",
        ("deepspeed",),
        lambda x: _plain(x) & x.states_on_disk & (x.tiles == 1),
        "one device",
    ),
    Strategy(
        "ZeRO-3 in tiles",
        ("deepspeed",),
        lambda x: _plain(x) & x.shards_weights & (x.tiles > 1),
        "one device",
        of_sharded=_in_tiles,
    ),
    Strategy("TP", _MODEL_PARALLEL, lambda x: _unsharded(x) & (x.tp > 1) & ~x.piped),
    Strategy("PP", _MODEL_PARALLEL, lambda x: _unsharded(x) & (x.tp == 1) & x.piped),
    Strategy(
        "TP + PP",
        _MODEL_PARALLEL,
        lambda x: _model_parallel(x) & (x.dp == 1),
        "devices that are a product of two degrees above one",
    ),
    Strategy(
        "3D (TP + PP + DP)",
        _MODEL_PARALLEL,
        lambda x: _model_parallel(x) & (x.dp > 1),
        "devices that are a product of three degrees above one",
    ),
)
