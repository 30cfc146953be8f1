"""Models: compact torch transformers built from a `Model`, layer by layer as catalogued.

They are written to be sharded and traced, not to be trained well: no initialisation beyond
torch's defaults, no generation, no cache. Parameter counts equal `Model.num_params`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Partial

from planner.describe.model.model import Model
from planner.describe.model.shapes import Experts
from planner.errors import DescriptionError

__all__ = ["Part", "Stage", "build_stage", "cross_entropy", "unsupported"]

Part = int | Literal["embedding", "head", "output"]
"""A part of a stage that forward enters: a layer by its number, or an end."""
RmsNorm = Callable[[Any, Any, float], Any]
_EPS = 1e-5


def _plain_rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return F.rms_norm(x, weight.shape, weight, eps)


class RMSNorm(nn.Module):
    """Root-mean-square normalisation with an exchangeable kernel."""

    def __init__(self, width: int, kernel: RmsNorm) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self._kernel = kernel

    def forward(self, x: Tensor) -> Tensor:
        return self._kernel(x, self.weight, _EPS)


def _norm(model: Model, width: int, kernel: RmsNorm) -> nn.Module:
    if model.norm == "rmsnorm":
        return RMSNorm(width, kernel)
    return nn.LayerNorm(width, bias=model.norm == "layernorm")


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position in (batch, sequence, head, width); only the tables are kept."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


class Attention(nn.Module):
    """Attention with separate projections, grouped keys and values, optional q/k norms."""

    def __init__(self, model: Model, eager: bool, kernel: RmsNorm) -> None:
        super().__init__()
        hidden, dim = model.hidden_size, model.head_dim
        q, kv = model.num_heads * dim, model.num_kv_heads * dim
        self.dim, self.eager, self.grouped = dim, eager, model.num_kv_heads < model.num_heads
        self.causal = model.kind == "decoder"
        self.wq = nn.Linear(hidden, q, bias=model.qkv_bias)
        self.wk = nn.Linear(hidden, kv, bias=model.qkv_bias)
        self.wv = nn.Linear(hidden, kv, bias=model.qkv_bias)
        self.wo = nn.Linear(q, hidden, bias=model.out_bias)
        self.qk_norm = model.qk_norm == "head"
        if self.qk_norm:
            self.q_norm, self.k_norm = RMSNorm(dim, kernel), RMSNorm(dim, kernel)

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor] | None) -> Tensor:
        q, k, v = (
            project(x).unflatten(-1, (-1, self.dim)) for project in (self.wq, self.wk, self.wv)
        )
        if self.qk_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        if rope is not None:
            q, k = _rotate(q, *rope), _rotate(k, *rope)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        if self.eager:
            out = self._eager(q, k, v)
        else:
            out = F.scaled_dot_product_attention(
                q, k, v, is_causal=self.causal, enable_gqa=self.grouped
            )
        return self.wo(out.transpose(1, 2).flatten(-2))

    def _eager(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if self.grouped:
            repeats = q.shape[1] // k.shape[1]
            k, v = k.repeat_interleave(repeats, 1), v.repeat_interleave(repeats, 1)
        scores = q @ k.transpose(-2, -1) * self.dim**-0.5
        if self.causal:
            rows = scores.shape[-2]
            mask = torch.ones(rows, rows, dtype=torch.bool, device=q.device).triu(1)
            scores = scores.masked_fill(mask, float("-inf"))
        return F.softmax(scores, dim=-1) @ v


class FeedForward(nn.Module):
    """Dense feed-forward, gated or not."""

    def __init__(self, model: Model, width: int) -> None:
        super().__init__()
        hidden, bias = model.hidden_size, model.mlp_bias
        self.gated, self.activation = model.gated_mlp, getattr(F, model.activation)
        if self.gated:
            self.gate = nn.Linear(hidden, width, bias=bias)
        self.up = nn.Linear(hidden, width, bias=bias)
        self.down = nn.Linear(width, hidden, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        if self.gated:
            inner = self.activation(self.gate(x)) * self.up(x)
        else:
            inner = self.activation(self.up(x))
        return self.down(inner)


class ExpertFeedForward(nn.Module):
    """Routed experts as grouped products; tokens are taken to spread evenly over experts."""

    def __init__(self, model: Model, experts: Experts) -> None:
        super().__init__()
        hidden, width, count = model.hidden_size, experts.ffn_size, experts.num_experts
        self.top_k, self.count = experts.top_k, count
        self.activation = getattr(F, model.activation)
        self.router = nn.Linear(hidden, count, bias=False)
        self.gate = nn.Parameter(torch.empty(count, width, hidden))
        self.up = nn.Parameter(torch.empty(count, width, hidden))
        self.down = nn.Parameter(torch.empty(count, hidden, width))

    def forward(self, x: Tensor) -> Tensor:
        # split over tp every rank routes all tokens through its part of every expert
        x, router, gate, up, down = (
            _local(t) for t in (x, self.router.weight, self.gate, self.up, self.down)
        )
        shape = x.shape
        x = x.reshape(-1, shape[-1])
        scores = F.softmax(F.linear(x, router).float(), dim=-1)
        weights, chosen = scores.topk(self.top_k, dim=-1)
        order = chosen.flatten().argsort(stable=True)
        rows = order // self.top_k
        sent = x[rows]
        sent = (sent.float() * weights.flatten()[order].unsqueeze(-1)).to(x.dtype)
        counts = torch.zeros(self.count, dtype=torch.int32, device=x.device)
        ones = torch.ones_like(order, dtype=torch.int32)
        ends = counts.scatter_add(0, chosen.flatten(), ones).cumsum(0, dtype=torch.int32)
        inner = self.activation(_grouped(sent, gate, ends)) * _grouped(sent, up, ends)
        result = _grouped(inner, down, ends)
        out = torch.zeros_like(x).scatter_add(0, rows.unsqueeze(-1).expand_as(result), result)
        return out.view(shape)


def _local(tensor: Tensor) -> Tensor:
    """This rank's part; the gradient of what it holds whole is its share of a sum."""
    if not isinstance(tensor, DTensor):
        return tensor
    summed = [Partial() if p.is_replicate() else p for p in tensor.placements]
    return tensor.to_local(grad_placements=summed)


def _grouped(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    return F.grouped_mm(x, weight.transpose(-2, -1), offs=ends)


class Layer(nn.Module):
    """Attention and feed-forward on the residual stream, in sequence or side by side."""

    def __init__(self, model: Model, eager: bool, dense: bool, kernel: RmsNorm) -> None:
        super().__init__()
        self.parallel = model.parallel_residual
        self.attention_norm = _norm(model, model.hidden_size, kernel)
        self.attention = Attention(model, eager, kernel)
        if model.norms_per_layer > 1:
            self.ffn_norm = _norm(model, model.hidden_size, kernel)
        if model.experts is None or dense:
            self.ffn: nn.Module = FeedForward(model, model.ffn_size)
        else:
            self.ffn = ExpertFeedForward(model, model.experts)

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor] | None) -> Tensor:
        if self.parallel:
            normed = self.attention_norm(x)
            second = self.ffn_norm(x) if hasattr(self, "ffn_norm") else normed
            return x + self.attention(normed, rope) + self.ffn(second)
        x = x + self.attention(self.attention_norm(x), rope)
        return x + self.ffn(self.ffn_norm(x))


class Stage(nn.Module):
    """Some consecutive layers of a model, with embedding and head where it holds them."""

    def __init__(
        self,
        model: Model,
        layers: Sequence[int],
        *,
        first: bool = True,
        last: bool = True,
        eager: bool = False,
        kernel: RmsNorm = _plain_rms_norm,
    ) -> None:
        super().__init__()
        self.first, self.last, self.rope = first, last, model.position == "rope"
        self.dim, self.position = model.head_dim, None
        if first:
            self.embedding = nn.Embedding(model.vocab_size, model.hidden_size)
            if model.num_position_rows:
                self.position = nn.Embedding(model.num_position_rows, model.hidden_size)
        dense = model.experts.num_dense_layers if model.experts else model.num_layers
        self.layers = nn.ModuleDict(
            {str(i): Layer(model, eager, i < dense, kernel) for i in layers}
        )
        if last:
            self.norm = _norm(model, model.hidden_size, kernel)
            self.head = nn.Linear(model.hidden_size, model.vocab_size, bias=model.head_bias)
        self.tied = model.tied_embeddings and first and last
        self.num_row_shards, self.row_shard = 1, 0
        self.marks: Callable[[Part, Tensor], Tensor] = lambda _, x: x
        self.default_rope: tuple[Tensor, Tensor] | None = None

    def tie(self) -> None:
        """Share the embedding with the head, after both were split alike."""
        if self.tied:
            self.head.weight = self.embedding.weight

    def tables(
        self, rows: int, device: torch.device, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor] | None:
        """Cosine and sine of the rotary positions, as (sequence, 1, width / 2)."""
        if not self.rope:
            return None
        shape = (rows, 1, self.dim // 2)
        return (
            torch.ones(shape, device=device, dtype=dtype),
            torch.zeros(shape, device=device, dtype=dtype),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Tokens or the stream in, the stream or logits out."""
        rope = self.default_rope
        if self.first:
            tokens, x = x, self.embedding(self.marks("embedding", x))
            if self.position is not None:
                rows = tokens.shape[1] // self.num_row_shards
                start = self.row_shard * rows
                places = torch.arange(start, start + rows, device=tokens.device)
                x = x + self.position(places)
        for name, layer in self.layers.items():
            x = layer(self.marks(int(name), x), rope)
        if self.last:
            return self.head(self.norm(self.marks("head", x)))
        return self.marks("output", x)


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Next-token loss in fp32."""
    return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(0, 1))


def unsupported(model: Model) -> str:
    """Why no torch module is built for a model; empty where one is."""
    reasons = {
        "convolutional networks": model.convolutional is not None,
        "encoders, encoder-decoders and vision models": model.kind != "decoder",
        "latent attention": model.latent_attention is not None,
        "attention sinks": model.attention_sinks,
        "more than two norms per layer": model.norms_per_layer > 2,
        "normalised embeddings": model.embedding_norm,
        "projected embeddings": bool(model.embedding_size),
        "norms over all heads": model.qk_norm == "full",
        "biased or shared experts": bool(
            model.experts
            and (
                model.experts.num_shared
                or model.experts.shared_ffn_size
                or model.experts.expert_bias
                or model.experts.router_bias
            )
        ),
    }
    return ", ".join(reason for reason, found in reasons.items() if found)


def build_stage(model: Model, layers: Sequence[int], **options: Any) -> Stage:
    """A stage on the current device. Raises DescriptionError with what is not built of a model."""
    if reason := unsupported(model):
        raise DescriptionError(
            f"{model.name} cannot be traced: {reason} are not built; "
            "trace llama-3-8b, gpt2 or mixtral-8x7b for a model of the same shape"
        )
    return Stage(model, layers, **options)
