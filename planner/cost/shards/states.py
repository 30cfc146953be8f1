"""States: parameters per rank after tensor, expert and data-parallel sharding, and their bytes."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from planner.cost.arrays import Arrays, Float, Int
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.cost.shards.optimizers import OPTIMIZERS, SMALLEST_IN_BLOCKS, moment_bytes
from planner.describe.model.block import Block, Weight


def _local_elements(
    weight: Weight, scenario: Scenario, layouts: Layouts, ranks: Int
) -> tuple[Float, Float]:
    """Elements of a tensor on one rank: split by tp and ep, and then also sharded over `ranks`."""
    tp = layouts.expert_tp if weight.expert else layouts.tp
    copies: Float | float = float(weight.copies)
    if weight.stored_bytes:
        # counted as the elements in compute precision that take as many bytes
        copies = copies * (weight.stored_bytes / scenario.workload.compute_bytes)
    if weight.expert:
        copies = copies / np.minimum(layouts.ep, weight.copies)
    if weight.units:
        tp = np.minimum(tp, weight.units)
    rows: Float | float = float(weight.rows)
    columns: Float | float = float(weight.columns)
    if weight.split == "column":
        rows = np.ceil(rows / tp)
    elif weight.split == "row":
        columns = np.ceil(columns / tp)
    total = np.asarray(rows * columns * copies)
    if scenario.framework.shards_rows:
        return total, np.ceil(rows / ranks) * columns * copies
    return total, total / ranks


def largest_matrix(scenario: Scenario, block: Block, layouts: Layouts, names: str) -> Float:
    """Largest frozen matrix of a block on one rank: quantised, or targeted by adapters [elements].

    `names`: "stored" for matrices stored in fewer bits, "targeted" for targets of adapters.
    Counted: one expert of a layer, split over tp. Left out: data-parallel sharding. Definition.
    """
    targets = scenario.workload.lora_targets
    largest = np.zeros(np.shape(layouts.tp))
    for weight in block.weights:
        if weight.trainable or weight.columns == 1:
            continue
        if weight.stored_bytes if names == "stored" else weight.matrix in targets:
            single = replace(weight, copies=1, stored_bytes=0.0)
            largest = np.maximum(largest, _local_elements(single, scenario, layouts, layouts.dp)[0])
    return largest


@dataclass(frozen=True, slots=True)
class Params(Arrays):
    """Parameter counts on one rank that add up over blocks [elements]."""

    unsharded: Float
    """Parameters before sharding over data-parallel ranks."""
    sharded: Float
    """Parameters after sharding."""
    trainable: Float
    """Trainable parameters before sharding."""
    trainable_sharded: Float
    """Trainable parameters after sharding."""
    extra_state_bytes: Float
    """Optimizer state beyond the bytes per parameter, of the sharded parameters [B]."""
    all_gathered: Float
    """Parameters gathered from all shards, including padding."""


@dataclass(frozen=True, slots=True)
class LocalParams(Params):
    """Parameters of one block on one rank [elements]."""

    copied_in: Float
    """Gathered parameters not sharded by whole rows: fewer experts than ranks (FSDP2)."""
    one_expert: Float
    """Parameters before sharding, with only one of the rank's experts."""


def local_params(scenario: Scenario, block: Block, layouts: Layouts) -> LocalParams:
    """Parameters of one block on one rank, before and after sharding [elements].

    Counted: every tensor, split over tp, ep and the ranks that shard. Left out: a pipeline stage's
    other blocks. parameters.md#parameters.
    """
    framework, layouts = scenario.framework, layouts.with_default_etp(scenario.framework)
    sums = {field.name: np.zeros(np.shape(layouts.tp)) for field in fields(LocalParams)}
    padded = layouts.shards_states if framework.shards_rows else None
    optimizer = scenario.workload.optimizer
    beyond = OPTIMIZERS[optimizer].in_blocks or optimizer in ("adafactor", "muon")
    for weight in block.weights:
        ranks = layouts.expert_shards if weight.expert else layouts.num_shards
        local, shard = _local_elements(weight, scenario, layouts, ranks)
        sums["unsharded"] += local
        sums["sharded"] += shard
        gathered = local if padded is None else np.where(padded, shard * ranks, local)
        sums["all_gathered"] += gathered
        experts = weight.copies / np.minimum(layouts.ep, weight.copies) if weight.expert else 1.0
        sums["one_expert"] += local / experts
        if weight.expert and padded is not None:
            inside = padded & (weight.copies / layouts.ep < ranks)
            sums["copied_in"] += np.where(inside, gathered, 0.0)
        if weight.trainable:
            sums["trainable"] += local
            sums["trainable_sharded"] += shard
            if beyond:
                elements = np.where(layouts.shards_states, shard, local)
                extra = _extra_state_bytes(weight, block, shard, elements, scenario)
                sums["extra_state_bytes"] += extra
    return LocalParams(**sums)


def _extra_state_bytes(
    weight: Weight, block: Block, sharded: Float, elements: Float, scenario: Scenario
) -> Float:
    """Optimizer state of a tensor on one rank, beyond its bytes per parameter [B]."""
    workload, states = scenario.workload, scenario.framework.states(scenario.workload.precision)
    if workload.optimizer == "adafactor":
        # factored second moment: one fp32 per row and per column; unfactored for vectors
        ratio = 1.0 if weight.columns == 1 else 1 / weight.rows + 1 / weight.columns
        return 4.0 * sharded * ratio
    if workload.optimizer == "muon" and (weight.columns == 1 or block.kind != "layer"):
        return states.second_moment_bytes * sharded
    if OPTIMIZERS[workload.optimizer].in_blocks:
        beyond = 8.0 - moment_bytes(workload.optimizer, states)
        small = elements / weight.copies < SMALLEST_IN_BLOCKS
        return np.where(small, beyond * sharded, 0.0)
    return np.zeros(sharded.shape)


@dataclass(frozen=True, slots=True)
class StageParams(Params):
    """Parameters of one pipeline stage on one rank, and its largest blocks [elements]."""

    largest_layer: Float
    """Largest layer, gathered."""
    copied_in: Float
    """Copy-in of a layer for gathering and reduction."""
    embedding: Float
    """Embedding, gathered; 0 on other stages."""
    table: Float
    """Part of the embedding that tp splits; 0 on other stages and without tp."""
    head: Float
    """Output projection, or the tied table, and final norm, gathered; 0 on other stages."""
    tied: Float
    """Table that embedding and head share on one stage; else 0."""
    weight_shapes: Float
    """Elements of one weight per shape in a layer, and of the head."""


def stage_params(
    scenario: Scenario, blocks: Sequence[Block], layouts: Layouts, counts: Sequence[Float]
) -> StageParams:
    """Parameters per rank of pipeline stages that hold `counts` of each block [elements].

    Counted: a tied output projection once; in a pipeline the last stage keeps its own copy, as in
    Megatron-LM. Left out: buffers. parameters.md#parameters.
    """
    shape = np.shape(counts[0])
    sums = {field.name: np.zeros(shape) for field in fields(Params)}
    largest, copied_in, embedding, table, head, shapes = (np.zeros(shape) for _ in range(6))
    unique, index = layouts.distinct("dp", "dp_shard", "tp", "cp", "ep", "etp", "zero_stage")

    def local_of(block: Block) -> LocalParams:
        # many layouts share few ways to split a tensor: compute each once
        return local_params(scenario, block, unique).take(index)

    for block, count in zip(blocks, counts, strict=True):
        local = local_of(block)
        untied_params = local_of(without_tied(block)) if block.tied_elsewhere else local
        for name in sums:
            figure = getattr(local, name)
            if untied_params is not local:
                figure = np.where(layouts.piped, figure, getattr(untied_params, name))
            sums[name] = sums[name] + count * figure
        if block.kind == "layer":
            largest = np.maximum(largest, np.where(count > 0, local.all_gathered, 0.0))
            copied_in = np.maximum(copied_in, np.where(count > 0, local.copied_in, 0.0))
            shapes = np.maximum(shapes, np.where(count > 0, local.one_expert, 0.0))
        elif block.kind == "head":
            head = head + count * local.all_gathered
        else:
            embedding = embedding + count * local.all_gathered
            divided = tuple(w for w in block.weights if w.split != "replicated")
            split = local_of(replace(block, weights=divided))
            table = table + count * np.where(layouts.tp > 1, split.all_gathered, 0.0)
    shared = any(block.tied_elsewhere for block in blocks)
    return StageParams(
        **sums,
        largest_layer=largest,
        copied_in=copied_in,
        embedding=embedding,
        table=table,
        head=head,
        tied=np.where(~layouts.piped & shared, embedding, 0.0),
        weight_shapes=shapes + head,
    )


def without_tied(block: Block) -> Block:
    """Block without tied tensors, which another block counts.

    Counted: the block's own tensors. Left out: tied ones. Definition.
    """
    return replace(block, weights=tuple(w for w in block.weights if not w.tied))


def without_frozen(block: Block) -> Block:
    """Block with only its trainable tensors.

    Counted: adapters, and weights that are not frozen. Left out: frozen weights. Definition.
    """
    trained = tuple(weight for weight in block.weights if weight.trainable)
    return block if len(trained) == len(block.weights) else replace(block, weights=trained)


def expert_share(blocks: Sequence[Block], layouts: Layouts) -> Float:
    """Share of routed experts in a rank's parameters [1].

    Counted: all blocks; experts divided by ep and etp, the rest by tp. Left out: tensors that tp
    does not split; differences between pipeline stages. Definition.
    """
    weights = [(block.count, weight) for block in blocks for weight in block.weights]
    routed = sum(count * weight.num_params for count, weight in weights if weight.expert)
    total = sum(block.count * block.num_params for block in blocks)
    local_routed = routed * layouts.tp / (layouts.ep * layouts.expert_tp)
    return np.asarray(local_routed / (total - routed + local_routed))
