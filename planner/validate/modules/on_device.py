"""On device: let fake CPU tensors save what an accelerator's kernels save.

Tensors without data are the CPU's, because a fake CUDA needs a torch that is built with it. Where
the two differ in what autograd keeps, the accelerator's is taken: a dropout mask is one byte, fused
attention drops inside its kernel, an RMS norm is one kernel, and autocast runs in fp32 what
CUDA's does (PyTorch, "Automatic Mixed Precision package", CUDA ops that autocast to float32).
"""

# torch leaves some of its functions untyped
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from planner.validate.sharding import adapter

__all__ = ["accelerator_kernels", "materialise"]

_IN_FP32 = frozenset(
    (
        *("layer_norm", "group_norm", "softmax", "log_softmax", "softmin", "softplus"),
        *("exp", "expm1", "log", "log10", "log1p", "log2", "pow", "__pow__", "__rpow__", "rsqrt"),
        *("reciprocal", "norm", "normalize", "cosine_similarity", "cdist", "cumprod", "cumsum"),
        *("cross_entropy", "nll_loss", "kl_div", "l1_loss", "smooth_l1_loss", "mse_loss"),
        *("binary_cross_entropy_with_logits", "cosine_embedding_loss", "triplet_margin_loss"),
    )
)
"""Functions that CUDA's autocast runs in fp32, and the CPU's does not."""
_EPS = 1e-6
_ATTENTION = functional.scaled_dot_product_attention


class _Kernels(TorchFunctionMode):
    """Replace functions whose CPU kernels save other tensors."""

    def __init__(self, autocast: bool) -> None:
        super().__init__()
        self.autocast = autocast

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        del types
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if func is functional.dropout:
            return _dropout(*args, **kwargs)
        if func is functional.rms_norm:
            return _rms_norm(*args, **kwargs)
        if func is _ATTENTION:
            return _attention(*args, **kwargs)
        if func is functional.multi_head_attention_forward:
            # what this calls inside is not seen by a mode
            with mock.patch.multiple(
                functional, dropout=_dropout, scaled_dot_product_attention=_attention
            ):
                return func(*args, **kwargs)
        if self.autocast and name in _IN_FP32:
            args = tuple(_wide(value) for value in args)
            kwargs = {key: _wide(value) for key, value in kwargs.items()}
        return func(*args, **kwargs)


def _wide(value: Any) -> Any:
    narrow = isinstance(value, Tensor) and value.dtype in (torch.bfloat16, torch.float16)
    return value.float() if narrow else value


def _dropout(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    del inplace
    if not training or p == 0.0:
        return x
    return torch.native_dropout(x, p, True)[0]


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **options: Any,
) -> Tensor:
    del dropout_p  # a fused kernel drops inside, and keeps a seed
    return _ATTENTION(query, key, value, attn_mask, 0.0, is_causal, **options)


def _rms_norm(
    x: Tensor, shape: Any, weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    if weight is None:
        weight = x.new_ones(shape)
    normed: Tensor = adapter.rms_norm(x, weight, _EPS if eps is None else eps)
    # the product by a number stands for what the kernel reads and writes
    return normed * 1.0


@contextlib.contextmanager
def accelerator_kernels(*, autocast: bool) -> Iterator[None]:
    """Run a module as an accelerator does, in fp32 or under autocast to 16 bits."""
    # without oneDNN recurrent layers are products and element-wise operations, not one operation
    with torch.backends.mkldnn.flags(enabled=False), _Kernels(autocast):
        if not autocast:
            yield
            return
        with torch.autocast("cpu", torch.bfloat16):
            yield


def materialise(module: nn.Module, real: torch.dtype = torch.float32) -> None:
    """Give all tensors of a module fake storage on the CPU, real numbers in one precision.

    Shared ones stay shared.
    """
    storages: dict[int, Tensor] = {}
    references: list[Tensor] = []

    def fake(tensor: Tensor) -> Tensor:
        if id(tensor) not in storages:
            dtype = real if tensor.is_floating_point() else tensor.dtype
            new = torch.empty_strided(tensor.size(), tensor.stride(), dtype=dtype, device="cpu")
            if isinstance(tensor, nn.Parameter):
                new = nn.Parameter(new, requires_grad=tensor.requires_grad)
            storages[id(tensor)] = new
            references.append(tensor)
        return storages[id(tensor)]

    for part in module.modules():
        tables: tuple[dict[str, Any], ...] = (part._parameters, part._buffers, vars(part))
        for table in tables:
            for name, value in list(table.items()):
                if isinstance(value, Tensor):
                    table[name] = fake(value)
