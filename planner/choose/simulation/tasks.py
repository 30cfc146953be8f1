"""Tasks of every pipeline stage in a step, with the times of the cost model."""

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
from planner.cost.step.block_pass import ChunkPass, block_passes, chunk_passes
from planner.cost.step.step import StageOverheads, stage_overheads
from planner.cost.uncertainty import step_outlook
from planner.describe.layout import Layout

__all__ = ["measured_factor", "stage_work"]

_AXES: tuple[Drawn, ...] = ("tensor_parallel", "context_parallel", "expert_parallel")


def stage_work(scenario: Scenario, layout: Layout, factor: float = 1.0) -> tuple[StageWork, ...]:
    """The work of every stage of a layout in a step, for `simulate` [s].

    `factor` is the ratio of measured to estimated times. Counted: all parts of the step but the
    bubble, which follows from them. Times of parts are estimated, their place in a pass is assumed.
    """
    stages = Stages.of_pipeline(scenario, layout)
    passes = block_passes(scenario, stages.blocks, stages.layouts)
    chunks = chunk_passes(stages, passes).map(lambda values: factor * values)
    costs = stage_overheads(stages, passes).map(lambda values: factor * values)
    counts = _Counts(
        passes=layout.grad_accumulation,
        reductions=int(stages.layouts.reductions_per_step(scenario.framework)),
        gathers=int(stages.layouts.gathers_per_step(scenario.framework)),
        backward_gathers=int(stages.layouts.backward_gathers_per_step(scenario.framework)),
    )
    return tuple(_Stage(chunks, costs, layout, counts, stage).work() for stage in range(layout.pp))


def measured_factor(scenario: Scenario, estimate: Estimate) -> float:
    """Ratio of measured to estimated step times, from the scenario's experience [1].

    Counted: runs of the scenario's experience. Left out: memory. Definition.

    >>> from planner.cost.estimate import estimate_layouts
    >>> estimate = estimate_layouts(scenario, Layouts.stack([Layout(tp=4)]))[0]
    >>> measured_factor(scenario, estimate)                          # no runs
    1.0
    """
    if scenario.experience.step_time is None:
        return 1.0
    layouts = Layouts.stack([estimate.layout])
    return float(step_outlook(scenario, layouts, estimate.step_time_parts_s).expected[0])


@dataclass(frozen=True, slots=True)
class _Counts:
    """How often a step does things."""

    passes: int
    reductions: int
    gathers: int
    backward_gathers: int


class _Stage:
    """One stage; exposed communication and offload of the stage are shared by its chunks."""

    def __init__(
        self, chunks: ChunkPass, costs: StageOverheads, layout: Layout, counts: _Counts, stage: int
    ) -> None:
        self._chunks = chunks.take((..., stage))
        self._costs = costs.take((..., stage))
        self._exposed, self._sent = self._costs.exposed, self._costs.sent
        self._num_chunks, self._counts, self._passes = layout.vpp, counts, counts.passes
        self._reduces_always = counts.reductions > 1
        drawn_s = self._chunks.forward_with_traffic_s + self._chunks.backward_with_traffic_s
        self._shares: Float = drawn_s / max(float(np.sum(drawn_s)), float(np.finfo(float).tiny))
        """Of the stage's communication, the share beside each chunk."""

    def work(self) -> StageWork:
        """The work of the stage."""
        costs, exposed = self._costs, self._exposed
        at_end = 0.0 if self._reduces_always else float(exposed.gradients_s)
        return StageWork(
            chunks=tuple(self._chunk(number) for number in range(self._num_chunks)),
            send_s=float(costs.transfer.arrives_s),
            blocked_s=float(costs.transfer.blocks_s),
            before=_spans([("parameter_gathering", self._first_gather_s())]),
            after=_spans([("gradient_reduction", at_end)]),
            closing=_spans(
                [
                    ("optimizer", float(costs.optimizer_s)),
                    ("offload", float(costs.offload_step_s)),
                    ("parameter_update_gathering", float(exposed.updates_s)),
                ]
            ),
        )

    def _chunk(self, number: int) -> ChunkWork:
        share = float(self._shares[number])
        forward_s, backward_s = self._pass_gathers_s()
        first_hidden_s, hidden_s = self._hidden_gathers_s()
        reduction_s = float(self._exposed.gradients_s) / self._passes * self._reduces_always
        forward_s += self._other_gathers_s()
        backward = self._backward(number, share, backward_s, reduction_s)
        reduction: tuple[Drawn, float] = ("gradient_reduction", self._hidden_reduction_s())
        return ChunkWork(
            forward=self._forward(number, share, forward_s, hidden_s),
            first_forward=self._forward(number, share, forward_s, first_hidden_s),
            backward=backward + (_hidden([reduction]) if self._reduces_always else ()),
            last_backward=backward + _hidden([reduction]),
            weights_s=float(self._chunks.weight_gradient_s[number]),
        )

    # --- weights and gradients of the stage -------------------------------------------------------

    def _pass_gathers_s(self) -> tuple[float, float]:
        """Exposed gathers of a later forward pass and of a backward pass."""
        repeats = self._counts.gathers > 1
        later = float(self._exposed.before_later_forward_s) if repeats else 0.0
        return later, float(self._exposed.around_backward_s)

    def _first_gather_s(self) -> float:
        """Exposed gathers of the first forward pass beyond those of later ones.

        Weights come from no other stage, and are gathered while the stage waits for one.
        """
        return max(float(self._exposed.before_forward_s) - self._pass_gathers_s()[0], 0.0)

    def _other_gathers_s(self) -> float:
        """The step's other exposed gathers, per pass."""
        counted_s = self._first_gather_s() + self._passes * sum(self._pass_gathers_s())
        return (float(self._exposed.gather_s) - counted_s) / self._passes

    def _hidden_gathers_s(self) -> tuple[float, float]:
        """Gathers hidden behind the first forward pass, and behind a later one."""
        sent, exposed = self._sent, self._exposed
        later = float(sent.before_later_forward_s - exposed.before_later_forward_s)
        return (
            float(sent.before_forward_s - exposed.before_forward_s),
            later if self._counts.gathers > 1 else 0.0,
        )

    def _hidden_around_backward_s(self) -> float:
        """Gathers and reductions of ZeRO-3 hidden behind a backward pass."""
        sent, counts = self._sent, self._counts
        gathers = float(sent.before_backward_s) * counts.backward_gathers
        reductions = float(sent.after_backward_s) * counts.reductions
        return (gathers + reductions) / counts.passes - float(self._exposed.around_backward_s)

    def _hidden_reduction_s(self) -> float:
        """Gradient reduction hidden behind a backward pass."""
        times = self._passes if self._reduces_always else 1
        return float(self._sent.gradients_s - self._exposed.gradients_s / times)

    # --- passes of a chunk ------------------------------------------------------------------------

    def _offload_s(self, number: int, drawn_s: Float) -> float:
        """Exposed offload beside one pass of a chunk, by its share of the chunk's time."""
        chunks = self._chunks
        both_s = float(
            chunks.forward_with_traffic_s[number] + chunks.backward_with_traffic_s[number]
        )
        part = float(drawn_s[number]) / both_s if both_s else 0.0
        return part * float(self._shares[number]) * (float(self._exposed.offload_s) / self._passes)

    def _forward(
        self, number: int, share: float, gathers_s: float, hidden_s: float
    ) -> tuple[Span, ...]:
        chunks = self._chunks
        axes = {name: chunks.traffic[name].take(number) for name in _AXES}
        return (
            *_spans([("parameter_gathering", share * gathers_s)]),
            Span("forward", float(chunks.forward_s[number])),
            *_spans([("host_overhead", float(chunks.host_forward_s[number]))]),
            *_spans([(name, float(axis.forward_s)) for name, axis in axes.items()]),
            *_spans([("offload", self._offload_s(number, chunks.forward_with_traffic_s))]),
            *_hidden(
                [
                    ("parameter_gathering", share * hidden_s),
                    *((n, float(a.sent_forward_s - a.forward_s)) for n, a in axes.items()),
                ]
            ),
        )

    def _backward(
        self, number: int, share: float, gathers_s: float, reduction_s: float
    ) -> tuple[Span, ...]:
        chunks = self._chunks
        axes = {name: chunks.traffic[name].take(number) for name in _AXES}
        return (
            *_spans([("parameter_gathering", share * gathers_s)]),
            *_spans([("recompute", float(chunks.recompute_s[number]))]),
            Span("backward", float(chunks.backward_s[number])),
            *_spans([("host_overhead", float(chunks.host_backward_s[number]))]),
            *_spans([(name, float(axis.backward_s)) for name, axis in axes.items()]),
            *_spans(
                [
                    ("offload", self._offload_s(number, chunks.backward_with_traffic_s)),
                    ("gradient_reduction", share * reduction_s),
                ]
            ),
            *_hidden(
                [
                    ("parameter_gathering", share * self._hidden_around_backward_s()),
                    *((n, float(a.sent_backward_s - a.backward_s)) for n, a in axes.items()),
                ]
            ),
        )


def _spans(parts: Iterable[tuple[Drawn, float]]) -> tuple[Span, ...]:
    """Spans of the parts that take time."""
    return tuple(Span(kind, seconds) for kind, seconds in parts if seconds > 0)


def _hidden(parts: Iterable[tuple[Drawn, float]]) -> tuple[Span, ...]:
    """Hidden spans of the parts that take time."""
    return tuple(span._replace(hidden=True) for span in _spans(parts))
