"""Flash: the attention of our own equals torch's, forward and backward."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch
import torch.nn.functional as F
from torch import Tensor

from planner.validate.sharding.attention import alibi_slopes, flash_attention

SHAPE = (2, 4, 6, 8)


def _inputs(kv_heads: int, value_width: int) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(3)
    q = torch.randn(SHAPE, dtype=torch.float64).float().requires_grad_()
    k = torch.randn(2, kv_heads, 6, 8).requires_grad_()
    v = torch.randn(2, kv_heads, 6, value_width).requires_grad_()
    return q, k, v


def _gradients(out: Tensor, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return torch.autograd.grad(out.square().sum(), inputs)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("kv_heads", "value_width"), [(4, 8), (2, 8), (4, 5)])
def test_it_equals_torch(causal: bool, kv_heads: int, value_width: int) -> None:
    inputs = _inputs(kv_heads, value_width)
    out, _ = flash_attention(*inputs, causal, [])
    expected = F.scaled_dot_product_attention(*inputs, is_causal=causal, enable_gqa=kv_heads < 4)
    torch.testing.assert_close(out, expected)
    for found, right in zip(_gradients(out, inputs), _gradients(expected, inputs), strict=True):
        torch.testing.assert_close(found, right, rtol=1e-4, atol=1e-5)


def test_alibi_and_sinks_equal_the_written_out_softmax() -> None:
    q, k, v = inputs = _inputs(4, 8)
    sinks = torch.linspace(-1, 1, 4).requires_grad_()
    slopes = torch.tensor(alibi_slopes(0, 4, 4)).view(-1, 1, 1)
    out, rows = flash_attention(q, k, v, True, alibi_slopes(0, 4, 4))
    out = out * torch.sigmoid(rows - sinks.view(-1, 1)).unsqueeze(-1)
    places = torch.arange(6)
    scores = q @ k.transpose(-2, -1) / 8**0.5 + (places - places.unsqueeze(1)) * slopes
    scores = scores.masked_fill(places > places.unsqueeze(1), float("-inf"))
    scores = torch.cat((scores, sinks.view(-1, 1, 1).expand(2, 4, 6, 1)), -1)
    expected = F.softmax(scores, -1)[..., :-1] @ v
    torch.testing.assert_close(out, expected)
    with_sinks = (*inputs, sinks)
    found, right = _gradients(out, with_sinks), _gradients(expected, with_sinks)
    for mine, written in zip(found, right, strict=True):
        torch.testing.assert_close(mine, written, rtol=1e-4, atol=1e-5)
