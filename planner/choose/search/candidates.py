"""Candidates: the candidates of one framework, and their order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from planner.choose.preferences import preferences
from planner.cost.arrays import Mask
from planner.cost.estimate import Estimates
from planner.cost.memory.footprint import Footprints
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.cost.uncertainty.memory_spread import exceeding_probability
from planner.errors import LayoutError

__all__ = ["Candidates", "fits", "fits_safely", "rank_fastest"]

Int = NDArray[np.int64]

_Taken = TypeVar("_Taken", bound=Footprints)


@dataclass(frozen=True, slots=True)
class Candidates:
    """The candidates of one framework: what all of them take, and how long those take that fit."""

    scenario: Scenario
    footprints: Footprints
    estimates: Estimates
    """Of those that fit, in the same order."""
    dropped: dict[str, int]
    too_large: int = 0
    """Further candidates of which a bound says that they cannot fit."""
    too_slow: int = 0
    """Those of which a bound says that others of their kind are faster."""
    top_time_s: float = np.inf
    """The time of the slowest of as many ideas as an answer lists, where bounds were asked."""

    @property
    def num_decided(self) -> int:
        """Candidates that were estimated in full or ruled out by a bound."""
        return len(self.footprints) + self.too_large + self.too_slow

    @classmethod
    def of_parts(cls, parts: Sequence[Candidates]) -> Candidates:
        """Parts of the candidates of one framework together; what fell is said by the first."""
        if len(parts) == 1:
            return parts[0]
        return replace(
            parts[0],
            footprints=Footprints.joined([part.footprints for part in parts]),
            estimates=Estimates.joined([part.estimates for part in parts]),
        )

    def joined(self, more: Candidates) -> Candidates:
        """It with what was tried besides."""
        return Candidates.of_parts([self, more])

    def reordered(self, rank_fastest: Int) -> Candidates:
        """The same with its layouts in another order."""
        place = np.cumsum(self.footprints.fits) - 1
        fitting = place[rank_fastest[self.footprints.fits[rank_fastest]]]
        return replace(
            self,
            footprints=self.footprints.take(rank_fastest),
            estimates=self.estimates.take(fitting),
        )

    @property
    def fastest_s(self) -> float:
        """Shortest step time; endless where nothing fits [s]."""
        return float(np.min(self.estimates.step_time_s, initial=np.inf))

    def only(self, holds: Callable[[Layouts], Mask]) -> Candidates:
        """The part of it whose layouts are of one kind."""

        def some(found: _Taken) -> _Taken:
            return found.take(np.flatnonzero(holds(found.layouts)))

        return replace(self, footprints=some(self.footprints), estimates=some(self.estimates))


def fits(scenario: Scenario, taken: Footprints) -> Mask:
    """Whether layouts fit."""
    return taken.fits


def fits_safely(scenario: Scenario, taken: Footprints) -> Mask:
    """Whether they fit, and run out of memory no more often than is taken."""
    room = taken.device_limit_bytes / np.maximum(taken.memory_bytes, 1.0)
    risk = exceeding_probability(scenario, taken.layouts, room)
    return np.asarray(taken.fits & (risk <= preferences().risk))


def rank_fastest(estimates: Estimates, count: int | None = None) -> Int:
    """Indices of the layouts that fit, fastest first (the first `count` of them) [1].

    Counted: step time to a nanosecond; ties go to the smaller memory, then to the smaller degrees
    in the order of Layouts' fields, so the order never depends on how candidates were generated.
    Left out: layouts that do not fit, the interval of the time. method.md#search. Raises
    LayoutError where `count` is less than nothing.

    >>> from planner import Workload, load_framework, load_machine, load_model
    >>> from planner.cost.estimate import estimate_layouts
    >>> model, workload = load_model("gpt2"), Workload(sequence_length=1024)
    >>> job = Scenario(model, load_machine("polaris"), workload, load_framework("ddp"))
    >>> ranks = Layouts.broadcast(dp=[1, 4], grad_accumulation=[64, 16])
    >>> rank_fastest(estimate_layouts(job, ranks)).tolist()            # four ranks before one
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
