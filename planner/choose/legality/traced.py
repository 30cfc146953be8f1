"""Rules of traced modules: what is known of them is of a whole sample on one rank."""

from __future__ import annotations

import numpy as np

from planner.choose.legality.rule import Rule
from planner.cost.arrays import Mask
from planner.cost.question import Question
from planner.cost.shards.layouts import Layouts
from planner.describe.layout import RECOMPUTE

__all__ = ["TRACED"]

_SELECTIVE = RECOMPUTE.index("selective")


def _whole(name: str) -> Rule:
    """A traced module is not split along an axis."""

    def holds(q: Question, x: Layouts) -> Mask:
        return (getattr(x, name) == 1) | (q.model.traced is None)

    return Rule(
        "a traced module is data parallel alone",
        (name,),
        holds,
        lambda q, x: (
            f"{name} = {getattr(x, name)}: {q.model.name} is a traced module, of which nothing "
            f"says how to split it; use {name} = 1 and data parallelism (DDP, ZeRO, FSDP)"
        ),
    )


def _recompute(q: Question, x: Layouts) -> Mask:
    return np.asarray((x.recompute != _SELECTIVE) | (q.model.traced is None))


TRACED: tuple[Rule, ...] = (
    *(_whole(name) for name in ("tp", "pp", "cp", "ep")),
    Rule(
        "selective recompute of a traced module",
        ("recompute",),
        _recompute,
        lambda q, _: (
            f"recompute = selective: {q.model.name} is a traced module, of whose blocks no parts "
            "are known; use recompute none or full"
        ),
    ),
)
