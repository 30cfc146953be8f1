"""Partial recompute: first layers, every n-th, several from a checkpoint, modules; offload."""

from __future__ import annotations

import numpy as np
import pytest

from planner.choose.legality import check
from planner.choose.verdicts.plan_notes import unused_option_notes
from planner.cost.estimate import estimate_layouts
from planner.cost.memory.activations import stage_activations
from planner.cost.memory.host_memory import host_memory
from planner.cost.operators.blocks import blocks_of
from planner.cost.shards.layouts import Layouts
from planner.cost.shards.stages import Stages
from planner.describe.layout import Layout, Module
from planner.errors import LayoutError
from tests.descriptions import scenario

MEGATRON = scenario("llama-3-8b", framework="megatron-lm", sequence_length=2048)
TOKEN = 2 * 4096
"""A token's stream in 16 bits [B]: width 4096."""
PIPED = {"pp": 4, "schedule": "1f1b", "grad_accumulation": 8}


def kept(layout: Layout, asked: object = MEGATRON) -> np.ndarray:
    return stage_activations(Stages.of_pipeline(asked, layout)).saved


def plain(**fields: object) -> Layout:
    return Layout(recompute="full", **fields)


def test_a_layer_that_is_repeated_keeps_its_input_and_the_others_everything() -> None:
    none, full = kept(Layout(**PIPED)), kept(plain(**PIPED))
    layers, flight = 8, np.array([4, 3, 2, 1])
    for n in range(1, layers + 1):
        expected = full + (none - full) * (layers - n) / layers
        assert kept(plain(**PIPED, recompute_layers=n)) == pytest.approx(expected)
    # beside the embedding's numbers of tokens, of stage 0 alone
    numbers = np.array([8 * 2048 * 4, 0, 0, 0])
    assert full - numbers == pytest.approx(flight * layers * 2048 * TOKEN)


def test_layers_are_counted_in_every_chunk_of_a_stage() -> None:
    piped = {"pp": 2, "vpp": 4, "schedule": "interleaved-1f1b", "grad_accumulation": 8}
    stages = Stages.of_pipeline(MEGATRON, plain(**piped, recompute_layers=3))
    assert [count.tolist() for count in stages.counts[1:3]] == [[12, 12], [4, 4]]
    many = Stages.of_pipeline(MEGATRON, plain(**piped, recompute_layers=9))
    assert [count.tolist() for count in many.counts[1:3]] == [[16, 16], [0, 0]]


def test_kinds_of_layers_keep_their_order() -> None:
    """The three dense layers of DeepSeek-V3 come first: they are repeated first."""
    asked = scenario("deepseek-v3", framework="megatron-lm", sequence_length=2048)
    stages = Stages.of_pipeline(asked, plain(recompute_layers=5))
    names = [
        (b.name, b.kept_whole, int(n[0])) for b, n in zip(stages.blocks, stages.counts, strict=True)
    ]
    dense, routed = stages.blocks[1].name, stages.blocks[3].name
    assert names[1:5] == [
        (dense, False, 3),
        (dense, True, 0),
        (routed, False, 2),
        (routed, True, 56),
    ]


def test_every_nth_layer_of_torchtitan_is_repeated_from_the_nth_on() -> None:
    asked = scenario("llama-3-8b", framework="fsdp2", sequence_length=2048)
    stages = Stages.of_pipeline(asked, plain(recompute_every=5))
    assert [int(count[0]) for count in stages.counts] == [1, 6, 26, 1]


def test_a_checkpoint_of_several_layers_keeps_one_input() -> None:
    one, four = (
        stage_activations(Stages.of_pipeline(MEGATRON, plain(recompute_span=n))) for n in (1, 4)
    )
    assert one.saved - four.saved == pytest.approx((32 - 8) * 2048 * TOKEN)
    repeated = 3 * stage_activations(Stages.of_pipeline(MEGATRON, Layout())).layer.saved
    assert four.layer.working - one.layer.working == pytest.approx(repeated)


@pytest.mark.parametrize(
    ("dealt", "span", "remedy"),
    [
        ({}, 8, ""),
        ({}, 3, r"\(8\); use 1, 2, 4 or 8"),
        # 32 layers over 4 chunks, but not of 8 layers each
        ({"first_layers": 5}, 8, r"\(5, 9\); use 1"),
        ({"split": "2,10*3"}, 4, r"\(2, 10\); use 1 or 2"),
        ({"split": "2,10*3"}, 2, ""),
        # no divisor of the 8 that a stage has on the average
        ({"split": "0,16*2,0"}, 16, ""),
    ],
)
def test_a_checkpoint_spans_layers_of_chunks_as_they_are_dealt(
    dealt: dict[str, object], span: int, remedy: str
) -> None:
    layout = plain(**{**PIPED, "grad_accumulation": 64}, **dealt, recompute_span=span)
    if not remedy:
        check(MEGATRON, layout)
        return
    with pytest.raises(LayoutError, match=remedy):
        check(MEGATRON, layout)


def test_a_chunk_that_holds_more_than_its_share_keeps_one_input_a_checkpoint() -> None:
    found = kept(plain(**PIPED, split="0,16*2,0", recompute_span=16))
    assert found[1:] == pytest.approx(np.array([3, 2, 0]) * 2048 * TOKEN)


def test_memory_falls_and_time_rises_with_every_layer() -> None:
    for schedule in ({}, PIPED):
        every = [Layout(**schedule), *(plain(**schedule, recompute_layers=n) for n in range(1, 8))]
        found = estimate_layouts(MEGATRON, Layouts.stack([*every, plain(**schedule)]))
        assert np.all(np.diff(found.memory_bytes) <= 0)
        assert np.all(np.diff(found.step_time_s) > 0)


def modules(*names: Module) -> Layout:
    return Layout(recompute="selective", recompute_modules=names)


def test_modules_free_what_megatron_core_frees() -> None:
    """By hand: h = 7168, 128 heads of (128 + 64, 128 + 64, 128), f = 2048, top 8, one shared."""
    asked = scenario("deepseek-v3", framework="megatron-lm", sequence_length=1)
    layer = blocks_of(asked)[2]
    assert layer.dispatch_top_k == 8

    def freed(*names: Module) -> float:
        return sum(x.bytes_per_token for x in layer.saved if set(x.recomputed_with) & set(names))

    assert freed("moe_act") == 2 * 8 * 2048
    assert freed("shared_experts") == 2 * 3 * 2048
    assert freed("layernorm") == 2 * 2 * 7168
    assert freed("mla_up_proj") == 2 * 128 * (192 + 192 + 128)
    assert freed("mlp") == 0
    assert freed("moe") > freed("moe_act", "shared_experts")


def test_a_set_of_modules_frees_the_sum_and_repeats_no_more_than_a_layer() -> None:
    asked = scenario("deepseek-v3", framework="megatron-lm", sequence_length=2048)
    none, full = kept(Layout(), asked), kept(plain(), asked)
    a, b = (none - kept(modules(name), asked) for name in ("moe_act", "mla_up_proj"))
    assert none - kept(modules("moe_act", "mla_up_proj"), asked) == pytest.approx(a + b)
    everything = modules("layernorm", "mla_up_proj", "mlp", "moe", "core_attn")
    assert full < kept(everything, asked) < none
    times = estimate_layouts(asked, Layouts.stack([modules("moe_act"), everything, plain()]))
    repeated = times.time_parts_s["recompute"]
    assert np.all(np.diff(repeated) > 0)


def test_experts_that_are_repeated_get_their_tokens_again() -> None:
    asked = scenario("mixtral-8x7b", framework="megatron-lm", sequence_length=2048)
    spread = {"dp": 8, "ep": 8}
    layouts = [
        Layout(**spread),
        modules("moe_act").replaced(**spread),
        modules("moe").replaced(**spread),
    ]
    sent = estimate_layouts(asked, Layouts.stack(layouts)).time_parts_s["expert_parallel"]
    assert sent[0] == sent[1]
    assert sent[2] == pytest.approx(1.5 * sent[0])


def test_activations_on_the_host_leave_the_device_and_cross_the_link() -> None:
    asked = scenario("llama-3-8b", framework="megatron-deepspeed", sequence_length=2048)
    layout = plain(dp=4, zero_stage=1)
    moved = layout.replaced(offload_activations=True)
    inputs = 32 * 2048 * TOKEN
    assert kept(layout, asked) - kept(moved, asked) == pytest.approx(inputs)
    # beside activations the host is busier with the step than with loading
    stages, busy = Stages.of_pipeline(asked, moved), 1e12
    assert host_memory(stages, busy)["offloaded_activations"] == pytest.approx(4 * inputs)
    found = estimate_layouts(asked, Layouts.stack([layout, moved]))
    # copies are awaited, both ways
    link = asked.machine.node.host_link_bytes_per_s.value
    assert np.diff(found.time_parts_s["offload"]) == pytest.approx([2 * inputs / link])


@pytest.mark.parametrize(
    ("layout", "framework", "message"),
    [
        (
            plain(recompute_layers=4),
            "ddp",
            "recompute_layers = 4: ddp recomputes all layers or none",
        ),
        (plain(recompute_every=2), "megatron-lm", "recompute_layers or recompute_span, one at a"),
        (
            Layout(recompute_layers=4),
            "megatron-lm",
            "with recompute none: megatron-lm supports only",
        ),
        (plain(recompute_span=5), "megatron-lm", "recompute_span = 5 does not divide the layers"),
        (plain(recompute_layers=4, recompute_span=4), "megatron-lm", "one at a time"),
        (modules("mlp"), "fsdp2", "recompute_modules = mlp: fsdp2 has no choice of modules"),
        (plain(recompute_modules=("mlp",)), "megatron-lm", "modules apply only to selective"),
        (Layout(offload_activations=True), "ddp", "is not offered by ddp"),
        (
            Layout(offload_activations=True, **PIPED),
            "megatron-lm",
            "supports it only with recompute none and pp = 1; use that",
        ),
    ],
)
def test_what_a_framework_does_not_do_is_said(layout: Layout, framework: str, message: str) -> None:
    with pytest.raises(LayoutError, match=message.replace("(", r"\(")):
        check(scenario("llama-3-8b", framework=framework, global_batch=layout.global_batch), layout)


@pytest.mark.parametrize("recipe", ["fp8-tensorwise", "fp8-blockwise"])
def test_modules_that_delayed_scaling_does_not_repeat_need_another_recipe(recipe: str) -> None:
    layout, job = modules("moe_act", "layernorm"), {"precision": "fp8", "machine": "dgx-h100"}
    with pytest.raises(LayoutError) as refused:
        check(scenario("llama-3-8b", framework="megatron-lm", global_batch=1, **job), layout)
    assert str(refused.value) == (
        "recompute_modules = moe_act+layernorm: megatron-lm recomputes only core_attn, "
        "mla_up_proj, mlp, moe or shared_experts in fp8; use these, or its switch fp8-tensorwise "
        "or fp8-blockwise"
    )
    check(scenario("llama-3-8b", framework=f"megatron-lm+{recipe}", global_batch=1, **job), layout)
    check(scenario("llama-3-8b", framework="megatron-lm", global_batch=1), layout)


def test_recompute_that_frees_nothing_is_said() -> None:
    fused = scenario("llama-3-8b", framework="megatron-lm")
    eager = scenario("llama-3-8b", framework="megatron-lm", attention="eager")
    selective = Layout(recompute="selective")
    assert kept(selective, fused) == pytest.approx(kept(Layout(), fused))
    assert "saves no memory" in unused_option_notes(fused, selective)[0]
    assert kept(selective, eager) < kept(Layout(), eager)
    assert not unused_option_notes(eager, selective)
    assert "Recompute of moe frees nothing" in unused_option_notes(fused, modules("mlp", "moe"))[0]
    assert not unused_option_notes(fused, modules("mlp"))


def test_a_layout_says_what_it_repeats() -> None:
    assert str(plain(recompute_layers=3)).endswith("full recompute of 3 layers")
    assert str(plain(recompute_every=2)).endswith("full recompute of 1 in 2 layers")
    assert str(modules("moe", "layernorm")).endswith("selective recompute of layernorm+moe")
    assert str(Layout(offload_activations=True)).endswith("offload activations")
    rows = [plain(recompute_layers=3), modules("moe", "layernorm")]
    assert [Layouts.stack(rows)[i] for i in range(2)] == rows
