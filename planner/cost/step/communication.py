"""Communication: which collectives a layout issues, how large they are, and how long they take.

One function per axis. Each returns seconds before overlap; `estimation` decides what stays
exposed. Groups follow the rank order tp, cp, dp, pp (tp fastest), which fixes their stride.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import ArrayLike, NDArray

from planner.cost.network.collectives import (
    all_gather_s,
    all_reduce_s,
    all_to_all_s,
    reduce_scatter_s,
    send_s,
)
from planner.cost.network.topology import GroupView, group_view
from planner.cost.shards.layouts import Layouts
from planner.cost.shards.states import StageState
from planner.describe.framework import Framework
from planner.describe.layout import RECOMPUTE
from planner.describe.machine import Machine
from planner.describe.model.block import Block
from planner.describe.workload import Workload

__all__ = [
    "DataTraffic",
    "Groups",
    "context_s",
    "data_traffic",
    "expert_s",
    "reductions_per_step",
    "repeated_tensor_s",
    "send_stage_s",
    "tensor_s",
    "transfer_wait_s",
]

Float = NDArray[np.float64]
Collective = Callable[[GroupView, ArrayLike], Float]

_FULL, _SELECTIVE = RECOMPUTE.index("full"), RECOMPUTE.index("selective")


@dataclass(frozen=True, slots=True)
class Groups:
    """What the groups of every axis see."""

    tensor: GroupView
    context: GroupView
    data: GroupView
    """All replicas, context ranks included (they share weights)."""
    shard: GroupView
    """Ranks that ZeRO or FSDP shards over."""
    replica: GroupView
    """Ranks that hold the same shard (hybrid sharding)."""
    expert: GroupView
    expert_data: GroupView
    stage: GroupView
    """Neighbouring pipeline stages."""

    @classmethod
    def of(cls, layouts: Layouts, machine: Machine) -> Groups:
        """Groups of every layout on a machine."""
        few, index = layouts.distinct("tp", "cp", "dp", "ep", "dp_shard", "pp")
        tp, cp, dp, ep = few.tp, few.cp, few.dp, few.ep
        shard = few.dp_shard * cp
        found = cls(
            tensor=group_view(machine, tp, 1),
            context=group_view(machine, cp, tp),
            data=group_view(machine, dp * cp, tp),
            shard=group_view(machine, shard, tp),
            replica=group_view(machine, dp * cp // shard, tp * shard),
            expert=group_view(machine, ep, tp),
            expert_data=group_view(machine, few.expert_dp, tp * ep),
            stage=group_view(machine, np.minimum(few.pp, 2), tp * cp * dp),
        )
        return cls(*(getattr(found, field.name).take(index) for field in fields(cls)))


def _stream(layouts: Layouts, workload: Workload, width: int) -> Float:
    """Bytes of one micro-batch's residual stream on a context rank [B]."""
    tokens = layouts.micro_batch * workload.sequence_length / layouts.cp
    return tokens * width * float(workload.compute_bytes)


def tensor_s(
    block: Block,
    width: int,
    layouts: Layouts,
    groups: Groups,
    workload: Workload,
    *,
    saves_gathered: bool = False,
) -> tuple[Float, Float]:
    """Tensor-parallel traffic of one block and micro-batch: forward, backward [s].

    Each region is one all-reduce of the stream, forward and backward; with sequence
    parallelism an all-gather and a reduce-scatter of the same size, plus a second all-gather
    in backward where the gathered input was not kept (Korthikanti et al. 2022, section 4.2.2).
    """
    size = _stream(layouts, workload, width)
    reduce = all_reduce_s(groups.tensor, size)
    gather = all_gather_s(groups.tensor, size)
    pair = gather + reduce_scatter_s(groups.tensor, size)
    sequence = layouts.sequence_parallel > 0
    forward = np.where(sequence, pair, reduce) * block.num_tp_collectives
    again = 0.0 if saves_gathered else gather
    backward = np.where(sequence, pair + again, reduce) * block.num_tp_collectives
    return forward, backward


def repeated_tensor_s(
    block: Block, layouts: Layouts, forward_s: Float, framework: Framework
) -> Float:
    """Tensor-parallel traffic of recompute: what stands before the last saved product [s]."""
    if block.kind != "layer":
        return np.zeros_like(forward_s)
    full, selective = layouts.recompute == _FULL, layouts.recompute == _SELECTIVE
    if not framework.kernels.saves_gathered:
        return np.where(full, forward_s, 0.0)
    # recompute stops at the last tensor it needs, before the layer's last reduction; kept
    # products spare the reductions but not the gathers
    part = 1 - 1 / (2 * max(block.num_tp_collectives, 1))
    return np.where(full, part * forward_s, np.where(selective, 0.5 * forward_s, 0.0))


def context_s(
    block: Block, layouts: Layouts, groups: Groups, workload: Workload
) -> tuple[Float, Float]:
    """Ring attention: keys and values pass around the context group, gradients back [s].

    cp - 1 transfers of a rank's keys and values forward, twice that backward (Liu et al. 2023,
    arXiv:2310.01889).
    """
    tokens = layouts.micro_batch * workload.sequence_length / layouts.cp
    forward = np.zeros(np.shape(tokens))
    for attention in block.attentions:
        width = attention.num_kv_heads * (attention.qk_dim + attention.v_dim)
        heads = np.minimum(layouts.tp, attention.num_kv_heads)
        size = tokens * width * float(workload.compute_bytes) / heads
        forward = forward + (layouts.cp - 1) * send_s(groups.context, size)
    return forward, 2 * forward


def expert_s(
    block: Block, width: int, layouts: Layouts, groups: Groups, workload: Workload
) -> tuple[Float, Float]:
    """Dispatch and combine of expert layers: two all-to-alls forward, two backward [s]."""
    size = _stream(layouts, workload, width) * block.dispatch_top_k
    size = size / np.where(layouts.sequence_parallel > 0, layouts.tp, 1)
    forward = 2 * all_to_all_s(groups.expert, size)
    return forward, forward


def send_stage_s(width: int, layouts: Layouts, groups: Groups, workload: Workload) -> Float:
    """One transfer of a micro-batch's activations to the next stage [s].

    Every tensor-parallel rank sends its slice of the tokens (scatter/gather, Narayanan et al.
    2021, section 4.1).
    """
    size = _stream(layouts, workload, width) / layouts.tp
    return np.where(layouts.pp > 1, send_s(groups.stage, size), 0.0)


def transfer_wait_s(layouts: Layouts, machine: Machine) -> Float:
    """What each transfer between stages waits besides, where runs on the machine showed it [s]."""
    delays = machine.network.transfer_delays if machine.network else None
    if delays is None:
        return np.zeros(np.shape(layouts.pp))
    nodes = np.maximum(layouts.world / machine.node.num_devices, 1)
    wait = np.interp(np.log(nodes), np.log(delays.num_nodes), delays.seconds)
    return np.where(layouts.pp > 1, wait, 0.0)


@dataclass(frozen=True, slots=True)
class DataTraffic:
    """Data-parallel traffic of one stage, before overlap [s]."""

    gradients_s: Float
    """One reduction of the gradients."""
    parameters_s: Float
    """Gathering updated parameters after the step (ZeRO-1 and 2)."""
    gather_s: Float
    """Gathering the stage's weights once (ZeRO-3)."""
    scatter_s: Float
    """Reducing and scattering the stage's gradients once (ZeRO-3)."""


def data_traffic(
    state: StageState,
    expert_share: Float,
    layouts: Layouts,
    groups: Groups,
    workload: Workload,
    framework: Framework,
) -> DataTraffic:
    """Data-parallel collectives of a stage; expert weights reduce over their own replicas.

    Counted: one collective per bucket of gradients and per layer of ZeRO-3; each pays its latency.
    """
    size, buffers = framework.states(workload.precision), framework.buffers
    element = float(workload.compute_bytes)
    gradient = state.trainable * size.reduce_bytes
    weight = state.whole * element
    dense, routed = 1 - expert_share, expert_share
    zero = layouts.zero_stage
    buckets = _pieces(state.trainable, buffers.reduce_bucket_elements, state, zero)
    updates = _pieces(state.whole, buffers.gather_bucket_elements, state, zero)

    def times(count: Float, collective: Collective, group: GroupView, amount: Float) -> Float:
        return count * collective(group, amount / count)

    def reduced(amount: Float) -> Float:
        whole = times(buckets, all_reduce_s, groups.data, amount * dense)
        whole = whole + times(buckets, all_reduce_s, groups.expert_data, amount * routed)
        split = times(buckets, reduce_scatter_s, groups.shard, amount * dense)
        split = split + times(buckets, reduce_scatter_s, groups.expert_data, amount * routed)
        part = amount * dense / groups.shard.size
        split = split + times(buckets, all_reduce_s, groups.replica, part)
        return np.where(zero >= 1, split, whole)

    gather = times(updates, all_gather_s, groups.shard, weight * dense)
    gather = gather + times(updates, all_gather_s, groups.expert_data, weight * routed)
    fraction = framework.communication.gather_fraction.value
    gradients = reduced(gradient)
    zeros = np.zeros_like(gather)
    return DataTraffic(
        gradients_s=np.where(zero < 3, gradients, zeros),
        parameters_s=np.where((zero == 1) | (zero == 2), gather, zeros),
        gather_s=np.where(zero >= 3, gather / fraction, zeros),
        scatter_s=np.where(zero >= 3, gradients / fraction, zeros),
    )


def _pieces(elements: Float, bucket: float, state: StageState, zero: NDArray[np.int64]) -> Float:
    """Into how many collectives gradients or updated parameters are cut.

    ZeRO-3 gathers and reduces layer by layer. A bucket closes with the matrix that fills it, half
    a matrix too late on average; a layer has about four.
    """
    whole_layers = np.where(state.largest_layer > 0, state.largest_layer, elements)
    layers = np.maximum(elements / np.maximum(whole_layers, 1), 1.0)
    buckets = elements / (bucket + state.largest_layer / 8) if bucket else np.ones(np.shape(layers))
    return np.where(zero >= 3, layers, np.maximum(buckets, 1.0))


def reductions_per_step(layouts: Layouts, framework: Framework) -> Float:
    """How often a step reduces its gradients: once, or after every micro-batch.

    ZeRO-3 reduces after every micro-batch, unless a pipeline keeps gradients whole until the end.
    """
    rules, zero, piped = framework.communication, layouts.zero_stage, layouts.pp > 1
    often = np.isin(zero, rules.reduce_every_micro_batch) | (zero >= 3)
    often = often | (np.isin(zero, rules.pipeline_reduce_every_micro_batch) & piped)
    if framework.buffers.pipeline_gradients_whole:
        often = often & ~piped
    return np.where(often, layouts.grad_accumulation, 1)
