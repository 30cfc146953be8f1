"""Works: what every pipeline stage of a layout does in a step, as the cost model has it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from planner.cost.arrays import Float
from planner.cost.estimate import Estimate
from planner.cost.scenario import Scenario
from planner.cost.schedules.simulate import ChunkWork, Span, StageWork
from planner.cost.schedules.timeline import Drawn
from planner.cost.shards.layouts import Layouts
from planner.cost.shards.stages import Stages
from planner.cost.step.block_pass import block_passes
from planner.cost.step.chunk_pass import ChunkPass, chunk_passes
from planner.cost.step.step import StageWorth, stage_worth
from planner.cost.uncertainty.step_time_spread import step_outlook
from planner.describe.layout import Layout

__all__ = ["measured_factor", "stage_work"]

_AXES: tuple[Drawn, ...] = ("tensor_parallel", "context_parallel", "expert_parallel")


def stage_work(scenario: Scenario, layout: Layout, factor: float = 1.0) -> tuple[StageWork, ...]:
    """What every stage of a layout does in a step, for `simulate` to play [s].

    `factor` is what measured runs say that every part takes, over its estimate. Counted: all parts
    of the step but the bubble, which follows from them. Left out: nothing of `time_parts`; what
    stands where in a pass is an assumption, how long it takes is not.
    """
    stages = Stages.every(scenario, layout)
    passes = block_passes(scenario, stages.blocks, stages.layouts)
    chunks = chunk_passes(stages, passes).map(lambda values: factor * values)
    worth = stage_worth(stages, passes).map(lambda values: factor * values)
    times = _Times(
        passes=layout.grad_accumulation,
        reductions=int(stages.layouts.reductions_per_step(scenario.framework)),
        gathers=int(stages.layouts.gathers_per_step(scenario.framework)),
        gathers_again=int(stages.layouts.gathers_again_per_step(scenario.framework)),
    )
    return tuple(_Stage(chunks, worth, layout, times, i).work() for i in range(layout.pp))


def measured_factor(scenario: Scenario, estimate: Estimate) -> float:
    """What runs measured before say that every part of a step takes, over its estimate [1].

    Counted: runs of the scenario's experience. Left out: memory. Definition.

    >>> from planner import Workload, load_framework, load_machine, load_model
    >>> from planner.cost.estimate import estimate_layouts
    >>> model, machine = load_model("gpt2-xl"), load_machine("polaris")
    >>> job = Scenario(model, machine, Workload(), load_framework("ddp"))
    >>> measured_factor(job, estimate_layouts(job, Layouts.stack([Layout()]))[0])   # no runs
    1.0
    """
    if scenario.experience.step_time is None:
        return 1.0
    layouts = Layouts.stack([estimate.layout])
    return float(step_outlook(scenario, layouts, estimate.step_time_parts_s).expected[0])


@dataclass(frozen=True, slots=True)
class _Times:
    """How often a step does what."""

    passes: int
    reductions: int
    gathers: int
    gathers_again: int


class _Stage:
    """One stage of them."""

    def __init__(
        self, chunks: ChunkPass, worth: StageWorth, layout: Layout, times: _Times, stage: int
    ) -> None:
        self._chunks = chunks.take((..., stage))
        self._worth = worth.take((..., stage))
        self._count, self._times, self._passes = layout.vpp, times, times.passes
        self._every_time = times.reductions > 1
        whole = self._chunks.drawn_forward_s + self._chunks.drawn_backward_s
        self._share: Float = whole / max(float(np.sum(whole)), float(np.finfo(float).tiny))
        """Of what a stage sends and waits for as a whole, what stands beside each chunk."""

    def work(self) -> StageWork:
        """What it does."""
        worth, exposed = self._worth, self._worth.exposed
        once = 0.0 if self._every_time else float(exposed.gradients_s)
        return StageWork(
            chunks=tuple(self._chunk(number) for number in range(self._count)),
            send_s=float(worth.transfer.arrives_s),
            blocked_s=float(worth.transfer.blocks_s),
            before=_spans([("parameter_gathering", self._first())]),
            after=_spans([("gradient_reduction", once)]),
            closing=_spans(
                [
                    ("optimizer", float(worth.optimizer_s)),
                    ("offload", float(worth.offload_step_s)),
                    ("parameter_update_gathering", float(exposed.updates_s)),
                ]
            ),
        )

    def _chunk(self, number: int) -> ChunkWork:
        share, exposed = float(self._share[number]), self._worth.exposed
        forward, backward = self._gathers()
        hidden = self._hidden()
        reduced = float(exposed.gradients_s) / self._passes if self._every_time else 0.0
        last = self._backward(number, share, backward, reduced)
        at_end: tuple[Drawn, float] = ("gradient_reduction", self._hidden_reduction())
        return ChunkWork(
            forward=self._forward(number, share, forward + self._rest(), hidden[1]),
            first_forward=self._forward(number, share, forward + self._rest(), hidden[0]),
            backward=last + (_beside([at_end]) if self._every_time else ()),
            last_backward=last + _beside([at_end]),
            weights_s=float(self._chunks.weight_gradient_s[number]),
        )

    def _gathers(self) -> tuple[float, float]:
        """What a later forward pass and a backward pass wait for, of a stage as a whole."""
        exposed, often = self._worth.exposed, self._times.gathers > 1
        later = float(exposed.before_later_forward_s) if often else 0.0
        return later, float(exposed.around_backward_s)

    def _first(self) -> float:
        """What the first forward pass waits for besides, of a stage as a whole: weights need no
        other stage, and are gathered while it waits for one."""
        return max(float(self._worth.exposed.before_forward_s) - self._gathers()[0], 0.0)

    def _rest(self) -> float:
        """The step's other waiting for weights, spread over its passes."""
        known = self._first() + self._passes * sum(self._gathers())
        return (float(self._worth.exposed.gather_s) - known) / self._passes

    def _hidden(self) -> tuple[float, float]:
        """Gathers behind the first forward pass, and behind a later one, of a stage as a whole."""
        sent, exposed = self._worth.sent, self._worth.exposed
        later = float(sent.before_later_forward_s - exposed.before_later_forward_s)
        return (
            float(sent.before_forward_s - exposed.before_forward_s),
            later if self._times.gathers > 1 else 0.0,
        )

    def _hidden_around_backward(self) -> float:
        """Gathers and reductions of ZeRO-3 behind a backward pass, of a stage as a whole."""
        sent, times = self._worth.sent, self._times
        again = float(sent.before_backward_s) * times.gathers_again
        reduced = float(sent.after_backward_s) * times.reductions
        return (again + reduced) / times.passes - float(self._worth.exposed.around_backward_s)

    def _hidden_reduction(self) -> float:
        times = self._passes if self._every_time else 1
        return float(self._worth.sent.gradients_s - self._worth.exposed.gradients_s / times)

    def _forward(
        self, number: int, share: float, gathers: float, hidden: float
    ) -> tuple[Span, ...]:
        chunks = self._chunks
        axes = {name: chunks.traffic[name].take(number) for name in _AXES}
        moved = float(self._worth.exposed.offload_s) / self._passes
        whole = float(chunks.drawn_forward_s[number] + chunks.drawn_backward_s[number])
        part = float(chunks.drawn_forward_s[number]) / whole if whole else 0.0
        return (
            *_spans([("parameter_gathering", share * gathers)]),
            Span("forward", float(chunks.forward_s[number])),
            *_spans([("host_overhead", float(chunks.host_forward_s[number]))]),
            *_spans([(name, float(axes[name].forward_s)) for name in _AXES]),
            *_spans([("offload", part * share * moved)]),
            *_beside(
                [
                    ("parameter_gathering", share * hidden),
                    *((n, float(a.sent_forward_s - a.forward_s)) for n, a in axes.items()),
                ]
            ),
        )

    def _backward(
        self, number: int, share: float, gathers: float, reduced: float
    ) -> tuple[Span, ...]:
        chunks = self._chunks
        axes = {name: chunks.traffic[name].take(number) for name in _AXES}
        moved = float(self._worth.exposed.offload_s) / self._passes
        whole = float(chunks.drawn_forward_s[number] + chunks.drawn_backward_s[number])
        part = float(chunks.drawn_backward_s[number]) / whole if whole else 0.0
        return (
            *_spans([("parameter_gathering", share * gathers)]),
            *_spans([("recompute", float(chunks.recompute_s[number]))]),
            Span("backward", float(chunks.backward_s[number])),
            *_spans([("host_overhead", float(chunks.host_backward_s[number]))]),
            *_spans([(name, float(axes[name].backward_s)) for name in _AXES]),
            *_spans([("offload", part * share * moved), ("gradient_reduction", share * reduced)]),
            *_beside(
                [
                    ("parameter_gathering", share * self._hidden_around_backward()),
                    *((n, float(a.sent_backward_s - a.backward_s)) for n, a in axes.items()),
                ]
            ),
        )


def _spans(parts: Iterable[tuple[Drawn, float]]) -> tuple[Span, ...]:
    """What takes any time."""
    return tuple(Span(kind, seconds) for kind, seconds in parts if seconds > 0)


def _beside(parts: Iterable[tuple[Drawn, float]]) -> tuple[Span, ...]:
    """What is hidden and takes any time."""
    return tuple(span._replace(hidden=True) for span in _spans(parts))
