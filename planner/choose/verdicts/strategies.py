"""Classic strategies of distributed training, each a condition on layouts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from planner.choose.search import TILES
from planner.cost.arrays import Mask
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts

__all__ = ["CLASSIC", "Strategy"]


def _no_model_parallel(x: Layouts) -> Mask:
    return (x.tp == 1) & (x.pp == 1) & (x.cp == 1) & (x.ep == 1)


def _resident(x: Layouts) -> Mask:
    return _no_model_parallel(x) & x.keeps_states & (x.tiles == 1)


def _data_parallel(x: Layouts) -> Mask:
    return _resident(x) & (x.dp > 1)


def _unsharded(x: Layouts) -> Mask:
    return (x.cp == 1) & ~x.shards_states & x.keeps_states


def _model_parallel(x: Layouts) -> Mask:
    return (x.tp > 1) & x.piped & (x.cp == 1) & x.keeps_states


def _tiled(scenario: Scenario, x: Layouts) -> Layouts:
    """The largest matrix in tiles, of every number that is tried."""
    return Layouts.joined([replace(x, tiles=np.full(len(x), count)) for count in TILES])


def _sharded_in_nodes(scenario: Scenario, x: Layouts) -> Layouts:
    """Sharded inside a node, replicated across nodes."""
    group = np.gcd(x.dp, scenario.machine.node.num_devices)
    return replace(x, offload=np.zeros(len(x), dtype=np.int64), dp_shard=group)


@dataclass(frozen=True, slots=True)
class Strategy:
    """A classic strategy: its name, frameworks in order of preference, its layouts."""

    name: str
    frameworks: tuple[str, ...]
    holds: Callable[[Layouts], Mask]
    needs: str = "several devices"
    """Devices without which no job has such a layout."""
    single: bool = False
    """Whether it uses one device only."""
    of_sharded: Callable[[Scenario, Layouts], Layouts] | None = None
    """Derives its layouts from those with sharded weights, if the search tries none."""


_MODEL_PARALLEL = ("megatron-lm", "megatron-deepspeed", "fsdp2")

CLASSIC: tuple[Strategy, ...] = (
    Strategy(
        "single device",
        ("ddp", "deepspeed"),
        lambda x: _resident(x) & ~x.shards_states,
        "one device",
        single=True,
    ),
    Strategy("DDP", ("ddp",), lambda x: _data_parallel(x) & ~x.shards_states),
    Strategy("ZeRO-1", ("deepspeed",), lambda x: _data_parallel(x) & (x.zero_stage == 1)),
    Strategy("ZeRO-2", ("deepspeed",), lambda x: _data_parallel(x) & (x.zero_stage == 2)),
    Strategy(
        "ZeRO-3 / FSDP",
        ("fsdp2", "deepspeed"),
        lambda x: _data_parallel(x) & x.shards_weights & (x.dp_shard == x.dp),
    ),
    Strategy(
        "hybrid FSDP",
        ("fsdp2",),
        lambda x: _data_parallel(x) & x.shards_weights & (x.dp_shard < x.dp) & (x.dp_shard > 1),
        "several nodes that groups of whole nodes divide",
        of_sharded=_sharded_in_nodes,
    ),
    Strategy(
        "ZeRO + CPU offload",
        ("deepspeed",),
        lambda x: _no_model_parallel(x) & x.states_on_host & (x.tiles == 1),
        "one device",
    ),
    Strategy(
        "ZeRO + NVMe offload",
        ("deepspeed",),
        lambda x: _no_model_parallel(x) & x.states_on_disk & (x.tiles == 1),
        "one device",
    ),
    Strategy(
        "ZeRO-3 in tiles",
        ("deepspeed",),
        lambda x: _no_model_parallel(x) & x.shards_weights & (x.tiles > 1),
        "one device",
        of_sharded=_tiled,
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
