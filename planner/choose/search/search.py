"""Search: every legal layout of a world size, evaluated by the one implementation.

Memory comes first, and only what fits is timed.
"""

from __future__ import annotations

import numpy as np

from planner.choose.job import check_sequence
from planner.choose.search.candidates import candidates
from planner.choose.search.found import Found
from planner.choose.search.further import FURTHER
from planner.cost.estimate import timed
from planner.cost.memory.footprint import Footprints, footprints
from planner.cost.question import Question

__all__ = ["search"]


def search(question: Question, world: int) -> Found:
    """Every legal layout of `world` ranks under one framework, and the step time of what fits."""
    check_sequence(question)
    layouts, dropped = candidates(question, world)
    taken = footprints(question, layouts)
    for further in FURTHER:
        more = further(question, taken)
        if len(more):
            taken = Footprints.joined([taken, footprints(question, more)])
    device = int(np.count_nonzero(~taken.fits_device))
    host = int(np.count_nonzero(taken.fits_device & ~taken.fits_host))
    if device:
        dropped["device memory is exceeded"] = device
    if host:
        dropped["host memory is exceeded"] = host
    estimates = timed(question, taken.take(np.flatnonzero(taken.fits)))
    return Found(question, taken, estimates, dropped)
