"""Products: the matrix products, convolutions and attention of a step, by their sizes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

__all__ = ["BACKWARD", "FORWARD", "Operation"]

aten: Any = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Operation:
    """`copies` products (rows, k) x (k, n), or attention of `copies` heads."""

    kind: Literal["product", "batched", "convolution", "attention"]
    rows: int
    n: int
    k: int
    copies: int = 1
    inputs: int = 0
    """Elements that the rows of a convolution share."""
    values: int = 0
    """Width of a value, of attention."""
    causal: bool = False
    input_gradient: bool = True
    weight_gradient: bool = True
    small_kernel: bool = False
    """Whether it is a kernel of 3 x 3 that moves by one place."""


def _mm(args: Any, *_: Any) -> Operation:
    first, second = args[-2:]
    (m, k), n = first.shape, second.shape[1]
    return Operation("product", m, n, k, **_gradients(first, second))


def _bmm(args: Any, *_: Any) -> Operation:
    first, second = args[-2:]
    (copies, m, k), n = first.shape, second.shape[2]
    return Operation("product", m, n, k, copies, **_gradients(first, second))


def _convolution(args: Any, _: Any, out: Tensor) -> Operation:
    x, weight, _, stride, _, dilation, transposed, _, groups = args[:9]
    # a transposed one is the gradient of a plain one: its rows are the places of its input
    seen = x if transposed else out
    inside, n = math.prod(weight.shape[1:]), weight.shape[0] // groups
    small = not transposed and groups == 1 and tuple(weight.shape[2:]) == (3, 3)
    return Operation(
        "convolution",
        rows=seen.numel() // seen.shape[1] * groups,
        n=inside if transposed else n,
        k=n if transposed else inside,
        inputs=0 if transposed else x.numel(),
        small_kernel=small and {*stride, *dilation} == {1},
        **_gradients(x, weight),
    )


def _attention(args: Any, named: Any, _: Any) -> Operation:
    q, k, v = args[:3]
    causal = named.get("is_causal", args[4] if len(args) > 4 else False)
    return Operation(
        "attention",
        rows=q.shape[-2],
        n=k.shape[-2],
        k=q.shape[-1],
        copies=math.prod(q.shape[:-2]),
        values=v.shape[-1],
        causal=bool(causal),
    )


def _gradients(first: Tensor, second: Tensor) -> dict[str, bool]:
    return {"input_gradient": first.requires_grad, "weight_gradient": second.requires_grad}


FORWARD: dict[Any, Callable[[Any, Any, Tensor], Operation]] = {
    aten.mm: _mm,
    aten.addmm: _mm,
    aten.bmm: _bmm,
    aten.baddbmm: _bmm,
    aten.convolution: _convolution,
    aten._scaled_dot_product_flash_attention_for_cpu: _attention,
}
"""Operations of torch that are products, and how their sizes are read from arguments and result."""

BACKWARD = frozenset(
    (aten.convolution_backward, aten._scaled_dot_product_flash_attention_for_cpu_backward)
)
"""Their gradients, where these are operations of their own."""
