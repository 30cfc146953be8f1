"""Batches: the nearest ones that nodes or devices share evenly, where the one asked for is not.

A batch that no large number of replicas divides drives the search into pipelines that nobody would
run; a few sequences more or less often do away with them. These batches are searched, where there
is a sequence for each device as far as tensor and expert parallelism go: what is offered is a legal
layout, evaluated as any other.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.choose.preferences import preferences
from planner.choose.recommendation import recommend, setup_effort
from planner.choose.search import search
from planner.cost.arrays import Mask
from planner.cost.estimate import Estimate
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.tables import Record

__all__ = ["Batch", "nearest_batches", "offered"]

_AXES = ("tp", "ep")


@dataclass(frozen=True, slots=True)
class Batch:
    """Another global batch, with the layout that is recommended for it."""

    global_batch: int
    estimate: Estimate
    speedup: float | None
    """Its sequences per second over those of the batch asked for; None where that has no layout."""

    def record(self) -> Record:
        """The batch as one flat row, with that of its estimate."""
        return {
            "global_batch": self.global_batch,
            "speedup": self.speedup,
            **self.estimate.record(),
        }


def nearest_batches(batch: int, ranks: int) -> list[int]:
    """The batches next to one, below and above, that so many ranks share evenly [1].

    Counted: multiples of the ranks; none where the batch itself is one. Left out: those further
    away. Definition.

    >>> nearest_batches(512, 12), nearest_batches(512, 16), nearest_batches(3, 52)
    ([504, 516], [], [52])
    """
    below = batch // ranks * ranks
    return [] if below == batch else [size for size in (below, below + ranks) if size]


def offered(
    scenarios: Mapping[str, Scenario], nodes: int, answer: Estimate | None
) -> tuple[Batch, ...]:
    """Batches near the one asked for with which the job is faster, or as fast and simpler.

    Only asked where the answer cuts layers or sequences, or there is none: nodes share a batch
    evenly that all devices need not share. Multiples of the devices are farther away, and offered
    only where they are much faster.
    """
    first = next(iter(scenarios.values()))
    world, batch = nodes * first.machine.node.num_devices, first.workload.global_batch
    if answer is not None and answer.layout.pp * answer.layout.cp == 1:
        return ()
    sharing = [_sharing(nodes, batch), _sharing(world, batch), *([] if answer else [world])]
    sizes = sorted({size for ranks in sharing for size in nearest_batches(batch, ranks)})
    nearest = []
    for side in (
        [size for size in reversed(sizes) if size < batch],
        [size for size in sizes if size > batch],
    ):
        worth = _worth(scenarios, world, side, answer)
        # where there is no layout, the nearest that has one is enough
        nearest.append(list(worth if answer else itertools.islice(worth, 1)))
    return tuple(_nearest(side) for side in nearest if side)


def _nearest(side: Sequence[Batch]) -> Batch:
    """Of batches, nearest first, the first that no farther one beats by much."""
    batch, gain = side[0], preferences().offers.farther_batch_gain.value
    for farther in side[1:]:
        if farther.estimate.tokens_per_s > gain * batch.estimate.tokens_per_s:
            batch = farther
    return batch


def _sharing(ranks: int, batch: int) -> int:
    """As many of the ranks as have a sequence each, where powers of two of them cut the model."""
    while ranks > batch and ranks % 2 == 0:
        ranks //= 2
    return ranks


def _worth(
    scenarios: Mapping[str, Scenario], world: int, sizes: Sequence[int], answer: Estimate | None
) -> Iterator[Batch]:
    """Of some batches those that are worth a change."""
    first = next(iter(scenarios.values()))
    batch, per_node = first.workload.global_batch, first.machine.node.num_devices
    # where there is no layout at all, or no sequence for each device, every axis may help
    axes = _AXES if answer and batch >= world else ()

    def no_worse(x: Layouts) -> Mask:
        """Without what is no better than the cut layers that it is to replace."""
        return np.asarray((x.tp <= per_node) & (x.keeps_states | (answer is None)))

    for size in sizes:
        if answer and abs(size - batch) > preferences().offers.batch_change.value * batch:
            continue
        resized = [_with_batch(scenario, size, axes) for scenario in _runnable(scenarios)]
        best = recommend(search(scenario, world).only(no_worse) for scenario in resized)
        if best is None:
            continue
        if answer is None:
            yield Batch(size, best, None)
            continue
        speedup = best.tokens_per_s / answer.tokens_per_s
        theirs, ours = (_effort(scenarios, candidate) for candidate in (best, answer))
        tolerance = preferences().tolerance
        if speedup >= (1 / (1 + tolerance) if theirs < ours else 1 + tolerance):
            yield Batch(size, best, speedup)


def _runnable(scenarios: Mapping[str, Scenario]) -> list[Scenario]:
    """The scenarios as far as their layouts can be written; all where none can."""
    parts = [
        replace(q, framework=q.framework.limit_to_files(q.model, q.workload))
        for q in scenarios.values()
        if not q.framework.code.lacks(q.model, q.workload)
    ]
    return parts or list(scenarios.values())


def _effort(scenarios: Mapping[str, Scenario], estimate: Estimate) -> float:
    """What a layout costs the people who run it, its framework included."""
    scenario = scenarios[estimate.framework]
    if scenario.framework.code.lacks(scenario.model, scenario.workload):
        return math.inf
    return setup_effort(Layouts.of(estimate.layout)).item() + scenario.framework.effort


def _with_batch(scenario: Scenario, size: int, axes: Sequence[str]) -> Scenario:
    """The scenario with another batch, and of the axes only some where such are named."""
    workload, framework = scenario.workload.replaced(global_batch=size), scenario.framework
    if axes:
        framework = framework.replaced(axes=[axis for axis in framework.axes if axis in axes])
    return replace(scenario, workload=workload, framework=framework)
