"""Context parallelism: ring attention, gathered keys and values, Ulysses all-to-alls."""

import numpy as np

from planner.cost.arrays import Float
from planner.cost.network.collectives import (
    all_gather_s,
    all_to_all_s,
    reduce_scatter_s,
    ring_exchange_s,
)
from planner.cost.network.groups import Groups
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.describe.model.block import Block

_FP32 = 4.0
"""Bytes of a gradient element that is summed in fp32."""


def context_s(
    scenario: Scenario, block: Block, layouts: Layouts, groups: Groups
) -> tuple[Float, Float]:
    """Exchange of keys, values and their gradients over context ranks: forward, backward [s].

    Counted: in ring attention n - 1 transfers of a rank's keys and values forward, twice that
    backward, each at the pace of the slowest hop; or (`context_exchange`) one gather of them in
    either pass, and n transfers of their fp32 gradients or a reduce-scatter; with Ulysses only a
    rank's own heads. Left out: overlap with attention. Liu et al. 2023, arXiv:2310.01889; Llama
    Team 2024, arXiv:2407.21783, section 3.3.2; overlap.md#traffic-per-axis-and-overlap.
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
    """Ulysses all-to-alls around attention, tokens for heads: forward, backward [s].

    Counted: all-to-alls of queries, keys, values and output in either direction; keys and values
    with fewer heads than ranks once per rank, or of all heads if the framework repeats them. Left
    out: overlap, copies before and after. Jacobs et al. 2023, arXiv:2309.14509, section 3.2;
    overlap.md#traffic-per-axis-and-overlap.
    """
    workload, group = scenario.workload, groups.heads
    element = float(workload.compute_bytes)
    tokens, tp = layouts.tokens(workload.sequence_length), layouts.tp
    sent = np.zeros(np.shape(tokens))
    for attention in block.attentions:
        heads = attention.num_heads / np.minimum(tp, attention.num_heads)
        kv_heads = attention.num_kv_heads / np.minimum(tp, attention.num_kv_heads)
        repeats = scenario.framework.kernels.repeats_kv_heads
        keys = heads if repeats else np.maximum(kv_heads, layouts.ulysses)
        for count, width in ((heads, attention.qk_dim), (keys, attention.qk_dim)):
            sent = sent + all_to_all_s(group, tokens * count * width * element)
        for count in (keys, heads):
            sent = sent + all_to_all_s(group, tokens * count * attention.v_dim * element)
    return sent, sent
