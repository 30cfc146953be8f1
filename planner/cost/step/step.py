"""Step: the time parts of one optimizer step, from its passes and exposed traffic."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields

import numpy as np

from planner.cost.arrays import Arrays, Float, Int, Mask, broadcast_to
from planner.cost.network.groups import Groups
from planner.cost.parts import TIME_PARTS, order_parts
from planner.cost.schedules.bubble import bubble_s
from planner.cost.schedules.schedule import Passes, PipelinePasses
from planner.cost.shards.layouts import Layouts
from planner.cost.shards.partial_recompute import block_counts_around
from planner.cost.shards.stages import Stages
from planner.cost.step.block_pass import Pass, block_passes
from planner.cost.step.communication.data_parallel import DataTraffic, data_traffic
from planner.cost.step.communication.pipeline_p2p import Transfer, stage_transfer
from planner.cost.step.optimizer import device_optimizer_s, offload_step_s
from planner.cost.step.overlap import Exposed, exposed_traffic
from planner.describe.framework.framework import Framework


def time_parts(stages: Stages) -> dict[str, Float]:
    """Time of one optimizer step by part, in the order of TIME_PARTS [s].

    `stages`: the candidate stages (L, S) of each layout. Counted: computation of the slowest stage
    for all micro-batches, exposed traffic, the pipeline's bubble, optimizer and offload. Left out:
    data loading, evaluation, checkpoints, stragglers. method.md#method.
    """
    layouts, framework = stages.per_layout, stages.scenario.framework
    work, index = stages.by_work
    passes, pipeline = _stage_passes(work)
    passes = passes if index is None else passes.spread(index)
    sent = stages.of_states(_sent)
    exposed = _exposed(stages, sent, passes.overlap_window)
    parts = {
        **passes.parts_s,
        "parameter_gathering": exposed.gather_s,
        "gradient_reduction": exposed.gradients_s,
        "optimizer": sent.optimizer_s,
        "parameter_update_gathering": exposed.updates_s,
        "offload": sent.offload_s + exposed.offload_s,
    }
    stage_s = broadcast_to(sum(parts.values()), stages.shape)
    slowest = np.argmax(stage_s, axis=-1)[..., None]

    def of_slowest(values: Float) -> Float:
        wide = broadcast_to(values, stages.shape)
        return np.asarray(np.take_along_axis(wide, slowest, axis=-1)[..., 0])

    parts = {name: of_slowest(values) for name, values in parts.items()}
    waits = _waits(exposed, stages.layouts, framework)
    parts["pipeline_bubble"] = _bubble_with_waits(
        of_slowest(passes.idle_s), layouts, pipeline, index, waits
    )
    return order_parts(parts, TIME_PARTS)


@dataclass(frozen=True, slots=True)
class StageOverheads(Arrays):
    """Time of every stage (S,) outside its passes: transfers, collectives, optimizer [s]."""

    transfer: Transfer
    exposed: Exposed
    sent: DataTraffic
    """All data-parallel traffic, hidden or not."""
    optimizer_s: Float
    offload_step_s: Float
    """Optimizer step on the host, with its transfers."""


def stage_overheads(stages: Stages, passes: list[Pass]) -> StageOverheads:
    """Transfers, collectives and optimizer of all stages (S,) of one layout [s].

    Counted: as `time_parts`, for every stage instead of the slowest. Left out: passes, and waiting
    for other stages. pipeline.md#pipeline.
    """
    forward = stages.total([work.compute.forward_s for work in passes])
    back = stages.total([work.compute.backward_s + work.compute.recompute_s for work in passes])
    total = stages.total([work.total_s for work in passes])
    window, sent = _overlap_window(stages, passes, forward, back, total), _sent(stages)
    exposed = _exposed(stages, sent, window)
    overheads = StageOverheads(
        window.transfer, exposed, sent.traffic, sent.optimizer_s, sent.offload_s
    )
    return overheads.map(lambda values: broadcast_to(values, stages.shape))


@dataclass(frozen=True, slots=True)
class _OverlapWindow(Arrays):
    """Computation that can hide data-parallel traffic of one micro-batch [s]."""

    transfer: Transfer
    """One transfer to a neighbouring stage."""
    forward_s: Float
    """Computation and its share of host waits: traffic also runs while devices wait."""
    backward_s: Float
    behind_forward_s: Float
    """Inter-node traffic of layers and stages that is hidden behind the forward pass."""
    behind_backward_s: Float


def _overlap_window(
    stages: Stages, passes: list[Pass], forward_s: Float, backward_s: Float, total_s: Float
) -> _OverlapWindow:
    """Overlap window of one micro-batch; `backward_s` includes recompute."""
    groups = Groups.of(stages.layouts, stages.scenario.machine)
    free_s = total_s - stages.total([work.behind_s for work in passes])
    transfer = stage_transfer(stages.scenario, stages.layouts, groups, free_s)
    host_s = stages.total([work.host_s for work in passes])
    longer = 1 + host_s / np.maximum(forward_s + backward_s, np.finfo(float).tiny)
    chunks = transfer.behind_s * stages.layouts.vpp
    return _OverlapWindow(
        transfer,
        forward_s * longer,
        backward_s * longer,
        stages.total([work.behind_forward_s for work in passes]) + chunks,
        stages.total([work.behind_backward_s for work in passes]) + chunks,
    )


@dataclass(frozen=True, slots=True)
class _ParameterTraffic(Arrays):
    """Data-parallel traffic of a stage, and its optimizer step [s]."""

    traffic: DataTraffic
    gathers: Mask
    """True where gathers leave the node and share its interfaces with other traffic."""
    reduces: Mask
    """True where reductions leave the node."""
    optimizer_s: Float
    offload_s: Float


def _sent(stages: Stages) -> _ParameterTraffic:
    groups = Groups.of(stages.layouts, stages.scenario.machine)
    return _ParameterTraffic(
        data_traffic(stages, groups),
        groups.shard.nodes > 1,
        groups.data.nodes > 1,
        device_optimizer_s(stages),
        offload_step_s(stages),
    )


def _exposed(stages: Stages, sent: _ParameterTraffic, window: _OverlapWindow) -> Exposed:
    """Exposed data-parallel traffic [s]."""
    return exposed_traffic(
        stages,
        sent.traffic,
        np.maximum(window.forward_s - np.where(sent.gathers, window.behind_forward_s, 0.0), 0.0),
        np.maximum(window.backward_s - np.where(sent.reduces, window.behind_backward_s, 0.0), 0.0),
    )


@dataclass(frozen=True, slots=True)
class _PassTimes(Arrays):
    """Pass times of one micro-batch, with traffic and host waits [s]."""

    backward_s: Float
    """Backward pass with recompute."""
    forward_s: Float
    weight_s: Float
    """Part of backward that computes weight gradients."""

    @classmethod
    def of(cls, passes: list[Pass]) -> list[_PassTimes]:
        """Pass times of every block."""
        times = ((work, work.forward_with_traffic_s) for work in passes)
        return [cls(w.total_s - ahead, ahead, w.compute.weight_gradient_s) for w, ahead in times]

    @classmethod
    def summed(cls, blocks: list[_PassTimes], total: Callable[[list[Float]], Float]) -> _PassTimes:
        """Add up the times of blocks with `total`."""
        names = (field.name for field in fields(cls))
        return cls(*(total([getattr(block, name) for block in blocks]) for name in names))

    def waiting(self, ahead_s: Float, back_s: Float, shape: tuple[int, ...]) -> Passes:
        """Add waits for traffic to the forward and the backward passes."""
        forward = broadcast_to(self.forward_s + ahead_s, shape)
        weight = broadcast_to(self.weight_s, shape)
        return Passes(self.backward_s + back_s + forward, forward, weight)


@dataclass(frozen=True, slots=True)
class _PipelineTimes(Arrays):
    """Pass times of one micro-batch on candidate stages and on the chunks around them [s]."""

    stage: Int
    """Last stage that holds the same blocks as the candidate (L, S)."""
    each: _PassTimes
    before: _PassTimes
    """Chunks before the candidate's first one; `after`: after its last (L, S)."""
    after: _PassTimes
    all_blocks: _PassTimes
    """Whole model (L,)."""


@dataclass(frozen=True, slots=True)
class _StagePasses(Arrays):
    """Passes of a step on each candidate stage (L, S), before data-parallel traffic [s]."""

    parts_s: dict[str, Float]
    """Parts of the step time."""
    overlap_window: _OverlapWindow
    idle_s: Float
    """Pipeline bubble if passes wait for no data-parallel traffic."""


def _stage_passes(candidates: Stages) -> tuple[_StagePasses, _PipelineTimes | None]:
    """Passes of each candidate stage, and pass times of pipelines; None without any."""
    layouts = candidates.per_layout
    passes = block_passes(candidates.scenario, candidates.blocks, layouts)
    wide, total = [work.take((..., None)) for work in passes], candidates.total
    forward = total([work.compute.forward_s for work in wide])
    backward = total([work.compute.backward_s for work in wide])
    recompute = total([work.compute.recompute_s for work in wide])
    pass_s = total([work.total_s for work in wide])

    window = _overlap_window(candidates, wide, forward, backward + recompute, pass_s)
    m = candidates.layouts.num_microbatches
    parts = {
        "forward": m * forward,
        "backward": m * backward,
        "recompute": m * recompute,
        "host_overhead": m * total([work.host_s for work in wide]),
        "tensor_parallel": m * total([work.tensor_s for work in wide]),
        "context_parallel": m * total([work.context_s for work in wide]),
        "expert_parallel": m * total([work.expert_s for work in wide]),
        "pipeline_transfer": _transfers(candidates.layouts, window.transfer),
    }
    pipeline, idle_s = None, np.zeros(np.shape(layouts.dp))
    if np.any(layouts.piped):
        blocks = _PassTimes.of(wide)
        pipeline = _pipeline_times(candidates, _PassTimes.summed(blocks, total), blocks)
        idle_s = _bubble_s(layouts, pipeline, (np.zeros(1), np.zeros(1)))
    return _StagePasses(parts, window, idle_s[..., None]), pipeline


def _pipeline_times(
    candidates: Stages, each: _PassTimes, blocks: list[_PassTimes]
) -> _PipelineTimes:
    stage, before, after = block_counts_around(
        candidates.blocks, candidates.layouts, candidates.stage, candidates.scenario.framework
    )
    return _PipelineTimes(
        stage,
        each,
        _PassTimes.summed(blocks, _summed(before)),
        _PassTimes.summed(blocks, _summed(after)),
        _PassTimes.summed(blocks, candidates.of_model).take((..., 0)),
    )


def _summed(counts: list[Float]) -> Callable[[list[Float]], Float]:
    return lambda each: np.asarray(sum(x * n for x, n in zip(each, counts, strict=True)))


def _waits(exposed: Exposed, layouts: Layouts, framework: Framework) -> tuple[Float, Float]:
    """Time that each forward and each backward pass of the slowest stage waits for traffic [s]."""
    m = layouts.num_microbatches
    reduced = np.where(layouts.reductions_per_step(framework) > 1, exposed.gradients_s / m, 0.0)
    back = exposed.around_backward_s + reduced + exposed.offload_s / m
    gathers_every_pass = layouts.gathers_per_step(framework) > 1
    return np.where(gathers_every_pass, exposed.before_later_forward_s, 0.0), back


def _bubble_with_waits(
    idle_s: Float,
    layouts: Layouts,
    pipeline: _PipelineTimes | None,
    index: Int | None,
    waits: tuple[Float, Float],
) -> Float:
    """Pipeline bubble, recomputed for layouts whose passes wait for traffic [s]."""
    slowed = layouts.piped & np.any((waits[0] > 0) | (waits[1] > 0), axis=-1)
    if pipeline is None or not slowed.any():
        return idle_s
    if index is None:
        return np.where(slowed, _bubble_s(layouts, pipeline, waits), idle_s)
    rows, idle = np.flatnonzero(slowed), np.array(broadcast_to(idle_s, slowed.shape))
    ahead, back = (broadcast_to(wait, (len(layouts), wait.shape[-1]))[rows] for wait in waits)
    idle[rows] = _bubble_s(layouts.take(rows), pipeline.take(index[rows]), (ahead, back))
    return idle


def _bubble_s(layouts: Layouts, pipeline: _PipelineTimes, waits: tuple[Float, Float]) -> Float:
    """Pipeline bubble with waiting passes; other stages wait as long as the longest wait [s]."""
    shape = np.broadcast_shapes(pipeline.stage.shape, pipeline.each.forward_s.shape)
    wide = layouts.take((..., None))
    before = wide.chunk(pipeline.stage, 0) / wide.vpp
    after = wide.pp - (wide.chunk(pipeline.stage, wide.vpp - 1) + 1) / wide.vpp
    ahead, back = (np.max(wait, axis=-1, keepdims=True) for wait in waits)
    slowed = PipelinePasses(
        broadcast_to(pipeline.stage, shape),
        pipeline.each.waiting(*waits, shape),
        pipeline.before.waiting(before * ahead, before * back, shape),
        pipeline.after.waiting(after * ahead, after * back, shape),
        pipeline.all_blocks.waiting(
            layouts.pp * ahead[..., 0], layouts.pp * back[..., 0], shape[:-1]
        ),
    )
    return bubble_s(layouts, slowed)


def _transfers(layouts: Layouts, transfer: Transfer) -> Float:
    """Exposed stage-to-stage transfers, forward and backward of every chunk [s]."""
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
    """Time of a step with a fraction `share` of the batch, from the parts of the full step [s].

    Counted: passes in proportion; in full what a step does once. Left out: reductions after every
    micro-batch, which count once; longer or shorter bubbles. pipeline.md#time-to-tokens.
    """
    once = sum(parts_s[name] for name in _ONCE_A_STEP if name in parts_s)
    return once + share * (sum(parts_s.values()) - once)
