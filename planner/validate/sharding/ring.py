"""Ring: context parallelism, torch's own ring attention around this package's kernel.

torch runs it with the kernels of accelerators alone; here it gets one that runs on a CPU and on
fake tensors. Keys and values are gathered once in each direction, as torchtitan does by default.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from planner.validate.sharding import adapter
from planner.validate.sharding.flash import flash_attention, flash_gradients

__all__ = ["ring_attention"]

_SEQUENCE = 2
"""Dimension of tokens in (batch, head, token, width)."""


def ring_attention(q: Tensor, k: Tensor, v: Tensor, group: Any) -> Tensor:
    """Causal attention of this rank's tokens to those of all ranks of a group."""
    out: Tensor = _Ring.apply(q, k, v, group)
    return out


def _forward(q: Tensor, k: Tensor, v: Tensor, is_causal: bool) -> tuple[Tensor, Tensor]:
    out, rows = flash_attention(q, k, v, is_causal, [])
    return out, rows


def _backward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    is_causal: bool,
    grad_out: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    saved = [query, key, value, out, logsumexp]
    of_query, of_key, of_value = flash_gradients(grad_out, None, saved, is_causal, [])
    return of_query, of_key, of_value


class _Ring(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, group: Any) -> Tensor:
        forward, _ = adapter.ring_templates()
        out, rows = forward(group, _SEQUENCE, _forward, q, k, v, is_causal=True)
        ctx.save_for_backward(q, k, v, out, rows)
        ctx.group = group
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        _, backward = adapter.ring_templates()
        found = backward(
            ctx.group, _SEQUENCE, _backward, gradient, "grad_out", *ctx.saved_tensors, True
        )
        return *found, None
