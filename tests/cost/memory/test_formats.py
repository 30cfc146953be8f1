"""Formats of gradients, moments and weights, as switches of frameworks turn them."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.choose.legality import check
from planner.cost.memory.footprint import footprints, stage_memory
from planner.cost.memory.weights import resident
from planner.cost.network.groups import Groups
from planner.cost.operators.blocks import blocks_of
from planner.cost.shards.layouts import Layouts
from planner.cost.shards.stages import Stages
from planner.cost.step.communication.data_parallel import data_traffic
from planner.describe.catalogue import load_framework, load_model
from planner.describe.layout import Layout
from planner.errors import DescriptionError, LayoutError
from tests.descriptions import scenario

KNOBS = Path(__file__).parents[3] / "benchmarks/knobs/frameworks"
"""Training code that stands in published tables."""
NUM_PARAMS = 8_030_261_248
"""Of Llama 3 8B."""
LAYERS = 32 * 218_112_000


def held(name: str, layout: Layout, **job: object) -> dict[str, float]:
    """Resident bytes per parameter of weights, gradients and states."""
    asked = scenario("llama-3-8b", name, **job)
    stay = resident(Stages.of_pipeline(asked, layout))
    # without the tensors that stand for gradients: one of each shape of a layer, and the head's
    placeholders = asked.framework.buffers.placeholder_bytes * (218_112_000 + 128_257 * 4096)
    found = {
        "weights": stay.weights.item(),
        "gradients": stay.gradients.item() - placeholders,
        "optimizer_states": stay.optimizer_states.item(),
    }
    return {part: size / NUM_PARAMS for part, size in found.items()}


@pytest.mark.parametrize(
    ("switches", "gradients", "states"),
    [
        ("", 4, 12),
        ("+bf16-gradients", 2, 12),
        # the 16 bits that bf16 weights lack, and fp32 moments
        ("+precision-aware", 4, 10),
        ("+bf16-gradients+precision-aware+bf16-moments", 2, 6),
        ("+fp8-moments+bf16-gradients+precision-aware", 2, 4),
    ],
)
def test_bytes_of_megatrons_optimizer(switches: str, gradients: float, states: float) -> None:
    # NVIDIA/Megatron-LM docs, dist_optimizer: 18 bytes with fp32 gradients, 16 with bf16 ones
    found = held("megatron-lm" + switches, Layout(dp=8))
    assert found["weights"] == pytest.approx(2)
    assert found["gradients"] == pytest.approx(gradients)
    assert found["optimizer_states"] == pytest.approx(states)


@pytest.mark.parametrize("recipe", ["fp8-tensorwise", "fp8-blockwise", "mxfp8"])
def test_recipes_but_delayed_keep_whole_fp32_weights_and_copy_narrow_gradients(recipe: str) -> None:
    """NVIDIA/Megatron-LM, optimizer_config.py: use_precision_aware_optimizer_no_fp8_or_ds_fp8."""
    aware, layout = "precision-aware+bf16-moments+bf16-gradients", Layout(dp=8, zero_stage=1)
    names = [
        f"megatron-lm+{aware}",
        f"megatron-lm+{aware}+{recipe}",
        f"megatron-lm+{recipe}+{aware}",
    ]
    found = [held(name, layout, precision="fp8")["optimizer_states"] for name in names]
    # fp32 weights and bf16 moments of an eighth; delayed scaling keeps 16 bits of the weights
    assert found == pytest.approx([6 / 8, 8 / 8, 8 / 8])
    copied = [load_framework(name).states("fp8").copies_narrow_gradients for name in names]
    assert copied == [False, True, True]


@pytest.mark.parametrize(
    ("machine", "recipe", "each"),
    [
        # TransformerEngine @d0067d0d, csrc/quantizer.cpp: with_transpose is columnwise_usage unless
        # nvte_is_non_tn_fp8_gemm_supported, from compute capability 10.0 on
        ("dgx-h100", "fp8-tensorwise", 2),
        ("dgx-b200", "fp8-tensorwise", 1),
        ("dgx-gb200", "fp8-tensorwise", 1),
        # blocks of 32: values by rows and by columns, a byte of scale for each 32
        ("dgx-b200", "mxfp8", 2 + 2 / 32),
    ],
)
def test_weights_of_8_bit_recipes_by_rows_and_by_columns(
    machine: str, recipe: str, each: float
) -> None:
    outside = 2 * (NUM_PARAMS - LAYERS)  # embedding, head and the last norm in 16 bits
    gathered = f"megatron-lm+{recipe}+fp8-gather"
    layout = Layout(dp=8, zero_stage=1)
    found = held(gathered, layout, precision="fp8", machine=machine)["weights"] * NUM_PARAMS
    assert found == pytest.approx(outside + each * LAYERS)
    # 16-bit weights besides, where updated weights are gathered in 16 bits
    plain = f"megatron-lm+{recipe}"
    found = held(plain, layout, precision="fp8", machine=machine)["weights"] * NUM_PARAMS
    assert found == pytest.approx(outside + (2 + each) * LAYERS)


def test_narrow_gradients_are_copied_unless_the_optimizer_reads_them() -> None:
    names = (
        "",
        "+bf16-gradients",
        "+precision-aware+bf16-gradients",
        "+precision-aware+fp8-moments",
    )
    layout = Layout(dp=8, zero_stage=1)
    found = []
    for name in names:
        asked = scenario("llama-3-8b", "megatron-lm" + name, sequence_length=16)
        found.append(stage_memory(asked, layout)[0]["optimizer_temporaries"])
    # an fp32 copy of the rank's eighth; both moments of the eighth in fp32
    assert found == pytest.approx([0, NUM_PARAMS / 2, 0, NUM_PARAMS])


def test_switches_hold_for_bf16_alone() -> None:
    framework = load_framework("megatron-lm+bf16-gradients")
    kept = [framework.states(name).gradient_bytes for name in ("bf16", "fp8", "fp16", "fp32")]
    assert kept == [2, 2, 4, 4]


def test_16_bit_gradients_halve_what_is_sent() -> None:
    sent = []
    for name in ("megatron-lm", "megatron-lm+bf16-gradients"):
        stages = Stages.of_pipeline(scenario("llama-3-8b", name), Layout(dp=8, zero_stage=1))
        sent.append(data_traffic(stages, Groups.unit(stages.layouts)).gradients_s.item())
    assert sent[1] == pytest.approx(sent[0] / 2)


def test_deepspeeds_formats() -> None:
    layout = Layout(dp=8, zero_stage=1)
    plain = held("deepspeed", layout)
    narrow = held("deepspeed+bf16-states", layout)
    wide = held("deepspeed+fp32-gradients", layout)
    assert plain["optimizer_states"] == pytest.approx(12 / 8)
    # docs/_pages/config-json.md: about 6 bytes a parameter
    assert narrow["optimizer_states"] == pytest.approx(6 / 8)
    # whole fp32 sums beside 16-bit gradients
    assert (plain["gradients"], wide["gradients"]) == pytest.approx((2, 6))


def test_bf16_training_keeps_no_fp32() -> None:
    """torchtune's full fine-tuning: 2 bytes each of weight, gradient and two moments."""
    found = held("ddp+bf16-training", Layout(dp=1))
    assert [*found.values()] == pytest.approx([2, 2, 4])


def test_small_tensors_keep_their_moments_in_fp32() -> None:
    """bitsandbytes packs tensors from 4096 elements on: of GPT-2, not the vectors of 768, 2304 and
    3072, of which a layer has 6, 1 and 1 more, and the last norm 2."""
    model = load_model("gpt2").replaced(dropout=0.0)
    asked = scenario(model, "ddp", optimizer="adam-8bit")
    small = 12 * (6 * 768 + 2304 + 3072) + 2 * 768
    packed = (2 + 8 / 256) * (model.num_params - small)
    assert stage_memory(asked, Layout())[0]["optimizer_states"] == packed + 8 * small


def test_paged_moments_have_room_on_the_host() -> None:
    layouts = Layouts.stack([Layout(dp=4)])
    for name, size in (("paged-adamw", 8.0), ("paged-adam-8bit", 2 + 8 / 256)):
        found = footprints(scenario("llama-3-8b", "ddp", optimizer=name), layouts)
        assert found.memory_parts_bytes["optimizer_states"] == 0
        # four devices share a node of Polaris
        held_there = found.host_parts_bytes["offloaded_states"].item()
        assert held_there == pytest.approx(4 * size * NUM_PARAMS)


def test_an_optimizer_in_backward_takes_one_micro_batch() -> None:
    asked = scenario("llama-3-8b", "ddp+optimizer-in-backward", global_batch=2)
    check(asked, Layout(micro_batch=2))
    with pytest.raises(LayoutError, match="use grad_accumulation = 1 and pp = 1"):
        check(asked, Layout(grad_accumulation=2))


def test_what_is_all_reduced_is_not_freed_by_fsdp() -> None:
    """Traced: buffers of all-reduces stay until backward ends, so that nothing is saved."""
    framework = load_framework("fsdp2+optimizer-in-backward")
    assert (framework.zero_stages_for("bf16"), framework.hybrid_stages) == ((2, 3), ())


def test_formats_that_exclude_each_other() -> None:
    with pytest.raises(
        DescriptionError, match="'fp8-moments' cannot be combined with 'bf16-moments'"
    ):
        load_framework("megatron-lm+precision-aware+fp8-moments+bf16-moments")


def test_bf16_moments_change_the_moments_alone() -> None:
    """Megatron-LM's need its precision-aware optimizer, which keeps what weights lack."""
    plain, narrow = (
        load_framework("megatron-lm+precision-aware" + more).states("bf16").model_dump()
        for more in ("", "+bf16-moments")
    )
    different = {name: value for name, value in narrow.items() if plain[name] != value}
    assert different == {"moment_bytes": 2, "second_moment_bytes": 2}
    with pytest.raises(DescriptionError, match=r"write precision-aware\+bf16-moments"):
        load_framework("megatron-lm+bf16-moments")


def test_deepseeks_formats() -> None:
    """DeepSeek-AI 2024, arXiv:2412.19437, section 3.3.3: master weights and gradients in fp32,
    moments in bf16; inputs of SwiGLU in 8 bits with a scale for every 128."""
    framework = load_framework(str(KNOBS / "deepseek-v3.toml+fp8-blockwise"))
    found = framework.states("fp8")
    assert (found.gradient_bytes, found.master_bytes) == (4, 4)
    assert (found.moment_bytes, found.second_moment_bytes) == (2, 2)
    assert framework.kernels.activation_input_bytes == 1 + 4 / 128


@pytest.mark.parametrize(
    ("model", "less"),
    [
        # gate and up of 8 routed experts, and of the shared one: a byte less each
        ("deepseek-v3", 2 * 9 * 2048),
        ("llama-3-8b", 2 * 14336),
        # no SwiGLU
        ("gpt2-xl", 0),
    ],
)
def test_8_bit_inputs_of_an_activation(model: str, less: int) -> None:
    wide, narrow = (
        blocks_of(scenario(model, "megatron-lm" + switch, sequence_length=1024))[-2]
        for switch in ("", "+fp8-activation-input")
    )
    kept = [sum(item.bytes_per_token for item in layer.saved) for layer in (wide, narrow)]
    assert kept[0] - kept[1] == less
    # the casts read two bytes and write one on the way forward, and turn it back
    for way in ("forward_bytes", "backward_bytes"):
        moved = [sum(getattr(one, way) for one in layer.pointwise) for layer in (wide, narrow)]
        assert moved[1] - moved[0] == 3 * less


def test_a_checkpoint_of_the_activation_keeps_16_bit_inputs() -> None:
    """Megatron-LM's keeps its own inputs, so that 8 bits would free nothing."""
    layout = Layout(dp=8, zero_stage=1, recompute="selective", recompute_modules=("moe_act",))
    job = {"global_batch": 8, "sequence_length": 4096}
    check(scenario("mixtral-8x7b", "megatron-lm", **job), layout)
    with pytest.raises(LayoutError, match="fp8-activation-input recomputes only core_attn"):
        check(scenario("mixtral-8x7b", "megatron-lm+fp8-activation-input", **job), layout)


def test_8_bit_gathers() -> None:
    """Megatron-LM keeps two 8-bit layouts of layers' weights and lets go of the 16-bit ones; FSDP2
    gathers one."""
    layout = Layout(dp=8, zero_stage=1)
    plain = held("megatron-lm", layout, precision="fp8")["weights"]
    small = held("megatron-lm+fp8-gather", layout, precision="fp8")["weights"]
    assert (plain - small) * NUM_PARAMS == pytest.approx(2 * LAYERS)
    for name in ("megatron-lm+fp8-gather", "fsdp2+fp8-gather"):
        assert held(name, Layout(dp=8, zero_stage=1))["weights"] == pytest.approx(
            held(name.partition("+")[0], Layout(dp=8, zero_stage=1))["weights"]
        )


def test_8_bit_gathers_send_half_of_the_layers() -> None:
    sent = []
    for name in ("fsdp2", "fsdp2+fp8-gather"):
        asked = scenario("llama-3-8b", name, precision="fp8")
        stages = Stages.of_pipeline(asked, Layout(dp=8, zero_stage=3))
        sent.append(data_traffic(stages, Groups.unit(stages.layouts)).before_forward_s.item())
    # seconds are bytes: seven of eight ranks' shards
    assert sent[0] - sent[1] == pytest.approx(LAYERS * 7 / 8, rel=1e-3)
