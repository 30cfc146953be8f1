"""Attention kernels: fused attention beyond torch's own on a CPU, and attention over context ranks.

The fused kernel takes heads of two widths, ALiBi and sinks. It saves what kernels of
accelerators save: queries, keys, values, output and one fp32 number per row. Fake tensors give
shapes alone.

Ring attention is torch's own around this kernel. Keys and values are gathered once in each
direction, as torchtitan does by default. Ulysses (Jacobs et al. 2023, arXiv:2309.14509, figure 2)
takes an all-to-all of queries, keys and values, which gives every rank the whole sequence of some
heads, and one of the output, which gives every rank its tokens back.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from planner.validate.sharding import adapter
from planner.validate.sharding.adapter import all_to_all
from planner.validate.sharding.recorders import CollectiveRecorder

__all__ = [
    "OPERATOR",
    "alibi_slopes",
    "flash_attention",
    "flash_gradients",
    "heads_attention",
    "on_ranks",
    "ring_attention",
]

_NAME = "planner::flash_attention"


def alibi_slopes(first: int, count: int, total: int) -> list[float]:
    """ALiBi slopes of `count` heads of `total`, from head `first` on.

    Press et al. 2021, arXiv:2108.12409: 2^(-8 i / n) for n heads, a power of two.

    >>> alibi_slopes(2, 2, 8)
    [0.125, 0.0625]
    """
    return [2 ** (-8 * (head + 1) / total) for head in range(first, first + count)]


@torch.library.custom_op(_NAME, mutates_args=())
def flash_attention(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, slopes: list[float]
) -> tuple[Tensor, Tensor]:
    """Fused attention of (batch, head, token, width): output and log-sum-exp of each row."""
    scores = _scores(q, k, causal, slopes)
    rows = scores.logsumexp(-1)
    out = (scores - rows.unsqueeze(-1)).exp() @ _repeat_heads(v, q).float()
    return _lay_out(out.to(q.dtype)), rows


@torch.library.custom_op(f"{_NAME}_backward", mutates_args=())
def flash_gradients(
    gradient: Tensor,
    of_rows: Tensor | None,
    saved: list[Tensor],
    causal: bool,
    slopes: list[float],
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of queries, keys and values; `saved` are these, the output and its rows."""
    q, k, v, out, rows = saved
    gradient = gradient.float()
    weights = (_scores(q, k, causal, slopes) - rows.unsqueeze(-1)).exp()
    inner = gradient @ _repeat_heads(v, q).float().transpose(-2, -1)
    inner = inner - (gradient * out.float()).sum(-1, keepdim=True)
    if of_rows is not None:
        inner = inner + of_rows.unsqueeze(-1)
    inner = weights * inner * q.shape[-1] ** -0.5
    gradients = (
        inner @ _repeat_heads(k, q).float(),
        _sum_heads(inner.transpose(-2, -1) @ q.float(), k),
        _sum_heads(weights.transpose(-2, -1) @ gradient, v),
    )
    to_q, to_k, to_v = (g.to(q.dtype) for g in gradients)
    return to_q, to_k, to_v


@flash_attention.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, causal: bool, slopes: list[float]) -> tuple[Tensor, Tensor]:
    out = q.new_empty((q.shape[0], q.shape[2], q.shape[1], v.shape[-1])).transpose(1, 2)
    return out, q.new_empty(q.shape[:-1], dtype=torch.float32)


@flash_gradients.register_fake
def _(
    gradient: Tensor,
    of_rows: Tensor | None,
    saved: list[Tensor],
    causal: bool,
    slopes: list[float],
) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v, *_ = saved
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def _keep(ctx: torch.autograd.function.FunctionCtx, inputs: tuple, output: tuple) -> None:  # type: ignore[type-arg]
    q, k, v, ctx.causal, ctx.slopes = inputs  # type: ignore[attr-defined]
    ctx.save_for_backward(q, k, v, *output)


def _gradients(  # type: ignore[no-untyped-def]
    ctx, gradient: Tensor, of_rows: Tensor | None
) -> tuple[Tensor | None, ...]:
    saved = list(ctx.saved_tensors)
    return *flash_gradients(gradient, of_rows, saved, ctx.causal, ctx.slopes), None, None


flash_attention.register_autograd(_gradients, setup_context=_keep)
OPERATOR = torch.ops.planner.flash_attention.default
"""As recompute policies name it."""


def _repeat_heads(x: Tensor, q: Tensor) -> Tensor:
    """Repeat keys or values for each query head."""
    return x.repeat_interleave(q.shape[1] // x.shape[1], 1)


def _sum_heads(gradient: Tensor, x: Tensor) -> Tensor:
    """Sum the gradients of query heads that share a head of `x`."""
    return gradient.unflatten(1, (x.shape[1], -1)).sum(2)


def _lay_out(out: Tensor) -> Tensor:
    """Lay out the output as fused kernels do: a token's heads side by side."""
    return out.transpose(1, 2).contiguous().transpose(1, 2)


def _scores(q: Tensor, k: Tensor, causal: bool, slopes: list[float]) -> Tensor:
    scores = q.float() @ _repeat_heads(k, q).float().transpose(-2, -1) * q.shape[-1] ** -0.5
    places = torch.arange(scores.shape[-1], device=q.device)
    distance = places.unsqueeze(0) - places.unsqueeze(1)
    if slopes:
        scores = scores + distance * torch.tensor(slopes, device=q.device).view(-1, 1, 1)
    return scores.masked_fill(distance > 0, float("-inf")) if causal else scores


_SEQUENCE = 2
"""Dimension of tokens in (batch, head, token, width)."""


def ring_attention(q: Tensor, k: Tensor, v: Tensor, group: Any) -> Tensor:
    """Ring attention: causal, from this rank's tokens to the tokens of all ranks."""
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
    """Ulysses attention of (batch, token, head, width): causal, over the tokens of all ranks."""
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
    """Exchange sequence shards of all heads for all tokens of some heads."""
    batch, tokens, heads, width = x.shape
    sent = x.view(batch, tokens, ranks, heads // ranks, width).permute(2, 0, 1, 3, 4)
    received = all_to_all(sent.contiguous(), group)
    sequence: Tensor = received.transpose(0, 1).reshape(
        batch, ranks * tokens, heads // ranks, width
    )
    return sequence


def _to_tokens(x: Tensor, group: Any, ranks: int) -> Tensor:
    """Exchange all tokens of some heads for sequence shards of all heads."""
    batch, tokens, heads, width = x.shape
    sent = x.reshape(batch, ranks, tokens // ranks, heads, width).transpose(0, 1)
    received = all_to_all(sent.contiguous(), group)
    local_tokens: Tensor = received.permute(1, 2, 0, 3, 4).reshape(
        batch, tokens // ranks, -1, width
    )
    return local_tokens


def on_ranks(rank: Any, payload: dict[str, Any], send: Any) -> dict[str, Any]:
    """Run Ulysses attention beside one process: its traffic, and its largest error.

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
