"""Layout space: the best layout per tp and pp, the Pareto front and a sample of all layouts."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.choose.jobs.job_search import search_job
from planner.choose.jobs.job_spec import JobSpec
from planner.choose.search import Candidates, SearchScope
from planner.cost.arrays import Int
from planner.cost.estimate import estimate_times
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
    """The fastest that fits; infinite if none does."""
    memory_bytes: float
    """Of that layout, or of the smallest if none fits."""
    text: str


@dataclass(frozen=True, slots=True)
class Point:
    """One layout as memory and time."""

    memory_bytes: float
    step_time_s: float
    text: str


@dataclass(frozen=True, slots=True)
class LayoutSpace:
    """All layouts of a job, condensed."""

    cells: tuple[Cell, ...]
    front: tuple[Point, ...]
    """The layouts that fit and that no other beats in both memory and time, smallest first."""
    cloud: tuple[Point, ...]
    """A deterministic sample of all layouts, those that do not fit included."""
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
    """Condense all layouts of a job: the best per tp and pp, the Pareto front, a sample."""
    job = JobSpec(
        model,
        machine,
        nodes=nodes,
        workload=workload,
        frameworks=frameworks,
        experience=experience,
    )
    by_framework = search_job(job, SearchScope(sys.maxsize)).by_framework
    parts = [part for part in by_framework.values() if len(part.footprints)]
    if not parts:
        return LayoutSpace((), (), (), 0)
    table = _Table(parts)
    sample = np.arange(0, len(table), max(len(table) // cloud, 1))
    table.estimate(sample)
    return LayoutSpace(
        cells=tuple(_cells(table)),
        front=tuple(table.point(int(row)) for row in _front(table)),
        cloud=tuple(table.point(int(row)) for row in sample),
        num_candidates=len(table),
    )


class _Table:
    """The layouts of all frameworks as columns."""

    def __init__(self, parts: Sequence[Candidates]) -> None:
        self.parts = parts
        self._starts = np.cumsum([0, *(len(part.footprints) for part in parts)])
        footprints = [part.footprints for part in parts]
        self.memory_bytes = np.concatenate([each.memory_bytes for each in footprints])
        self.fits = np.concatenate([each.fits for each in footprints])
        self.tp = np.concatenate([each.layouts.tp for each in footprints])
        self.pp = np.concatenate([each.layouts.pp for each in footprints])
        self.time_s = np.full(len(self), np.inf)
        """Infinite for layouts that do not fit, unless they are estimated."""
        for part, start in zip(parts, self._starts, strict=False):
            rows = start + np.flatnonzero(part.footprints.fits)
            self.time_s[rows] = part.estimates.step_time_s

    def __len__(self) -> int:
        return int(self._starts[-1])

    def estimate(self, rows: Int) -> None:
        """Estimate the step time of layouts, whether they fit or not."""
        for part, (start, end) in zip(self.parts, itertools.pairwise(self._starts), strict=True):
            selected = rows[(rows >= start) & (rows < end)]
            if len(selected):
                estimates = estimate_times(part.scenario, part.footprints.take(selected - start))
                self.time_s[selected] = estimates.step_time_s

    def text(self, row: int) -> str:
        """A layout and its framework."""
        number = int(np.searchsorted(self._starts, row, side="right")) - 1
        part = self.parts[number]
        layout = part.footprints.layouts[row - int(self._starts[number])]
        return f"{layout} [{part.scenario.framework.name}]"

    def point(self, row: int) -> Point:
        """A layout as memory and time."""
        return Point(float(self.memory_bytes[row]), float(self.time_s[row]), self.text(row))


def _front(table: _Table) -> Int:
    """Rows of the layouts that fit and that nothing beats in both, by rising memory."""
    order = np.lexsort((table.time_s, table.memory_bytes))
    order = order[table.fits[order]]
    time_s = table.time_s[order]
    best_s = np.minimum.accumulate(np.concatenate([[np.inf], time_s]))
    return np.asarray(order[time_s < best_s[:-1] - 1e-12])


def _cells(table: _Table) -> list[Cell]:
    key = table.tp * (int(table.pp.max()) + 1) + table.pp
    # the fastest that fits first; if none fits, the smallest
    figure = np.where(table.fits, table.time_s, table.memory_bytes)
    order = np.lexsort((figure, ~table.fits, key))
    _, firsts = np.unique(key[order], return_index=True)
    return [
        Cell(
            int(table.tp[row]),
            int(table.pp[row]),
            float(table.time_s[row]) if table.fits[row] else float("inf"),
            float(table.memory_bytes[row]),
            table.text(row),
        )
        for row in map(int, order[firsts])
    ]
