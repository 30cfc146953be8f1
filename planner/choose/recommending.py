"""Recommending: of what fits, the simplest layout that is about as fast as the fastest.

The fastest by an estimate is not what an expert runs: a second axis for a percent, a device filled
to its last gigabyte. Of the layouts whose memory is safe, those within a tolerance of the fastest
are equally good; among them the one with the least effort is recommended.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from planner.choose.search import Found
from planner.cost.arrays import Float, Mask
from planner.cost.estimate import Estimate, Estimates
from planner.cost.shards.layouts import Layouts
from planner.describe.layout import OFFLOAD

__all__ = ["RISK", "TOLERANCE", "effort", "recommended"]

TOLERANCE = 0.05
"""By how much a simpler layout may be slower: far inside the interval of any step time."""
RISK = 0.05
"""Probability of running out of memory that is taken."""


@dataclass(frozen=True, slots=True)
class _Effort:
    """What a column costs the people who set a run up and keep it alive."""

    column: str
    used: float
    """Wherever it is above one."""
    doubling: float = 0.0
    """For each doubling."""


_AXES = (
    # parallel code inside a layer, across layers, along the sequence; experts are made to be spread
    _Effort("tp", 1.0, 0.5),
    _Effort("pp", 2.0, 0.5),
    _Effort("cp", 3.0, 0.5),
    _Effort("ep", 1.0),
    _Effort("vpp", 0.5, 0.5),
    _Effort("tiles", 5.0),
    # larger ones gain little, take memory and leave few steps to a batch
    _Effort("micro_batch", 0.0, 0.25),
)
_OFFLOAD = {"none": 0.0, "optimizer-cpu": 2.0, "all-cpu": 3.0, "optimizer-nvme": 3.0, "all-nvme": 4.0}
_SHARDING, _GROUPS = 0.5, 0.5


def effort(layouts: Layouts) -> Float:
    """How much there is to set up and to keep alive, beyond plain data parallelism [1].

    Counted: parallel axes and their degrees, chunks, sharding of states, offload, tiles. Left out:
    recompute, which is a switch; the framework. An order of preference, no measurement: what the
    people of the field take first where several ways are as fast.

    >>> from planner import Layout
    >>> rising = [Layout(dp=8), Layout(dp=8, zero_stage=3), Layout(dp=4, tp=2), Layout(tp=2, pp=4)]
    >>> efforts = effort(Layouts.stack(rising)).tolist()
    >>> efforts == sorted(efforts)
    True
    """
    total = np.zeros(np.shape(layouts.dp))
    for axis in _AXES:
        degree = getattr(layouts, axis.column)
        total = total + np.where(degree > 1, axis.used, 0.0) + axis.doubling * np.log2(degree)
    total = total + np.array([_OFFLOAD[name] for name in OFFLOAD])[layouts.offload]
    total = total + np.where(layouts.zero_stage > 0, _SHARDING, 0.0)
    return np.asarray(total + np.where(layouts.dp_shard < layouts.dp, _GROUPS, 0.0))


def recommended(found: Iterable[Found], tolerance: float = TOLERANCE) -> Estimate | None:
    """The layout to run: safe in memory, within `tolerance` of the fastest such, least effort.

    None where nothing fits. Where no layout is safe, the tolerance is of those that are as safe as
    any.
    """
    sets = [part.estimates for part in found if len(part.estimates)]
    if not sets:
        return None
    risk = max(RISK, min(float(np.min(some.out_of_memory_probability)) for some in sets))
    safe = [some.out_of_memory_probability <= risk for some in sets]
    fastest = min(_least(some, mask) for some, mask in zip(sets, safe, strict=True))
    best: tuple[tuple[float, float], Estimates, int] | None = None
    for some, mask in zip(sets, safe, strict=True):
        near = np.flatnonzero(mask & (some.step_time_s <= (1 + tolerance) * fastest))
        if not len(near):
            continue
        efforts, times = effort(some.layouts.take(near)), some.step_time_s[near]
        pick = int(np.lexsort((times, efforts))[0])
        rank = (float(efforts[pick]), float(times[pick]))
        if best is None or rank < best[0]:
            best = rank, some, int(near[pick])
    assert best is not None, "the fastest safe layout is near itself"
    return best[1][best[2]]


def _least(some: Estimates, mask: Mask) -> float:
    return float(np.min(some.step_time_s, where=mask, initial=np.inf))
