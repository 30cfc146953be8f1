"""Data parallelism: gradient reduction, and weight gathers of ZeRO and FSDP."""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from planner.cost.arrays import Arrays, Float, is_in, where_any
from planner.cost.network import collectives
from planner.cost.network.groups import Groups
from planner.cost.network.topology import GroupView
from planner.cost.shards.layouts import Layouts
from planner.cost.shards.stages import Stages
from planner.cost.shards.states import expert_share
from planner.describe.model.block import Block

Collective = Callable[[GroupView, ArrayLike], Float]


@dataclass(frozen=True, slots=True)
class DataTraffic(Arrays):
    """Data-parallel traffic of one stage, before overlap [s]."""

    gradients_s: Float
    """One reduction of the gradients."""
    parameters_s: Float
    """All-gather of updated parameters after the step (ZeRO-1 and 2, in buckets)."""
    before_forward_s: Float
    """All-gather of weights before a forward pass (ZeRO-3, or FSDP units below it)."""
    before_later_forward_s: Float
    """All-gather of weights before each later forward pass of the step."""
    before_backward_s: Float
    """All-gather of weights before a backward pass (ZeRO-3)."""
    after_backward_s: Float
    """Reduce-scatter of gradients after a backward pass (ZeRO-3)."""
    around_loss_s: Float
    """Further all-gathers of the head's weights, if the loss runs in chunks."""


def data_traffic(stages: Stages, groups: Groups) -> DataTraffic:
    """Data-parallel collectives of a stage; expert weights reduce over their own replicas [s].

    Counted: one collective per gradient bucket, or per layer with ZeRO-3 and if every layer is a
    unit, each with its latency; after the step ZeRO-1 and 2 gather the trained weights. Weights
    that stay sharded over fewer ranks after a forward pass are gathered from those; quantised
    traffic counts in quantised bytes. Left out: overlap, quantising. Rajbhandari et al. 2020,
    arXiv:1910.02054; Zhao et al. 2023, arXiv:2304.11277; Wang et al. 2023, arXiv:2306.10209;
    overlap.md#traffic-per-axis-and-overlap.
    """
    scenario, params, layouts = stages.scenario, stages.params, stages.layouts
    buffers, rules = scenario.framework.buffers, scenario.framework.communication
    buckets = _pieces(stages, buffers.reduce_bucket_elements) + _first_bucket(stages)
    gradients = _reduced_s(stages, groups, buckets)
    first, units = (groups.shard, groups.expert_shard), _num_units(stages)
    by_layer = layouts.gathers_updates & rules.every_layer_alone
    ahead, fraction = layouts.shards_weights | by_layer, rules.gather_fraction.value
    ahead_s = again_s = where_any(ahead, lambda: _weights_s(stages, first, units) / fraction)
    if np.any(layouts.reshard):
        second = (groups.second_shard, groups.expert_second_shard)
        again_s = where_any(ahead, lambda: _weights_s(stages, second, units) / fraction)
    bucket = 0.0 if rules.gathers_updates_whole else buffers.gather_bucket_elements
    trained = params.trainable * stages.element
    freed = layouts.shards_weights
    return DataTraffic(
        gradients_s=np.where(freed, 0.0, gradients),
        parameters_s=where_any(
            layouts.gathers_updates & ~by_layer,
            lambda: _gathered_s(stages, first, _pieces(stages, bucket), trained),
        ),
        before_forward_s=ahead_s,
        before_later_forward_s=np.where(
            layouts.keeps_second_shards(scenario.framework), again_s, ahead_s
        ),
        before_backward_s=np.where(freed, again_s, 0.0),
        after_backward_s=np.where(freed, gradients / fraction, 0.0),
        around_loss_s=_head_s(stages, groups) / fraction,
    )


def _head_s(stages: Stages, groups: Groups) -> Float:
    """Further all-gathers of the head's weights, if the loss runs in chunks [s]."""
    times = stages.layouts.extra_head_gathers(stages.scenario.framework)
    size = stages.params.head * stages.element
    return where_any(
        times > 0, lambda: times * _times(1.0, collectives.all_gather_s, groups.shard, size)
    )


def _times(count: Float | float, collective: Collective, group: GroupView, amount: Float) -> Float:
    """Time of `count` collectives of `amount` bytes in total; 0 if there is nothing to send [s]."""
    if not np.any(group.size > 1):
        return np.zeros(np.shape(amount))
    return np.where(amount > 0, count * collective(group, amount / count), 0.0)


def _routed(stages: Stages) -> Float:
    """Share of a rank's parameters in routed experts, which have their own replicas [1]."""
    spread = stages.layouts.spreads_experts
    return np.where(spread, expert_share(stages.blocks, stages.layouts), 0.0)


def _gathered_s(
    stages: Stages, groups: tuple[GroupView, GroupView], count: Float, amount: Float
) -> Float:
    """All-gather of `amount` bytes of weights in `count` collectives, experts separately [s]."""
    routed = _routed(stages)
    dense = _times(count, collectives.all_gather_s, groups[0], amount * (1 - routed))
    if not np.any(routed):
        return dense
    return dense + _times(count, collectives.all_gather_s, groups[1], amount * routed)


def _weights_s(stages: Stages, groups: tuple[GroupView, GroupView], count: Float) -> Float:
    """All-gather of a stage's weights for one pass, in the element size that is sent [s]."""
    sent = stages.scenario.framework.communication.gather_bytes or stages.element
    return _gathered_s(stages, groups, count, stages.params.unsharded * sent)


def _reduced_s(stages: Stages, groups: Groups, count: Float) -> Float:
    """One reduction of a stage's gradients, in `count` collectives [s]."""
    amount, routed = stages.params.trainable * stages.states.reduce_bytes, _routed(stages)
    rules = stages.scenario.framework.communication
    sent = rules.scatter_bytes / stages.states.reduce_bytes
    uses_all_reduce = is_in(stages.layouts.zero_stage, rules.all_reduced_stages)
    scattered = stages.layouts.shards_states & ~uses_all_reduce
    phased = stages.scenario.framework.reduction.hierarchical
    reduce_s = collectives.hierarchical_all_reduce_s if phased else collectives.all_reduce_s

    def in_parts(size: Float, shard: GroupView, replica: GroupView) -> Float:
        """Reduce-scatter over the shards, then all-reduce over the replicas."""
        scatter = _times(count, collectives.reduce_scatter_s, shard, size)
        if sent:
            # quantised only if it leaves the node
            phased = _times(count, collectives.phased_all_to_all_s, shard, size * sent)
            crosses_nodes = stages.layouts.shards_weights & (shard.nodes > 1)
            scatter = np.where(crosses_nodes, phased, scatter)
        return scatter + _times(count, collectives.all_reduce_s, replica, size / shard.size)

    seconds = np.zeros(amount.shape)
    for part, replicas, shard, replica in (
        (1 - routed, groups.data, groups.shard, groups.replica),
        (routed, groups.expert_data, groups.expert_shard, groups.expert_replica),
    ):
        if not np.any(part):
            continue
        size = amount * part
        all_reduced = functools.partial(_times, count, reduce_s, replicas, size)
        split = functools.partial(in_parts, size, shard, replica)
        seconds = seconds + where_any(~scattered, all_reduced) + where_any(scattered, split)
    return seconds


def _pieces(stages: Stages, bucket: float) -> Float:
    """Number of collectives for gradients or updated parameters: by layer, or by bucket [1]."""
    layer_units = stages.scenario.framework.communication.every_layer_alone
    by_layer = stages.layouts.shards_weights | layer_units
    return np.where(by_layer, _num_units(stages), num_buckets(stages, bucket))


def _first_bucket(stages: Stages) -> Float:
    """One more collective if the first gradient bucket is smaller [1]."""
    first = stages.scenario.framework.reduction.first_bucket_elements
    more = (first > 0) & ~stages.layouts.shards_weights & (stages.params.trainable > first)
    return np.where(more, 1.0, 0.0)


def _num_units(stages: Stages) -> Float:
    """Number of gathered units of a stage: the tiles of its parameters over its largest layer."""
    largest, elements = stages.params.largest_layer, stages.params.unsharded
    layer = np.where(largest > 0, largest, elements)
    return np.maximum(elements / np.maximum(layer, 1), 1.0) * stages.layouts.tiles


def num_buckets(stages: Stages, bucket: float) -> Float:
    """Number of buckets of `bucket` elements for a stage's trained matrices; 1 if it is 0 [1].

    A bucket closes with the matrix that fills it. Counted: matrices as the framework multiplies
    them; one as large as a bucket closes one by itself, smaller ones share buckets that overshoot
    by half a matrix (sum x^2 / 2 sum x). Left out: vectors, the order of matrices. torch 2.13,
    compute_bucket_assignment_by_size; Feller 1971, "An introduction to probability theory" II,
    XI.4; overlap.md#traffic-per-axis-and-overlap.
    """
    if not bucket:
        return np.ones(stages.shape)
    sizes: list[tuple[Float, Float]] = []
    elements, squares = np.zeros(stages.shape), np.zeros(stages.shape)
    for block, count in zip(stages.blocks, stages.counts, strict=True):
        for matrix, copies in _matrices(block, stages.layouts):
            sizes.append((matrix, count * copies))
            if block.kind == "layer":
                elements = elements + count * copies * matrix
                squares = squares + count * copies * matrix**2
    closed = bucket + squares / np.maximum(2 * elements, 1)
    buckets = sum((copies * np.minimum(x / closed, 1.0) for x, copies in sizes), np.zeros(()))
    return np.maximum(buckets, 1.0)


def _matrices(block: Block, layouts: Layouts) -> list[tuple[Float, Float]]:
    """Trained matrices of a block on a rank: elements of each, and number of copies."""
    unit = np.ones(np.shape(layouts.tp))
    if block.kind != "layer":
        tables = [weight for weight in block.weights if weight.trainable and not weight.tied]
        split = [layouts.tp if table.split != "replicated" else unit for table in tables]
        return [(t.num_params / parts, unit) for t, parts in zip(tables, split, strict=True)]
    matrices = []
    for gemm in block.gemms:
        if gemm.weight_gradient:
            ranks = layouts.expert_tp if gemm.experts else layouts.tp
            parts = ranks if gemm.split != "replicated" else unit
            copies = np.maximum(gemm.experts / layouts.ep, 1.0) if gemm.experts else unit
            matrices.append((gemm.n * gemm.k / parts, copies))
    return matrices
