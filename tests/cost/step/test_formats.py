"""What formats of gradients, states and products cost in time."""

from __future__ import annotations

import pytest

from planner.cost.operators.blocks import blocks_of
from planner.cost.shards.layouts import Layouts
from planner.cost.shards.stages import Stages
from planner.cost.step.compute.block_time import block_time
from planner.cost.step.optimizer import device_optimizer_s, host_update_bytes, update_bytes
from planner.describe.catalogue import load_framework
from planner.describe.layout import Layout
from tests.descriptions import scenario


def forward_s(name: str) -> float:
    asked = scenario("llama-3-8b", name, "dgx-h100", precision="fp8")
    return block_time(asked, blocks_of(asked)[1], Layouts.of(Layout())).forward_s.item()


def test_tensorwise_scaling_reads_activations_once_more() -> None:
    """Inputs of a layer's products (qkv, out, gate and up, down) at three bytes an element; the
    weights' 8-bit copies are kept."""
    asked = scenario("llama-3-8b", "megatron-lm", "dgx-h100")
    device = asked.machine.device
    rate = device.memory_bytes_per_s.value * device.memory_efficiency.value
    inputs = sum(gemm.k for gemm in blocks_of(asked)[1].gemms)
    more = forward_s("megatron-lm+fp8-tensorwise") - forward_s("megatron-lm")
    assert more == pytest.approx(3 * 4096 * inputs / rate, rel=1e-6)
    assert forward_s("megatron-lm+fp8-blockwise") < forward_s("megatron-lm+fp8-tensorwise")


def test_an_update_moves_what_is_kept() -> None:
    # gradient, twice copy and moments, 16-bit weight
    moved = {
        name: update_bytes(
            Stages.of_pipeline(scenario("llama-3-8b", "megatron-lm" + name), Layout())
        )
        for name in (
            "",
            "+bf16-gradients",
            "+precision-aware+bf16-moments",
            "+precision-aware+fp8-moments",
        )
    }
    assert [*moved.values()] == [4 + 24 + 2, 2 + 24 + 2, 4 + 12 + 2, 4 + 8 + 2]


def test_an_unfused_update_moves_as_much_in_each_of_its_passes() -> None:
    framework = load_framework("megatron-lm")
    times = []
    for fused in (True, False):
        kernels = {**framework.kernels.model_dump(), "fused_optimizer": fused}
        job = scenario("llama-3-8b", framework.replaced(kernels=kernels))
        times.append(device_optimizer_s(Stages.of_pipeline(job, Layout())).item())
    # one kernel per operation moves 2.5 times 30 bytes; the norm reads 4 of gradients once
    assert times[1] / times[0] == pytest.approx((2.5 * 30 + 4) / (30 + 4))


def test_an_optimizer_in_backward_reads_no_norm() -> None:
    names = ("ddp+bf16-training", "ddp+bf16-training+optimizer-in-backward")
    plain, fused = (
        device_optimizer_s(Stages.of_pipeline(scenario("llama-3-8b", name), Layout())).item()
        for name in names
    )
    # weight and moments read and written, gradient read; its norm reads it once more
    assert fused / plain == pytest.approx((2 + 12) / (2 + 12 + 2))


def test_torchs_adam_on_the_host_is_not_fused() -> None:
    names = ("deepspeed", "deepspeed+torch-adam", "deepspeed+bf16-states")
    fused, plain, narrow = (
        host_update_bytes(Stages.of_pipeline(scenario("llama-3-8b", name), Layout()))
        for name in names
    )
    # one kernel per operation moves 2.5 times as much; unscaling and copying are the same
    assert (fused, plain) == (28 + 14, 2.5 * 28 + 14)
    assert narrow < fused


def test_rowwise_scaling_converts_both_layouts_apart() -> None:
    """torchao 0.12, testing/float8/roofline_utils.py: 3 bytes along an operand's order; across it
    it is turned first, which runs at 0.65 of 2.1 TB/s (pytorch/pytorch#149982): 16; results of both
    backward products are read and written once more to be scaled: 4."""
    plain, rowwise = (
        scenario("llama-3-8b", f"fsdp2{name}", "dgx-h100", precision="fp8")
        for name in ("", "+fp8-rowwise")
    )
    device = plain.machine.device
    rate = device.memory_bytes_per_s.value * device.memory_efficiency.value
    layer = blocks_of(plain)[1]
    before, after = (block_time(job, layer, Layouts.of(Layout())) for job in (plain, rowwise))
    tokens = 4096
    inputs = sum(gemm.k for gemm in layer.gemms) * tokens
    outputs = sum(gemm.n for gemm in layer.gemms) * tokens
    weights = sum(gemm.n * gemm.k for gemm in layer.gemms)
    forward = (3 - 5) * (inputs + weights)
    input_gradient = (3 - 5) * outputs + (16 - 5) * weights + 4 * inputs
    weight_gradient = (16 - 5) * (inputs + outputs) + 4 * weights
    assert after.forward_s - before.forward_s == pytest.approx(forward / rate)
    assert after.weight_gradient_s - before.weight_gradient_s == pytest.approx(
        weight_gradient / rate
    )
    assert after.backward_s - before.backward_s == pytest.approx(
        (input_gradient + weight_gradient) / rate
    )
