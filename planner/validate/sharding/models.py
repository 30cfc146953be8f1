"""Models: compact torch transformers built from a `Model`, to be sharded and traced."""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from planner.describe.model.model import Model
from planner.describe.model.shapes import Experts
from planner.describe.model.weight_blocks import shared_size
from planner.errors import DescriptionError
from planner.validate.sharding.adapter import all_to_all, exchange_counts
from planner.validate.sharding.attention import (
    Attention,
    LatentAttention,
    RmsNorm,
    local_part,
    make_norm,
)


def _kernel(name: str) -> Callable[[Tensor], Tensor]:
    if name == "squared-relu":
        return lambda x: F.relu(x).square()
    kernel: Callable[[Tensor], Tensor] = getattr(F, name)
    return kernel


class FeedForward(nn.Module):
    """Dense feed-forward, gated or not."""

    def __init__(self, model: Model, width: int, bias: bool) -> None:
        super().__init__()
        hidden = model.hidden_size
        self.gated, self.activation = model.gated_mlp, _kernel(model.activation)
        if self.gated:
            self.gate = nn.Linear(hidden, width, bias=bias)
        self.up = nn.Linear(hidden, width, bias=bias)
        self.down = nn.Linear(width, hidden, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """Compute the feed-forward's update of the residual stream."""
        if self.gated:
            inner = self.activation(self.gate(x)) * self.up(x)
        else:
            inner = self.activation(self.up(x))
        return self.down(inner)


class GroupedExperts(nn.Module):
    """Routed experts as grouped matrix products, split over an expert-parallel group."""

    def __init__(self, model: Model, experts: Experts) -> None:
        super().__init__()
        hidden, width, count = model.hidden_size, experts.ffn_size, experts.num_experts
        self.activation = _kernel(model.activation)
        self.biased, self.num_splits, self.group = experts.expert_bias, 1, None
        shapes = {"gate": (width, hidden), "up": (width, hidden), "down": (hidden, width)}
        for name, shape in shapes.items():
            self.register_parameter(name, nn.Parameter(torch.empty(count, *shape)))
        for name, (rows, _) in shapes.items() if self.biased else ():
            self.register_parameter(f"{name}_bias", nn.Parameter(torch.empty(count, rows)))

    def spread(self, group: Any) -> None:
        """Keep only this rank's experts of an expert-parallel group."""
        self.group = group
        for name, weight in list(self.named_parameters()):
            local_weight = weight.chunk(dist.get_world_size(group))[dist.get_rank(group)]
            self.register_parameter(name, nn.Parameter(local_weight.detach().clone()))

    def forward(self, sent: Tensor, chosen: Tensor, count: int) -> Tensor:
        """Run `count` experts on tokens sorted by expert."""
        if self.group is None:
            return self._compute(sent, chosen, count)
        ranks = dist.get_world_size(self.group)
        # tokens of all ranks for this rank's experts, sorted by rank, then by expert
        arriving = exchange_counts(_tokens_per_expert(chosen, count), self.group)
        arrived = all_to_all(sent, self.group)
        local = torch.arange(count // ranks, device=sent.device).repeat(ranks)
        local = local.repeat_interleave(arriving, output_size=len(arrived))
        order = local.argsort(stable=True)
        computed = self._compute(arrived[order], local[order], count // ranks)
        back = computed.new_empty(computed.shape)
        back[order] = computed
        return all_to_all(back, self.group)

    def _compute(self, sent: Tensor, chosen: Tensor, count: int) -> Tensor:
        ends = _tokens_per_expert(chosen, count).cumsum(0, dtype=torch.int32)

        def product(x: Tensor, name: str, share: int = 1) -> Tensor:
            weight = local_part(getattr(self, name))
            result = F.grouped_mm(x, weight.transpose(-2, -1), offs=ends)
            if not self.biased:
                return result
            return result + local_part(getattr(self, f"{name}_bias"))[chosen] / share

        inner = self.activation(product(sent, "gate")) * product(sent, "up")
        # every split adds its share of the output bias, so that the sum adds it once
        return product(inner, "down", self.num_splits)


def _tokens_per_expert(chosen: Tensor, count: int) -> Tensor:
    ones = torch.ones_like(chosen, dtype=torch.int32)
    return torch.zeros(count, dtype=torch.int32, device=chosen.device).scatter_add(0, chosen, ones)


class ExpertFeedForward(nn.Module):
    """Routed and shared experts; with expert parallelism tokens spread evenly over experts."""

    def __init__(self, model: Model, experts: Experts) -> None:
        super().__init__()
        hidden, self.top_k, self.count = model.hidden_size, experts.top_k, experts.num_experts
        self.router = nn.Linear(hidden, self.count, bias=experts.router_bias)
        self.experts = GroupedExperts(model, experts)
        self.part, self.num_parts = 0, 1
        if shared := shared_size(experts):
            self.shared = FeedForward(model, shared, bias=False)
        if experts.shared_gate:
            self.shared_gate = nn.Linear(hidden, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Compute the experts' update of the residual stream."""
        shared_out = self.shared(x) if hasattr(self, "shared") else None
        # if tp splits the experts, every rank routes all tokens through its part of each expert; if
        # whole experts are spread over tp ranks too, every rank sends its part of the tokens
        x = local_part(x)
        shape = x.shape
        x = x.reshape(-1, shape[-1])
        rows, chosen, weights = self._routed(x)
        sent = x[rows]
        sent = (sent.float() * weights.unsqueeze(-1)).to(x.dtype)
        result = self.experts(sent, chosen, self.count)
        out = torch.zeros_like(x).scatter_add(0, rows.unsqueeze(-1).expand_as(result), result)
        out = out.view(shape)
        if shared_out is None:
            return out
        if hasattr(self, "shared_gate"):
            gates = torch.sigmoid(F.linear(x, local_part(self.shared_gate.weight)))
            shared_out = shared_out * gates.view(*shape[:-1], 1)
        return out + shared_out

    def _routed(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Choose experts: token indices sorted by expert, their experts and routing weights."""
        logits = F.linear(x, local_part(self.router.weight), local_part(self.router.bias))
        scores = F.softmax(logits.float(), dim=-1)
        if self.experts.group is None:
            weights, chosen = scores.topk(self.top_k, dim=-1)
        else:
            # the same number of tokens for every rank, so that buffer sizes are known
            turns = torch.arange(x.shape[0] * self.top_k, device=x.device) % self.count
            chosen = turns.view(-1, self.top_k)
            weights = scores.gather(1, chosen)
        if self.num_parts > 1:
            # ranks of a tensor-parallel group hold the same tokens: each sends a part of them
            weights, chosen = (t.chunk(self.num_parts)[self.part] for t in (weights, chosen))
        order = chosen.flatten().argsort(stable=True)
        rows = order // self.top_k + self.part * len(chosen)
        return rows, chosen.flatten()[order], weights.flatten()[order]


Part = int | Literal["embedding", "head", "output"]
"""Part of a stage that forward enters: a layer number, or a name for what is not a layer."""
_ROPE_BASE = 10_000.0
_LOGITS_CAP = 30.0
"""Soft cap of Gemma 2's logits (its config.json: final_logit_softcapping)."""


def _plain_rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return F.rms_norm(x, weight.shape, weight, eps)


class Layer(nn.Module):
    """Attention and feed-forward on the residual stream, in sequence or in parallel."""

    def __init__(self, model: Model, eager: bool, dense: bool, kernel: RmsNorm) -> None:
        super().__init__()
        self.parallel = model.parallel_residual
        # in models without a final norm, every layer ends with a norm
        self.norm_last = not model.final_norm
        norms = [make_norm(model, model.hidden_size, kernel) for _ in range(model.norms_per_layer)]
        self.attention_norm = norms[0]
        if len(norms) > 1:
            self.ffn_norm = norms[1]
        if len(norms) > 2:  # norms after attention and feed-forward too (Gemma 2)
            self.attention_post_norm, self.ffn_post_norm = norms[2:]
        latent = model.latent_attention is not None
        self.attention = (LatentAttention if latent else Attention)(model, eager, kernel)
        if model.experts is None or dense:
            self.ffn: nn.Module = FeedForward(model, model.ffn_size, model.mlp_bias)
        else:
            self.ffn = ExpertFeedForward(model, model.experts)

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor] | None) -> Tensor:
        """Add attention and feed-forward to the stream."""
        if self.parallel:
            normed = self.attention_norm(x)
            second = self.ffn_norm(x) if hasattr(self, "ffn_norm") else normed
            return x + self.attention(normed, rope) + self.ffn(second)
        if self.norm_last:
            x = self.attention_norm(x + self.attention(x, rope))
            return self.ffn_norm(x + self.ffn(x))
        if not hasattr(self, "attention_post_norm"):
            x = x + self.attention(self.attention_norm(x), rope)
            return x + self.ffn(self.ffn_norm(x))
        x = x + self.attention_post_norm(self.attention(self.attention_norm(x), rope))
        return x + self.ffn_post_norm(self.ffn(self.ffn_norm(x)))


class Patches(nn.Module):
    """Patches of an image as tokens, after one class token for the whole image."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.patch = nn.Linear(width, hidden)
        self.image = nn.Parameter(torch.zeros(hidden))

    def forward(self, patches: Tensor) -> Tensor:
        """Project the patches, and put the class token before them."""
        x = self.patch(patches)
        return torch.cat((self.image.expand(x.shape[0], 1, -1), x), 1)


class Stage(nn.Module):
    """Consecutive layers of a model, with the embedding if first and the head if last."""

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
        if reason := unsupported(model):
            raise DescriptionError(
                f"{model.name} cannot be traced: {reason} are not supported; "
                "trace llama-3-8b, gpt2 or mixtral-8x7b for a model of the same shape"
            )
        self.first, self.last, self.rope = first, last, model.position == "rope"
        mla = model.latent_attention
        self.dim = mla.qk_rope_head_dim if mla else model.head_dim
        self.position: nn.Module | None = None
        self.token_types: nn.Module | None = None
        self.embedding_norm: nn.Module | None = None
        self.norm: nn.Module | None = None
        self.transform: nn.Module | None = None
        self.head: nn.Linear | None = None
        self.pooler: nn.Module | None = None
        self.capped = model.logits_softcap
        if first:
            self._embed(model, kernel)
        dense = model.experts.num_dense_layers if model.experts else model.num_layers
        self.layers = nn.ModuleDict(
            {str(i): Layer(model, eager, i < dense, kernel) for i in layers}
        )
        if last:
            self._end(model, kernel)
        self.tied = model.tied_embeddings and model.output_head and first and last
        self.num_row_shards, self.row_shard = 1, 0
        self.ends_in_stream = False
        self.marks: Callable[[Part, Tensor], Tensor] = lambda _, x: x
        self.default_rope: tuple[Tensor, Tensor] | None = None

    def _embed(self, model: Model, kernel: RmsNorm) -> None:
        hidden = model.hidden_size
        if model.vision is not None:
            width = model.vision.num_channels * model.vision.patch_size**2
            self.embedding: nn.Module = Patches(width, hidden)
        else:
            self.embedding = nn.Embedding(model.vocab_size, hidden)
        if model.num_position_rows:
            self.position = nn.Embedding(model.num_position_rows, hidden)
        if model.num_token_types:
            self.token_types = nn.Embedding(model.num_token_types, hidden)
        if model.embedding_norm:
            self.embedding_norm = make_norm(model, hidden, kernel)

    def _end(self, model: Model, kernel: RmsNorm) -> None:
        hidden = model.hidden_size
        if model.final_norm:
            self.norm = make_norm(model, hidden, kernel)
        if model.head_transform:
            dense, last = nn.Linear(hidden, hidden), make_norm(model, hidden, kernel)
            self.transform = nn.Sequential(dense, nn.GELU(), last)
        if model.output_head:
            self.head = nn.Linear(hidden, model.vocab_size, bias=model.head_bias)
        if model.pooler:
            self.pooler = nn.Linear(hidden, hidden)

    def tie(self) -> None:
        """Share the embedding's weights with the head, after both were split the same way."""
        if self.tied and self.head is not None:
            self.head.weight = self.embedding.weight  # type: ignore[assignment]

    def ends(self) -> tuple[list[nn.Module], list[nn.Module]]:
        """List the modules before the layers, and those after them."""
        before = ("embedding", "position", "token_types", "embedding_norm")
        after = ("norm", "transform", "head", "pooler")
        modules = dict(self.named_children())
        first, last = ([modules[n] for n in names if n in modules] for names in (before, after))
        return first, last

    def tables(
        self, rows: int, device: torch.device, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor] | None:
        """Cosine and sine of the rotary positions, as (sequence, 1, width / 2)."""
        if not self.rope:
            return None
        halves = torch.arange(self.dim // 2, device=device) / (self.dim // 2)
        angles = torch.outer(torch.arange(rows, device=device).float(), _ROPE_BASE**-halves)
        return angles.cos().to(dtype).unsqueeze(1), angles.sin().to(dtype).unsqueeze(1)

    def forward(self, x: Tensor) -> Tensor:
        """Map tokens, patches or the residual stream to the residual stream or logits."""
        rope = self.default_rope
        if self.first:
            x = self._embedded(self.marks("embedding", x))
        for name, layer in self.layers.items():
            x = layer(self.marks(int(name), x), rope)
        if not self.last:
            return self.marks("output", x)
        x = self.marks("head", x)
        x = self.norm(x) if self.norm is not None else x
        if self.pooler is not None:
            x = torch.tanh(self.pooler(x[:, 0]))
        if self.head is None or self.ends_in_stream:
            return x
        logits: Tensor = self.head(x if self.transform is None else self.transform(x))
        return torch.tanh(logits / _LOGITS_CAP) * _LOGITS_CAP if self.capped else logits

    def _embedded(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        if self.position is not None:
            shards = self.num_row_shards
            rows = x.shape[1] if shards == 1 else tokens.shape[1] // shards
            start = self.row_shard * rows
            x = x + self.position(torch.arange(start, start + rows, device=tokens.device))
        if self.token_types is not None:
            x = x + self.token_types(torch.zeros(1, dtype=torch.long, device=tokens.device))
        return self.embedding_norm(x) if self.embedding_norm is not None else x


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Next-token loss in fp32; mean square of the output of a model without logits."""
    if logits.shape[:-1] != labels.shape:
        return logits.float().square().mean()
    return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(0, 1))


def unsupported(model: Model) -> str:
    """Reasons why no torch module can be built for a model; empty if one can."""
    reasons = {
        "convolutional networks": model.convolutional is not None,
        "encoder-decoders": model.kind == "encoder-decoder",
        "three norms, or more than four": model.norms_per_layer not in (1, 2, 4),
        "projected embeddings": bool(model.embedding_size),
        "relative positions": model.position == "relative",
        "normalisations without weights": (
            model.norm == "layernorm-nonparametric" or model.qk_norm == "unweighted"
        ),
        "attention within chunks": model.chunked_window,
        "experts in every n-th layer": model.experts is not None and model.experts.interleaved,
        "experts without gate": model.experts is not None and not model.gated_mlp,
    }
    return ", ".join(reason for reason, applies in reasons.items() if applies)
