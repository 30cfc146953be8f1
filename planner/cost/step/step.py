"""Step: the parts of one optimizer step, from computation and what traffic stays exposed.

Work is measured per block and micro-batch, once per distinct shape of a rank's work; the slowest
stage sets the pace, the pipeline adds its bubble.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.cost.arrays import Arrays, Float, Int
from planner.cost.network.groups import Groups
from planner.cost.shards.layouts import Layouts
from planner.cost.shards.pipeline import bubble_s
from planner.cost.shards.stages import Stages
from planner.cost.step.communication import (
    context_s,
    data_traffic,
    expert_s,
    repeated_tensor_s,
    send_stage_s,
    tensor_s,
    transfer_wait_s,
)
from planner.cost.step.compute import BlockTime, block_time
from planner.cost.step.offload import device_optimizer_s, offload_step_s
from planner.cost.step.overlap import exposed_traffic
from planner.describe.framework import Framework
from planner.describe.model.block import Block
from planner.describe.question import Question

__all__ = ["TIME_PARTS", "Pass", "block_passes", "time_parts"]

TIME_PARTS = (
    "forward",
    "backward",
    "recompute",
    "host_overhead",
    "tensor_parallel",
    "context_parallel",
    "expert_parallel",
    "parameter_gathering",
    "pipeline_bubble",
    "pipeline_transfer",
    "gradient_reduction",
    "optimizer",
    "parameter_update_gathering",
    "offload",
)


@dataclass(frozen=True, slots=True)
class Pass(Arrays):
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
    """Time of each block, worked out once per distinct shape of a rank's work [s]."""
    few, index = layouts.distinct(
        "micro_batch", "tp", "cp", "ep", "sequence_parallel", "recompute", "dp", "pp"
    )
    groups = Groups.of(few, question.machine)
    return [_block_pass(question, block, few, groups).take(index) for block in blocks]


def _block_pass(question: Question, block: Block, layouts: Layouts, groups: Groups) -> Pass:
    compute, full = block_time(question, block, layouts), layouts.recomputes_layers
    visible = 1 - question.framework.communication.overlap_tensor.value
    forward, backward = tensor_s(question, block, layouts, groups)
    again = repeated_tensor_s(question, block, layouts, forward)
    tensor = visible * (forward + backward + again)
    ahead, back = context_s(question, block, layouts, groups)
    # a rank's transfers of keys and values run behind its own attention and projections
    ahead = np.maximum(ahead - compute.forward_s / 2, 0)
    context = ahead + np.maximum(back - compute.backward_s / 2, 0)
    context = context + np.where(full, ahead, 0.0)
    expert = np.zeros_like(tensor)
    if block.dispatch_top_k:
        ahead, back = expert_s(question, block, layouts, groups)
        expert = ahead + back + np.where(full, ahead, 0.0)
    host = np.zeros_like(tensor)
    busy = Pass(compute, tensor, context, expert, host).total_s
    if block.kind == "layer":
        host = np.maximum(_host_s(question.framework, layouts, groups) - busy, 0.0)
    return Pass(compute, tensor, context, expert, host)


def _host_s(framework: Framework, layouts: Layouts, groups: Groups) -> Float:
    """Least time of a layer's forward and backward: the host's work to issue them [s]."""
    kernels = framework.kernels
    alone = kernels.tensor_host_s * groups.tensor.nodes
    spread = layouts.tp / 2 * groups.tensor.nodes
    piped = kernels.tensor_pipeline_host_s * spread**kernels.tensor_pipeline_host_power
    return np.where(layouts.tp > 1, np.where(layouts.piped, piped, alone), 0.0)


def time_parts(stages: Stages) -> dict[str, Float]:
    """Seconds of one optimizer step by part, TIME_PARTS [s].

    `stages` are the candidates (L, S) of each layout. Counted: computation of the slowest stage
    for all micro-batches, traffic that nothing hides, the pipeline's bubble, optimizer and
    offload. Left out: data loading, evaluation, checkpoints, stragglers.
    """
    question, layouts = stages.question, stages.layouts.take((..., 0))
    passes = block_passes(question, stages.blocks, layouts)
    slowest, pace_s = _slowest(stages, passes)
    m, groups = layouts.num_microbatches, Groups.of(layouts, question.machine)
    compute = [work.compute for work in passes]
    forward = slowest.total([work.forward_s for work in compute])
    backward = slowest.total([work.backward_s for work in compute])
    recompute = slowest.total([work.recompute_s for work in compute])
    weights = slowest.total([work.weight_gradient_s for work in compute])
    traffic = data_traffic(slowest, groups)
    exposed = exposed_traffic(slowest, traffic, forward, backward + recompute)
    pairs = zip(passes, stages.blocks, strict=True)
    all_stages = np.asarray(sum(work.total_s * block.count for work, block in pairs))
    return {
        "forward": m * forward,
        "backward": m * backward,
        "recompute": m * recompute,
        "host_overhead": m * slowest.total([work.host_s for work in passes]),
        "tensor_parallel": m * slowest.total([work.tensor_s for work in passes]),
        "context_parallel": m * slowest.total([work.context_s for work in passes]),
        "expert_parallel": m * slowest.total([work.expert_s for work in passes]),
        "parameter_gathering": exposed.gather_s,
        "pipeline_bubble": bubble_s(layouts, pace_s, all_stages, weights),
        "pipeline_transfer": _transfers(question, layouts, groups),
        "gradient_reduction": exposed.gradients_s,
        "optimizer": device_optimizer_s(slowest),
        "parameter_update_gathering": exposed.updates_s,
        "offload": offload_step_s(slowest) + exposed.offload_s,
    }


def _slowest(stages: Stages, passes: list[Pass]) -> tuple[Stages, Float]:
    """The stage that sets the pace, and the time of one micro-batch on it [s]."""
    per_stage = stages.total([work.total_s[..., None] for work in passes])
    index: Int = np.argmax(per_stage, axis=-1)[..., None]
    return stages.at(index), np.take_along_axis(per_stage, index, axis=-1)[..., 0]


def _transfers(question: Question, layouts: Layouts, groups: Groups) -> Float:
    """Stage-to-stage transfers that nothing hides: forward and backward of every chunk [s]."""
    one, wait = send_stage_s(question, layouts, groups), transfer_wait_s(question, layouts)
    fill = 2 * (one + wait) * (layouts.pp - 1)
    if question.framework.communication.overlap_pipeline:
        return fill
    # both directions of a link move at once; waits follow each other, at each neighbour of a stage
    neighbours = np.minimum(layouts.pp - 1, 2)
    return fill + 2 * (one + wait * neighbours) * layouts.vpp * layouts.num_microbatches
