"""Schedule: the order of passes on each stage, with closed forms of bubble and memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from planner.cost.arrays import Float, Int
from planner.describe.layout import V_SHAPED, Schedule

Kind = Literal["forward", "backward", "weight_gradient", "step"]
"""Kinds of passes, and `step` for work before and after all passes."""


class Task(NamedTuple):
    """One pass of a micro-batch through one chunk of a stage."""

    stage: int
    kind: Kind
    micro_batch: int
    chunk: int


@dataclass(frozen=True, slots=True)
class Passes:
    """Times of one micro-batch on one stage, or summed over several [s]."""

    total_s: Float
    forward_s: Float
    weight_s: Float
    """Weight gradients, a part of the backward pass."""

    @property
    def input_s(self) -> Float:
        """Input-gradient part of the backward pass, which the previous stage waits for [s]."""
        return self.total_s - self.forward_s - self.weight_s

    @property
    def backward_s(self) -> Float:
        """Backward pass, weight gradients included [s]."""
        return self.total_s - self.forward_s

    def at(self, index: Int) -> Passes:
        """Select stages at `index` (..., 1) from stages (..., S)."""
        parts = (self.total_s, self.forward_s, self.weight_s)
        return Passes(*(np.take_along_axis(part, index, axis=-1)[..., 0] for part in parts))

    def minus(self, part: Passes) -> Passes:
        """Subtract a part, with each time at least 0 [s]."""
        return Passes(
            np.maximum(self.total_s - part.total_s, 0.0),
            np.maximum(self.forward_s - part.forward_s, 0.0),
            np.maximum(self.weight_s - part.weight_s, 0.0),
        )


@dataclass(frozen=True, slots=True)
class PipelinePasses:
    """Passes of one micro-batch on candidate stages (..., S), and on chunks around each."""

    stage: Int
    at_stage: Passes
    before: Passes
    """Passes on all chunks before the stage's first."""
    after: Passes
    """Passes on all chunks after the stage's last."""
    all_stages: Passes
    """Passes on all stages (...)."""


def idle_s(p: Int, v: Int, m: Int, slowest: Passes, other_stages: Passes) -> Float:
    """Idle time of a stage that waits for one chunk of every other stage [s].

    Counted: forward and backward. Left out: other work in the idle time. Narayanan et al. 2021,
    arXiv:2104.04473, section 2.2.
    """
    return other_stages.total_s / v


def pair(first: Int, second: Int, layers: Float) -> Float:
    """Array (chunks, ...) with the passes of the two chunks of a V [1].

    Counted: the first two chunks. Left out: others, which a V does not have. Definition.
    """
    chunk = np.arange(len(layers)).reshape(-1, *[1] * np.ndim(first))
    return np.where(chunk == 0, first, np.where(chunk == 1, second, 0)).astype(float)


Bubble: TypeAlias = Callable[[Int, Int, Int, Passes, Passes], Float]
Length: TypeAlias = Callable[[Int, Int, Int, PipelinePasses], Float]


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSchedule:
    """Pipeline schedule. Degrees as in `Layout`: p stages, v chunks, m micro-batches."""

    name: Schedule
    source: str
    """Publication or code that defines the schedule."""
    order: Callable[[int, int, int, int], list[Task]]
    """Tasks of a stage in execution order: (p, stage, m, v)."""
    groups: Callable[[int, int, int, int], list[tuple[Task, ...]]] | None = None
    """Tasks of a stage in groups that start and finish together; None: each task alone."""
    in_flight: Callable[[Int, Int, Int, Int], Float]
    """Micro-batches whose activations a stage holds at its peak: (p, v, m, stage)."""
    in_flight_by_chunk: Callable[[Int, Int, Int, Int, Float], Float] | None = None
    """Passes in flight by chunk at the peak: (p, v, m, stage, layers of the chunks)."""
    waiting: Callable[[Int, Int, Int, Int, Float], tuple[Float, Float]] | None = None
    """By chunk, in the cool-down: passes held, and those with pending weight gradients."""
    bubble_s: Bubble = idle_s
    """Idle time of the slowest stage: (p, v, m, its passes, passes of all other stages) [s]."""
    length_s: Length | None = None
    """Time of all passes of a step with unequal stages: (p, v, m, stages); None: unknown [s]."""
    least_idle_s: Bubble | None = None
    """Lower bound of the bubble for any position of the slowest stage; as `bubble_s` [s]."""
    interleaves: bool = False
    """True if chunks are interleaved over stages, with micro-batches in groups of p."""
    defers_weight_gradients: bool = False
    """True if weight gradients are separate passes."""
    needs_two_rounds: bool = False
    """True if a step needs at least two micro-batches per stage."""
    runs_forward_ahead: bool = False
    """True if all forward passes precede the last stage's backward, which keeps their logits."""
    no_better_than: str = ""
    """Schedule that takes as long with less memory; empty if there is none."""

    @property
    def v_shaped(self) -> bool:
        """True if the model runs down the stages and back up (two chunks each)."""
        return self.name in V_SHAPED


def order_1f1b(forward: list[Task], backward: list[Task], warm_up: int) -> list[Task]:
    """Order tasks: `warm_up` forwards, then one forward and one backward in turn, then the rest."""
    order = forward[:warm_up]
    for ahead, back in zip(forward[warm_up:], backward, strict=False):
        order += [ahead, back]
    return order + backward[len(forward) - warm_up :]
