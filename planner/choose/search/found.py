"""Found: the candidates of one framework, and their order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from planner.cost.arrays import Mask
from planner.cost.estimate import Estimates
from planner.cost.memory.footprint import Footprints
from planner.cost.question import Question
from planner.cost.shards.layouts import Layouts
from planner.cost.uncertainty.memory import exceeding_probability
from planner.errors import LayoutError

__all__ = ["RISK", "Found", "fits", "fits_safely", "order"]

Int = NDArray[np.int64]

_Taken = TypeVar("_Taken", bound=Footprints)

RISK = 0.05
"""Probability of running out of memory that is taken."""


@dataclass(frozen=True, slots=True)
class Found:
    """The candidates of one framework: what all of them take, and how long those take that fit."""

    question: Question
    footprints: Footprints
    estimates: Estimates
    """Of those that fit, in the same order."""
    dropped: dict[str, int]

    def joined(self, more: Found) -> Found:
        """It with what was tried besides."""
        footprints = Footprints.joined([self.footprints, more.footprints])
        estimates = Estimates.joined([self.estimates, more.estimates])
        return replace(self, footprints=footprints, estimates=estimates)

    @property
    def fastest_s(self) -> float:
        """Shortest step time; endless where nothing fits [s]."""
        return float(np.min(self.estimates.step_time_s, initial=np.inf))

    def only(self, holds: Callable[[Layouts], Mask]) -> Found:
        """The part of it whose layouts are of one kind."""

        def some(found: _Taken) -> _Taken:
            return found.take(np.flatnonzero(holds(found.layouts)))

        return replace(self, footprints=some(self.footprints), estimates=some(self.estimates))


def fits(question: Question, taken: Footprints) -> Mask:
    """Whether layouts fit."""
    return taken.fits


def fits_safely(question: Question, taken: Footprints) -> Mask:
    """Whether they fit, and run out of memory no more often than is taken."""
    room = taken.device_limit_bytes / np.maximum(taken.memory_bytes, 1.0)
    return np.asarray(taken.fits & (exceeding_probability(question, taken.layouts, room) <= RISK))


def order(estimates: Estimates, count: int | None = None) -> Int:
    """Indices of the layouts that fit, fastest first (the first `count` of them) [1].

    Counted: step time to a nanosecond; ties go to the smaller memory, then to the smaller degrees
    in the order of Layouts' fields, so the order never depends on how candidates were generated.
    Left out: layouts that do not fit, the interval of the time. method.md#search. Raises
    LayoutError where `count` is less than nothing.

    >>> from planner import Workload, load_framework, load_machine, load_model
    >>> from planner.cost.estimate import estimate_layouts
    >>> model, workload = load_model("gpt2"), Workload(sequence_length=1024)
    >>> job = Question(model, load_machine("polaris"), workload, load_framework("ddp"))
    >>> ranks = Layouts.broadcast(dp=[1, 4], grad_accumulation=[64, 16])
    >>> order(estimate_layouts(job, ranks)).tolist()            # four ranks before one
    [1, 0]
    """
    if count is not None and count < 0:
        raise LayoutError(f"top = {count} must not be negative; give 0 or more")
    fitting = np.flatnonzero(estimates.fits)
    time = np.round(estimates.step_time_s[fitting], 9)
    if count and len(fitting) > count:
        # nothing slower than the count-th fastest can be among the first
        near = time <= np.partition(time, count - 1)[count - 1]
        fitting, time = fitting[near], time[near]
    layouts = estimates.layouts
    degrees = [getattr(layouts, field.name)[fitting] for field in reversed(fields(layouts))]
    ranked = np.lexsort([*degrees, np.round(estimates.memory_bytes[fitting]), time])
    return fitting[ranked][:count]
