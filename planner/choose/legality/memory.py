"""Rules of what saves memory: recompute, offload, tiles."""

from __future__ import annotations

from planner.choose.legality.offloading import offload_message, offloads
from planner.choose.legality.rule import Rule, coded
from planner.describe.layout import RECOMPUTE

__all__ = ["OFFLOADED", "RECOMPUTED"]


RECOMPUTED: tuple[Rule, ...] = (coded("recompute", RECOMPUTE, "recompute", "none"),)

OFFLOADED: tuple[Rule, ...] = (
    Rule(
        "the devices compute in the host's memory: nothing leaves it",
        ("offload",),
        lambda q, x: ~(x.states_on_host & q.machine.device.uses_host_memory),
        lambda q, x: (
            f"offload {x.offload!r} frees nothing: the devices of {q.machine.name} compute in the "
            "host's memory; use offload none"
        ),
    ),
    Rule("offload is not offered", ("offload", "zero_stage"), offloads, offload_message),
    Rule(
        "tiling is not offered by the framework",
        ("tiles", "zero_stage"),
        lambda q, x: (x.tiles == 1) | (q.framework.tiling & x.shards_weights),
        lambda q, x: (
            f"tiles = {x.tiles}: memory-centric tiling needs DeepSpeed ZeRO-3; use tiles = 1"
        ),
    ),
)
