"""Step time: the parts of one optimizer step, from computation and what traffic stays exposed.

Work is measured per block and micro-batch, once per distinct shape of a rank's work; the slowest
stage sets the pace, the pipeline adds its bubble.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.cost.shards.layouts import Layouts
from planner.cost.shards.pipeline import bubble_s, candidate_stages, stage_counts
from planner.cost.shards.states import StageState, stage_state
from planner.cost.step.communication import (
    DataTraffic,
    Groups,
    context_s,
    data_traffic,
    expert_s,
    reductions_per_step,
    repeated_tensor_s,
    send_stage_s,
    tensor_s,
    transfer_wait_s,
)
from planner.cost.step.compute import BlockTime, block_time
from planner.cost.step.offload import device_optimizer_s, offload_step_s, parameter_transfer_s
from planner.describe.framework import Framework
from planner.describe.layout import RECOMPUTE
from planner.describe.model.block import Block
from planner.describe.question import Question

__all__ = ["Pass", "block_passes", "expert_share", "time_parts"]

Float = NDArray[np.float64]

_FULL = RECOMPUTE.index("full")


@dataclass(frozen=True, slots=True)
class Pass:
    """One block and micro-batch: computation, and traffic that nothing hides [s]."""

    compute: BlockTime
    tensor_s: Float
    context_s: Float
    expert_s: Float
    host_s: Float
    """Waiting for the host."""

    @property
    def total_s(self) -> Float:
        """Everything that one micro-batch takes on the block [s]."""
        compute = self.compute
        return (
            compute.forward_s
            + compute.backward_s
            + compute.recompute_s
            + self.tensor_s
            + self.context_s
            + self.expert_s
            + self.host_s
        )


def block_passes(question: Question, blocks: tuple[Block, ...], layouts: Layouts) -> list[Pass]:
    """Time of each block, worked out once per distinct shape of a rank's work."""
    few, index = layouts.distinct(
        "micro_batch", "tp", "cp", "ep", "sequence_parallel", "recompute", "dp", "pp"
    )
    groups = Groups.of(few, question.machine)
    return [_expand(_block_pass(question, block, few, groups), index) for block in blocks]


def _block_pass(question: Question, block: Block, layouts: Layouts, groups: Groups) -> Pass:
    machine, workload, framework = question.machine, question.workload, question.framework
    width = question.model.hidden_size
    compute = block_time(block, layouts, machine, workload, framework)
    full = layouts.recompute == _FULL
    visible = 1 - framework.communication.overlap_tensor.value
    forward, backward = tensor_s(
        block, width, layouts, groups, workload, saves_gathered=framework.kernels.saves_gathered
    )
    again = repeated_tensor_s(block, layouts, forward, framework)
    tensor = visible * (forward + backward + again)
    ahead, back = context_s(block, layouts, groups, workload)
    # a rank's transfers of keys and values run behind its own attention and projections
    context = np.maximum(ahead - compute.forward_s / 2, 0) + np.maximum(
        back - compute.backward_s / 2, 0
    )
    context = context + np.where(full, np.maximum(ahead - compute.forward_s / 2, 0), 0.0)
    expert = np.zeros_like(tensor)
    if block.dispatch_top_k:
        ahead, back = expert_s(block, width, layouts, groups, workload)
        expert = ahead + back + np.where(full, ahead, 0.0)
    busy = compute.forward_s + compute.backward_s + compute.recompute_s + tensor + context + expert
    host = np.zeros_like(busy)
    if block.kind == "layer":
        host = np.maximum(_host_s(framework, layouts, groups) - busy, 0.0)
    return Pass(compute, tensor, context, expert, host)


def _host_s(framework: Framework, layouts: Layouts, groups: Groups) -> Float:
    """Least time of a layer's forward and backward: the host's work to issue them [s]."""
    kernels = framework.kernels
    alone = kernels.tensor_host_s * groups.tensor.nodes
    spread = layouts.tp / 2 * groups.tensor.nodes
    piped = kernels.tensor_pipeline_host_s * spread**kernels.tensor_pipeline_host_power
    return np.where(layouts.tp > 1, np.where(layouts.pp > 1, piped, alone), 0.0)


def _expand(work: Pass, index: NDArray[np.int64]) -> Pass:
    compute = work.compute
    return Pass(
        BlockTime(
            compute.forward_s[index],
            compute.backward_s[index],
            compute.recompute_s[index],
            compute.weight_gradient_s[index],
        ),
        work.tensor_s[index],
        work.context_s[index],
        work.expert_s[index],
        work.host_s[index],
    )


@dataclass(frozen=True, slots=True)
class _Slowest:
    """The stage that sets the pace, and the blocks on it."""

    stage: NDArray[np.int64]
    counts: list[Float]
    pace_s: Float
    """Time of one micro-batch on it [s]."""

    def total(self, figures: list[Float]) -> Float:
        """A figure per block, summed over the stage's blocks."""
        pairs = zip(figures, self.counts, strict=True)
        return np.asarray(sum(figure * count for figure, count in pairs))


def _slowest(
    question: Question, blocks: tuple[Block, ...], layouts: Layouts, passes: list[Pass]
) -> _Slowest:
    stages = candidate_stages(blocks, layouts, question.framework)
    counts = stage_counts(blocks, layouts.take((..., None)), stages, question.framework)
    pairs = zip(passes, counts, strict=True)
    per_stage = np.asarray(sum(work.total_s[..., None] * count for work, count in pairs))
    index = np.argmax(per_stage, axis=-1)[..., None]

    def at(values: Any) -> Any:
        return np.take_along_axis(np.broadcast_to(values, stages.shape), index, axis=-1)[..., 0]

    return _Slowest(at(stages), [at(count) for count in counts], at(per_stage))


def time_parts(question: Question, blocks: tuple[Block, ...], layouts: Layouts) -> dict[str, Float]:
    """Seconds of one optimizer step by part, TIME_PARTS.

    Counted: computation of the slowest stage for all micro-batches, traffic that nothing hides,
    the pipeline's bubble, optimizer and offload. Left out: data loading, evaluation,
    checkpoints, stragglers.
    """
    machine, workload, framework = question.machine, question.workload, question.framework
    groups = Groups.of(layouts, machine)
    passes = block_passes(question, blocks, layouts)
    slowest = _slowest(question, blocks, layouts, passes)
    m, total = layouts.grad_accumulation, slowest.total
    state = stage_state(blocks, layouts, slowest.stage, workload, framework)
    forward = total([work.compute.forward_s for work in passes])
    backward = total([work.compute.backward_s for work in passes])
    recompute = total([work.compute.recompute_s for work in passes])
    share = expert_share(blocks, layouts)
    traffic = data_traffic(state, share, layouts, groups, workload, framework)
    exposed = _exposed_data(question, layouts, traffic, state, forward, backward + recompute)
    pairs = zip(passes, blocks, strict=True)
    all_stages = np.asarray(sum(work.total_s * block.count for work, block in pairs))
    weights = total([work.compute.weight_gradient_s for work in passes])
    offload = offload_step_s(state, layouts, machine, workload, framework) + exposed["offload"]
    return {
        "forward": m * forward,
        "backward": m * backward,
        "recompute": m * recompute,
        "host_overhead": m * total([work.host_s for work in passes]),
        "tensor_parallel": m * total([work.tensor_s for work in passes]),
        "context_parallel": m * total([work.context_s for work in passes]),
        "expert_parallel": m * total([work.expert_s for work in passes]),
        "parameter_gathering": exposed["gather"],
        "pipeline_bubble": bubble_s(layouts, slowest.pace_s, all_stages, weights),
        "pipeline_transfer": _transfers(question, layouts, groups),
        "gradient_reduction": exposed["gradients"],
        "optimizer": device_optimizer_s(state, layouts, machine, workload, framework),
        "parameter_update_gathering": exposed["parameters"],
        "offload": offload,
    }


def expert_share(blocks: tuple[Block, ...], layouts: Layouts) -> Float:
    """Part of a rank's parameters that are routed experts."""
    routed = sum(
        block.count * weight.num_params
        for block in blocks
        for weight in block.weights
        if weight.expert
    )
    total = sum(block.count * block.num_params for block in blocks)
    mine = routed / layouts.ep
    return mine / (total - routed + mine)


def _transfers(question: Question, layouts: Layouts, groups: Groups) -> Float:
    """Stage-to-stage transfers that nothing hides: forward and backward of every chunk [s]."""
    one = send_stage_s(question.model.hidden_size, layouts, groups, question.workload)
    chunks = layouts.vpp
    m = layouts.grad_accumulation
    wait = transfer_wait_s(layouts, question.machine)
    fill = 2 * (one + wait) * (layouts.pp - 1)
    if question.framework.communication.overlap_pipeline:
        return fill
    # both directions of a link move at once; waits follow each other, at each neighbour of a stage
    neighbours = np.minimum(layouts.pp - 1, 2)
    return fill + 2 * (one + wait * neighbours) * chunks * m


def _exposed_data(
    question: Question,
    layouts: Layouts,
    traffic: DataTraffic,
    state: StageState,
    forward_s: Float,
    backward_s: Float,
) -> dict[str, Float]:
    """Data-parallel and parameter traffic left after overlap with computation [s]."""
    rules = question.framework.communication
    contention = rules.contention.value
    m, zero = layouts.grad_accumulation, layouts.zero_stage
    reductions = reductions_per_step(layouts, question.framework)
    if rules.overlap_gradients:
        # the last bucket has nothing left to hide behind
        bucket = question.framework.buffers.reduce_bucket_elements or state.largest_layer
        tail = np.minimum(bucket / np.maximum(state.trainable, 1), 1.0)
        hidden = backward_s * (1 - tail)
        left = np.maximum(traffic.gradients_s - hidden, traffic.gradients_s * tail)
        left = left + contention * np.minimum(traffic.gradients_s, hidden)
    else:
        left = traffic.gradients_s
    parameters = traffic.parameters_s
    if rules.overlap_parameters:
        parameters = np.maximum(parameters - forward_s, 0.0)
    fetch = parameter_transfer_s(state, layouts, question.machine, question.workload)
    # the first layer's weights are waited for in full
    first = np.minimum(state.largest_layer / np.maximum(state.whole, 1), 1.0)
    # where a pipeline reduces once a step, that is a share per micro-batch
    scatter = traffic.scatter_s * np.where(zero >= 3, reductions, m) / m
    ahead = _behind(traffic.gather_s, forward_s, first, contention)
    back = _behind(traffic.gather_s + scatter, backward_s, first, contention)
    busy_ahead, busy_back = (
        np.maximum(traffic.gather_s, forward_s),
        np.maximum(traffic.gather_s + scatter, backward_s),
    )
    offload = np.maximum(fetch - busy_ahead, 0) + np.maximum(2 * fetch - busy_back, 0)
    if not rules.overlap_offload:
        offload = 3 * fetch
    return {
        "gradients": reductions * left,
        "parameters": parameters,
        "gather": np.where(zero >= 3, m * (ahead + back), 0.0),
        "offload": m * offload,
    }


def _behind(traffic_s: Float, compute_s: Float, first: Float, contention: float) -> Float:
    """What traffic that runs ahead of computation, layer by layer, adds to it [s]."""
    left = np.maximum(traffic_s - compute_s, traffic_s * first)
    return left + contention * np.minimum(traffic_s, compute_s)
