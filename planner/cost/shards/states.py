"""States: parameters per rank after tensor, expert and data-parallel sharding, and their bytes.

What a rank holds of weights, gradients and optimizer states follows from the shapes of the
tensors, how each is split, and the ZeRO stage; the bytes per element are the framework's.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from planner.cost.shards.layouts import Layouts
from planner.cost.shards.pipeline import stage_counts
from planner.describe.framework import Framework
from planner.describe.model.block import Block, Weight
from planner.describe.workload import OptimizerName, Workload

__all__ = [
    "OPTIMIZER_BYTES",
    "LocalParams",
    "StageState",
    "local_params",
    "optimizer_state_bytes",
    "stage_state",
    "training_state_bytes",
    "untied",
]

Float = NDArray[np.float64]

OPTIMIZER_BYTES: dict[OptimizerName, float] = {
    "adam": 8.0,
    "adamw": 8.0,
    "sgd": 0.0,
    "sgd-momentum": 4.0,
    "adafactor": 0.0,
    "adam-8bit": 2.0 + 8.0 / 256,
    "muon": 4.0,
}
"""State bytes per parameter beside the fp32 copy. Adam: two fp32 moments. 8-bit Adam: two
bytes and one fp32 scale per block of 256 for each moment (Dettmers et al. 2021,
arXiv:2110.02861). Adafactor keeps rows plus columns, Muon Adam's moments for vectors and ends:
both are counted per tensor on top."""


def training_state_bytes(
    num_params: ArrayLike, dp: ArrayLike, zero_stage: ArrayLike
) -> NDArray[np.float64]:
    """Weights, gradients and Adam states per rank in 16-bit training [B].

    Counted: 2 + 2 + 12 bytes per parameter, sharded by the ZeRO stage. Left out: activations,
    buffers. Rajbhandari et al. 2020, arXiv:1910.02054, figure 1.

    >>> [round(float(training_state_bytes(7.5e9, 64, z)) / 1e9, 2) for z in range(4)]
    [120.0, 31.41, 16.64, 1.88]
    """
    num_params, dp, zero_stage = np.broadcast_arrays(
        np.asarray(num_params, dtype=float), dp, zero_stage
    )
    weights = 2 * num_params / np.where(zero_stage >= 3, dp, 1)
    gradients = 2 * num_params / np.where(zero_stage >= 2, dp, 1)
    return weights + gradients + 12 * num_params / np.where(zero_stage >= 1, dp, 1)


def _local_elements(
    weight: Weight, layouts: Layouts, framework: Framework, ranks: ArrayLike
) -> Float:
    """Elements of one tensor that a rank owns after tp, ep and sharding over `ranks`."""
    ranks = np.asarray(ranks, dtype=float)
    tp = layouts.tp
    copies: Float = np.full(np.shape(tp), float(weight.copies))
    if weight.expert:
        copies = copies / np.minimum(layouts.ep, weight.copies)
        if not framework.expert_tensor_parallel:
            tp = np.where(layouts.ep > 1, 1, tp)
    if weight.units:
        tp = np.minimum(tp, weight.units)
    rows: Float = np.full(np.shape(tp), float(weight.rows))
    columns: Float = np.full(np.shape(tp), float(weight.columns))
    if weight.split == "column":
        rows = np.ceil(rows / tp)
    elif weight.split == "row":
        columns = np.ceil(columns / tp)
    if framework.shards_rows:
        return np.ceil(rows / ranks) * columns * copies
    return rows * columns * copies / ranks


@dataclass(frozen=True, slots=True)
class LocalParams:
    """Parameters of one block on one rank."""

    whole: Float
    """Before sharding over data-parallel ranks."""
    owned: Float
    """After sharding."""
    gathered: Float
    """Gathered from all shards, with their padding."""
    restacked: Float
    """Those of the gathered ones that are not sharded by whole rows, and so are copied to be
    gathered and reduced: experts that are fewer than the ranks (FSDP2)."""
    trainable: Float
    """Trainable ones, before sharding."""
    trainable_owned: Float
    """Trainable ones, after sharding."""
    extra_state_bytes: Float
    """Optimizer state beyond the per-parameter figure, for the owned ones [B]."""
    one_expert: Float
    """Before sharding, with one expert of those on the rank."""


def local_params(
    block: Block, layouts: Layouts, workload: Workload, framework: Framework
) -> LocalParams:
    """Parameters of one block on one rank, before and after sharding."""
    zeros = np.zeros(np.shape(layouts.tp))
    whole, owned, gathered, copied, single = (zeros.copy() for _ in range(5))
    trainable, trainable_owned, extra = (zeros.copy() for _ in range(3))
    for weight in block.weights:
        ranks = layouts.dp_shard * layouts.cp
        if weight.expert:
            ranks = np.maximum(ranks // layouts.ep, 1)
        mine = _local_elements(weight, layouts, framework, 1)
        shard = _local_elements(weight, layouts, framework, ranks)
        whole, owned = whole + mine, owned + shard
        experts = weight.copies / np.minimum(layouts.ep, weight.copies) if weight.expert else 1.0
        single = single + mine / experts
        padded = framework.shards_rows & (layouts.zero_stage >= 1)
        gathered = gathered + np.where(padded, shard * ranks, mine)
        inside = padded & weight.expert & (weight.copies / layouts.ep < ranks)
        copied = copied + np.where(inside, shard * ranks, 0.0)
        if weight.trainable:
            trainable, trainable_owned = trainable + mine, trainable_owned + shard
            extra = extra + _extra_state_bytes(weight, block, shard, workload)
    return LocalParams(whole, owned, gathered, copied, trainable, trainable_owned, extra, single)


def _extra_state_bytes(weight: Weight, block: Block, owned: Float, workload: Workload) -> Float:
    if workload.optimizer == "adafactor":
        # factored second moment: one fp32 per row and per column; vectors keep it whole
        ratio = 1.0 if weight.columns == 1 else 1 / weight.rows + 1 / weight.columns
        return 4.0 * owned * ratio
    if workload.optimizer == "muon" and (weight.columns == 1 or block.kind != "layer"):
        return 4.0 * owned
    return np.zeros_like(owned)


@dataclass(frozen=True, slots=True)
class StageState:
    """Parameters of one pipeline stage on one rank, and its largest block."""

    whole: Float
    owned: Float
    trainable: Float
    trainable_owned: Float
    extra_state_bytes: Float
    gathered: Float
    """Gathered from all shards, with their padding."""
    largest_layer: Float
    """The largest layer, gathered."""
    restacked: Float
    """What is copied of a layer for gathering and reduction."""
    embedding: Float
    """The embedding, gathered; 0 on other stages."""
    table: Float
    """The part of the embedding that tp splits; 0 on other stages and without tp."""
    head: Float
    """Output projection and final norm, gathered; 0 on other stages. With a tied
    projection the embedding's table, which the head computes with."""
    tied: Float
    """The table that embedding and head share on one stage; 0 otherwise."""
    weight_shapes: Float
    """Elements of one weight of every shape in a layer, and of the head's."""


def stage_state(
    blocks: tuple[Block, ...],
    layouts: Layouts,
    stage: ArrayLike,
    workload: Workload,
    framework: Framework,
) -> StageState:
    """Parameters per rank of a pipeline stage.

    A tied output projection is counted once without a pipeline; with one the last stage keeps
    its own copy, as Megatron-LM does.
    """
    counts = stage_counts(blocks, layouts, stage, framework)
    shape = np.broadcast_shapes(np.shape(layouts.tp), np.shape(stage))
    sums = [np.zeros(shape) for _ in range(6)]
    largest, copied, embedding, table, head, shapes = (np.zeros(shape) for _ in range(6))
    few, index = layouts.distinct("dp", "dp_shard", "tp", "cp", "ep", "zero_stage")

    def local_of(block: Block) -> LocalParams:
        # few ways to split a tensor differ, however many layouts there are
        found = local_params(block, few, workload, framework)
        return LocalParams(*(getattr(found, field.name)[index] for field in fields(found)))

    for block, count in zip(blocks, counts, strict=True):
        local = local_of(block)
        figures = _figures(local)
        if block.tied_elsewhere:
            rest = _figures(local_of(untied(block)))
            pairs = zip(figures, rest, strict=True)
            figures = [np.where(layouts.pp > 1, whole, own) for whole, own in pairs]
        sums = [total + count * figure for total, figure in zip(sums, figures, strict=True)]
        if block.kind == "layer":
            largest = np.maximum(largest, np.where(count > 0, local.gathered, 0.0))
            copied = np.maximum(copied, np.where(count > 0, local.restacked, 0.0))
            shapes = np.maximum(shapes, np.where(count > 0, local.one_expert, 0.0))
        elif block.kind == "head":
            head = head + count * local.gathered
        else:
            embedding = embedding + count * local.gathered
            split = local_of(_split_alone(block))
            table = table + count * np.where(layouts.tp > 1, split.gathered, 0.0)
    shared = any(block.tied_elsewhere for block in blocks)
    tied = np.where((layouts.pp == 1) & shared, embedding, 0.0)
    whole, owned, trainable, trainable_owned, extra, gathered = sums
    mine = (whole, owned, trainable, trainable_owned, extra, gathered)
    return StageState(*mine, largest, copied, embedding, table, head, tied, shapes + head)


def _figures(local: LocalParams) -> list[Float]:
    """What adds up over the blocks of a stage, in the order of `StageState`."""
    return [
        local.whole,
        local.owned,
        local.trainable,
        local.trainable_owned,
        local.extra_state_bytes,
        local.gathered,
    ]


def _split_alone(block: Block) -> Block:
    """The block's tensors that tp splits."""
    return replace(block, weights=tuple(w for w in block.weights if w.split != "replicated"))


def untied(block: Block) -> Block:
    """The block without the tensor that another one counts."""
    return replace(block, weights=tuple(w for w in block.weights if not w.tied))


def optimizer_state_bytes(
    state: StageState, layouts: Layouts, workload: Workload, framework: Framework
) -> Float:
    """fp32 copy and moments of the parameters that a rank updates [B]."""
    size = framework.states(workload.precision)
    per_param = size.master_bytes + OPTIMIZER_BYTES[workload.optimizer]
    sharded = layouts.zero_stage >= 1
    updated = np.where(sharded, state.trainable_owned, state.trainable)
    ratio = np.where(sharded, 1.0, state.trainable / np.maximum(state.trainable_owned, 1))
    return updated * per_param + state.extra_state_bytes * ratio
