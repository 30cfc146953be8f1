"""Communication: which collectives a layout issues, how large they are, and how long they take.

One function per axis. Each returns seconds before overlap; `overlap` and `step` decide what stays
exposed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from planner.cost.arrays import Arrays, Float, Mask, among
from planner.cost.network.collectives import (
    all_gather_s,
    all_reduce_s,
    all_to_all_s,
    hierarchical_all_reduce_s,
    p2p_s,
    phased_all_to_all_s,
    reduce_scatter_s,
    ring_exchange_s,
)
from planner.cost.network.groups import Groups
from planner.cost.network.topology import GroupView
from planner.cost.scenario import Scenario
from planner.cost.shards.buckets import num_buckets, num_units
from planner.cost.shards.layouts import Layouts
from planner.cost.shards.stages import Stages
from planner.cost.shards.states import expert_share
from planner.cost.step.time_constants import constants
from planner.describe.model.block import Block

__all__ = [
    "DataTraffic",
    "StreamTraffic",
    "column_backward_s",
    "context_s",
    "data_traffic",
    "heads_s",
    "repeated_tensor_s",
    "send_stage_s",
    "tensor_s",
    "transfer_wait_s",
]

_FP32 = 4.0
"""Bytes of an element of gradients that are summed in fp32."""

Collective = Callable[[GroupView, ArrayLike], Float]


def _stream(scenario: Scenario, layouts: Layouts) -> Float:
    """Bytes of one micro-batch's residual stream on a context rank [B]."""
    tokens = layouts.tokens(scenario.workload.sequence_length)
    return tokens * scenario.model.hidden_size * float(scenario.workload.compute_bytes)


@dataclass(frozen=True, slots=True)
class StreamTraffic:
    """Collectives of one micro-batch's residual stream over tensor-parallel ranks [s].

    The stream is as wide in every block, so that all of them share these.
    """

    reduce_s: Float
    """Where norms are not split along the sequence; the others where they are."""
    gather_s: Float
    scatter_s: Float

    @classmethod
    def of(cls, scenario: Scenario, layouts: Layouts, groups: Groups) -> StreamTraffic:
        """Those of a model."""
        group, size, split = groups.tensor, _stream(scenario, layouts), layouts.splits_sequence
        return cls(
            _where(~split, lambda: all_reduce_s(group, size)),
            _where(split, lambda: all_gather_s(group, size)),
            _where(split, lambda: reduce_scatter_s(group, size)),
        )

    def tensor_s(self, scenario: Scenario, block: Block, layouts: Layouts) -> tuple[Float, Float]:
        """What the function `tensor_s` returns [s]."""
        pair, sequence = self.gather_s + self.scatter_s, layouts.splits_sequence
        forward = np.where(sequence, pair, self.reduce_s) * block.num_tp_collectives
        again = 0.0 if scenario.framework.kernels.saves_gathered else self.gather_s
        backward = np.where(sequence, pair + again, self.reduce_s) * block.num_tp_collectives
        return forward, backward

    def column_backward_s(
        self, scenario: Scenario, block: Block, layouts: Layouts
    ) -> tuple[Float, Float]:
        """What the function `column_backward_s` returns [s]."""
        sequence, regions = layouts.splits_sequence, block.num_tp_collectives
        gather = np.where(sequence, self.gather_s, 0.0)
        again = np.zeros_like(gather) if scenario.framework.kernels.saves_gathered else gather
        reduced = np.where(sequence, self.scatter_s, self.reduce_s)
        return again * regions, reduced * regions


def tensor_s(
    scenario: Scenario, block: Block, layouts: Layouts, groups: Groups
) -> tuple[Float, Float]:
    """Tensor-parallel traffic of one block and micro-batch: forward, backward [s].

    Counted: each region is one all-reduce of the stream, forward and backward; with sequence
    parallelism an all-gather and a reduce-scatter of the same size, plus a second all-gather
    in backward where the gathered input was not kept. Left out: overlap. Shoeybi et al. 2019,
    arXiv:1909.08053; Korthikanti et al. 2022, arXiv:2205.05198, section 4.2.2.

    >>> from planner import Layout, Workload, load_framework, load_machine, load_model
    >>> from planner.cost.operators.blocks import blocks_of
    >>> model, machine = load_model("llama-3-8b"), load_machine("polaris")
    >>> job = Scenario(model, machine, Workload(), load_framework("megatron-lm"))
    >>> layouts, (_, layer, _) = Layouts.of(Layout(tp=4)), blocks_of(job)   # a stream of 16 MiB
    >>> sent = tensor_s(job, layer, layouts, Groups.unit(layouts))          # seconds are bytes
    >>> [round(float(direction) / 2**20) for direction in sent]             # 2 * 2 * 3/4 * 16 MiB
    [48, 48]
    """
    return StreamTraffic.of(scenario, layouts, groups).tensor_s(scenario, block, layouts)


def column_backward_s(
    scenario: Scenario, block: Block, layouts: Layouts, groups: Groups
) -> tuple[Float, Float]:
    """Part of a block's tensor-parallel traffic that backward passes of column-parallel products
    send: gathering their input again, reducing its gradient [s].

    Counted: one of either a region, as in `tensor_s`; no gather without sequence parallelism or
    where the gathered input was kept. Left out: overlap. Korthikanti et al. 2022,
    arXiv:2205.05198, section 4.2.2; method.md#traffic-per-axis-and-overlap.

    >>> from planner import Layout, Workload, load_framework, load_machine, load_model
    >>> from planner.cost.operators.blocks import blocks_of
    >>> model, machine = load_model("llama-3-8b"), load_machine("polaris")
    >>> job = Scenario(model, machine, Workload(), load_framework("megatron-lm"))
    >>> layouts = Layouts.of(Layout(tp=4, sequence_parallel=True))
    >>> sent = column_backward_s(job, blocks_of(job)[1], layouts, Groups.unit(layouts))
    >>> [round(float(part) / 2**20) for part in sent]       # of 72 MiB, as two are of the others
    [24, 24]
    """
    return StreamTraffic.of(scenario, layouts, groups).column_backward_s(scenario, block, layouts)


def repeated_tensor_s(
    scenario: Scenario, block: Block, layouts: Layouts, forward_s: Float
) -> Float:
    """Tensor-parallel traffic of recompute: what it repeats of the forward's [s].

    Counted: with full recompute the forward's traffic, without the layer's last reduction where
    gathered inputs are kept and recompute stops at the last of them; with selective recompute then
    its gathers. Left out: overlap. method.md#traffic-per-axis-and-overlap.

    >>> from planner import Layout, Workload, load_framework, load_machine, load_model
    >>> from planner.cost.operators.blocks import blocks_of
    >>> model, machine = load_model("llama-3-8b"), load_machine("polaris")
    >>> job = Scenario(model, machine, Workload(), load_framework("fsdp2"))
    >>> layouts, (_, layer, _) = Layouts.of(Layout(tp=4, recompute="full")), blocks_of(job)
    >>> float(repeated_tensor_s(job, layer, layouts, np.asarray(48.0)))   # to the layer's end
    48.0
    """
    if block.kind != "layer":
        return np.zeros_like(forward_s)
    full, selective = layouts.recomputes_layers, layouts.recomputes_selectively
    kernels = scenario.framework.kernels
    if not kernels.saves_gathered:
        half = layouts.recomputes_module(("moe",) if block.dispatch_top_k else ("mlp",))
        one = np.where(selective & half, 1 / max(block.num_tp_collectives, 1), 0.0)
        return np.where(full, 1.0, one) * forward_s
    # recompute stops at the last tensor it needs, before the layer's last reduction, unless it
    # runs to the end; kept products spare the reductions but not the gathers
    last = 0.0 if kernels.repeats_to_end else 1 / (2 * max(block.num_tp_collectives, 1))
    part = 1 - last
    gathers = constants().recompute.gathers_repeated_fraction.value
    return np.where(full, part * forward_s, np.where(selective, gathers * forward_s, 0.0))


def context_s(
    scenario: Scenario, block: Block, layouts: Layouts, groups: Groups
) -> tuple[Float, Float]:
    """Keys and values travel between context ranks, and their gradients back [s].

    Counted: n - 1 transfers of a rank's keys and values around n of them forward, twice that
    backward, each as slow as the ring's slowest hop; or (`context_exchange`) one gather of them
    either way, and n transfers of their fp32 gradients or their reduction; of heads that are
    divided (Ulysses) a rank's own alone. Left out: overlap with attention. Liu et al. 2023,
    arXiv:2310.01889; Llama Team 2024, arXiv:2407.21783, section 3.3.2;
    method.md#traffic-per-axis-and-overlap.

    >>> from planner import Layout, Workload, load_framework, load_machine, load_model
    >>> from planner.cost.operators.blocks import blocks_of
    >>> model, machine = load_model("llama-3-8b"), load_machine("polaris")
    >>> job = Scenario(model, machine, Workload(), load_framework("megatron-lm"))
    >>> layouts, (_, layer, _) = Layouts.of(Layout(cp=4)), blocks_of(job)   # 512 tokens a rank
    >>> sent = context_s(job, layer, layouts, Groups.unit(layouts))         # seconds are bytes
    >>> [float(direction) / 2**20 for direction in sent]    # 3 * 512 tokens * 8 heads * 256 * 2 B
    [6.0, 12.0]
    """
    workload, group, n = scenario.workload, groups.ring, layouts.ring
    tokens = layouts.tokens(workload.sequence_length) * layouts.ulysses
    exchange = scenario.framework.kernels.context_exchange
    forward, backward = np.zeros(np.shape(tokens)), np.zeros(np.shape(tokens))
    for attention in block.attentions:
        width = attention.num_kv_heads * (attention.qk_dim + attention.v_dim)
        spread = np.minimum(layouts.tp * layouts.ulysses, attention.num_kv_heads)
        elements = tokens * width / spread
        size = elements * float(workload.compute_bytes)
        if exchange == "pass":
            ahead = (n - 1) * ring_exchange_s(group, size)
            back = 2 * ahead
        else:
            ahead = all_gather_s(group, n * size)
            passed = n * ring_exchange_s(group, _FP32 * elements)
            reduced = reduce_scatter_s(group, n * size)
            back = ahead + (passed if exchange == "gather-pass" else reduced)
        forward, backward = forward + ahead, backward + back
    return forward, backward


def heads_s(
    scenario: Scenario, block: Block, layouts: Layouts, groups: Groups
) -> tuple[Float, Float]:
    """Context ranks exchange their tokens for heads before attention, and back after it [s].

    Counted: four all-to-alls forward, of queries, keys, values and output, and four backward;
    keys and values of fewer heads than ranks once for each rank, or of all heads where the
    framework repeats them. Left out: overlap, copies before and after. Jacobs et al. 2023,
    arXiv:2309.14509, section 3.2; method.md#traffic-per-axis-and-overlap.

    >>> from planner import Layout, Workload, load_framework, load_machine, load_model
    >>> from planner.cost.operators.blocks import blocks_of
    >>> model, machine = load_model("llama-3-8b"), load_machine("polaris")
    >>> job = Scenario(model, machine, Workload(), load_framework("megatron-lm"))
    >>> layouts, (_, layer, _) = Layouts.of(Layout(cp=4, ulysses=4)), blocks_of(job)
    >>> sent, _ = heads_s(job, layer, layouts, Groups.unit(layouts))        # seconds are bytes
    >>> float(sent) / 2**20     # 3/4 of 512 tokens * (32 + 8 + 8 + 32) heads * 256 B
    7.5
    """
    workload, group = scenario.workload, groups.heads
    element = float(workload.compute_bytes)
    tokens, tp = layouts.tokens(workload.sequence_length), layouts.tp
    sent = np.zeros(np.shape(tokens))
    for attention in block.attentions:
        heads = attention.num_heads / np.minimum(tp, attention.num_heads)
        own = attention.num_kv_heads / np.minimum(tp, attention.num_kv_heads)
        repeats = scenario.framework.kernels.repeats_kv_heads
        keys = heads if repeats else np.maximum(own, layouts.ulysses)
        for count, width in ((heads, attention.qk_dim), (keys, attention.qk_dim)):
            sent = sent + all_to_all_s(group, tokens * count * width * element)
        for count in (keys, heads):
            sent = sent + all_to_all_s(group, tokens * count * attention.v_dim * element)
    return sent, sent


def send_stage_s(scenario: Scenario, layouts: Layouts, groups: Groups) -> Float:
    """One transfer of a micro-batch's activations to the next stage [s].

    Counted: every tensor-parallel rank sends its slice of the tokens (scatter/gather, Narayanan
    et al. 2021, arXiv:2104.04473, section 4.1), at the pace of the stage whose neighbours are
    farthest. Left out: gathering the slices, overlap.

    >>> from planner import Layout, Workload, load_framework, load_machine, load_model
    >>> model, machine = load_model("llama-3-8b"), load_machine("polaris")
    >>> job = Scenario(model, machine, Workload(), load_framework("megatron-lm"))
    >>> layouts = Layouts.of(Layout(tp=4, pp=2))
    >>> float(send_stage_s(job, layouts, Groups.unit(layouts))) / 2**20     # a fourth of 16 MiB
    4.0
    """
    size = _stream(scenario, layouts) / layouts.tp
    return _where(layouts.piped, lambda: p2p_s(groups.pipeline, size))


def transfer_wait_s(scenario: Scenario, layouts: Layouts) -> Float:
    """What each transfer between stages waits besides, where runs on the machine showed it [s].

    Counted: the profile's `transfer_delays`, by nodes of the job, linear in their logarithm. Left
    out: the message itself. method.md#traffic-per-axis-and-overlap.

    >>> from planner import Layout, Workload, load_framework, load_machine, load_model
    >>> model, machine = load_model("llama-3-8b"), load_machine("h100-cluster")
    >>> job = Scenario(model, machine, Workload(), load_framework("megatron-lm"))
    >>> float(transfer_wait_s(job, Layouts.of(Layout(dp=64, pp=8))))        # 64 nodes of 8
    0.25
    """
    machine = scenario.machine
    delays = machine.network.transfer_delays if machine.network else None
    if delays is None:
        return np.zeros(np.shape(layouts.pp))
    nodes = np.maximum(layouts.world / machine.node.num_devices, 1)
    wait = np.interp(np.log(nodes), np.log(delays.num_nodes), delays.seconds)
    return np.where(layouts.piped, wait, 0.0)


@dataclass(frozen=True, slots=True)
class DataTraffic(Arrays):
    """Data-parallel traffic of one stage, before overlap [s]."""

    gradients_s: Float
    """One reduction of the gradients."""
    parameters_s: Float
    """Gathering updated parameters after the step (ZeRO-1 and 2, in buckets)."""
    before_forward_s: Float
    """Gathering the stage's weights for a forward pass (ZeRO-3, and below it where every layer is
    a unit)."""
    before_later_forward_s: Float
    """The same for those of a step's passes that follow the first."""
    before_backward_s: Float
    """Gathering them again for the backward pass (ZeRO-3)."""
    after_backward_s: Float
    """Reducing and scattering the stage's gradients after it (ZeRO-3)."""
    around_loss_s: Float
    """A step's further gatherings of the head's weights for a loss in pieces."""


def data_traffic(stages: Stages, groups: Groups) -> DataTraffic:
    """Data-parallel collectives of a stage; expert weights reduce over their own replicas [s].

    Counted: one collective per bucket of gradients, per layer of ZeRO-3 and where every layer is a
    unit; each pays its latency. After the step ZeRO-1 and 2 gather what was trained. Where weights
    stay sharded over fewer ranks after a forward pass, they are gathered from these; what is
    quantised for its way counts as it is sent. Left out: overlap with computation, quantising.
    Rajbhandari et al. 2020, arXiv:1910.02054; Zhao et al. 2023, arXiv:2304.11277; Wang et al. 2023,
    arXiv:2306.10209; method.md#traffic-per-axis-and-overlap.

    >>> from planner import Layout, Workload, load_framework, load_machine, load_model
    >>> model, machine = load_model("gpt2-xl"), load_machine("polaris")
    >>> job = Scenario(model, machine, Workload(), load_framework("ddp"))
    >>> stages = Stages.of(job, Layouts.of(Layout(dp=8)), 0)
    >>> sent = data_traffic(stages, Groups.unit(stages.layouts)).gradients_s    # seconds are bytes
    >>> round(float(sent) / (2 * 7 / 8 * model.num_params), 2)                  # fp32 gradients
    4.0
    """
    scenario, params, layouts = stages.scenario, stages.params, stages.layouts
    buffers, rules = scenario.framework.buffers, scenario.framework.communication
    buckets = _pieces(stages, buffers.reduce_bucket_elements) + _first_bucket(stages)
    gradients = _reduced_s(stages, groups, buckets)
    first, units = (groups.shard, groups.expert_shard), num_units(stages)
    by_layer = layouts.gathers_updates & rules.every_layer_alone
    ahead, fraction = layouts.shards_weights | by_layer, rules.gather_fraction.value
    ahead_s = again_s = _where(ahead, lambda: _weights_s(stages, first, units) / fraction)
    if np.any(layouts.reshard):
        second = (groups.second_shard, groups.expert_second_shard)
        again_s = _where(ahead, lambda: _weights_s(stages, second, units) / fraction)
    bucket = 0.0 if rules.gathers_updates_whole else buffers.gather_bucket_elements
    trained = params.trainable * stages.element
    freed = layouts.shards_weights
    return DataTraffic(
        gradients_s=np.where(freed, 0.0, gradients),
        parameters_s=_where(
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


def _where(here: Mask, seconds: Callable[[], Float]) -> Float:
    """What some layouts take; it is not worked out where none does [s]."""
    return np.where(here, seconds(), 0.0) if here.any() else np.zeros(here.shape)


def _head_s(stages: Stages, groups: Groups) -> Float:
    """A step's further gatherings of the head's weights for a loss in pieces [s]."""
    times = stages.layouts.gathers_head_more(stages.scenario.framework)
    size = stages.params.head * stages.element
    return _where(times > 0, lambda: times * _times(1.0, all_gather_s, groups.shard, size))


def _times(count: Float | float, collective: Collective, group: GroupView, amount: Float) -> Float:
    """`count` collectives of `amount` bytes together; none where there is nothing to send [s]."""
    if not np.any(group.size > 1):
        return np.zeros(np.shape(amount))
    return np.where(amount > 0, count * collective(group, amount / count), 0.0)


def _routed(stages: Stages) -> Float:
    """Part of a rank's parameters that has replicas of its own: experts spread over ranks."""
    spread = stages.layouts.spreads_experts
    return np.where(spread, expert_share(stages.blocks, stages.layouts), 0.0)


def _gathered_s(
    stages: Stages, groups: tuple[GroupView, GroupView], count: Float, amount: Float
) -> Float:
    """Gathering `amount` bytes of weights in `count` collectives, over the groups of dense weights
    and of experts [s]."""
    routed = _routed(stages)
    dense = _times(count, all_gather_s, groups[0], amount * (1 - routed))
    if not np.any(routed):
        return dense
    return dense + _times(count, all_gather_s, groups[1], amount * routed)


def _weights_s(stages: Stages, groups: tuple[GroupView, GroupView], count: Float) -> Float:
    """Gathering a stage's weights for a pass, in as few bytes as the framework sends [s]."""
    sent = stages.scenario.framework.communication.gather_bytes or stages.element
    return _gathered_s(stages, groups, count, stages.params.unsharded * sent)


def _reduced_s(stages: Stages, groups: Groups, count: Float) -> Float:
    """Reducing the gradients of a stage once, in `count` collectives [s]."""
    amount, routed = stages.params.trainable * stages.states.reduce_bytes, _routed(stages)
    rules = stages.scenario.framework.communication
    sent = rules.scatter_bytes / stages.states.reduce_bytes
    # of every reduction's share where replicas sum up but once a step
    often = stages.layouts.reductions_per_step(stages.scenario.framework)
    often = often if rules.replicas_once else np.ones_like(often)
    alike = among(stages.layouts.zero_stage, rules.all_reduced_stages)
    scattered = stages.layouts.shards_states & ~alike
    phased = stages.scenario.framework.reduction.hierarchical
    reduce_s = hierarchical_all_reduce_s if phased else all_reduce_s

    def in_parts(size: Float, shard: GroupView, replica: GroupView) -> Float:
        """Each rank sums up its shard, and what replicas have of it."""
        scatter = _times(count, reduce_scatter_s, shard, size)
        if sent:
            # only where it leaves the node
            phased = _times(count, phased_all_to_all_s, shard, size * sent)
            far = stages.layouts.shards_weights & (shard.nodes > 1)
            scatter = np.where(far, phased, scatter)
        return scatter + _times(count, all_reduce_s, replica, size / shard.size) / often

    found = np.zeros(amount.shape)
    for part, every, shard, replica in (
        (1 - routed, groups.data, groups.shard, groups.replica),
        (routed, groups.expert_data, groups.expert_shard, groups.expert_replica),
    ):
        if not np.any(part):
            continue
        size = amount * part
        whole = functools.partial(_times, count, reduce_s, every, size)
        split = functools.partial(in_parts, size, shard, replica)
        found = found + _where(~scattered, whole) + _where(scattered, split)
    return found


def _pieces(stages: Stages, bucket: float) -> Float:
    """Into how many collectives gradients or updated parameters are cut.

    ZeRO-3 gathers and reduces layer by layer, and so does what makes every layer a unit.
    """
    alone = stages.scenario.framework.communication.every_layer_alone
    by_layer = stages.layouts.shards_weights | alone
    return np.where(by_layer, num_units(stages), num_buckets(stages, bucket))


def _first_bucket(stages: Stages) -> Float:
    """A collective more where the first bucket of gradients closes before others do [1]."""
    first = stages.scenario.framework.reduction.first_bucket_elements
    more = (first > 0) & ~stages.layouts.shards_weights & (stages.params.trainable > first)
    return np.where(more, 1.0, 0.0)
