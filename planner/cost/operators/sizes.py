"""Sizes: bytes per element of the tensors in a model's operators."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from planner.describe.framework.framework import Framework
from planner.describe.framework.traits import Kernels
from planner.describe.layout import Module
from planner.describe.model.block import Attention, Gemm, Pointwise, Saved
from planner.describe.model.model import Model
from planner.describe.workload import Workload

FP32 = 4
"""Bytes of an fp32 element."""

_MASK = 1  # a dropout mask is one byte per element


@dataclass(frozen=True, slots=True)
class Operators:
    """Operators and saved tensors of a part of a block."""

    gemms: tuple[Gemm, ...] = ()
    attentions: tuple[Attention, ...] = ()
    pointwise: tuple[Pointwise, ...] = ()
    saved: tuple[Saved, ...] = ()

    def __add__(self, operators: Operators) -> Operators:
        """Concatenate the operators of both."""
        names = (field.name for field in fields(self))
        return Operators(*(getattr(self, name) + getattr(operators, name) for name in names))

    def recomputed_with(self, module: Module) -> Operators:
        """Copy in which recompute of `module` repeats every operator and tensor."""

        def with_module(item: Any) -> Any:
            return replace(item, recomputed_with=(*item.recomputed_with, module))

        parts = (getattr(self, field.name) for field in fields(self))
        return Operators(*(tuple(map(with_module, part)) for part in parts))


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes per element of a model's tensors under a workload and a framework."""

    model: Model
    workload: Workload
    framework: Framework

    @property
    def kernels(self) -> Kernels:
        """Kernels of the framework."""
        return self.framework.kernels

    @property
    def element(self) -> int:
        """Bytes per activation element inside a layer [B]."""
        return self.workload.compute_bytes

    @property
    def saves_fp8(self) -> bool:
        """True if GEMMs save their inputs in 8 bits."""
        return self.kernels.saves_fp8 and self.workload.precision == "fp8"

    @property
    def product_input(self) -> int:
        """Saved bytes per element of a GEMM's input [B]."""
        return 1 if self.saves_fp8 else self.element

    @property
    def stream(self) -> int:
        """Bytes per element of the residual stream [B]."""
        return max(self.kernels.residual_bytes, self.element)

    @property
    def fuses_activation(self) -> bool:
        """True if the activation is one kernel with its bias or with the gate's multiplication."""
        gate = self.kernels.fused_gate if self.model.gated_mlp else None
        return self.kernels.fused_activation if gate is None else gate

    @property
    def activation_input(self) -> float:
        """Saved bytes per element of the activation function's input [B]."""
        gated = self.model.gated_mlp and self.model.activation == "silu"
        narrow = self.kernels.activation_input_bytes if gated and self.fuses_activation else 0
        return min(narrow or self.element, self.element)

    @property
    def writes_activation(self) -> bool:
        """True if the activation runs in elementary operations, as in transformers."""
        return self.kernels.transformers_blocks and not self.fuses_activation

    @property
    def exact_attention(self) -> str:
        """Part of eager attention that is computed in fp32 (`Written.exact_attention`)."""
        return self.model.written.exact_attention if self.kernels.transformers_blocks else "softmax"

    @property
    def fuses_norm(self) -> bool:
        """True if a norm is one kernel."""
        elementary = self.kernels.transformers_blocks and self.model.written.norm_saved_bytes > 0
        return self.kernels.fused_norm or not (elementary or self.model.norm == "rmsnorm")

    @property
    def shares_norm(self) -> bool:
        """True if attention and feed-forward read the output of one norm."""
        return self.model.parallel_residual and self.model.norms_per_layer == 1

    def norm_bytes(self, entering: int) -> int:
        """Bytes that a norm saves per element, for an input of `entering` bytes per element [B]."""
        if self.fuses_norm:
            return entering
        if self.model.norm != "rmsnorm":
            return self.model.written.norm_saved_bytes
        # unfused: fp32 input, and normalised output, in fp32 if it is scaled before rounding
        exact = self.kernels.transformers_blocks and self.model.written.exact_norm_weight
        return FP32 + (FP32 if exact else self.element)

    @property
    def mask(self) -> int:
        """Bytes per element of a dropout mask; 0 without dropout [B]."""
        chosen = self.workload.dropout
        return _MASK if (self.model.dropout if chosen is None else chosen) > 0 else 0
