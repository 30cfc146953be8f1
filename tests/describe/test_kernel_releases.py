"""Kernel releases: rates follow from what was measured, and programs find the kernel of a month."""

from __future__ import annotations

import math

import pytest

from planner.cost.step.compute.gemm import attention_efficiency
from planner.describe.catalogue import load_framework, load_machine
from planner.describe.framework.kernel_releases import (
    AttentionKernel,
    attention_kernel,
    kernel_releases,
    product_fraction,
)
from planner.errors import DescriptionError

PEAK = {"ampere": 312e12, "hopper": 989e12, "blackwell": 2500e12, "blackwell-ultra": 2500e12}
"""Dense 16-bit peaks of A100, H100, GB200 and GB300 [FLOP/s]."""
ON_B200 = ("flash-attention-2", "cudnn-9.10")
"""Kernels of Blackwell that were measured on B200, whose peak is 2250 TF/s."""
KERNELS = kernel_releases().kernels
MEASURED = [kernel for kernel in KERNELS if kernel.efficiency.kind == "measured"]


def rates(kernel: AttentionKernel) -> list[float]:
    """Forward plus backward rate at 4096 and 8192 tokens [FLOP/s]."""
    if total := kernel.flop_per_s.get("total"):
        return list(total[-2:])
    pairs = zip(kernel.flop_per_s["forward"], kernel.flop_per_s["backward"], strict=True)
    return [3.5 / (1 / forward + 2.5 / backward) for forward, backward in pairs][-2:]


@pytest.mark.parametrize("kernel", MEASURED, ids=lambda k: f"{k.architecture}-{k.name}")
def test_efficiency_reproduces_the_measured_rates(kernel: AttentionKernel) -> None:
    b200 = kernel.architecture == "blackwell" and kernel.name in ON_B200
    peak = 2250e12 if b200 else PEAK[kernel.architecture]
    share = 3.5 / (1 + 2.5 / 0.88)
    fractions = [
        rate / (peak * share * tokens / (tokens + 512))
        for rate, tokens in zip(rates(kernel), (4096, 8192), strict=True)
    ]
    expected = math.sqrt(math.prod(fractions))
    assert kernel.efficiency.value == pytest.approx(expected, abs=0.006)


def test_a_newer_library_is_never_slower_on_its_architecture() -> None:
    for architecture in PEAK:
        of_cudnn = [
            kernel.efficiency.value
            for kernel in sorted(KERNELS, key=lambda kernel: kernel.since)
            if kernel.architecture == architecture and kernel.name.startswith("cudnn")
        ]
        assert of_cudnn == sorted(of_cudnn)


@pytest.mark.parametrize(
    ("program", "machine", "month", "name"),
    [
        ("transformer-engine", "dgx-h100", "2023-10", "flash-attention-2"),
        ("transformer-engine", "dgx-h100", "2024-07", "cudnn-9.1"),
        ("transformer-engine", "polaris", "", "flash-attention-2"),
        ("nemo", "dgx-h100", "2024-12", "flash-attention-2"),
        ("nemo", "dgx-h100", "2025-06", "cudnn-9.4"),
        ("torch-sdpa", "dgx-h100", "2025-12", "flash-attention-2"),
        ("torch-sdpa", "dgx-h100", "", "cudnn-9.19"),
        ("torchtitan", "dgx-h100", "", "flash-attention-2"),
        ("torchtitan", "dgx-gb200", "2025-06", "cudnn-9.10"),
        ("flash-attention-3", "dgx-h100", "", "flash-attention-3"),
        ("flash-attention-3", "polaris", "", "flash-attention-2"),
        ("torch-sdpa", "polaris", "2021-04", "flash-attention-1"),
    ],
)
def test_a_program_uses_the_kernel_of_its_month(
    program: str, machine: str, month: str, name: str
) -> None:
    kernel = attention_kernel(program, load_machine(machine).device, month)
    assert kernel is not None
    assert kernel.name == name


def test_a_profile_that_states_its_attention_wins() -> None:
    own = load_machine("dgx-h100", ("device.attention_efficiency=0.5",)).device
    assert attention_efficiency(load_framework("megatron-lm"), own) == 0.5


def test_a_device_without_a_measured_kernel_must_state_its_attention() -> None:
    device = load_machine("aurora").device.replaced(attention_efficiency=None)
    with pytest.raises(DescriptionError, match=r"state device\.attention_efficiency"):
        attention_efficiency(load_framework("ddp"), device)


def test_products_of_mi300x_gained_with_rocm_6_2() -> None:
    device = load_machine("mi300x-node").device
    # best product of all repeats, 615.9 against 781.9 TF/s (stas00/ml-engineering)
    assert product_fraction(device, "2024-06") == pytest.approx(615.9 / 781.9, abs=0.005)
    assert product_fraction(device, "2024-10") == product_fraction(device, "") == 1


@pytest.mark.parametrize("text", ["2024", "2024-13", "24.03", "soon"])
def test_a_month_is_year_and_month(text: str) -> None:
    with pytest.raises(DescriptionError, match="software_date"):
        load_framework(f"megatron-lm+software={text}")
