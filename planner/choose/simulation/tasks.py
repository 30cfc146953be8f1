"""Tasks of every pipeline stage in a step, with the times of the cost model."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from planner.cost.arrays import Float
from planner.cost.estimate import Estimate
from planner.cost.scenario import Scenario
from planner.cost.schedules.simulate import ChunkWork, Span, StageWork
from planner.cost.schedules.timeline import EventKind
from planner.cost.shards.layouts import Layouts
from planner.cost.shards.stages import Stages
from planner.cost.step.block_pass import ChunkPass, block_passes, chunk_passes
from planner.cost.step.step import StageOverheads, stage_overheads
from planner.cost.uncertainty import step_outlook
from planner.describe.layout import Layout

Seconds = Float | float

_AXES: tuple[EventKind, ...] = ("tensor_parallel", "context_parallel", "expert_parallel")


def stage_work(scenario: Scenario, layout: Layout, factor: float = 1.0) -> tuple[StageWork, ...]:
    """Work of every stage in a step; `factor`: ratio of measured to estimated times."""
    stages, framework = Stages.of_pipeline(scenario, layout), scenario.framework
    passes = block_passes(scenario, stages.blocks, stages.layouts)
    chunks = chunk_passes(stages, passes).map(lambda values: factor * values)
    costs = stage_overheads(stages, passes).map(lambda values: factor * values)
    counts = (
        int(stages.layouts.gathers_per_step(framework)),
        int(stages.layouts.backward_gathers_per_step(framework)),
        int(stages.layouts.reductions_per_step(framework)),
    )
    rows = [(..., stage) for stage in range(layout.pp)]
    return tuple(
        _Stage(chunks.take(row), costs.take(row), layout.grad_accumulation, *counts).work()
        for row in rows
    )


def measured_factor(scenario: Scenario, estimate: Estimate) -> float:
    """Ratio of measured to estimated step times, from the scenario's experience [1]."""
    if scenario.experience.step_time is None:
        return 1.0
    layouts = Layouts.stack([estimate.layout])
    return float(step_outlook(scenario, layouts, estimate.step_time_parts_s).expected[0])


class _Gathers(NamedTuple):
    """Weight gathers and ZeRO-3 gradient reductions in the passes of a stage [s]."""

    first_s: Seconds
    """Exposed before the first forward pass, beyond the exposed time of a later one."""
    forward_s: Seconds
    """Exposed before each forward pass, with its share of other exposed gathers of the step."""
    behind_first_s: Seconds
    """Hidden behind the first forward pass."""
    behind_later_s: Seconds
    """Hidden behind each later forward pass."""
    behind_backward_s: Seconds
    """Hidden behind each backward pass."""


@dataclass(frozen=True, slots=True)
class _Stage:
    """One pipeline stage, whose chunks share its exposed communication and offload."""

    chunks: ChunkPass
    costs: StageOverheads
    passes: int
    """Micro-batches of a step; the following fields also count per step."""
    gathers: int
    backward_gathers: int
    reductions: int

    def work(self) -> StageWork:
        """Make the work of the stage in one step."""
        costs, exposed, gathers = self.costs, self.costs.exposed, self._gathers()
        reduces_per_pass = self.reductions > 1
        reduction_s = exposed.gradients_s / (self.passes if reduces_per_pass else 1)
        pass_reduction_s = reduction_s if reduces_per_pass else 0.0
        hidden = _hidden(("gradient_reduction", costs.sent.gradients_s - reduction_s))
        chunks = []
        for number, weights_s in enumerate(self.chunks.weight_gradient_s.tolist()):
            first_forward, forward = (
                self._pass(number, "forward", gathers.forward_s, behind_s)
                for behind_s in (gathers.behind_first_s, gathers.behind_later_s)
            )
            hidden_and_reduction_s = gathers.behind_backward_s, pass_reduction_s
            backward = self._pass(
                number, "backward", exposed.around_backward_s, *hidden_and_reduction_s
            )
            each = backward + hidden if reduces_per_pass else backward
            chunks.append(ChunkWork(forward, each, weights_s, first_forward, backward + hidden))
        return StageWork(
            tuple(chunks),
            float(costs.transfer.arrives_s),
            float(costs.transfer.blocks_s),
            before=_spans(("parameter_gathering", gathers.first_s)),
            after=() if reduces_per_pass else _spans(("gradient_reduction", exposed.gradients_s)),
            closing=_spans(
                ("optimizer", costs.optimizer_s),
                ("offload", costs.offload_step_s),
                ("parameter_update_gathering", exposed.updates_s),
            ),
        )

    def _gathers(self) -> _Gathers:
        exposed, sent, repeats = self.costs.exposed, self.costs.sent, self.gathers > 1
        later_s = exposed.before_later_forward_s if repeats else 0.0
        # weights do not depend on other stages, and are gathered while the stage waits
        first_s = np.maximum(exposed.before_forward_s - later_s, 0.0)
        counted_s = first_s + self.passes * (later_s + exposed.around_backward_s)
        around_s = sent.before_backward_s * self.backward_gathers
        around_s = (around_s + sent.after_backward_s * self.reductions) / self.passes
        return _Gathers(
            first_s,
            later_s + (exposed.gather_s - counted_s) / self.passes,
            sent.before_forward_s - exposed.before_forward_s,
            sent.before_later_forward_s - later_s if repeats else 0.0,
            around_s - exposed.around_backward_s,
        )

    def _pass(
        self,
        number: int,
        kind: Literal["forward", "backward"],
        gathers_s: Seconds,
        hidden_gathers_s: Seconds,
        reduction_s: Seconds = 0.0,
    ) -> tuple[Span, ...]:
        """Spans of one pass of a chunk: computation, exposed waiting and hidden communication."""
        chunks = self.chunks
        passes_s = chunks.forward_with_traffic_s, chunks.backward_with_traffic_s
        whole_s = passes_s[0] + passes_s[1]
        share = whole_s[number] / max(np.sum(whole_s), np.finfo(float).tiny)
        axes = {name: chunks.traffic[name].take(number) for name in _AXES}
        if kind == "forward":
            computed_s, host_s, recompute_s = chunks.forward_s, chunks.host_forward_s, 0.0
            sent = [(name, a.forward_s, a.sent_forward_s) for name, a in axes.items()]
        else:
            computed_s, host_s = chunks.backward_s, chunks.host_backward_s
            recompute_s = chunks.recompute_s[number]
            sent = [(name, a.backward_s, a.sent_backward_s) for name, a in axes.items()]
        part = passes_s[kind == "backward"][number] / whole_s[number] if whole_s[number] else 0.0
        offload_s = part * share * (self.costs.exposed.offload_s / self.passes)
        return (
            *_spans(("parameter_gathering", share * gathers_s), ("recompute", recompute_s)),
            Span(kind, float(computed_s[number])),
            *_spans(("host_overhead", host_s[number])),
            *_spans(*((name, exposed_s) for name, exposed_s, _ in sent)),
            *_spans(("offload", offload_s), ("gradient_reduction", share * reduction_s)),
            *_hidden(("parameter_gathering", share * hidden_gathers_s)),
            *_hidden(*((name, all_s - exposed_s) for name, exposed_s, all_s in sent)),
        )


def _spans(*parts: tuple[EventKind, Seconds]) -> tuple[Span, ...]:
    return tuple(Span(kind, float(seconds)) for kind, seconds in parts if seconds > 0)


def _hidden(*parts: tuple[EventKind, Seconds]) -> tuple[Span, ...]:
    return tuple(span._replace(hidden=True) for span in _spans(*parts))
