"""Space: all candidates of a job, condensed: best per tp and pp, the Pareto front, a sample."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from planner.choose.job import JobSpec
from planner.choose.job_search import search_job
from planner.choose.search import Candidates, SearchScope
from planner.cost.arrays import Float, Int, Mask
from planner.cost.estimate import timed
from planner.cost.memory.footprint import Footprints
from planner.cost.scenario.experience import Experience
from planner.describe.framework.framework import Framework
from planner.describe.machine import Machine
from planner.describe.model.model import Model
from planner.describe.workload import Workload

__all__ = ["Cell", "LayoutSpace", "Point", "layout_space"]


@dataclass(frozen=True, slots=True)
class Cell:
    """The best of all layouts with one tp and pp."""

    tp: int
    pp: int
    step_time_s: float
    """The fastest that fits; infinite where none does."""
    memory_bytes: float
    """Of that layout, or of the smallest where none fits."""
    text: str


@dataclass(frozen=True, slots=True)
class Point:
    """One layout as memory and time."""

    memory_bytes: float
    step_time_s: float
    text: str


@dataclass(frozen=True, slots=True)
class LayoutSpace:
    """All candidates of a job, condensed."""

    cells: tuple[Cell, ...]
    front: tuple[Point, ...]
    """Of what fits, the layouts that no other beats in both memory and time, smallest first."""
    cloud: tuple[Point, ...]
    """A deterministic sample of all, what does not fit included."""
    num_candidates: int


def layout_space(
    model: Model,
    machine: Machine,
    nodes: int,
    workload: Workload,
    frameworks: Sequence[str | Framework] = (),
    *,
    cloud: int = 400,
    experience: Experience = Experience(),
) -> LayoutSpace:
    """The candidates of a job: best per tp and pp, the Pareto front, a sample."""
    job = JobSpec(
        model,
        machine,
        nodes=nodes,
        workload=workload,
        frameworks=frameworks,
        experience=experience,
    )
    everything = search_job(job, SearchScope(sys.maxsize)).by_framework
    found = [part for part in everything.values() if len(part.footprints)]
    if not found:
        return LayoutSpace((), (), (), 0)

    def all_of(values: Callable[[Footprints], Any]) -> Any:
        return np.concatenate([values(part.footprints) for part in found])

    memory, fits = all_of(lambda taken: taken.memory_bytes), all_of(lambda taken: taken.fits)
    tp, pp = all_of(lambda taken: taken.layouts.tp), all_of(lambda taken: taken.layouts.pp)
    time = np.full(len(fits), np.inf)
    time[fits] = np.concatenate([part.estimates.step_time_s for part in found])
    starts = np.cumsum([0, *(len(part.footprints) for part in found)])

    def place(index: int) -> tuple[Candidates, int]:
        number = int(np.searchsorted(starts, index, side="right")) - 1
        return found[number], index - int(starts[number])

    def text(index: int) -> str:
        part, row = place(index)
        return f"{part.footprints.layouts[row]} [{part.scenario.framework.name}]"

    def point(index: int) -> Point:
        return Point(float(memory[index]), float(time[index]), text(index))

    step = max(len(time) // cloud, 1)
    sample = np.arange(0, len(time), step)
    time[sample] = np.concatenate(
        [
            timed(part.scenario, part.footprints.take(sample[inside] - start)).step_time_s
            for part, (start, end) in zip(found, itertools.pairwise(starts), strict=True)
            if len(inside := np.flatnonzero((sample >= start) & (sample < end)))
        ]
    )
    return LayoutSpace(
        cells=tuple(_cells(tp, pp, time, memory, fits, text)),
        front=tuple(point(int(i)) for i in _front(memory, time, fits)),
        cloud=tuple(point(int(i)) for i in sample),
        num_candidates=len(time),
    )


def _front(memory: Float, time: Float, fits: Mask) -> Int:
    """Indices of what fits and nothing beats in both, by rising memory."""
    order = np.lexsort((time, memory))
    order = order[fits[order]]
    best = np.minimum.accumulate(np.concatenate([[np.inf], time[order]]))
    return np.asarray(order[time[order] < best[:-1] - 1e-12])


def _cells(
    tp: Int,
    pp: Int,
    time: Float,
    memory: Float,
    fits: Mask,
    text: Callable[[int], str],
) -> list[Cell]:
    cells = []
    key = tp * (int(pp.max()) + 1) + pp
    # the fastest fitting first; where none fits, the smallest
    order = np.lexsort((np.where(fits, time, memory), ~fits, key))
    _, firsts = np.unique(key[order], return_index=True)
    for index in order[firsts]:
        i = int(index)
        cells.append(
            Cell(
                int(tp[i]),
                int(pp[i]),
                float(time[i]) if fits[i] else float("inf"),
                float(memory[i]),
                text(i),
            )
        )
    return cells
