"""Step: the parts of one optimizer step, from its passes and what traffic stays exposed.

The slowest stage sets the pace, the pipeline adds its bubble.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from planner.cost.arrays import Arrays, Float, Int
from planner.cost.network.groups import Groups
from planner.cost.parts import TIME_PARTS, recorded
from planner.cost.schedules.bubble import bubble_s
from planner.cost.schedules.schedule import Around, Passes
from planner.cost.shards.layouts import Layouts
from planner.cost.shards.parted import around_parts
from planner.cost.shards.stages import Stages
from planner.cost.step.communication import DataTraffic, data_traffic
from planner.cost.step.offload import offload_step_s
from planner.cost.step.optimizer import device_optimizer_s
from planner.cost.step.overlap import Exposed, exposed_traffic
from planner.cost.step.passes import Pass, Transfer, block_passes, stage_transfer
from planner.describe.framework.framework import Framework

__all__ = ["StageWorth", "smaller_step_s", "stage_worth", "time_parts"]


def time_parts(stages: Stages) -> dict[str, Float]:
    """Seconds of one optimizer step by part, TIME_PARTS [s].

    `stages` are the candidates (L, S) of each layout. Counted: computation of the slowest stage
    for all micro-batches, traffic that nothing hides, the pipeline's bubble, optimizer and
    offload. Left out: data loading, evaluation, checkpoints, stragglers. method.md#method.

    >>> from planner import Layout, Workload, load_framework, load_machine, load_model
    >>> from planner.cost.question import Question
    >>> model, machine = load_model("llama-3-8b"), load_machine("polaris")
    >>> job = Question(model, machine, Workload(), load_framework("megatron-lm"))
    >>> layouts = Layouts.of(Layout(pp=4, grad_accumulation=256, schedule="1f1b"))
    >>> round(float(time_parts(Stages.candidates(job, layouts))["forward"]), 1)     # 256 * 55.6 ms
    14.2
    """
    question, layouts = stages.question, stages.layouts.take((..., 0))
    passes = block_passes(question, stages.blocks, layouts)
    slowest, pace_s = _slowest(stages, passes)
    m, groups = layouts.num_microbatches, Groups.of(layouts, question.machine)
    compute = [work.compute for work in passes]
    forward = slowest.total([work.forward_s for work in compute])
    backward = slowest.total([work.backward_s for work in compute])
    recompute = slowest.total([work.recompute_s for work in compute])
    host = slowest.total([work.host_s for work in passes])
    busy = _Busy(forward, backward + recompute, host, pace_s)
    exposed, transfer, _ = _traffic(slowest, passes, groups, busy)
    waits = _waits(exposed, layouts, question.framework)
    found = {
        "forward": m * forward,
        "backward": m * backward,
        "recompute": m * recompute,
        "host_overhead": m * host,
        "tensor_parallel": m * slowest.total([work.tensor_s for work in passes]),
        "context_parallel": m * slowest.total([work.context_s for work in passes]),
        "expert_parallel": m * slowest.total([work.expert_s for work in passes]),
        "parameter_gathering": exposed.gather_s,
        "pipeline_bubble": bubble_s(layouts, _around(stages, slowest, passes, waits)),
        "pipeline_transfer": _transfers(layouts, transfer),
        "gradient_reduction": exposed.gradients_s,
        "optimizer": device_optimizer_s(slowest),
        "parameter_update_gathering": exposed.updates_s,
        "offload": offload_step_s(slowest) + exposed.offload_s,
    }
    return recorded(found, TIME_PARTS)


@dataclass(frozen=True, slots=True)
class StageWorth(Arrays):
    """What every stage (S,) of a layout adds to the passes of its chunks [s]."""

    transfer: Transfer
    exposed: Exposed
    sent: DataTraffic
    """All data-parallel traffic, hidden or not."""
    optimizer_s: Float
    offload_step_s: Float
    """The optimizer step off the device."""


def stage_worth(stages: Stages, passes: list[Pass]) -> StageWorth:
    """What all stages (S,) of one layout send and do beside their passes [s].

    Counted: as `time_parts`, of every stage and not of the slowest alone. Left out: passes, and
    waiting for other stages. method.md#pipeline.

    >>> from planner import Layout, Workload, load_framework, load_machine, load_model
    >>> from planner.cost.question import Question
    >>> model, machine = load_model("llama-3-8b"), load_machine("polaris")
    >>> job = Question(model, machine, Workload(), load_framework("megatron-lm"))
    >>> stages = Stages.every(job, Layout(pp=4, schedule="1f1b"))
    >>> worth = stage_worth(stages, block_passes(job, stages.blocks, stages.layouts))
    >>> np.round(1e3 * worth.optimizer_s)       # the tables at both ends
    array([58., 45., 45., 58.])
    """
    groups = Groups.of(stages.layouts, stages.question.machine)
    compute = [work.compute for work in passes]
    busy = _Busy(
        stages.total([work.forward_s for work in compute]),
        stages.total([work.backward_s + work.recompute_s for work in compute]),
        stages.total([work.host_s for work in passes]),
        stages.total([work.total_s for work in passes]),
    )
    exposed, transfer, sent = _traffic(stages, passes, groups, busy)
    found = StageWorth(transfer, exposed, sent, device_optimizer_s(stages), offload_step_s(stages))
    return found.map(lambda values: np.broadcast_to(values, stages.shape))


@dataclass(frozen=True, slots=True)
class _Busy(Arrays):
    """One micro-batch on stages [s]."""

    forward_s: Float
    backward_s: Float
    """With recompute."""
    host_s: Float
    total_s: Float


def _traffic(
    stages: Stages, passes: list[Pass], groups: Groups, busy: _Busy
) -> tuple[Exposed, Transfer, DataTraffic]:
    """What nothing hides of data-parallel traffic, one transfer to a neighbour, and all of the
    former [s]."""
    free_s = busy.total_s - stages.total([work.behind_s for work in passes])
    transfer = stage_transfer(stages.question, stages.layouts, groups, free_s)
    # traffic also runs while the devices wait for the host, but not where other traffic is on the
    # interfaces of its nodes
    computed = busy.forward_s + busy.backward_s
    longer = 1 + busy.host_s / np.maximum(computed, np.finfo(float).tiny)
    ahead, back = _behind(stages, groups, passes, transfer)
    sent = data_traffic(stages, groups)
    exposed = exposed_traffic(
        stages,
        sent,
        np.maximum(busy.forward_s * longer - ahead, 0.0),
        np.maximum(busy.backward_s * longer - back, 0.0),
    )
    return exposed, transfer, sent


def _waits(exposed: Exposed, layouts: Layouts, framework: Framework) -> tuple[Float, Float]:
    """What a forward and a backward pass of the slowest stage wait for besides, where every pass
    waits: weights that are gathered, gradients that are reduced, transfers to the host [s]."""
    m = layouts.num_microbatches
    reduced = np.where(layouts.reductions_per_step(framework) > 1, exposed.gradients_s / m, 0.0)
    back = exposed.around_backward_s + reduced + exposed.offload_s / m
    often = layouts.gathers_per_step(framework) > 1
    return np.where(often, exposed.before_later_forward_s, 0.0), back


def _around(
    stages: Stages, slowest: Stages, passes: list[Pass], waits: tuple[Float, Float]
) -> Around:
    """One micro-batch on the candidates (L, S) and around them; what passes wait for besides is in
    proportion to them, as on the slowest stage."""
    figures = (
        [work.total_s - work.drawn_forward_s for work in passes],
        [work.drawn_forward_s for work in passes],
        [work.compute.weight_gradient_s for work in passes],
    )
    tiny = np.finfo(float).tiny
    back, ahead = (
        1 + wait / np.maximum(slowest.total(figure), tiny)
        for wait, figure in zip(reversed(waits), figures, strict=False)
    )

    def passed(total: Callable[[list[Float]], Float], columns: int) -> Passes:
        shape = (..., *[None] * columns)
        backward, forward, weights = (total([x[shape] for x in each]) for each in figures)
        forward = ahead[shape] * forward
        return Passes(back[shape] * backward + forward, forward, weights)

    def summed(counts: list[Float]) -> Callable[[list[Float]], Float]:
        return lambda each: np.asarray(sum(x * n for x, n in zip(each, counts, strict=True)))

    framework = stages.question.framework
    stage, before, after = around_parts(stages.blocks, stages.layouts, stages.stage, framework)
    return Around(
        stage,
        passed(stages.total, 1),
        passed(summed(before), 1),
        passed(summed(after), 1),
        passed(slowest.of_model, 0),
    )


def _slowest(stages: Stages, passes: list[Pass]) -> tuple[Stages, Float]:
    """The stage that sets the pace, and the time of one micro-batch on it [s]."""
    per_stage = stages.total([work.total_s[..., None] for work in passes])
    index: Int = np.argmax(per_stage, axis=-1)[..., None]
    return stages.at(index), np.take_along_axis(per_stage, index, axis=-1)[..., 0]


def _behind(
    stages: Stages, groups: Groups, passes: list[Pass], transfer: Transfer
) -> tuple[Float, Float]:
    """Traffic of layers and stages that leaves the node behind one micro-batch's forward and
    backward pass, where data-parallel traffic has to leave it too [s]."""
    chunks = transfer.behind_s * stages.layouts.vpp
    ahead = stages.total([work.behind_forward_s for work in passes]) + chunks
    back = stages.total([work.behind_backward_s for work in passes]) + chunks
    gathers, reduces = groups.shard.nodes > 1, groups.data.nodes > 1
    return np.where(gathers, ahead, 0.0), np.where(reduces, back, 0.0)


def _transfers(layouts: Layouts, transfer: Transfer) -> Float:
    """Stage-to-stage transfers that nothing hides: forward and backward of every chunk [s]."""
    passes = layouts.vpp * layouts.num_microbatches
    return 2 * (transfer.arrives_s * transfer.fills + transfer.blocks_s * passes)


_ONCE_A_STEP = (
    "pipeline_bubble",
    "gradient_reduction",
    "offload",
    "optimizer",
    "parameter_update_gathering",
)


def smaller_step_s(parts_s: Mapping[str, float], share: float) -> float:
    """A step of a share of the batch on the same layout, from the parts of the whole one [s].

    Counted: passes in proportion; what a step does once, whole. Left out: reductions after every
    micro-batch, which count once; schedules that idle longer or shorter with fewer micro-batches.
    method.md#time-to-tokens.

    >>> smaller_step_s({"forward": 1.0, "backward": 2.0, "optimizer": 0.5}, 0.25)
    1.25
    """
    once = sum(parts_s[name] for name in _ONCE_A_STEP if name in parts_s)
    return once + share * (sum(parts_s.values()) - once)
