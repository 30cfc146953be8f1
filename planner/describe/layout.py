"""Layout: how one job is spread over devices; Layouts: many of them as integer arrays.

    world = dp * tp * pp * cp        global_batch = micro_batch * grad_accumulation * dp

`ep` subdivides dp * cp. `dp_shard` is the group over which ZeRO or FSDP shards (dp, or less
with hybrid sharding). Ranks are numbered with tp fastest, then cp, dp and pp, the order of
Megatron-LM and torchtitan's mesh; a group's stride follows from that.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from planner.describe.base import Description
from planner.describe.framework import Schedule

__all__ = ["OFFLOAD", "RECOMPUTE", "SCHEDULES", "Layout", "Layouts"]

RECOMPUTE = ("none", "selective", "full")
SCHEDULES: tuple[Schedule, ...] = ("none", "gpipe", "1f1b", "interleaved-1f1b", "zero-bubble")
OFFLOAD = ("none", "optimizer-cpu", "optimizer-nvme", "all-cpu", "all-nvme")
"""What lives off the device: nothing, optimizer states, or states and parameters."""

Int = NDArray[np.int64]


class Layout(Description):
    """One layout. `Layout(tp=4, dp=8)` is 32 ranks."""

    dp: int = Field(default=1, ge=1, le=10_000_000)
    """Data-parallel degree."""
    dp_shard: int = Field(default=0, ge=0, le=10_000_000)
    """Ranks over which ZeRO/FSDP shards; 0 means dp (no hybrid sharding)."""
    tp: int = Field(default=1, ge=1, le=100_000)
    """Tensor-parallel degree."""
    sequence_parallel: bool = False
    """Whether norms and dropouts are split over the tp group."""
    pp: int = Field(default=1, ge=1, le=100_000)
    """Pipeline stages."""
    vpp: int = Field(default=1, ge=1, le=100_000)
    """Model chunks per stage (interleaved schedule)."""
    cp: int = Field(default=1, ge=1, le=100_000)
    """Context-parallel degree."""
    ep: int = Field(default=1, ge=1, le=100_000)
    """Expert-parallel degree."""
    zero_stage: int = Field(default=0, ge=0, le=3)
    """ZeRO stage; FSDP full shard is 3."""
    micro_batch: int = Field(default=1, ge=1, le=1_000_000)
    """Sequences per replica and pass."""
    grad_accumulation: int = Field(default=1, ge=1, le=100_000_000)
    """Passes per step."""
    recompute: Literal["none", "selective", "full"] = "none"
    """Activation recompute."""
    schedule: Schedule = "none"
    """Pipeline schedule."""
    offload: Literal["none", "optimizer-cpu", "optimizer-nvme", "all-cpu", "all-nvme"] = "none"
    """What lives off the device."""
    tiles: int = Field(default=1, ge=1, le=65536)
    """Tiles into which the largest matrix is split (memory-centric tiling)."""

    @model_validator(mode="after")
    def _check(self) -> Layout:
        if self.dp_shard and self.dp % self.dp_shard:
            raise ValueError(
                f"dp_shard = {self.dp_shard} must divide dp = {self.dp}; use one of "
                f"{', '.join(map(str, divisors(self.dp)))}"
            )
        return self

    @property
    def world(self) -> int:
        """Ranks."""
        return self.dp * self.tp * self.pp * self.cp

    @property
    def global_batch(self) -> int:
        """Sequences of one step."""
        return self.micro_batch * self.grad_accumulation * self.dp

    def __str__(self) -> str:
        parts = [f"dp{self.dp}"]
        if self.dp_shard not in (0, self.dp):
            parts[0] += f"(shard {self.dp_shard})"
        for name in ("tp", "pp", "vpp", "cp", "ep"):
            if getattr(self, name) > 1:
                parts.append(f"{name}{getattr(self, name)}")
        parts.append(f"zero{self.zero_stage}")
        parts.append(f"mb{self.micro_batch}x{self.grad_accumulation}")
        if self.recompute != "none":
            parts.append(f"{self.recompute} recompute")
        if self.schedule not in ("none", "1f1b", "interleaved-1f1b"):
            parts.append(self.schedule)
        if self.offload != "none":
            parts.append(f"offload {self.offload}")
        if self.tiles > 1:
            parts.append(f"{self.tiles} tiles")
        return " ".join(parts)


@dataclass(frozen=True, slots=True)
class Layouts:
    """Many layouts as arrays of one shape; choices are indices into the tuples above."""

    dp: Int
    dp_shard: Int
    tp: Int
    sequence_parallel: Int
    pp: Int
    vpp: Int
    cp: Int
    ep: Int
    zero_stage: Int
    micro_batch: Int
    grad_accumulation: Int
    recompute: Int
    schedule: Int
    offload: Int
    tiles: Int

    @classmethod
    def of(cls, layout: Layout) -> Self:
        """The 0-d case.

        >>> Layouts.of(Layout(tp=4)).tp
        array(4)
        """
        return cls.broadcast(**_coded(layout))

    @classmethod
    def stack(cls, layouts: Iterable[Layout]) -> Self:
        """The 1-d case of explicit layouts."""
        rows = [_coded(layout) for layout in layouts]
        return cls(
            **{
                field.name: np.array([row[field.name] for row in rows], dtype=np.int64)
                for field in fields(cls)
            }
        )

    @classmethod
    def broadcast(cls, **columns: Any) -> Self:
        """Columns broadcast against each other; absent ones take `Layout`'s defaults."""
        defaults = {**_coded(Layout()), "dp_shard": 0}
        names = [field.name for field in fields(cls)]
        arrays = np.broadcast_arrays(
            *(np.asarray(columns.get(name, defaults[name]), dtype=np.int64) for name in names)
        )
        made = dict(zip(names, arrays, strict=True))
        made["dp_shard"] = np.where(made["dp_shard"] == 0, made["dp"], made["dp_shard"])
        return cls(**made)

    def take(self, index: Any) -> Self:
        """A selection, as numpy indexing."""
        return type(self)(
            **{field.name: getattr(self, field.name)[index] for field in fields(self)}
        )

    def distinct(self, *names: str) -> tuple[Self, Int]:
        """The rows that differ in `names`, and for every row which of them it equals."""
        columns = [np.ravel(getattr(self, name)) for name in names]
        key = np.zeros(columns[0].shape, dtype=np.int64)
        for column in columns:
            key = key * (int(column.max(initial=0)) + 1) + column
        _, first, inverse = np.unique(key, return_index=True, return_inverse=True)
        flat = type(self)(
            **{field.name: np.ravel(getattr(self, field.name)) for field in fields(self)}
        )
        return flat.take(first), inverse.reshape(np.shape(self.dp))

    def __len__(self) -> int:
        return int(np.size(self.dp))

    def __getitem__(self, index: int) -> Layout:
        values = {
            field.name: int(np.ravel(getattr(self, field.name))[index]) for field in fields(self)
        }
        return Layout(
            **{
                **values,
                "dp_shard": values["dp_shard"] if values["dp_shard"] != values["dp"] else 0,
                "sequence_parallel": bool(values["sequence_parallel"]),
                "recompute": RECOMPUTE[values["recompute"]],
                "schedule": SCHEDULES[values["schedule"]],
                "offload": OFFLOAD[values["offload"]],
            }
        )

    @classmethod
    def concatenate(cls, parts: Iterable[Layouts]) -> Self:
        """Several sets behind each other."""
        parts = list(parts)
        return cls(
            **{
                field.name: np.concatenate([np.atleast_1d(getattr(p, field.name)) for p in parts])
                for field in fields(cls)
            }
        )

    @property
    def world(self) -> Int:
        """Ranks of each layout."""
        return self.dp * self.tp * self.pp * self.cp

    @property
    def global_batch(self) -> Int:
        """Sequences per step of each layout."""
        return self.micro_batch * self.grad_accumulation * self.dp

    @property
    def expert_dp(self) -> Int:
        """Replicas of each expert: dp * cp / ep."""
        return self.dp * self.cp // self.ep


def _coded(layout: Layout) -> dict[str, int]:
    return {
        **{
            name: getattr(layout, name)
            for name in (
                "dp",
                "tp",
                "pp",
                "vpp",
                "cp",
                "ep",
                "zero_stage",
                "micro_batch",
                "grad_accumulation",
                "tiles",
            )
        },
        "dp_shard": layout.dp_shard or layout.dp,
        "sequence_parallel": int(layout.sequence_parallel),
        "recompute": RECOMPUTE.index(layout.recompute),
        "schedule": SCHEDULES.index(layout.schedule),
        "offload": OFFLOAD.index(layout.offload),
    }


def divisors(number: int) -> list[int]:
    """Divisors in rising order.

    >>> divisors(12)
    [1, 2, 3, 4, 6, 12]
    """
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return small + [number // d for d in reversed(small) if d * d != number]
