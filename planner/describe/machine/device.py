"""Device: one accelerator as the framework sees it, its memory, peaks and efficiencies."""

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
    """One accelerator as the framework sees it (or a whole CPU node)."""

    name: str
    """Product name."""
    runtime: Runtime
    """Programming runtime; decides library names and the size of the context."""
    memory_bytes: Memory
    """Usable memory before the runtime context is created [B]."""
    context_bytes: ByteCount
    """Memory that runtime context, kernels and library workspaces take [B]."""
    communicator_bytes: ByteCount
    """Memory that one communicator (NCCL, RCCL, oneCCL) takes for its buffers [B]."""
    is_apu: bool = False
    """Whether its memory is the host's, as that of an APU; a CPU's always is."""
    memory_bytes_per_s: Rate
    """Peak memory bandwidth [B/s]."""
    peak_flop_per_s: dict[Precision, Rate]
    """Peak dense rate per precision; a precision that is absent is not supported [FLOP/s]."""
    num_units: Count
    """Streaming multiprocessors, compute units or Xe cores: the width of one GEMM wave."""
    gemm_efficiency: Fraction
    """Best fraction of the 16-bit peak that a large library GEMM sustains."""
    gemm_efficiencies: dict[Precision, Fraction] = Field(default_factory=dict)
    """The same of other precisions' peaks, whose units differ; `gemm_efficiency` where none is
    stated."""
    sustained_fraction: Fraction
    """What the GEMMs of a training step sustain of `gemm_efficiency`: power limits, shapes that
    suit the library less, other kernels between."""
    grouped_gemm_fraction: Fraction
    """Rate of grouped products of experts relative to one large product."""
    convolution_fraction: Fraction = Fraction(
        value=0.65, kind="assumed", source="as calibrated on A100"
    )
    """Rate of convolutions on matrix units relative to one large product."""
    attention_efficiency: Fraction
    """Fraction of the 16-bit peak that fused attention forward sustains on long sequences."""
    memory_efficiency: Fraction
    """Fraction of the memory bandwidth that streaming kernels sustain."""
    launch_s: Duration
    """Host time to launch one kernel from an eager framework [s]."""
    power_watts: Power | None = None
    """What it draws at most, its thermal design power [W]."""

    def best_product(self, precision: str) -> float:
        """Best fraction of a precision's peak that a large library GEMM sustains [1]."""
        efficiencies = {str(name): best for name, best in self.gemm_efficiencies.items()}
        return efficiencies.get(precision, self.gemm_efficiency).value

    def is_of(self, names: tuple[str, ...]) -> bool:
        """Whether its name has one of some parts; without any, all devices are meant."""
        return not names or any(name in self.name for name in names)

    @property
    def uses_host_memory(self) -> bool:
        """Whether there is one memory and not two: nothing can be offloaded from it to the host."""
        return self.is_apu or self.runtime == "cpu"
