"""Compute: operations against published counts, times against the roofline and measured runs."""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.cost.operators.blocks import blocks_of
from planner.cost.operators.operations import attention_flop, model_flop
from planner.cost.shards.layouts import Layouts
from planner.cost.shards.tensor_split import split_over
from planner.cost.step.compute.block_time import block_time
from planner.cost.step.compute.gemm import gemm_s
from planner.describe.catalogue import load_framework, load_machine, load_model
from planner.describe.layout import Layout
from planner.describe.model.block import Attention, Block, Gemm
from tests import descriptions

RATES = {"flop_per_s": 271e12, "bytes_per_s": 1.3e12, "num_units": 108}


scenario = functools.partial(
    descriptions.scenario, machine="selene", sequence_length=2048, global_batch=256
)


@given(st.integers(1, 20_000), st.integers(1, 20_000), st.integers(1, 20_000), st.integers(1, 16))
def test_a_product_is_never_faster_than_the_roofline(m: int, n: int, k: int, batch: int) -> None:
    time = float(gemm_s(m, n, k, batch=batch, **RATES))
    assert time >= batch * 2.0 * m * n * k / 271e12
    assert time >= batch * 2.0 * (m * k + k * n + m * n) / 1.3e12


def test_large_products_reach_the_rate_and_thin_ones_the_bandwidth() -> None:
    large = float(gemm_s(16384, 16384, 16384, **RATES))
    assert 0.9 < 2 * 16384**3 / large / 271e12 <= 1
    thin = float(gemm_s(1, 16384, 16384, **RATES))
    assert thin == pytest.approx(2 * (16384**2 + 2 * 16384) / 1.3e12, rel=0.02)


def test_waves_cost_a_step() -> None:
    # 108 tiles of 256 x 128 fill the device once; one more row of tiles needs part of a second wave
    full = float(gemm_s(256 * 12, 128 * 9, 8192, **RATES))
    more = float(gemm_s(256 * 13, 128 * 9, 8192, **RATES))
    assert more / full > 1.05 * 13 / 12


def test_attention_operations() -> None:
    # Dao 2023, arXiv:2307.08691, section 4.1: 4 s^2 d per head, half of it with a causal mask
    whole = Attention(32, 8, 128, 128, causal=False)
    causal = Attention(32, 8, 128, 128, causal=True)
    windowed = Attention(32, 8, 128, 128, causal=True, window=1024)
    expected = 4 * 4096**2 * 128 * 32
    assert float(attention_flop(whole, 4096, 4096, skips_masked=True)) == expected
    assert float(attention_flop(causal, 4096, 4096, skips_masked=True)) == expected / 2
    assert float(attention_flop(causal, 4096, 4096, skips_masked=False)) == expected
    # of row i the last min(i, 1024) keys: 1024 - 512 / 4 on average
    assert float(attention_flop(windowed, 4096, 4096, skips_masked=True)) == expected * 896 / 4096
    assert float(attention_flop(windowed, 4096, 4096, skips_masked=False)) == expected / 4
    chunked = replace(windowed, chunked=True)
    # 4 sequences of 1024; and one of 512 more, of which a token sees 512 keys at most
    assert float(attention_flop(chunked, 4096, 4096, skips_masked=True)) == expected / 8
    assert float(attention_flop(chunked, 4608, 4608, skips_masked=False)) == pytest.approx(
        expected * (4 * 1024**2 + 512**2) / 4096**2
    )
    wide = Attention(32, 8, 128, 128, causal=True, window=4096)
    assert float(attention_flop(wide, 4096, 4096, skips_masked=True)) == expected / 2


@pytest.mark.parametrize("name", ["gpt3-175b", "ptdp-1t", "ptdp-1.7b"])
def test_model_operations_of_a_gpt(name: str) -> None:
    # Narayanan et al. 2021, arXiv:2104.04473, eq. 2 without the recomputed forward (96 -> 72):
    # 72 B s l h^2 (1 + s/(6h) + V/(12 l h)); the catalogue pads no vocabulary
    model = load_model(name)
    sequence, batch = 2048, 1536
    hidden, layers = model.hidden_size, model.num_layers
    paper = (
        72
        * batch
        * sequence
        * layers
        * hidden**2
        * (1 + sequence / (6 * hidden) + model.vocab_size / (12 * layers * hidden))
    )
    asked = scenario(name, sequence_length=sequence, global_batch=batch)
    assert model_flop(blocks_of(asked), asked.workload) == pytest.approx(paper, rel=1e-6)


def test_model_operations_of_a_mixture_count_visited_experts() -> None:
    # mixtral-8x7b: 12.9 B active parameters of 46.7 B (Jiang et al. 2024, arXiv:2401.04088)
    asked = scenario("mixtral-8x7b", sequence_length=1, global_batch=1)
    assert model_flop(blocks_of(asked), asked.workload) / 6 == pytest.approx(12.9e9, rel=0.02)


def test_frozen_weights_have_no_weight_gradient() -> None:
    full, lora = scenario(), scenario(lora_rank=8)
    layouts = Layouts.of(Layout())
    times = [block_time(q, blocks_of(q)[1], layouts) for q in (full, lora)]
    assert times[1].weight_gradient_s < 0.2 * times[0].weight_gradient_s
    assert times[1].backward_s < times[0].backward_s


def test_recompute_repeats_the_forward_of_layers_only() -> None:
    q = scenario(sequence_length=4096)
    layouts = Layouts.stack([Layout(), Layout(recompute="selective"), Layout(recompute="full")])
    layer = block_time(q, blocks_of(q)[1], layouts)
    assert layer.recompute_s[0] == 0
    assert 0 <= layer.recompute_s[1] < layer.recompute_s[2]
    assert layer.recompute_s[2] == layer.forward_s[2]
    head = block_time(q, blocks_of(q)[-1], layouts)
    assert head.recompute_s.tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("machine", "precision", "tflop_per_s"),
    [
        ("aurora", "fp32", 20.6),  # ALCF: 12 busy tiles
        ("aurora", "tf32", 104.5),
        ("aurora", "bf16", 207.0),
        ("dgx-h100", "bf16", 794.5),  # stas00/ml-engineering
        ("dgx-h100", "fp8", 1402.6),
        ("dgx-gb200", "fp8", 3615.6),
    ],
)
def test_every_precision_has_its_own_best_product(
    machine: str, precision: str, tflop_per_s: float
) -> None:
    found = load_machine(machine)
    best = found.peak(precision) * found.device.best_product(precision)
    assert best / 1e12 == pytest.approx(tflop_per_s, rel=0.005)


def test_products_run_at_the_rate_of_their_precision() -> None:
    """The head stays in 16 bits; a layer's products in fp8 take what fp8's best product allows."""

    def forward_s(fp8: float) -> list[float]:
        machine = load_machine("dgx-h100")
        device = machine.device.model_dump()
        device["gemm_efficiencies"]["fp8"]["value"] = fp8
        q = scenario(machine=machine.replaced(device=device), precision="fp8")
        times = [block_time(q, block, Layouts.of(Layout())) for block in blocks_of(q)]
        return [float(time.forward_s) for time in times]

    (_, layer, head), (_, slower, same) = forward_s(0.8), forward_s(0.4)
    assert slower > 1.5 * layer
    assert same == head


def test_weight_gradients_are_part_of_backward() -> None:
    q = scenario()
    for block in blocks_of(q):
        time = block_time(q, block, Layouts.of(Layout()))
        assert 0 <= time.weight_gradient_s <= time.backward_s


@given(st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 4, 8, 16]), st.sampled_from([1, 2, 4]))
def test_more_work_takes_longer_and_more_ranks_shorter(tp: int, micro: int, cp: int) -> None:
    q = scenario(sequence_length=4096)

    def forward(layout: Layout) -> float:
        time = block_time(q, blocks_of(q)[1], Layouts.of(layout))
        return float(time.forward_s + time.backward_s)

    here = forward(Layout(tp=tp, micro_batch=micro, cp=cp))
    assert forward(Layout(tp=tp, micro_batch=2 * micro, cp=cp)) >= here
    assert forward(Layout(tp=2 * tp, micro_batch=micro, cp=cp)) <= here
    assert forward(Layout(tp=tp, micro_batch=micro, cp=2 * cp)) <= here


@pytest.mark.parametrize(
    ("split", "plain", "sequence"),
    [("sharded", 4, 4), ("residual", 1, 4), ("gathered", 1, 4), ("replicated", 1, 1)],
)
def test_share_of_a_split(split: str, plain: int, sequence: int) -> None:
    layouts = Layouts.stack([Layout(tp=4), Layout(tp=4, sequence_parallel=True)])
    assert split_over(split, layouts).tolist() == [plain, sequence]  # type: ignore[arg-type]
    if split == "gathered":
        assert split_over("gathered", layouts, gathered=True).tolist() == [1, 1]


def attention_rates(machine: str, tokens: int, head_dim: int) -> tuple[float, float]:
    """Rates of the attention core alone, forward and backward, without the mask [FLOP/s]."""
    q = scenario(machine=machine, sequence_length=tokens)
    core = Attention(2048 // head_dim, 2048 // head_dim, head_dim, head_dim, causal=True)
    alone = replace(blocks_of(q)[1], gemms=(), attentions=(core,), pointwise=())
    time = block_time(q, alone, Layouts.of(Layout()))
    flop = float(attention_flop(core, tokens, tokens, skips_masked=True))
    return flop / float(time.core_forward_s), 2.5 * flop / float(time.core_backward_s)


@pytest.mark.parametrize("tokens", [4096, 8192, 16384])
@pytest.mark.parametrize(("head_dim", "printed"), [(64, (210, 216)), (128, (200, 205))])
def test_attention_of_pvc_by_its_kernels(
    tokens: int, head_dim: int, printed: tuple[float, float]
) -> None:
    """intel/intel-xpu-backend-for-triton#5771: SYCL-TLA forward on a tile of 64 Xe cores at 1.6
    GHz, causal, printed with the masked half; Aurora's tiles have 56 at 1.5 GHz."""
    forward, backward = attention_rates("aurora", tokens, head_dim)
    low, high = (rate / 2 * 1e12 * 56 / 64 * 1.5 / 1.6 for rate in printed)
    assert 0.93 * low < forward < 1.07 * high
    # #7149: 137 TF/s backward at 2,048 tokens with heads of 128, printed in the same way
    assert backward / forward == pytest.approx(137 / 2 / 100, rel=0.03)


def test_attention_of_pvc_keeps_its_rate_where_that_of_nvidia_falls() -> None:
    """intel/intel-xpu-backend-for-triton#1758: XeTLA 110 TF/s at 1,024 tokens, 115 at 4,096."""
    kept = attention_rates("aurora", 1024, 64)[0] / attention_rates("aurora", 4096, 64)[0]
    assert kept == pytest.approx(110.3 / 115.2, rel=0.05)
    assert attention_rates("selene", 1024, 64)[0] < 0.8 * attention_rates("selene", 4096, 64)[0]


def test_measured_peak_is_the_machine_s() -> None:
    q = scenario(sequence_length=2048)
    layer = block_time(q, blocks_of(q)[1], Layouts.of(Layout(micro_batch=8)))
    flop = sum(2.0 * 8 * 2048 * g.n * g.k for g in blocks_of(q)[1].gemms)
    assert flop / float(np.asarray(layer.forward_s)) < q.machine.peak("bf16")


def test_recompute_that_stops_early_spares_the_last_product() -> None:
    """torch.utils.checkpoint from 2.1 on: the down projection's input is the last thing saved."""
    known, layouts = load_framework("llm-foundry"), Layouts.of(Layout(recompute="full"))
    times = []
    for stops in (False, True):
        kernels = known.kernels.replaced(stops_early=stops)
        q = scenario(framework=known.model_copy(update={"kernels": kernels}))
        layer = blocks_of(q)[1]
        times.append(block_time(q, layer, layouts))
    alone = replace(layer, gemms=layer.gemms[-1:], attentions=(), pointwise=())
    spared = float(times[0].recompute_s) - float(times[1].recompute_s)
    assert layer.gemms[-1].name == "mlp.down"
    assert spared == pytest.approx(float(block_time(q, alone, layouts).forward_s))
    assert float(times[0].recompute_s) == float(times[0].forward_s)


def test_gradients_are_added_in_their_own_width() -> None:
    """Megatron-LM of 2021: fp16 gradients read, added to and written, fp32 ones for bf16."""
    layouts = Layouts.of(Layout(grad_accumulation=2))
    added = {}
    for precision in ("fp16", "bf16"):
        q = scenario("gpt3-175b", "megatron-lm-2021", precision=precision)
        layer = blocks_of(q)[1]
        once = block_time(q, layer, Layouts.of(Layout()))
        more = block_time(q, layer, layouts)
        rate = q.machine.device.memory_bytes_per_s.value * q.machine.device.memory_efficiency.value
        spent = float(more.weight_gradient_s - once.weight_gradient_s)
        added[precision] = spent * rate / sum(gemm.n * gemm.k for gemm in layer.gemms)
    assert added == pytest.approx({"fp16": 2 + 2 * 2, "bf16": 2 + 2 * 4})


def _alone(gemm: Gemm) -> Block:
    return Block("alone", "layer", 1, (), gemms=(gemm,))


def test_rows_of_a_token_are_as_so_many_tokens() -> None:
    q, layouts = scenario(sequence_length=2), [Layouts.of(Layout(micro_batch=b)) for b in (1, 64)]
    rows, tokens = (
        block_time(q, _alone(gemm), layout)
        for gemm, layout in zip(
            (Gemm("a", 512, 256, rows=64), Gemm("b", 512, 256)), layouts, strict=True
        )
    )
    assert float(rows.forward_s) == float(tokens.forward_s)
    assert float(rows.backward_s) == float(tokens.backward_s)
    one = model_flop((_alone(Gemm("a", 512, 256, rows=64)),), q.workload)
    assert float(one) == 6 * 512 * 256 * 64 * q.workload.tokens_per_step


def test_what_rows_share_is_moved_once() -> None:
    """A 3 x 3 kernel uses each place nine times and reads it once: apart it is memory-bound."""
    q, layouts = scenario(sequence_length=1), Layouts.of(Layout(micro_batch=256))
    apart = Gemm("apart", 64, 9 * 64, rows=56 * 56)
    shared = replace(apart, inputs=64 * 56 * 56)
    rate = q.machine.device.memory_bytes_per_s.value * q.machine.device.memory_efficiency.value
    rows = 256 * 56 * 56
    once, often = (float(block_time(q, _alone(g), layouts).forward_s) for g in (shared, apart))
    assert often == pytest.approx(2 * (rows * 10 * 64 + 9 * 64 * 64) / rate)
    assert 2 * (rows * 2 * 64 + 9 * 64 * 64) / rate <= once < often


def test_convolutions_run_at_a_rate_of_their_own() -> None:
    """On matrix units a fraction of a product's, on vector units that of a product."""
    q = scenario(sequence_length=1)
    device = q.machine.device
    layouts, wide = Layouts.of(Layout(micro_batch=256)), Gemm("wide", 2048, 4096, rows=1024)
    times = {}
    for precision, fraction in [(p, f) for p in ("bf16", "fp32") for f in (0.25, 0.5)]:
        part = device.convolution_fraction.replaced(value=fraction)
        changed = q.machine.replaced(device=device.replaced(convolution_fraction=part).model_dump())
        asked = scenario(sequence_length=1, precision=precision, machine=changed)
        time = block_time(asked, _alone(replace(wide, convolution=True)), layouts)
        times[precision, fraction] = float(time.forward_s)
    assert times["bf16", 0.25] == pytest.approx(2 * times["bf16", 0.5])
    assert times["fp32", 0.25] == times["fp32", 0.5]
