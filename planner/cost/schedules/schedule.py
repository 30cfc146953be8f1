"""Schedule: an order of passes, and what follows from it in closed form."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from planner.cost.arrays import Float, Int
from planner.describe.layout import Schedule

__all__ = ["Kind", "PipelineSchedule", "Task", "fills_nothing", "one_each"]

Kind = Literal["forward", "backward", "weight_gradient"]


class Task(NamedTuple):
    """One pass of a micro-batch through one chunk of a stage."""

    stage: int
    kind: Kind
    micro_batch: int
    chunk: int


def fills_nothing(pp: Int, m: Int, weight_s: Float, weights_s: Float) -> Float:
    """Nothing is done while a stage waits: the bubble is all of its idle time [s].

    Counted: nothing. Left out: weight gradients, which stay where they are. Definition.

    >>> float(fills_nothing(4, 8, 1.0, 4.0))
    0.0
    """
    return np.zeros(())


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSchedule:
    """A pipeline schedule. Degrees are those of `Layout`: p stages, v chunks, m micro-batches."""

    name: Schedule
    source: str
    """Where it is described."""
    order: Callable[[int, int, int, int], list[Task]]
    """Tasks of a stage in the order in which it works on them: (p, stage, m, v)."""
    in_flight: Callable[[Int, Int, Int, Int], Float]
    """Micro-batches whose activations a stage holds at its peak: (p, v, m, stage)."""
    of_chunks: Callable[[Int, Int, Int, Int, Float], Float] | None = None
    """Of every chunk, when most layers' activations are held: (p, v, m, stage, layers of each
    chunk). Nothing where a stage is one chunk."""
    fills_s: Callable[[Int, Int, Float, Float], Float] = fills_nothing
    """What of 1F1B's idle time is no wait: (p, m, weight gradients of the slowest stage and of
    all stages) [s]."""
    interleaves: bool = False
    """Whether a stage has several chunks, and micro-batches pass in groups of p."""
    defers_weight_gradients: bool = False
    """Whether weight gradients are passes of their own."""
    runs_forward_ahead: bool = False
    """Whether forward passes precede the last stage's backward: it keeps all their logits."""
    no_better_than: str = ""
    """A schedule that takes as long with less memory; empty where there is none."""


def one_each(forward: list[Task], backward: list[Task], warm_up: int) -> list[Task]:
    """`warm_up` forwards, then one forward and one backward in turn, then the rest."""
    order = forward[:warm_up]
    for ahead, back in zip(forward[warm_up:], backward, strict=False):
        order += [ahead, back]
    return order + backward[len(forward) - warm_up :]
