"""Legality: every rule says value, rule and remedy; search and single check agree."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.choose.legality import RULES, broken, check, legal
from planner.choose.legality.check import check_division, check_sequence, refusals_of
from planner.choose.search import search
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.cost.shards.stages import Stages
from planner.describe.catalogue import load_framework, load_machine, load_model
from planner.describe.layout import SCHEDULES, Layout
from planner.describe.workload import Workload
from planner.errors import LayoutError
from tests.descriptions import scenario

LEGAL = Layout(dp=4, tp=4, zero_stage=1, micro_batch=2, grad_accumulation=8)


def test_a_legal_layout_passes() -> None:
    check(scenario(), LEGAL)


@pytest.mark.parametrize(
    ("asked", "changes", "message"),
    [
        ({}, {"tp": 3}, r"tp = 3 .* use one of 1, 2, 4"),
        (
            {"framework": "torchtitan", "sequence_length": 4100},
            {"zero_stage": 3},
            r"4100 tokens over cp = 1 is not a multiple of the 8 pieces of the loss of torchtitan",
        ),
        (
            {"model": "gpt2-xl", "sequence_length": 1024},
            {"tp": 2},
            r"tp = 2 does not divide num_heads = 25; use one of 1, 5, 25",
        ),
        (
            {"model": "gpt2", "sequence_length": 1024},
            {"tp": 8, "dp": 2},
            r"num_heads = 12; use one of 1, 2, 3, 4, 6, 12",
        ),
        (
            {"machine": "aurora", "framework": "megatron-deepspeed"},
            {"tp": 8},
            r"neither divides nor is a multiple of the 12 ranks",
        ),
        (
            {"framework": "nanotron", "model": "llama-3-70b"},
            {"tp": 16, "dp": 1},
            r"num_kv_heads = 8",
        ),
        (
            {"framework": "fsdp2"},
            {"tp": 1, "cp": 4, "ulysses": 4, "zero_stage": 3},
            r"ulysses = 4 with cp = 4 is not offered by fsdp2 \(ring\); use ulysses = 1",
        ),
        (
            {"framework": "megatron-deepspeed"},
            {"tp": 1, "cp": 4, "zero_stage": 1},
            r"ulysses = 1 with cp = 4 .* \(ulysses\); use ulysses = 4",
        ),
        (
            {"framework": "megatron-deepspeed"},
            {"tp": 2, "cp": 4, "ulysses": 4, "zero_stage": 1},
            r"cp = 4 with tp = 2 and pp = 1: .* use tp = 1 and pp = 1, or cp = 1",
        ),
        (
            {},
            {"tp": 4, "cp": 4, "ulysses": 4},
            r"tp \* ulysses = 16 must divide num_heads = 32 and num_kv_heads = 8",
        ),
        (
            {"sequence_length": 4104},
            {"tp": 1, "cp": 16},
            r"cut into 2 \* cp pieces; use a cp whose double divides it, such as 1, 2",
        ),
        (
            {"sequence_length": 4097},
            {"tp": 1, "cp": 4},
            r"sequence of 4097 tokens is cut into 2 \* cp pieces; use cp = 1$",
        ),
        (
            {"framework": "megatron-deepspeed", "sequence_length": 4104},
            {"tp": 1, "cp": 16, "ulysses": 16, "zero_stage": 1},
            r"4104 tokens is cut into cp pieces; use a cp which divides it, such as 1, 2",
        ),
        (
            {},
            {"tp": 1, "zero_stage": 1, "reshard": 2},
            r"reshard = 2: .* shards weights over all ranks again .* use reshard = 0 or another",
        ),
        (
            {"framework": "deepspeed"},
            {"tp": 1, "zero_stage": 2, "reshard": 2},
            r"reshard = 2 needs ZeRO stage 3, tp = 1, pp = 1, no offload",
        ),
        (
            {"framework": "megatron-lm-2021"},
            {"sequence_parallel": True},
            r"sequence_parallel: megatron-lm-2021 splits no sequence over tp; leave it out",
        ),
        (
            {"framework": "fsdp2"},
            {
                "sequence_parallel": True,
                "pp": 2,
                "vpp": 3,
                "schedule": "zero-bubble-v",
                "zero_stage": 2,
            },
            r"vpp = 3 with .* 'zero-bubble-v', whose stages hold two chunks each; set vpp = 2",
        ),
        (
            {"framework": "fsdp2"},
            {
                "sequence_parallel": True,
                "pp": 2,
                "vpp": 2,
                "schedule": "zero-bubble-v",
                "zero_stage": 2,
                "recompute": "full",
            },
            r"'full' and ZeRO stage 2: fsdp2 supports it only with recompute none and "
            "stage 0, 1 or 2",
        ),
        (
            {"framework": "fsdp2"},
            {
                "sequence_parallel": True,
                "pp": 2,
                "vpp": 2,
                "schedule": "zero-bubble-v",
                "zero_stage": 3,
            },
            r"'none' and ZeRO stage 3: fsdp2 supports it only with recompute none and "
            "stage 0, 1 or 2",
        ),
        (
            {"framework": "nanotron"},
            {"pp": 2, "schedule": "1f1b", "first_layers": 7},
            r"first_layers = 7: nanotron splits layers over stages itself; leave it out",
        ),
        ({}, {"head_slots": 1}, r"pp = 1 with head_slots = 1: one stage holds all layers"),
        (
            {},
            {"pp": 2, "schedule": "1f1b", "split": "16,17"},
            r"split = 16,17 holds 33 layers, but llama-3-8b has 32; make them equal",
        ),
        (
            {},
            {"pp": 4, "schedule": "1f1b", "first_layers": 31, "last_layers": 1},
            r"first_layers = 31, last_layers = 1 leave no layer for one of the .* = 4 chunks of 32",
        ),
        (
            {},
            {"pp": 4, "schedule": "1f1b", "head_slots": 11},
            r"head_slots = 11 leave no layer .* use fewer chunks",
        ),
        (
            {"ramp": "1B:12"},
            {"dp": 4, "micro_batch": 2},
            r"ramp = 1B:12 has batches that dp \* micro_batch = 8 does not divide",
        ),
        (
            {"framework": "megatron-lm-2021"},
            {"pp": 5, "schedule": "1f1b"},
            r"pp \* vpp = 5 does not divide the 32 layers",
        ),
        (
            {"framework": "fsdp2"},
            {"pp": 33, "zero_stage": 0, "schedule": "1f1b", "sequence_parallel": True},
            r"exceeds the 32 layers",
        ),
        ({}, {"cp": 3}, r"cp = 3: the sequence of 4096"),
        ({}, {"tp": 1, "sequence_parallel": True}, r"needs tp > 1"),
        ({}, {"dp": 7}, r"global batch 64 is not a multiple of dp = 7; use 63 or 70"),
        ({}, {"micro_batch": 3}, r"micro_batch \* grad_accumulation must be 16"),
        ({}, {"ep": 2}, r"llama-3-8b has no experts"),
        ({"model": "mixtral-8x7b"}, {"ep": 3}, r"ep = 3 must divide num_experts = 8"),
        (
            {"model": "mixtral-8x7b"},
            {"dp": 4, "tp": 4, "ep": 8, "sequence_parallel": True},
            r"ep = 8 must divide num_experts = 8 and dp \* cp = 4; use one of 1, 2, 4",
        ),
        (
            {"model": "qwen3-30b-a3b"},
            {"dp": 4, "tp": 4, "ep": 32, "etp": 1, "sequence_parallel": True},
            r"ep = 32 must divide num_experts = 128 and dp \* cp \* tp = 16; use one of",
        ),
        (
            {"model": "mixtral-8x7b"},
            {"dp": 4, "tp": 4, "ep": 8, "etp": 4, "sequence_parallel": True},
            r"ep = 8 must divide num_experts = 8 and dp \* cp = 4",
        ),
        (
            {"model": "mixtral-8x7b"},
            {"dp": 4, "tp": 4, "ep": 8, "etp": 8, "sequence_parallel": True},
            r"ep \* etp = 64 must divide dp \* cp \* tp = 16",
        ),
        (
            {"model": "mixtral-8x7b"},
            {"dp": 4, "tp": 4, "ep": 4},
            r"tp = 4 without sequence parallelism .* every token to its experts tp times",
        ),
        (
            {"model": "mixtral-8x7b", "framework": "fsdp2"},
            {"dp": 4, "tp": 4, "ep": 4, "etp": 4, "sequence_parallel": True, "zero_stage": 3},
            r"etp = 4 with ep = 4 is not offered by fsdp2; use 1",
        ),
        (
            {"model": "mixtral-8x7b", "expert_imbalance": 3},
            {"tp": 1, "dp": 16, "ep": 2},
            r"expert_imbalance = 3 with ep = 2: .* use 2 or less, or ep of 3 or more",
        ),
        (
            # a rank with one of 8 experts gets each token once at most, and a quarter by mean
            {"model": "mixtral-8x7b", "expert_imbalance": 4.5},
            {"tp": 1, "dp": 16, "ep": 8},
            r"expert_imbalance = 4.5: .* visits 2 different experts of 8, .* use 4 or less",
        ),
        (
            {"expert_capacity": 0.5},
            {},
            r"expert_capacity = 0.5: llama-3-8b has no experts; leave it out",
        ),
        (
            {
                "model": "mixtral-8x7b",
                "machine": "eos",
                "framework": "megatron-lm+deepep",
                "expert_capacity": 1.25,
                "pad_experts": True,
            },
            {"tp": 1, "ep": 4},
            r"pad_experts with expert_capacity = 1.25: .*\+deepep does not pad experts; leave",
        ),
        ({}, {"etp": 1}, r"etp = 1: llama-3-8b has no experts; use etp = 0"),
        ({}, {"zero_stage": 3}, r"ZeRO stage 3 is not offered by megatron-lm"),
        (
            {"framework": "megatron-deepspeed"},
            {"pp": 2, "zero_stage": 2, "schedule": "1f1b"},
            r"ZeRO stage 2 with pp = 2 .*; use zero_stage = 0, 1 or pp = 1",
        ),
        ({"framework": "deepspeed"}, {}, r"deepspeed has no tp axis"),
        ({}, {"dp_shard": 2}, r"dp_shard = 2: megatron-lm shards over all replicas"),
        (
            {"framework": "fsdp2"},
            {"tp": 1, "dp": 4, "dp_shard": 2, "zero_stage": 0},
            r"ZeRO stage 0: fsdp2 supports hybrid sharding only with other stages; "
            "use zero_stage = 2, 3",
        ),
        (
            {"framework": "deepspeed"},
            {"tp": 1, "zero_stage": 2, "offload": "all-cpu"},
            r"offload 'all-cpu' of deepspeed needs ZeRO stage 3, not 2",
        ),
        (
            {"framework": "ddp"},
            {"tp": 1, "zero_stage": 0, "recompute": "selective"},
            r"recompute = selective is not offered by ddp; use recompute = none, [^n]",
        ),
        ({}, {"pp": 2}, r"a pipeline needs a schedule"),
        ({}, {"schedule": "1f1b"}, r"a schedule\s+a pipeline"),
        ({}, {"pp": 2, "vpp": 2, "schedule": "1f1b"}, r"only interleaved-1f1b has several chunks"),
        (
            {},
            {
                "pp": 2,
                "vpp": 2,
                "schedule": "interleaved-1f1b",
                "micro_batch": 16,
                "grad_accumulation": 1,
            },
            r"not a multiple of pp = 2",
        ),
        (
            {},
            {"offload": "optimizer-nvme"},
            r"offload 'optimizer-nvme' is not offered by megatron-lm; use none",
        ),
        (
            {"machine": "aurora", "framework": "deepspeed"},
            {"tp": 1, "zero_stage": 3, "offload": "all-nvme"},
            r"no node-local NVMe",
        ),
        ({}, {"tiles": 2}, r"memory-centric tiling needs DeepSpeed ZeRO-3"),
        ({"model": "gpt2"}, {"dp": 4}, r"sequence length 4096 exceeds the 1024 learned positions"),
        ({"machine": "aurora", "framework": "megatron-lm"}, {}, r"does not run on xpu"),
    ],
)
def test_each_rule_has_its_sentence(
    asked: dict[str, Any], changes: dict[str, object], message: str
) -> None:
    with pytest.raises(LayoutError, match=message) as caught:
        check(scenario(**asked), LEGAL.replaced(**changes))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("axis", ["tp", "pp", "cp", "ep"])
def test_a_convolutional_network_is_spread_by_data_parallelism_alone(axis: str) -> None:
    q = scenario("resnet-50", "megatron-deepspeed", sequence_length=1, global_batch=64)
    with pytest.raises(LayoutError, match=f"{axis} = 2: .*"):
        check(q, Layout(dp=4, micro_batch=16, **{axis: 2}))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"sequence_length": 128}, "sequence length 128: resnet-50 trains on samples"),
        ({"precision": "fp8"}, "precision = fp8: resnet-50 is supported in 16 bits"),
        ({"lora_rank": 8}, "lora_rank = 8: resnet-50 has no matrices"),
    ],
)
def test_what_sequences_alone_have_is_refused_for_samples(
    fields: dict[str, Any], message: str
) -> None:
    q = scenario(
        "resnet-50", "ddp", "dgx-h100", **{"sequence_length": 1, "global_batch": 64} | fields
    )
    with pytest.raises(LayoutError, match=message):
        check(q, Layout(dp=4, micro_batch=16))


def test_three_heads_over_two_ranks() -> None:
    three = load_model("gpt2").replaced(num_heads=3, num_kv_heads=3, head_dim=256)
    q = scenario(three, sequence_length=1024)
    with pytest.raises(LayoutError, match=r"tp = 2 does not divide num_heads = 3; use one of 1, 3"):
        check(q, Layout(tp=2, grad_accumulation=64))


degree = st.sampled_from([1, 2, 3, 4, 8])


@given(
    st.sampled_from(["llama-3-8b", "mixtral-8x7b", "gpt2-xl"]),
    st.sampled_from(["megatron-lm", "fsdp2", "deepspeed", "ddp", "nanotron"]),
    st.builds(
        Layout,
        dp=degree,
        tp=degree,
        pp=degree,
        vpp=degree,
        cp=degree,
        ep=degree,
        zero_stage=st.integers(0, 3),
        micro_batch=degree,
        grad_accumulation=st.integers(1, 64),
        sequence_parallel=st.booleans(),
        tiles=st.sampled_from([1, 2]),
        recompute=st.sampled_from(["none", "selective", "full"]),
        schedule=st.sampled_from(SCHEDULES),
        offload=st.sampled_from(["none", "optimizer-cpu", "all-cpu", "all-nvme"]),
    ),
)
def test_mask_and_sentence_agree(model: str, framework: str, layout: Layout) -> None:
    q = scenario(model, framework, sequence_length=1024)
    needs = {name for rule in RULES for name in rule.needs}
    mask, dropped = legal(q, Layouts.stack([layout]), needs)
    assert sum(dropped.values()) == int(not mask[0])
    if mask[0]:
        check(q, layout)
    else:
        with pytest.raises(LayoutError):
            check(q, layout)


def test_learned_positions_limit_the_sequence() -> None:
    # rotary embeddings have no table
    check_sequence(load_model("llama-3-8b"), Workload(sequence_length=1_000_000))
    check_sequence(load_model("gpt2"), Workload(sequence_length=1024))
    with pytest.raises(LayoutError, match="use a sequence of 1024 or less"):
        check_sequence(load_model("gpt2"), Workload(sequence_length=1025))


def test_dp_follows_from_nodes() -> None:
    polaris = load_machine("polaris")
    assert check_division(polaris, 4, None, 8) == 2
    assert check_division(polaris, None, None, 8) == 1
    assert check_division(polaris, 4, 2, 8) == 2
    with pytest.raises(LayoutError, match="use one of 1, 2, 4, 8, 16"):
        check_division(polaris, 4, None, 3)
    with pytest.raises(LayoutError, match="use dp = 2"):
        check_division(polaris, 4, 3, 8)
    with pytest.raises(LayoutError, match="nodes = 0 must be at least 1"):
        check_division(polaris, 0, None, 8)


@pytest.mark.parametrize(
    ("layers", "machine", "layout", "fullest"),
    [
        # BLOOM (arXiv:2211.05100, section 3.4): 70 layers on 12 stages of 384 A100 of 80 GB
        (70, "jean-zay-a100", Layout(dp=8, tp=4, pp=12, zero_stage=1, schedule="1f1b"), 6),
        # Poro 34B on LUMI: 54 layers on 4 stages
        (54, "lumi-g", Layout(dp=64, tp=2, pp=4, zero_stage=1, schedule="1f1b"), 14),
    ],
)
def test_a_pipeline_that_deals_layers_itself_takes_any_number(
    layers: int, machine: str, layout: Layout, fullest: int
) -> None:
    model = load_model("bloom-176b").replaced(name="bloom", num_layers=layers)
    asked = scenario(
        model, "megatron-deepspeed", machine, sequence_length=2048, global_batch=8 * layout.dp
    )
    layout = layout.replaced(grad_accumulation=8)
    check(asked, layout)
    counts = Stages.of_pipeline(asked, layout).counts[1]
    # DeepSpeed 0.19.8, runtime/utils.py partition_balanced with weight 1 for every layer
    shorter = fullest * layout.pp - layers
    assert counts.tolist() == [fullest] * (layout.pp - shorter) + [fullest - 1] * shorter


@pytest.mark.parametrize("ep", [1, 2, 4, 8])
def test_experts_are_as_uneven_as_tokens_can_be(ep: int) -> None:
    """Every token to the same top_k experts: the fullest rank over the mean, counted one by one."""
    experts = load_model("mixtral-8x7b").experts
    assert experts is not None
    held = experts.num_experts // ep
    copies = [sum(rank * held <= e < (rank + 1) * held for e in range(2)) for rank in range(ep)]
    worst = max(copies) / (sum(copies) / ep)
    layout = Layout(dp=8, ep=ep, zero_stage=1, grad_accumulation=8)
    check(scenario("mixtral-8x7b", expert_imbalance=worst, global_batch=64), layout)
    if ep > 1:
        beyond = scenario("mixtral-8x7b", expert_imbalance=worst + 0.01, global_batch=64)
        with pytest.raises(LayoutError, match="expert_imbalance"):
            check(beyond, layout)


def test_nothing_is_searched_for_experts_that_are_not_there() -> None:
    with pytest.raises(LayoutError, match="llama-3-8b has no experts; leave it out"):
        search(scenario(expert_imbalance=2), 8)


def test_a_refusal_is_the_first_rule_that_the_closest_framework_has_broken() -> None:
    model, machine = load_model("gpt2"), load_machine("polaris")
    workload = Workload(global_batch=8)
    scenarios = [
        Scenario(model, machine, workload, load_framework(name)) for name in ("ddp", "megatron-lm")
    ]
    # ddp breaks a rule more than megatron-lm: it has no tensor parallelism either
    layouts = Layouts.stack([Layout(dp=1, tp=5, grad_accumulation=8), Layout(dp=8, zero_stage=3)])
    for layout, refusal in zip(layouts, refusals_of(scenarios, layouts), strict=True):
        broken_rules = [list(broken(q, Layouts.of(layout))) for q in scenarios]
        closest = min((1, 0), key=lambda number: len(broken_rules[number]))
        assert str(refusal) == broken_rules[closest][0].message(scenarios[closest], layout)
    assert "5" in str(refusals_of(scenarios, layouts)[0])


@pytest.mark.parametrize(
    ("nodes", "dp", "others", "words"),
    [
        (1, 3, 1, "= 3 is not the 4 devices of 1 node of polaris; use dp = 4"),
        (1, 8, 2, "= 16 is not the 4 devices of 1 node of polaris; use dp = 2 or 4 nodes"),
        (2, 4, 1, "= 4 is not the 8 devices of 2 nodes of polaris; use dp = 8 or 1 node"),
        (2, 2, 3, "= 6 is not the 8 devices of 2 nodes of polaris; use degrees whose product is 8"),
        (2, 0, 3, "= 0 is not the 8 devices of 2 nodes of polaris; use degrees whose product is 8"),
        (2, None, 3, "= 3 does not divide the 8 devices of 2 nodes of polaris; use one of 1, 2, 4"),
        (0, None, 1, "nodes = 0 must be at least 1"),
    ],
)
def test_degrees_that_do_not_fill_the_nodes(
    nodes: int, dp: int | None, others: int, words: str
) -> None:
    with pytest.raises(LayoutError) as refused:
        check_division(load_machine("polaris"), nodes, dp, others)
    assert words in str(refused.value)


def test_a_degree_that_is_left_open_fills_the_nodes() -> None:
    machine = load_machine("polaris")
    assert check_division(machine, 2, None, 2) == 4
    assert [check_division(machine, None, dp, 2) for dp in (None, 3)] == [1, 3]
    assert check_division(machine, 2, 4, 2) == 4


@pytest.mark.parametrize("offered", [("ring",), ("ulysses",), ("two-level", "ring")])
def test_context_parallelism_is_of_an_offered_kind(offered: tuple[str, ...]) -> None:
    framework = load_framework("megatron-lm").replaced(context=offered)
    asked = scenario("llama-3-8b", framework)
    for ulysses, kind in ((1, "ring"), (2, "two-level"), (4, "ulysses")):
        for layout, is_offered in (
            (Layout(), True),
            (Layout(cp=4, ulysses=ulysses), kind in offered),
        ):
            found = [rule for rule in broken(asked, Layouts.of(layout)) if "kind of" in rule.reason]
            assert (not found) is is_offered, kind
