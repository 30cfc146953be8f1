"""Rules of traced modules: what is known of them is of a whole sample on one rank."""

from __future__ import annotations

import numpy as np

from planner.choose.legality.rule import Rule
from planner.cost.arrays import Mask
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.describe.layout import RECOMPUTE

__all__ = ["TRACED"]

_SELECTIVE = RECOMPUTE.index("selective")


def _recompute(q: Scenario, x: Layouts) -> Mask:
    return np.asarray((x.recompute != _SELECTIVE) | (q.model.traced is None))


TRACED: tuple[Rule, ...] = (
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
