"""Attention: plain, grouped-query and latent, in a fused kernel that saves what accelerators do."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Partial, Replicate

from planner.describe.model.model import Model
from planner.validate.sharding import adapter

_NAME = "planner::flash_attention"


def alibi_slopes(first: int, count: int, total: int) -> list[float]:
    """ALiBi slopes of `count` heads of `total`, from head `first` on (arXiv:2108.12409)."""
    return [2 ** (-8 * (head + 1) / total) for head in range(first, first + count)]


@torch.library.custom_op(_NAME, mutates_args=())
def flash_attention(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, slopes: list[float]
) -> tuple[Tensor, Tensor]:
    """Compute fused attention of (batch, head, token, width): output, log-sum-exp of each row."""
    scores = _scores(q, k, causal, slopes)
    rows = scores.logsumexp(-1)
    out = (scores - rows.unsqueeze(-1)).exp() @ _repeat_heads(v, q).float()
    # fused kernels lay a token's heads side by side
    return out.to(q.dtype).transpose(1, 2).contiguous().transpose(1, 2), rows


@torch.library.custom_op(f"{_NAME}_backward", mutates_args=())
def flash_gradients(
    gradient: Tensor, of_rows: Tensor | None, saved: list[Tensor], causal: bool, slopes: list[float]
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of queries, keys and values; `saved`: these three, the output, log-sum-exps."""
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
def _(gradient: Tensor, of_rows: Any, saved: list[Tensor], *_: Any) -> tuple[Tensor, ...]:
    return tuple(x.new_empty(x.shape) for x in saved[:3])


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
    q, k, v, ctx.causal, ctx.slopes = inputs
    ctx.save_for_backward(q, k, v, *output)


def _gradients(ctx: Any, gradient: Tensor, of_rows: Tensor | None) -> tuple[Tensor | None, ...]:
    saved = list(ctx.saved_tensors)
    return *flash_gradients(gradient, of_rows, saved, ctx.causal, ctx.slopes), None, None


flash_attention.register_autograd(_gradients, setup_context=_keep)
OPERATOR = torch.ops.planner.flash_attention.default
"""Operator that recompute policies compare with."""


def _repeat_heads(x: Tensor, q: Tensor) -> Tensor:
    return x.repeat_interleave(q.shape[1] // x.shape[1], 1)


def _sum_heads(gradient: Tensor, x: Tensor) -> Tensor:
    return gradient.unflatten(1, (x.shape[1], -1)).sum(2)


def _scores(q: Tensor, k: Tensor, causal: bool, slopes: list[float]) -> Tensor:
    scores = q.float() @ _repeat_heads(k, q).float().transpose(-2, -1) * q.shape[-1] ** -0.5
    places = torch.arange(scores.shape[-1], device=q.device)
    distance = places.unsqueeze(0) - places.unsqueeze(1)
    if slopes:
        scores = scores + distance * torch.tensor(slopes, device=q.device).view(-1, 1, 1)
    return scores.masked_fill(distance > 0, float("-inf")) if causal else scores


_SEQUENCE = 2
"""Dimension of tokens in (batch, head, token, width)."""


def _forward(q: Tensor, k: Tensor, v: Tensor, is_causal: bool) -> Any:
    return flash_attention(q, k, v, is_causal, [])


def _backward(is_causal: bool, grad_out: Tensor, **saved: Tensor) -> Any:
    tensors = [saved[name] for name in ("query", "key", "value", "out", "logsumexp")]
    return flash_gradients(grad_out, None, tensors, is_causal, [])


class _Ring(torch.autograd.Function):
    """Causal ring attention of this rank's tokens over the tokens of all ranks."""

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


RmsNorm = Callable[[Any, Any, float], Any]
Rope = tuple[Tensor, Tensor] | None
_EPS = 1e-5
_SCORES_CAP = 50.0
"""Soft cap of Gemma 2's scores outside fused kernels (config.json: attn_logit_softcapping)."""


class RMSNorm(nn.Module):
    """Root-mean-square normalisation with an exchangeable kernel."""

    def __init__(self, width: int, kernel: RmsNorm) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self._kernel = kernel

    def forward(self, x: Tensor) -> Tensor:
        """Normalise each row, and multiply it by the weight."""
        return self._kernel(x, self.weight, _EPS)


class _FusedNorm(torch.autograd.Function):
    """RMS norm that saves what CUDA's fused kernel saves: input, weight, one fp32 per row."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        rows = torch.empty((*x.shape[:-1], 1), dtype=torch.float32, device=x.device)
        ctx.save_for_backward(x, weight, rows)
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor, Tensor]:
        x, weight, _ = ctx.saved_tensors
        return torch.empty_like(x), torch.empty_like(weight)


def fused_rms_norm(x: Any, weight: Any, eps: float) -> Any:
    """Fused RMS norm of accelerators, shapes only: a CPU's saves 7 bytes per element more."""
    if isinstance(x, DTensor):
        partial = [Replicate() if p.is_replicate() else Partial() for p in x.placements]
        local = weight.to_local(grad_placements=partial) if isinstance(weight, DTensor) else weight
        out = fused_rms_norm(x.to_local(), local, eps)
        return DTensor.from_local(out, x.device_mesh, x.placements, run_check=False)
    return _FusedNorm.apply(x, weight)


def make_norm(model: Model, width: int, kernel: RmsNorm) -> nn.Module:
    """Make a normalisation layer of the model's kind."""
    if model.norm == "rmsnorm":
        return RMSNorm(width, kernel)
    return nn.LayerNorm(width, bias=model.norm == "layernorm")


def local_part(tensor: Any) -> Any:
    """Local shard of a tensor; the gradient of a replicated tensor is a partial sum."""
    if not isinstance(tensor, DTensor):
        return tensor
    summed = [Partial() if p.is_replicate() else p for p in tensor.placements]
    return tensor.to_local(grad_placements=summed)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply rotary positions to (batch, sequence, head, width); backward saves only the tables."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


class Core(nn.Module):
    """Attention without projections: scores, softmax, sum over values."""

    def __init__(self, model: Model, eager: bool) -> None:
        super().__init__()
        self.eager, self.causal = eager, model.kind == "decoder"
        self.num_heads, self.alibi = model.num_heads, model.position == "alibi"
        self.head_shard, self.capped = 0, model.attention_softcap
        self.ring: Any = None
        self.plain = not self.alibi and model.latent_attention is None
        if model.attention_sinks:
            self.sinks = nn.Parameter(torch.empty(model.num_heads))

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend over (batch, sequence, head, width); the output concatenates a token's heads."""
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        if self.eager:
            out = self._eager(q, k, v)
        elif self.ring is not None:
            out = _Ring.apply(q, k, v, self.ring)
        elif self.plain and not hasattr(self, "sinks"):
            grouped = k.shape[1] < q.shape[1]
            out = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal, enable_gqa=grouped)
        else:
            out, rows = flash_attention(q, k, v, self.causal, self._slopes(q.shape[1]))
            if hasattr(self, "sinks"):
                # a sink is one more key without a value
                share = torch.sigmoid(rows - local_part(self.sinks).view(-1, 1))
                out = out * share.unsqueeze(-1).to(out.dtype)
        return out.transpose(1, 2).flatten(-2)

    def _slopes(self, count: int) -> list[float]:
        return alibi_slopes(self.head_shard * count, count, self.num_heads) if self.alibi else []

    def _eager(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if k.shape[1] < q.shape[1]:
            repeats = q.shape[1] // k.shape[1]
            k, v = k.repeat_interleave(repeats, 1), v.repeat_interleave(repeats, 1)
        scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
        if self.capped:
            scores = torch.tanh(scores / _SCORES_CAP) * _SCORES_CAP
        rows = scores.shape[-1]
        if self.alibi:
            places = torch.arange(rows, device=q.device)
            slopes = torch.tensor(self._slopes(q.shape[1]), dtype=q.dtype, device=q.device)
            scores = scores + (places - places.unsqueeze(1)) * slopes.view(-1, 1, 1)
        if self.causal:
            mask = torch.ones(rows, rows, dtype=torch.bool, device=q.device).triu(1)
            scores = scores.masked_fill(mask, float("-inf"))
        if hasattr(self, "sinks"):
            sinks = local_part(self.sinks).view(-1, 1, 1).expand(*scores.shape[:-1], 1)
            return F.softmax(torch.cat((scores, sinks), -1), dim=-1)[..., :-1] @ v
        return F.softmax(scores, dim=-1) @ v


class Attention(Core):
    """Attention with separate projections, grouped keys and values, optional q/k norms."""

    def __init__(self, model: Model, eager: bool, kernel: RmsNorm) -> None:
        super().__init__(model, eager)
        hidden, dim = model.hidden_size, model.head_dim
        q, kv = model.num_heads * dim, model.num_kv_heads * dim
        self.dim, self.qk_norm = dim, model.qk_norm
        self.wq = nn.Linear(hidden, q, bias=model.qkv_bias)
        self.wk = nn.Linear(hidden, kv, bias=model.qkv_bias)
        self.wv = nn.Linear(hidden, kv, bias=model.qkv_bias)
        self.wo = nn.Linear(q, hidden, bias=model.out_bias)
        if self.qk_norm != "none":
            widths = (dim, dim) if self.qk_norm == "head" else (q, kv)
            self.q_norm, self.k_norm = (RMSNorm(width, kernel) for width in widths)

    def forward(self, x: Tensor, rope: Rope) -> Tensor:
        """Compute the attention's update of the residual stream."""
        q, k, v = self.wq(x), self.wk(x), self.wv(x)
        if self.qk_norm == "full":
            q, k = self.q_norm(q), self.k_norm(k)
        q, k, v = (t.unflatten(-1, (-1, self.dim)) for t in (q, k, v))
        if self.qk_norm == "head":
            q, k = self.q_norm(q), self.k_norm(k)
        if rope is not None:
            q, k = _rotate(q, *rope), _rotate(k, *rope)
        return self.wo(self.attend(q, k, v))


class LatentAttention(Core):
    """Multi-head latent attention through narrow projections (arXiv:2405.04434, section 2.1)."""

    def __init__(self, model: Model, eager: bool, kernel: RmsNorm) -> None:
        super().__init__(model, eager)
        mla = model.latent_attention
        assert mla is not None
        hidden, heads = model.hidden_size, model.num_heads
        self.sizes, rank = mla, mla.q_lora_rank
        queries = heads * (mla.qk_nope_head_dim + mla.qk_rope_head_dim)
        if rank:
            self.wq_a, self.q_norm = nn.Linear(hidden, rank, bias=False), RMSNorm(rank, kernel)
        self.wq_b = nn.Linear(rank or hidden, queries, bias=False)
        self.wkv_a = nn.Linear(hidden, mla.kv_lora_rank + mla.qk_rope_head_dim, bias=False)
        self.kv_norm = RMSNorm(mla.kv_lora_rank, kernel)
        expanded = heads * (mla.qk_nope_head_dim + mla.v_head_dim)
        self.wkv_b = nn.Linear(mla.kv_lora_rank, expanded, bias=False)
        self.wo = nn.Linear(heads * mla.v_head_dim, hidden, bias=False)

    def forward(self, x: Tensor, rope: Rope) -> Tensor:
        """Compute the attention's update of the residual stream."""
        sizes = self.sizes
        plain, turned, value = sizes.qk_nope_head_dim, sizes.qk_rope_head_dim, sizes.v_head_dim
        q = self.wq_b(self.q_norm(self.wq_a(x)) if hasattr(self, "wq_a") else x)
        q_plain, q_turned = q.unflatten(-1, (-1, plain + turned)).split((plain, turned), -1)
        latent, k_turned = self.wkv_a(x).split((sizes.kv_lora_rank, turned), -1)
        k_turned = k_turned.unsqueeze(2)
        if rope is not None:
            q_turned, k_turned = _rotate(q_turned, *rope), _rotate(k_turned, *rope)
        q = torch.cat((q_plain, q_turned), -1)
        kv = self.wkv_b(self.kv_norm(latent)).unflatten(-1, (-1, plain + value))
        k_plain, v = kv.split((plain, value), -1)
        k = torch.cat((k_plain, k_turned.expand(-1, -1, k_plain.shape[2], -1)), -1)
        return self.wo(self.attend(q, k, v))
