"""Advice: the field's decision guide beside the model's own answer, and batch-size notes.

The guide is the one taught in courses of HPC centres and stated in DeepSpeed's and Hugging
Face's "which strategy" pages; where the estimate disagrees with it, the advice says why.
"""

from __future__ import annotations

import math
from enum import Enum

from planner.cost.estimate import Estimate
from planner.cost.memory.footprint import footprints
from planner.cost.operators.blocks import blocks_of
from planner.cost.shards.layouts import Layouts
from planner.cost.shards.states import training_state_bytes
from planner.describe.layout import Layout, Recompute
from planner.describe.question import Question
from planner.units import format_bytes, format_rate

__all__ = ["Advice", "guide", "learning_rate_note", "notes"]

_FAST_NETWORK_BYTES_PER_S = 12.5e9
# a network counts as fast where every device has 100 Gb/s of it, the rate of one EDR or HDR100
# adapter that the guide's authors call fast


def _largest_layer_bytes(question: Question) -> float:
    layers = [block for block in blocks_of(question) if block.kind == "layer"]
    return max(block.num_params for block in layers) * float(question.workload.compute_bytes)


class Advice(Enum):
    """What the decision guide recommends."""

    DATA_PARALLEL = "plain data parallelism (DDP)"
    TILED = "ZeRO-3 with memory-centric tiling, or tensor parallelism"
    ONE_NODE = (
        "ZeRO, with CPU or NVMe offload where memory stays short, or tensor parallelism within the "
        "node"
    )
    FAST_NETWORK = "ZeRO, or TP within the node + PP + DP"
    SLOW_NETWORK = "DP + PP + TP with ZeRO-1, TP within the node"


def guide(question: Question, nodes: int) -> tuple[Advice, str]:
    """What the decision guide says for a job, and that in one sentence with its numbers."""
    machine, model = question.machine, question.model
    limit = machine.device.memory_bytes.value
    states = float(training_state_bytes(model.num_params, 1, 0))
    per_device = machine.node_bytes_per_s / machine.node.num_devices
    size = f"{format_bytes(states)} of training state on {format_bytes(limit)} devices"
    if _fits_alone(question):
        found, why = Advice.DATA_PARALLEL, f"the model fits one device ({size})"
    elif _largest_layer_bytes(question) * 8 > limit:
        # weights, gradients and states of one layer are eight 16-bit copies of it
        found, why = Advice.TILED, f"not even the largest layer fits one device ({size})"
    elif nodes == 1:
        found, why = Advice.ONE_NODE, f"the model does not fit one device ({size})"
    else:
        fast = per_device >= _FAST_NETWORK_BYTES_PER_S
        found = Advice.FAST_NETWORK if fast else Advice.SLOW_NETWORK
        rate = f"{format_rate(per_device)} per device"
        why = f"several nodes, {'fast' if fast else 'slow'} network ({rate}; {size})"
    return found, f"{why}: {found.value}"


def _fits_alone(question: Question) -> bool:
    """Whether one device trains the model with micro-batch 1 and full recompute."""
    workload = question.workload.replaced(global_batch=1)
    alone = Question(question.model, question.machine, workload, question.framework)
    recompute: Recompute = "full" if "full" in question.framework.recompute else "none"
    stages = question.framework.stages(question.workload.precision)
    layout = Layout(recompute=recompute, zero_stage=min(stages))
    return bool(footprints(alone, Layouts.stack([layout])).fits_device)


def _kind(layout: Layout) -> str:
    """The strategy of a layout in the guide's words."""
    axes = [name.upper() for name in ("tp", "pp", "cp", "ep") if getattr(layout, name) > 1]
    if layout.dp > 1:
        axes.append("DP" if not layout.shards_states else f"ZeRO-{layout.zero_stage}")
    text = " + ".join(axes) or "a single device"
    return text + (f" with offload ({layout.offload})" if layout.offload != "none" else "")


def notes(question: Question, nodes: int, best: Estimate | None) -> list[str]:
    """The guide, the model's own answer beside it, and where they differ and why."""
    advice, said = guide(question, nodes)
    lines = [f"The field's guide: {said}."]
    if best is None:
        return lines
    parts = sorted(best.step_time_parts_s.items(), key=lambda item: -item[1])
    cost = ", ".join(
        f"{name.replace('_', ' ')} {100 * value / best.step_time_s:.0f} %"
        for name, value in parts[:4]
        if value > 0.005 * best.step_time_s
    )
    lines.append(f"The estimate: {_kind(best.layout)} is fastest; its step is {cost}.")
    lines += _differences(question, advice, best)
    return lines


def _differences(question: Question, advice: Advice, best: Estimate) -> list[str]:
    layout, per_node = best.layout, question.machine.node.num_devices
    found = []
    split = layout.tp * layout.pp > 1 or layout.shards_states
    if advice is Advice.DATA_PARALLEL and split:
        found.append(
            "They differ: sharding states or weights frees memory for larger micro-batches or "
            "less recompute, which saves more time than its traffic costs."
        )
    if layout.tp > per_node:
        found.append(
            f"They differ: tp = {layout.tp} leaves the node of {per_node}; check this against a "
            "run, tensor-parallel traffic between nodes is seldom hidden."
        )
    if advice is Advice.SLOW_NETWORK and layout.shards_weights and layout.dp > per_node:
        found.append(
            "They differ: every weight crosses the network for each micro-batch, but the "
            "micro-batch is long enough to hide it."
        )
    if advice is Advice.FAST_NETWORK and layout.pp > 1 and not layout.shards_weights:
        found.append(
            "They differ in taste only: the guide leaves ZeRO or a pipeline open; here the "
            "pipeline's bubble costs less than gathering all weights every micro-batch."
        )
    return found


def learning_rate_note(global_batch: int, reference_batch: int = 256) -> str:
    """How the learning rate is usually scaled from a reference batch, with warm-up.

    Linear: Goyal et al. 2017, arXiv:1706.02677 (SGD). Square root: Krizhevsky 2014,
    arXiv:1404.5997; the usual choice for Adam (You et al. 2019, arXiv:1904.00962).

    >>> learning_rate_note(1024)[:58]
    'Learning rate for a global batch of 1024 sequences, from o'
    """
    ratio = global_batch / reference_batch
    return (
        f"Learning rate for a global batch of {global_batch} sequences, from one tuned at "
        f"{reference_batch}: linear rule x{ratio:.3g} (SGD), square-root rule "
        f"x{math.sqrt(ratio):.3g} (Adam); warm up over the first steps, longer the larger the "
        "factor."
    )
