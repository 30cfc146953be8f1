"""Expert layers: dense feed-forward, routed experts and shared experts.

Over an expert-parallel group tokens travel to the ranks of their experts and back, as in
torchtitan: one all-to-all of counts, one of tokens, one of results.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from planner.describe.model.model import Model
from planner.describe.model.shapes import Experts
from planner.describe.model.weight_blocks import shared_size
from planner.validate.sharding.adapter import all_to_all, exchange_counts
from planner.validate.sharding.attention_layers import local_part

__all__ = ["ExpertFeedForward", "FeedForward", "GroupedExperts"]


def _kernel(name: str) -> Callable[[Tensor], Tensor]:
    """Activation function by name."""
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
        """The feed-forward's update of the residual stream."""
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
        self.gate = nn.Parameter(torch.empty(count, width, hidden))
        self.up = nn.Parameter(torch.empty(count, width, hidden))
        self.down = nn.Parameter(torch.empty(count, hidden, width))
        self.biased, self.num_splits = experts.expert_bias, 1
        if self.biased:
            self.gate_bias = nn.Parameter(torch.empty(count, width))
            self.up_bias = nn.Parameter(torch.empty(count, width))
            self.down_bias = nn.Parameter(torch.empty(count, hidden))
        self.group: Any = None

    def spread(self, group: Any) -> None:
        """Keep the experts of this rank of an expert-parallel group."""
        self.group = group
        for name, weight in list(self.named_parameters()):
            mine = weight.chunk(dist.get_world_size(group))[dist.get_rank(group)]
            self.register_parameter(name, nn.Parameter(mine.detach().clone()))

    def forward(self, sent: Tensor, chosen: Tensor, count: int) -> Tensor:
        """Run `count` experts on tokens sorted by expert."""
        if self.group is None:
            return self._compute(sent, chosen, count)
        ranks = dist.get_world_size(self.group)
        # of every rank's tokens those of this rank's experts, by expert within each rank
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
        # the bias after a split product is added once in all
        return product(inner, "down", self.num_splits)


def _tokens_per_expert(chosen: Tensor, count: int) -> Tensor:
    """Number of tokens of each expert."""
    ones = torch.ones_like(chosen, dtype=torch.int32)
    return torch.zeros(count, dtype=torch.int32, device=chosen.device).scatter_add(0, chosen, ones)


class ExpertFeedForward(nn.Module):
    """Routed experts and those of every token; tokens are taken to spread evenly over experts.

    Split over tp every rank routes all tokens through its part of every expert; where experts are
    spread over the ranks of tp too, it sends its part of the tokens.
    """

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
        """The experts' update of the residual stream."""
        beside = self.shared(x) if hasattr(self, "shared") else None
        # split over tp every rank routes all tokens through its part of every expert
        x = local_part(x)
        shape = x.shape
        x = x.reshape(-1, shape[-1])
        rows, chosen, weights = self._routed(x)
        sent = x[rows]
        sent = (sent.float() * weights.unsqueeze(-1)).to(x.dtype)
        result = self.experts(sent, chosen, self.count)
        out = torch.zeros_like(x).scatter_add(0, rows.unsqueeze(-1).expand_as(result), result)
        out = out.view(shape)
        if beside is None:
            return out
        if hasattr(self, "shared_gate"):
            beside = beside * torch.sigmoid(F.linear(x, local_part(self.shared_gate.weight))).view(
                *shape[:-1], 1
            )
        return out + beside

    def _routed(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Tokens in the experts' order, their experts and weights."""
        bias = self.router.bias
        logits = F.linear(
            x, local_part(self.router.weight), None if bias is None else local_part(bias)
        )
        scores = F.softmax(logits.float(), dim=-1)
        if self.experts.group is None:
            weights, chosen = scores.topk(self.top_k, dim=-1)
        else:
            # as many tokens for every rank, whose buffers are then known
            turns = torch.arange(x.shape[0] * self.top_k, device=x.device) % self.count
            chosen = turns.view(-1, self.top_k)
            weights = scores.gather(1, chosen)
        if self.num_parts > 1:
            # ranks of a tensor-parallel group that hold the same tokens send a part of them each
            weights, chosen = (t.chunk(self.num_parts)[self.part] for t in (weights, chosen))
        order = chosen.flatten().argsort(stable=True)
        rows = order // self.top_k + self.part * len(chosen)
        return rows, chosen.flatten()[order], weights.flatten()[order]
