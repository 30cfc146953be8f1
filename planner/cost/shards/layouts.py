"""Layouts: many layouts as integer arrays of one shape; one layout is the 0-d case."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from planner.describe.layout import OFFLOAD, RECOMPUTE, SCHEDULES, Layout

__all__ = ["Layouts"]

Int = NDArray[np.int64]


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
        values: dict[str, Any] = {
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
