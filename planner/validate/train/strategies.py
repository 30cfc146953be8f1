"""Strategies: the validated strategies, and their degrees at a world size; loads no torch."""

import contextlib
from dataclasses import dataclass, replace

from planner.describe.layout import Sharding
from planner.errors import LayoutError

_ZERO_STAGES = {"ddp": 0, "zero1": 1, "zero2": 2, "zero3": 3}
_TENSOR = ("tp", "sp")
SCHEDULES = {"": "none", "gpipe": "gpipe", "1f1b": "1f1b", "interleaved": "interleaved-1f1b"}
"""The planner's schedules by the names of pipelines; the empty name is no pipeline."""
_PIPELINES = tuple(SCHEDULES)[1:]

STRATEGIES = ("single", *_ZERO_STAGES, *_TENSOR, *_PIPELINES, "3d")
"""Every strategy that is validated, in the order in which they are run."""


@dataclass(frozen=True, slots=True)
class Spread(Sharding):
    """Degrees of a strategy at a world size."""

    strategy: str
    dp: int = 1
    tp: int = 1
    pp: int = 1
    chunks: int = 1
    """Chunks of the model per pipeline rank."""
    zero_stage: int = 0
    sequence_parallel: bool = False
    schedule: str = ""
    """One of the pipelines' names; empty without a pipeline."""
    micro_batches: int = 1

    @property
    def world(self) -> int:
        """Number of ranks."""
        return self.dp * self.tp * self.pp


def spread_of(strategy: str, world: int) -> Spread:
    """Return the degrees of a strategy. Raises LayoutError if it cannot run on `world` ranks."""
    if strategy not in STRATEGIES:
        raise LayoutError(
            f"unknown strategy {strategy!r}; use one of {', '.join(STRATEGIES)}, or all"
        )
    plain = Spread(strategy)
    if strategy == "single":
        if world != 1:
            raise LayoutError(f"single runs on 1 rank, not on {world}; use --world 1")
        return plain
    if world < 2:
        raise LayoutError(f"{strategy} needs 2 or more ranks, not {world}; raise --world")
    if strategy == "3d":
        if world % 4 or world < 8:
            raise LayoutError(
                f"3d needs a multiple of 4 ranks from 8 on, not {world}; use --world 8"
            )
        return replace(
            plain, dp=world // 4, tp=2, pp=2, zero_stage=2, schedule="1f1b", micro_batches=4
        )
    if strategy in _TENSOR:
        return replace(plain, tp=world, sequence_parallel=strategy == "sp")
    if strategy in _PIPELINES:
        chunks = 2 if strategy == "interleaved" else 1
        return replace(plain, pp=world, chunks=chunks, schedule=strategy, micro_batches=2 * world)
    return replace(plain, dp=world, zero_stage=_ZERO_STAGES[strategy])


def strategies_on(world: int) -> tuple[str, ...]:
    """List the strategies that can run on `world` ranks."""
    names = []
    for name in STRATEGIES:
        with contextlib.suppress(LayoutError):
            names.append(spread_of(name, world).strategy)
    return tuple(names)
