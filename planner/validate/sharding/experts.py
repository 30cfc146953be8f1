"""Experts: the dense feed-forward, and routed experts with those that every token visits."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from planner.describe.model.model import Model
from planner.describe.model.shapes import Experts
from planner.describe.model.weights import shared_size
from planner.validate.sharding.attention import local_part

__all__ = ["ExpertFeedForward", "FeedForward"]


class FeedForward(nn.Module):
    """Dense feed-forward, gated or not."""

    def __init__(self, model: Model, width: int, bias: bool) -> None:
        super().__init__()
        hidden = model.hidden_size
        self.gated, self.activation = model.gated_mlp, getattr(F, model.activation)
        if self.gated:
            self.gate = nn.Linear(hidden, width, bias=bias)
        self.up = nn.Linear(hidden, width, bias=bias)
        self.down = nn.Linear(width, hidden, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """The stream's change by the feed-forward."""
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
        self.router = nn.Linear(hidden, count, bias=experts.router_bias)
        self.gate = nn.Parameter(torch.empty(count, width, hidden))
        self.up = nn.Parameter(torch.empty(count, width, hidden))
        self.down = nn.Parameter(torch.empty(count, hidden, width))
        self.biased, self.num_splits = experts.expert_bias, 1
        if self.biased:
            self.gate_bias = nn.Parameter(torch.empty(count, width))
            self.up_bias = nn.Parameter(torch.empty(count, width))
            self.down_bias = nn.Parameter(torch.empty(count, hidden))
        if shared := shared_size(experts):
            self.shared = FeedForward(model, shared, bias=False)
        if experts.shared_gate:
            self.shared_gate = nn.Linear(hidden, 1, bias=False)

    def experts(self) -> list[nn.Parameter]:
        """What exists once per expert."""
        names = ("gate", "up", "down", "gate_bias", "up_bias", "down_bias")
        return [getattr(self, name) for name in names if hasattr(self, name)]

    def forward(self, x: Tensor) -> Tensor:
        """The stream's change by the experts of each token."""
        beside = self.shared(x) if hasattr(self, "shared") else None
        # split over tp every rank routes all tokens through its part of every expert
        x = local_part(x)
        shape = x.shape
        x = x.reshape(-1, shape[-1])
        rows, chosen, weights = self._routed(x)
        sent = x[rows]
        sent = (sent.float() * weights.unsqueeze(-1)).to(x.dtype)
        result = self._computed(sent, chosen)
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
        weights, chosen = F.softmax(logits.float(), dim=-1).topk(self.top_k, dim=-1)
        order = chosen.flatten().argsort(stable=True)
        return order // self.top_k, chosen.flatten()[order], weights.flatten()[order]

    def _computed(self, sent: Tensor, chosen: Tensor) -> Tensor:
        counts = torch.zeros(self.count, dtype=torch.int32, device=sent.device)
        ones = torch.ones_like(chosen, dtype=torch.int32)
        ends = counts.scatter_add(0, chosen, ones).cumsum(0, dtype=torch.int32)

        def product(x: Tensor, name: str, share: int = 1) -> Tensor:
            weight = local_part(getattr(self, name))
            made = F.grouped_mm(x, weight.transpose(-2, -1), offs=ends)
            if not self.biased:
                return made
            return made + local_part(getattr(self, f"{name}_bias"))[chosen] / share

        inner = self.activation(product(sent, "gate")) * product(sent, "up")
        # the bias after a split product is added once in all
        return product(inner, "down", self.num_splits)
