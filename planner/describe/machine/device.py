"""Device: one accelerator as a framework sees it: memory, peaks, efficiencies."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from planner.describe.base import (
    ByteCount,
    Count,
    Description,
    Duration,
    Fraction,
    Memory,
    Power,
    Rate,
)

__all__ = ["Device", "Precision", "Runtime"]

Precision = Literal["fp64", "fp32", "tf32", "fp16", "bf16", "fp8"]

Runtime = Literal["cuda", "rocm", "xpu", "cpu"]


class Device(Description):
    """One accelerator as a framework sees it, or a whole CPU node."""

    name: str
    """Product name."""
    runtime: Runtime
    """Programming runtime."""
    memory_bytes: Memory
    """Usable memory before the runtime context is created [B]."""
    context_bytes: ByteCount
    """Memory of the runtime context, kernels and library workspaces [B]."""
    communicator_bytes: ByteCount
    """Buffers of one communicator (NCCL, RCCL, oneCCL) [B]."""
    is_apu: bool = False
    """Whether device and host share one memory (APU); a CPU always does."""
    memory_bytes_per_s: Rate
    """Peak memory bandwidth [B/s]."""
    peak_flop_per_s: dict[Precision, Rate]
    """Peak dense rate per precision; absent precisions are not supported [FLOP/s]."""
    num_units: Count
    """Streaming multiprocessors, compute units or Xe cores: the width of one GEMM wave."""
    gemm_efficiency: Fraction
    """Fraction of the 16-bit peak that a large library GEMM reaches."""
    gemm_efficiencies: dict[Precision, Fraction] = Field(default_factory=dict)
    """The same for the peaks of other precisions; default `gemm_efficiency`."""
    sustained_fraction: Fraction
    """Fraction of `gemm_efficiency` that the GEMMs of a training step reach: power limits, worse
    shapes, other kernels between."""
    grouped_gemm_fraction: Fraction
    """Rate of the grouped GEMMs of experts / rate of one large GEMM."""
    convolution_fraction: Fraction = Fraction(
        value=0.65, kind="assumed", source="as calibrated on A100"
    )
    """Rate of convolutions on matrix units / rate of one large GEMM."""
    attention_efficiency: Fraction
    """Fraction of the 16-bit peak that fused attention (forward) reaches on long sequences."""
    memory_efficiency: Fraction
    """Fraction of the memory bandwidth that streaming kernels reach."""
    launch_s: Duration
    """Host time to launch one kernel from an eager framework [s]."""
    power_watts: Power | None = None
    """Thermal design power [W]."""

    def best_product(self, precision: str) -> float:
        """Fraction of a precision's peak that a large library GEMM reaches [1]."""
        efficiencies = {str(name): best for name, best in self.gemm_efficiencies.items()}
        return efficiencies.get(precision, self.gemm_efficiency).value

    def is_of(self, names: tuple[str, ...]) -> bool:
        """Whether its name contains one of `names`; True for no names."""
        return not names or any(name in self.name for name in names)

    @property
    def uses_host_memory(self) -> bool:
        """Whether device and host share one memory, so that nothing can be offloaded."""
        return self.is_apu or self.runtime == "cpu"
