"""Context: attention of ranks that share a sequence, by a ring or by heads that are dealt out.

torch runs its own ring attention with the kernels of accelerators alone; here it gets one that runs
on a CPU and on fake tensors. Keys and values are gathered once in each direction, as torchtitan
does by default. Dealing heads out (Ulysses; Jacobs et al. 2023, arXiv:2309.14509, figure 2) takes
an all-to-all of queries, keys and values, which gives every rank the whole sequence of a part of
the heads, and one of the output, which gives it its tokens back.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from planner.validate.sharding import adapter
from planner.validate.sharding.adapter import all_to_all
from planner.validate.sharding.flash import flash_attention, flash_gradients
from planner.validate.sharding.recorder import CollectiveRecorder

__all__ = ["heads_attention", "on_ranks", "ring_attention"]

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
        gradients = backward(
            ctx.group, _SEQUENCE, _backward, gradient, "grad_out", *ctx.saved_tensors, True
        )
        return *gradients, None


def heads_attention(q: Tensor, k: Tensor, v: Tensor, group: Any) -> Tensor:
    """Causal attention of this rank's tokens to those of all ranks of a group, as (batch, token,
    head, width)."""
    ranks = dist.get_world_size(group)
    out = _attention(*(_to_heads(x, group, ranks) for x in (q, k, v)))
    return _to_tokens(out, group, ranks)


def _attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    grouped = k.shape[1] < q.shape[1]
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped).transpose(
        1, 2
    )


def _to_heads(x: Tensor, group: Any, ranks: int) -> Tensor:
    """All tokens of a part of the heads, from a part of the tokens of all."""
    batch, tokens, heads, width = x.shape
    sent = x.view(batch, tokens, ranks, heads // ranks, width).permute(2, 0, 1, 3, 4)
    received = all_to_all(sent.contiguous(), group)
    sequence: Tensor = received.transpose(0, 1).reshape(
        batch, ranks * tokens, heads // ranks, width
    )
    return sequence


def _to_tokens(x: Tensor, group: Any, ranks: int) -> Tensor:
    """A part of the tokens of all heads, from all tokens of a part of them."""
    batch, tokens, heads, width = x.shape
    sent = x.reshape(batch, ranks, tokens // ranks, heads, width).transpose(0, 1)
    received = all_to_all(sent.contiguous(), group)
    local_tokens: Tensor = received.permute(1, 2, 0, 3, 4).reshape(
        batch, tokens // ranks, -1, width
    )
    return local_tokens


def on_ranks(rank: Any, payload: dict[str, Any], send: Any) -> dict[str, Any]:
    """One pass of attention, forward and backward, beside that of one process: what is sent, and
    how far output and gradients are from it.

    `payload` has the tokens of the sequence, heads, key-value heads and their width.
    """
    del send
    from planner.validate.ranks.rank import joined

    tokens, heads, keys, width = (payload[name] for name in ("tokens", "heads", "keys", "width"))
    torch.manual_seed(0)
    inputs = [
        torch.randn(1, tokens, count, width, dtype=torch.float64) for count in (heads, keys, keys)
    ]
    with joined(rank):
        local_inputs = [
            x.chunk(rank.world, dim=1)[rank.rank].clone().requires_grad_() for x in inputs
        ]
        with CollectiveRecorder() as recorder:
            out = heads_attention(
                local_inputs[0], local_inputs[1], local_inputs[2], dist.group.WORLD
            )
            out.square().sum().backward()
        for x in inputs:
            x.requires_grad_()
        reference = _attention(*inputs)
        reference.square().sum().backward()
        part = slice(rank.rank * tokens // rank.world, (rank.rank + 1) * tokens // rank.world)
        pairs = [
            (out, reference),
            *((mine.grad, x.grad) for mine, x in zip(local_inputs, inputs, strict=True)),
        ]
        error = max(float((mine - x[:, part]).abs().max()) for mine, x in pairs if x is not None)
        sent = [(item.name, item.count, item.bytes) for item in recorder.operations()]
    return {"sent": sent, "error": error}
