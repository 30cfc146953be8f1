"""Flash: fused attention beyond torch's own on a CPU: heads of two widths, ALiBi, sums for sinks.

What it keeps is what the kernels of accelerators keep: queries, keys, values, output and one fp32
number per row. With real tensors it computes; with fake ones it makes the shapes.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["OPERATOR", "alibi_slopes", "flash_attention", "flash_gradients"]

_NAME = "planner::flash_attention"


def alibi_slopes(first: int, count: int, total: int) -> list[float]:
    """Slope of each head's distance, for `count` of `total` heads from `first` on.

    Press et al. 2021, arXiv:2108.12409: 2^(-8 i / n) for n heads, a power of two.

    >>> alibi_slopes(2, 2, 8)
    [0.125, 0.0625]
    """
    return [2 ** (-8 * (head + 1) / total) for head in range(first, first + count)]


@torch.library.custom_op(_NAME, mutates_args=())
def flash_attention(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, slopes: list[float]
) -> tuple[Tensor, Tensor]:
    """Output and logarithm of the sum of exponentials, of (batch, head, token, width)."""
    scores = _scores(q, k, causal, slopes)
    rows = scores.logsumexp(-1)
    out = (scores - rows.unsqueeze(-1)).exp() @ _repeated(v, q).float()
    return _laid_out(out.to(q.dtype)), rows


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
    inner = gradient @ _repeated(v, q).float().transpose(-2, -1)
    inner = inner - (gradient * out.float()).sum(-1, keepdim=True)
    if of_rows is not None:
        inner = inner + of_rows.unsqueeze(-1)
    inner = weights * inner * q.shape[-1] ** -0.5
    gradients = (
        inner @ _repeated(k, q).float(),
        _summed(inner.transpose(-2, -1) @ q.float(), k),
        _summed(weights.transpose(-2, -1) @ gradient, v),
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


def _repeated(x: Tensor, q: Tensor) -> Tensor:
    """Keys or values, once for each query head."""
    return x.repeat_interleave(q.shape[1] // x.shape[1], 1)


def _summed(gradient: Tensor, x: Tensor) -> Tensor:
    """Gradients of the query heads that share a head of `x`."""
    return gradient.unflatten(1, (x.shape[1], -1)).sum(2)


def _laid_out(out: Tensor) -> Tensor:
    """As the kernels write it: a token's heads side by side."""
    return out.transpose(1, 2).contiguous().transpose(1, 2)


def _scores(q: Tensor, k: Tensor, causal: bool, slopes: list[float]) -> Tensor:
    scores = q.float() @ _repeated(k, q).float().transpose(-2, -1) * q.shape[-1] ** -0.5
    places = torch.arange(scores.shape[-1], device=q.device)
    distance = places.unsqueeze(0) - places.unsqueeze(1)
    if slopes:
        scores = scores + distance * torch.tensor(slopes, device=q.device).view(-1, 1, 1)
    return scores.masked_fill(distance > 0, float("-inf")) if causal else scores
