"""Ulysses attention on real ranks, beside one process.

Jacobs et al. 2023, arXiv:2309.14509, figure 2: an all-to-all of queries, keys and values gives each
rank the whole sequence of some heads, and one of the output gives every rank its tokens back.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from planner.validate.ranks.rank import joined
from planner.validate.sharding.adapter import all_to_all
from planner.validate.sharding.recorders import CollectiveRecorder


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
