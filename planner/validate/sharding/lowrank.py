"""Low rank: frozen linear layers in 16 or 4 bits, with LoRA or DoRA adapters."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from planner.describe.workload import Workload
from planner.validate.sharding.models import Stage

_BLOCK = 64
_HALF = torch.bfloat16
_NAMES = {"query": "wq", "key": "wk", "value": "wv", "out": "wo"}
"""Adapter targets whose linear layer has another name here."""


@torch.library.custom_op("planner::unpack", mutates_args=())
def unpack(packed: Tensor, columns: int) -> Tensor:
    """Unpack a 4-bit matrix (equal steps, one fp32 scale per block) to bf16 in one kernel."""
    packed_bytes = packed.contiguous().view(torch.uint8)
    halves, scales = packed_bytes.split((columns // 2, 4 * columns // _BLOCK), -1)
    codes = torch.stack((halves // 16, halves % 16), -1).flatten(-2).float() - 8
    blocks = codes.unflatten(-1, (-1, _BLOCK)) / 7
    return (blocks * scales.contiguous().view(torch.float32).unsqueeze(-1)).flatten(-2).to(_HALF)


@unpack.register_fake
def _(packed: Tensor, columns: int) -> Tensor:
    return packed.new_empty((packed.shape[0], columns))


class _Product(torch.autograd.Function):
    """Product with a packed matrix, unpacked once in forward and once in backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, packed: Tensor, columns: int) -> Tensor:
        ctx.save_for_backward(packed)
        ctx.columns = columns
        return F.linear(x, unpack(packed, columns))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (packed,) = ctx.saved_tensors
        return gradient @ unpack(packed, ctx.columns), None, None


class Blockwise(nn.Module):
    """A frozen linear layer in 4 bits."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        rows, self.columns = linear.weight.shape
        width = (self.columns // 2 + 4 * self.columns // _BLOCK) // 2
        packed = torch.empty(rows, width, dtype=_HALF, device=linear.weight.device)
        self.packed = nn.Parameter(packed, requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """Multiply by the unpacked weights."""
        out: Tensor = _Product.apply(x, self.packed, self.columns)
        return out


class LowRank(nn.Module):
    """A frozen linear layer with a LoRA or DoRA adapter."""

    def __init__(self, base: nn.Module, shape: tuple[int, int], workload: Workload) -> None:
        super().__init__()
        (rows, columns), rank = shape, workload.lora_rank
        self.base, self.dropout = base, workload.lora_dropout
        self.a = nn.Linear(columns, rank, bias=False)
        self.b = nn.Linear(rank, rows, bias=False)
        self.magnitude = nn.Parameter(torch.empty(rows)) if workload.dora else None

    def forward(self, x: Tensor) -> Tensor:
        """Add the adapter to the base; DoRA scales the rows of their sum to its magnitudes."""
        out = self.base(x)
        inner = F.dropout(x, self.dropout) if self.dropout else x
        adapter_out = self.b(self.a(inner)) * 2.0
        if self.magnitude is None:
            return out + adapter_out
        scale = (self.magnitude / self._norms()).to(x.dtype)
        return out + (scale - 1) * out + scale * adapter_out

    @torch.no_grad()
    def _norms(self) -> Tensor:
        """Norms of the rows of base plus adapter, without gradients (DoRA, section 4.3)."""
        base: Any = self.base
        stored = isinstance(base, Blockwise)
        weight = unpack(base.packed, base.columns) if stored else base.weight
        return torch.linalg.vector_norm(weight + self.b.weight @ self.a.weight * 2.0, dim=1)


def adapt(stage: Stage, workload: Workload, dtype: torch.dtype) -> None:
    """Freeze a workload's frozen parts in compute precision, and add its adapters."""
    before, after = stage.ends()
    parts = {"embedding": before, "layers": list(stage.layers.values()), "head": after}
    frozen = [name for name in parts if workload.lora_rank or name in workload.frozen]
    for module in [module for name in frozen for module in parts[name]]:
        module.to(dtype).requires_grad_(False)
    if "layers" not in frozen:
        return
    for layer in stage.layers.values():
        for owner in list(layer.modules()):
            for name, linear in list(owner.named_children()):
                if isinstance(linear, nn.Linear):
                    setattr(owner, name, _adapted(name, linear, workload))


def _adapted(name: str, linear: nn.Linear, workload: Workload) -> nn.Module:
    rows, columns = linear.weight.shape
    base = Blockwise(linear) if workload.quantized else linear
    if workload.lora_rank and name in {_NAMES.get(t, t) for t in workload.lora_targets}:
        return LowRank(base, (rows, columns), workload)
    return base
