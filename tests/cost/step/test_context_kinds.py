"""Context parallelism by kind: what is sent, and what of it nothing hides."""

from __future__ import annotations

import numpy as np
import pytest

from planner.cost.network.groups import Groups
from planner.cost.operators.blocks import blocks_of
from planner.cost.shards.layouts import Layouts
from planner.cost.step.block_pass import block_passes
from planner.cost.step.communication.bytes_per_axis import step_traffic
from planner.cost.step.communication.context_parallel import context_s, heads_s
from planner.cost.step.compute.block_time import block_time
from planner.describe.catalogue import load_framework
from planner.describe.layout import Layout
from tests.descriptions import scenario

LONG = {"model": "llama-3-8b", "machine": "dgx-h100", "sequence_length": 32768, "global_batch": 1}
KV = 8 * (128 + 128) * 2
"""Keys and values of a token of Llama 3 8B [B]."""
ALL = (32 + 8 + 8 + 32) * 128 * 2
"""Queries, keys, values and output of a token [B]."""


def _sent(framework: str, layout: Layout) -> tuple[float, float]:
    """What a rank sends in a layer's forward pass: keys and values, tokens for heads [B]."""
    q, layouts = scenario(framework=framework, **LONG), Layouts.of(layout)
    layer, groups = blocks_of(q)[1], Groups.unit(layouts)
    return (
        float(context_s(q, layer, layouts, groups)[0]),
        float(heads_s(q, layer, layouts, groups)[0]),
    )


def test_every_kind_sends_its_own() -> None:
    """Per rank and layer: a ring passes all keys and values but its own, Ulysses the n-th part of
    what it holds to each, two levels both, a ring of a part of the heads."""
    tokens = 32768 / 8
    ring, none = _sent("megatron-lm", Layout(cp=8))
    assert (ring, none) == (7 * tokens * KV, 0)
    none, heads = _sent("megatron-lm", Layout(cp=8, ulysses=8))
    assert (none, heads) == (0, 7 / 8 * tokens * ALL)
    # keys and values of 4 ranks' tokens and a fourth of their heads pass around two groups
    outer, inner = _sent("megatron-lm", Layout(cp=8, ulysses=4))
    assert (outer, inner) == (tokens * KV, 3 / 4 * tokens * ALL)


def test_keys_repeated_for_every_head_are_exchanged_so() -> None:
    """Megatron-DeepSpeed repeats them before: four times as wide as 32 heads."""
    _, heads = _sent("megatron-deepspeed", Layout(cp=8, ulysses=8))
    assert heads == 7 / 8 * 32768 / 8 * 4 * 32 * 128 * 2


def test_gathered_keys_come_back_reduced() -> None:
    """--cp-comm-type all_gather: one gather forward, a gather and a reduce-scatter backward."""
    q = scenario(framework=load_framework("megatron-lm+gathered-context"), **LONG)
    layouts = Layouts.of(Layout(cp=8))
    ahead, back = context_s(q, blocks_of(q)[1], layouts, Groups.unit(layouts))
    assert float(ahead) == pytest.approx(7 / 8 * 32768 * KV)
    assert float(back) == pytest.approx(2 * float(ahead))


def test_what_each_kind_hides() -> None:
    """A ring hides behind attention, exchanges before and after attention hide behind nothing."""
    q = scenario(framework="megatron-lm", **LONG)
    layouts = Layouts.stack([Layout(cp=8), Layout(cp=8, ulysses=8), Layout(cp=8, ulysses=2)])
    groups = Groups.of(layouts, q.machine)
    layer = blocks_of(q)[1]
    ring, heads, both = block_passes(q, blocks_of(q), layouts)[1].context_s
    assert ring == 0
    assert heads == pytest.approx(float(np.sum(heads_s(q, layer, layouts, groups), axis=0)[1]))
    assert 0 < both < heads
    gathered = scenario(framework=load_framework("megatron-lm+gathered-context"), **LONG)
    one = Layouts.of(Layout(cp=8))
    awaited = block_passes(gathered, blocks_of(gathered), one)[1].context_s
    sent = context_s(gathered, layer, one, Groups.of(one, q.machine))
    assert float(awaited) == pytest.approx(float(sent[0] + sent[1]))


def test_whole_sequences_keep_the_kernel_busier() -> None:
    """The pieces of a ring are shorter; torch's uneven ring waits for its last rank."""
    layouts = Layouts.stack([Layout(cp=8), Layout(cp=8, ulysses=8)])
    for framework in ("megatron-lm", "fsdp2"):
        q = scenario(framework=framework, **LONG)
        ring, heads = block_time(q, blocks_of(q)[1], layouts).core_forward_s
        assert ring > heads
        # eager attention has as many products of as many elements either way
        eager = scenario(framework=framework, attention="eager", **LONG)
        work = block_time(eager, blocks_of(eager)[1], layouts).core_forward_s
        assert work[0] == pytest.approx(work[1], rel=0.02)


def test_a_step_sends_what_its_kinds_do() -> None:
    """Two levels, the inner ones inside a node: only keys and values of the outer ones leave."""
    q = scenario(framework="megatron-lm", **LONG)
    sent = step_traffic(q, Layout(cp=16, ulysses=8))["cp"]
    tokens, layers = 32768 / 16, 32
    outer = 3 * layers * tokens * KV
    assert sent.node_bytes == pytest.approx(8 * outer)
    assert sent.device_bytes == pytest.approx(outer + 2 * layers * 7 / 8 * tokens * ALL)
