"""Step: the parts of one optimizer step, from its passes and what traffic stays exposed.

The slowest stage sets the pace, the pipeline adds its bubble.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from planner.cost.arrays import Arrays, Float, Int, Mask
from planner.cost.network.groups import Groups
from planner.cost.parts import TIME_PARTS, recorded
from planner.cost.schedules.bubble import bubble_s
from planner.cost.schedules.schedule import Passes
from planner.cost.shards.layouts import Layouts
from planner.cost.shards.stages import Stages
from planner.cost.step.communication import DataTraffic, data_traffic
from planner.cost.step.offload import offload_step_s
from planner.cost.step.optimizer import device_optimizer_s
from planner.cost.step.overlap import exposed_traffic
from planner.cost.step.passes import Pass, Transfer, block_passes, stage_transfer

__all__ = ["smaller_step_s", "time_parts"]


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
    pace = stages.of_work(_pace)
    slowest = stages.at(np.broadcast_to(pace.slowest, np.shape(stages.layouts.dp)[:-1])[..., None])
    sent = slowest.of_states(_sent)
    exposed = exposed_traffic(
        slowest,
        sent.traffic,
        np.maximum(pace.forward_s - np.where(sent.gathers, pace.behind_forward_s, 0.0), 0.0),
        np.maximum(pace.backward_s - np.where(sent.reduces, pace.behind_backward_s, 0.0), 0.0),
    )
    found = {
        **pace.parts_s,
        "parameter_gathering": exposed.gather_s,
        "gradient_reduction": exposed.gradients_s,
        "optimizer": sent.optimizer_s,
        "parameter_update_gathering": exposed.updates_s,
        "offload": sent.offload_s + exposed.offload_s,
    }
    return recorded(found, TIME_PARTS)


@dataclass(frozen=True, slots=True)
class _Pace(Arrays):
    """What layouts take that no parameters decide, whose slowest stage sets the pace [s]."""

    slowest: Int
    """The place of this stage among the candidates."""
    parts_s: dict[str, Float]
    """Of a step."""
    forward_s: Float
    """One micro-batch's computation, and its share of waiting for the host: traffic also runs
    while the devices wait."""
    backward_s: Float
    behind_forward_s: Float
    """Traffic of layers and stages that leaves the node behind it."""
    behind_backward_s: Float


def _pace(candidates: Stages) -> _Pace:
    question, layouts = candidates.question, candidates.layouts.take((..., 0))
    passes = block_passes(question, candidates.blocks, layouts)
    index, pace_s = _slowest(candidates, passes)
    stages, compute = candidates.at(index[..., None]), [work.compute for work in passes]
    forward, backward, recompute, weights = (
        stages.total([getattr(work, f"{name}_s") for work in compute])
        for name in ("forward", "backward", "recompute", "weight_gradient")
    )
    host, drawn, ahead, back = (
        stages.total([getattr(work, f"{name}_s") for work in passes])
        for name in ("host", "drawn_forward", "behind_forward", "behind_backward")
    )
    free_s = pace_s - stages.total([work.behind_s for work in passes])
    transfer = stage_transfer(question, layouts, Groups.of(layouts, question.machine), free_s)
    idle_s = bubble_s(layouts, Passes(pace_s, drawn, weights), _every(stages, passes))
    chunks, m = transfer.behind_s * layouts.vpp, layouts.num_microbatches
    longer = 1 + host / (forward + backward + recompute)
    parts = {
        "forward": m * forward,
        "backward": m * backward,
        "recompute": m * recompute,
        "host_overhead": m * host,
        "tensor_parallel": m * stages.total([work.tensor_s for work in passes]),
        "context_parallel": m * stages.total([work.context_s for work in passes]),
        "expert_parallel": m * stages.total([work.expert_s for work in passes]),
        "pipeline_bubble": idle_s,
        "pipeline_transfer": _transfers(layouts, transfer),
    }
    return _Pace(
        index,
        parts,
        forward * longer,
        (backward + recompute) * longer,
        ahead + chunks,
        back + chunks,
    )


def _every(stages: Stages, passes: list[Pass]) -> Passes:
    """One micro-batch on all stages together."""
    return Passes(
        stages.of_model([work.total_s for work in passes]),
        stages.of_model([work.drawn_forward_s for work in passes]),
        stages.of_model([work.compute.weight_gradient_s for work in passes]),
    )


def _slowest(stages: Stages, passes: list[Pass]) -> tuple[Int, Float]:
    """Which stage sets the pace, and the time of one micro-batch on it [s]."""
    per_stage = stages.total([work.total_s[..., None] for work in passes])
    index: Int = np.argmax(per_stage, axis=-1)
    return index, np.take_along_axis(per_stage, index[..., None], axis=-1)[..., 0]


@dataclass(frozen=True, slots=True)
class _Sent(Arrays):
    """What a stage sends of its parameters, and its update [s]."""

    traffic: DataTraffic
    gathers: Mask
    """Whether gathers have to leave the node, where other traffic is on its interfaces too."""
    reduces: Mask
    """Whether reductions have to."""
    optimizer_s: Float
    offload_s: Float


def _sent(stages: Stages) -> _Sent:
    groups = Groups.of(stages.layouts, stages.question.machine)
    return _Sent(
        data_traffic(stages, groups),
        groups.shard.nodes > 1,
        groups.data.nodes > 1,
        device_optimizer_s(stages),
        offload_step_s(stages),
    )


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
