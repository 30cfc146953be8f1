"""Adapters and frozen bases: what is stored, kept, moved and computed, beside published figures."""

from __future__ import annotations

import pytest

from planner.cost.constants import step_constants
from planner.cost.memory.footprint import stage_memory
from planner.cost.operators.adapters import stored_bytes
from planner.cost.operators.blocks import blocks_of
from planner.cost.shards.layouts import Layouts
from planner.cost.shards.stages import Stages
from planner.cost.step.compute.block_time import block_time
from planner.describe.layout import Layout
from planner.describe.model.block import Block
from tests.descriptions import scenario

GIB = 2**30
TUNED = {
    "lora_rank": 8,
    "lora_targets": ("query", "value", "out", "gate", "up", "down"),
    "sequence_length": 2048,
}


def layer(model: str = "llama-3-8b", framework: str = "fsdp2", **workload: object) -> Block:
    return next(b for b in blocks_of(scenario(model, framework, **workload)) if b.kind == "layer")


def kept(block: Block) -> float:
    """Bytes of a token that a layer keeps on one device where nothing is recomputed."""
    return sum(
        item.bytes_per_token
        for item in block.saved
        if not (item.selective_only or item.only_context)
    )


def test_double_quantisation_saves_what_its_paper_says() -> None:
    # QLoRA, section 3: constants take 32 / 64 = 0.5 bits, and 8 / 64 + 32 / (64 * 256) = 0.127
    assert 8 * (stored_bytes("nf4", 1) - 0.5) == 0.5
    assert 8 * (stored_bytes("nf4-double", 1) - 0.5) == pytest.approx(0.127, abs=5e-4)


@pytest.mark.parametrize(("base", "published"), [("computed", 16.2), ("nf4-double", 7.4)])
def test_torchtune_trains_adapters_of_8b_on_one_4090(base: str, published: float) -> None:
    # README of torchtune 0.6: peak GiB, batch 2 of 2048, full recompute, loss in pieces; one device
    # gathers nothing, and what torch counts has neither context nor reserve
    asked = scenario("llama-3.1-8b", "torchtitan", base_format=base, **TUNED)
    layout = Layout(zero_stage=3, micro_batch=2, recompute="full")
    parts = stage_memory(asked, layout)[0]
    beside = ("runtime_context", "allocator_reserve", "gathered_parameters")
    found = sum(size for name, size in parts.items() if name not in beside)
    assert found / GIB == pytest.approx(published, rel=0.07)


def test_torchtune_trains_adapters_of_405b_in_4_bits_on_eight_a100() -> None:
    # the same table: 44.8 GB a device
    asked = scenario("llama-3.1-405b", "torchtitan", "selene", base_format="nf4-double", **TUNED)
    layout = Layout(dp=8, zero_stage=3, micro_batch=2, recompute="full")
    parts = stage_memory(asked, layout)[0]
    found = sum(parts.values()) - parts["runtime_context"] - parts["allocator_reserve"]
    assert found / GIB == pytest.approx(44.8, rel=0.1)


@pytest.mark.parametrize("model", ["llama-3-8b", "mixtral-8x7b", "deepseek-v3", "gpt2"])
def test_linear_layers_are_stored_in_fewer_bits_and_nothing_else_is(model: str) -> None:
    blocks = blocks_of(scenario(model, "ddp", lora_rank=4, base_format="nf4"))
    stored = [w for block in blocks for w in block.weights if w.stored_bytes]
    assert {w.part for w in stored} <= {"attention", "feed_forward", "experts", "shared_experts"}
    for block in blocks:
        linear = sum(g.n * g.k * max(g.experts, 1) for g in block.gemms if g.unpacked_bytes)
        assert linear == sum(w.num_params for w in block.weights if w.stored_bytes)


@pytest.mark.parametrize(
    ("framework", "stage"),
    [("ddp", 0), *((name, stage) for name in ("deepspeed", "fsdp2") for stage in range(4))],
)
def test_a_stored_base_is_held_and_sharded_in_its_bytes(framework: str, stage: int) -> None:
    held = []
    for base in ("computed", "int8"):
        asked = scenario("llama-3-8b", framework, lora_rank=1, base_format=base)
        parts = stage_memory(asked, Layout(dp=8, zero_stage=stage))[0]
        held.append(parts["weights"])
    # one byte less of each element in the linear layers, once more where gathered copies stay
    layers = 32 * 218_103_808
    copies = {"fsdp2": {0: 2.0, 1: 1 + 1 / 8, 2: 1 + 1 / 8, 3: 1 / 8}}.get(framework, {})
    assert held[0] - held[1] == pytest.approx(
        copies.get(stage, 1 / 8 if stage == 3 else 1.0) * layers, rel=2e-3
    )


def test_unpacking_moves_what_is_stored_and_what_is_made_in_both_directions() -> None:
    asked = [
        scenario("llama-3-8b", "ddp", "dgx-h100", lora_rank=1, base_format=base)
        for base in ("computed", "nf4")
    ]
    times = [block_time(job, blocks_of(job)[1], Layouts.of(Layout())) for job in asked]
    device = asked[0].machine.device
    rate = device.memory_bytes_per_s.value * device.memory_efficiency.value
    moved = (0.5625 + 2) * 218_103_808 / (rate * step_constants().gemm.unpack_fraction.value)
    for name in ("forward_s", "backward_s"):
        before, after = (float(getattr(time, name)) for time in times)
        assert after - before == pytest.approx(moved, rel=1e-6)


def test_qlora_is_slower_and_its_gathers_are_smaller() -> None:
    sent = []
    for base in ("computed", "nf4"):
        asked = scenario("llama-3-8b", "fsdp2", lora_rank=1, base_format=base)
        sent.append(
            float(Stages.of_pipeline(asked, Layout(dp=8, zero_stage=3)).params.largest_layer[0])
        )
    assert sent[1] / sent[0] == pytest.approx(0.5625 / 2, rel=2e-3)


def test_inputs_of_frozen_products_are_not_kept() -> None:
    # h = 4096, f = 3.5 h: inputs of gate and up, and of down; attention keeps its output itself
    attention, every = (
        kept(layer(lora_rank=1, lora_targets=targets)) for targets in (("query",), ("all-linear",))
    )
    full, h = kept(layer(lora_rank=0)), 4096
    assert full - attention == 2 * (h + 3.5 * h) - 2  # less the pair's middle
    assert every - full == 2 * 7


def test_dropout_keeps_an_input_for_every_pair() -> None:
    plain = kept(layer(lora_rank=1, lora_targets=("query", "key")))
    dropped = kept(layer(lora_rank=1, lora_targets=("query", "key"), lora_dropout=0.1))
    assert dropped - plain == (2 * 3 - 2) * 4096  # 16 bits and a mask for each; no shared input


def test_dora_learns_a_magnitude_per_output_and_keeps_both_outputs() -> None:
    plain, dora = (
        layer(lora_rank=4, lora_targets=("query", "down"), dora=d) for d in (False, True)
    )
    assert dora.num_params - plain.num_params == 4096 + 4096
    assert kept(dora) - kept(plain) == 2 * 2 * (4096 + 4096)
    assert sum(g.norm_bytes for g in plain.gemms) == 0 < sum(g.norm_bytes for g in dora.gemms)


def test_adapters_of_experts_run_for_every_token_s_experts() -> None:
    # 2 of 8 experts: a pair beside gate, up and down of each
    block = layer("mixtral-8x7b", lora_rank=16, lora_targets=("gate", "up", "down"))
    pairs = [gemm for gemm in block.gemms if gemm.weight_gradient]
    assert [(gemm.experts, gemm.top_k) for gemm in pairs] == [(8, 2)] * 6
    assert sum(g.experts * g.n * g.k for g in pairs) == 8 * 3 * 16 * (4096 + 14336)


def test_pairs_of_rank_one_are_both_products() -> None:
    pairs = [gemm for gemm in layer(lora_rank=1).gemms if gemm.weight_gradient]
    assert len(pairs) == 8


def test_no_passes_of_their_own_wait_for_frozen_weights() -> None:
    full, adapted = layer(), layer(lora_rank=8)
    assert sum(item.bytes_per_token for item in adapted.deferred) < sum(
        item.bytes_per_token for item in full.deferred
    )
    assert not any("mlp" in item.name for item in adapted.deferred)


def test_compiled_code_moves_less_for_adapters() -> None:
    """Eager: 5 e outputs forward, 2 e outputs + 3 e inputs backward; compiled, the kernels around
    read the pair's output and its input's gradient once and write its output's gradient."""
    found = []
    for name in ("fsdp2", "fsdp2+compile"):
        asked = scenario("llama-3-8b", name, lora_rank=8, lora_targets=("down",))
        (added,) = (p for p in blocks_of(asked)[1].pointwise if p.name.endswith(".lora"))
        found.append((added.forward_bytes, added.backward_bytes, added.num_kernels))
    outputs, inputs = 2 * 4096, 2 * 14336
    assert found[0] == (5 * outputs, 2 * outputs + 3 * inputs, 2)
    assert found[1] == (outputs, outputs + inputs, 0)


@pytest.mark.parametrize(
    ("settings", "forward", "backward", "kernels"),
    [
        # bytes of bf16: scale and add the output; scale its gradient, add that of the input
        ({}, (5 * 2, 0), (2 * 2, 3 * 2), 2),
        # dropout writes its input again and a mask of one byte
        ({"lora_dropout": 0.1}, (5 * 2, 5), (2 * 2, 3 * 2 + 5), 3),
        # a magnitude scales both outputs; its gradient reads them again
        ({"dora": True}, (9 * 2, 0), (8 * 2, 3 * 2), 5),
    ],
)
def test_a_pair_on_two_chosen_experts_moves_the_bytes_of_two_pairs(
    settings: dict[str, object],
    forward: tuple[int, int],
    backward: tuple[int, int],
    kernels: int,
) -> None:
    block = layer("mixtral-8x7b", lora_rank=8, lora_targets=("query", "gate"), **settings)
    pairs = {k.name: k for k in block.pointwise if k.name.endswith(".lora")}
    sizes = {"attention.query": (1, 4096, 4096), "expert.gate": (2, 14336, 4096)}
    assert set(pairs) == {f"{name}.lora" for name in sizes}
    for name, (times, *shape) in sizes.items():
        kernel = pairs[f"{name}.lora"]
        moved = [
            sum(a * n for a, n in zip(each, shape, strict=True)) for each in (forward, backward)
        ]
        assert (kernel.forward_bytes, kernel.backward_bytes) == tuple(times * n for n in moved)
        assert (kernel.num_kernels, kernel.split) == (kernels, "sharded")
        saved = {
            s.name: s.bytes_per_token for s in block.saved if s.name.startswith(f"{name}.lora")
        }
        expected = {"middle": 2 * 8 * times}
        if "lora_dropout" in settings:
            expected["dropped"] = 3 * 4096 * times
        if "dora" in settings:
            expected["outputs"] = 2 * 2 * shape[0] * times
        assert saved == {f"{name}.lora.{part}": size for part, size in expected.items()}
