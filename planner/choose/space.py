"""Space: all candidates of a job, condensed: best per tp and pp, the Pareto front, a sample."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from planner.choose.planning import questions_for
from planner.choose.search import search
from planner.cost.arrays import Float, Int, Mask
from planner.describe.machine import Machine
from planner.describe.model.model import Model
from planner.describe.workload import Workload

__all__ = ["Cell", "Point", "Space", "space"]


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
class Space:
    """All candidates of a job, condensed."""

    cells: tuple[Cell, ...]
    front: tuple[Point, ...]
    """Layouts that no other beats in both memory and time, smallest memory first."""
    cloud: tuple[Point, ...]
    """A deterministic sample of the rest."""
    num_candidates: int


def space(
    model: Model,
    machine: Machine,
    nodes: int,
    workload: Workload,
    frameworks: Sequence[str] = (),
    *,
    cloud: int = 400,
) -> Space:
    """The candidates of a job: best per tp and pp, the Pareto front, a sample."""
    world = nodes * machine.node.num_devices
    found = [
        search(question, world).estimates
        for question in questions_for(model, machine, workload, frameworks)
    ]
    found = [estimates for estimates in found if len(estimates)]
    if not found:
        return Space((), (), (), 0)

    def all_of(name: str) -> Float:
        return np.concatenate([np.ravel(getattr(e, name)).astype(float) for e in found])

    time, memory, fits = all_of("step_time_s"), all_of("memory_bytes"), all_of("fits") > 0
    tp = np.concatenate([e.layouts.tp for e in found])
    pp = np.concatenate([e.layouts.pp for e in found])
    starts = np.cumsum([0, *(len(e) for e in found)])

    def text(index: int) -> str:
        part = int(np.searchsorted(starts, index, side="right")) - 1
        return f"{found[part].layouts[index - int(starts[part])]} [{found[part].framework}]"

    def point(index: int) -> Point:
        return Point(float(memory[index]), float(time[index]), text(index))

    front = _front(memory, time)
    step = max(len(time) // cloud, 1)
    return Space(
        cells=tuple(_cells(tp, pp, time, memory, fits, text)),
        front=tuple(point(int(i)) for i in front),
        cloud=tuple(point(i) for i in range(0, len(time), step)),
        num_candidates=len(time),
    )


def _front(memory: Float, time: Float) -> Int:
    """Indices that nothing beats in both, by rising memory."""
    order = np.lexsort((time, memory))
    best = np.minimum.accumulate(time[order])
    first = np.concatenate([[True], time[order][1:] < best[:-1] - 1e-12])
    return np.asarray(order[first])


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
