"""Search: every legal layout of a world size, evaluated by the one implementation.

Memory comes first, and only what fits is timed.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from planner.choose.job import check_routing, check_sequence
from planner.choose.search.candidates import candidates
from planner.choose.search.found import Found
from planner.choose.search.further import FURTHER
from planner.cost.arrays import Mask
from planner.cost.estimate import timed
from planner.cost.memory.footprint import footprints
from planner.cost.question import Question
from planner.cost.shards.layouts import Layouts

__all__ = ["search"]


def search(
    question: Question, world: int, within: Callable[[Layouts], Mask] | None = None
) -> Found:
    """Every legal layout of `world` ranks under one framework, and the step time of what fits.

    With `within`, of one kind of layouts: what is tried further is then what could be the fastest
    of that kind and not of all, and comes of layouts of that kind.
    """
    check_sequence(question)
    check_routing(question)
    layouts, dropped = candidates(question, world)
    found = _found(question, _kept(layouts, within), dropped)
    for further in FURTHER:
        more = _kept(further(found), within)
        if len(more):
            found = found.joined(_found(question, more, {}))
    taken = found.footprints
    device = int(np.count_nonzero(~taken.fits_device))
    host = int(np.count_nonzero(taken.fits_device & ~taken.fits_host))
    if device:
        dropped["device memory is exceeded"] = device
    if host:
        dropped["host memory is exceeded"] = host
    return found


def _kept(layouts: Layouts, within: Callable[[Layouts], Mask] | None) -> Layouts:
    return layouts if within is None else layouts.take(np.flatnonzero(within(layouts)))


def _found(question: Question, layouts: Layouts, dropped: dict[str, int]) -> Found:
    """What all layouts take, and how long those take that fit."""
    taken = footprints(question, layouts)
    return Found(question, taken, timed(question, taken.take(np.flatnonzero(taken.fits))), dropped)
