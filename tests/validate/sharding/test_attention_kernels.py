"""Flash: the attention of our own equals torch's, forward and backward."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
import torch.nn.functional as F
from torch import Tensor

from planner import load_model
from planner.validate.sharding.attention import (
    Attention,
    Core,
    LatentAttention,
    _rotate,
    alibi_slopes,
    flash_attention,
)

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


def _core(eager: bool, **changes: Any) -> Core:
    """A core of 4 heads; its sinks, where it has them, differ from head to head."""
    base = {"hidden_size": 32, "num_heads": 4, "num_kv_heads": 4, "head_dim": 8}
    core = Core(load_model("gpt2").replaced(**base, **changes), eager)
    if hasattr(core, "sinks"):
        core.sinks.data = torch.linspace(-1, 1, 4)
    return core


_KINDS: tuple[dict[str, Any], ...] = (
    {},
    {"kind": "encoder"},
    {"position": "alibi"},
    {"position": "alibi", "kind": "encoder"},
    {"attention_sinks": True},
)


@pytest.mark.parametrize(
    ("changes", "eager"),
    [
        *itertools.product(_KINDS, (True, False)),
        # fused kernels cap inside; ours only has their shapes
        ({"attention_softcap": True}, True),
    ],
)
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_attention_is_the_written_out_softmax(
    changes: dict[str, Any], kv_heads: int, eager: bool
) -> None:
    core = _core(eager, **changes)
    q, k, v = (x.transpose(1, 2) for x in _inputs(kv_heads, 8))
    out = core.attend(q, k, v)
    assert out.shape == (2, 6, 32)
    for head in range(4):
        group = head * kv_heads // 4
        scores = torch.einsum("bqd,bkd->bqk", q[:, :, head], k[:, :, group]) / math.sqrt(8)
        if core.capped:
            scores = 50 * torch.tanh(scores / 50)
        for row in range(6):
            for column in range(6):
                if "position" in changes:
                    # ALiBi, section 3: slopes 2^(-8 / n), 2^(-16 / n), ... of n heads
                    slope = 2 ** (-8 * (head + 1) / 4)
                    scores[:, row, column] = scores[:, row, column] + slope * (column - row)
                if column > row and "kind" not in changes:
                    scores[:, row, column] = -math.inf
        weights = scores.exp()
        sink = core.sinks[head].exp().detach() if hasattr(core, "sinks") else 0.0
        expected = weights / (weights.sum(-1, keepdim=True) + sink) @ v[:, :, group]
        torch.testing.assert_close(out[..., 8 * head : 8 * head + 8], expected)


def test_a_shard_of_heads_has_the_slopes_of_its_heads() -> None:
    core = _core(False, position="alibi")
    core.head_shard = 1
    assert core._slopes(2) == alibi_slopes(2, 2, 4) == [2**-6, 2**-8]


def test_rotary_positions_are_a_product_of_complex_numbers() -> None:
    x, angles = torch.randn(2, 5, 3, 8), torch.rand(5, 1, 4)
    turned = _rotate(x, angles.cos(), angles.sin())
    pairs = torch.complex(x[..., :4], x[..., 4:]) * torch.polar(torch.ones(5, 1, 4), angles)
    torch.testing.assert_close(turned, torch.cat((pairs.real, pairs.imag), -1))


def _kernel(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return F.rms_norm(x, weight.shape, weight, eps)


def _rope(width: int) -> tuple[Tensor, Tensor]:
    angles = torch.rand(6, 1, width // 2)
    return angles.cos(), angles.sin()


@pytest.mark.parametrize("qk_norm", ["none", "head", "full"])
def test_projections_norms_and_positions_come_in_order(qk_norm: str) -> None:
    model = load_model("gpt2").replaced(
        hidden_size=32, num_heads=4, num_kv_heads=2, head_dim=8, qk_norm=qk_norm
    )
    torch.manual_seed(5)
    layer, x, rope = Attention(model, True, _kernel), torch.randn(2, 6, 32), _rope(8)
    widths = {"none": (), "head": (8, 8), "full": (32, 16)}[qk_norm]
    norms = [getattr(layer, name) for name in ("q_norm", "k_norm") if hasattr(layer, name)]
    assert tuple(norm.weight.numel() for norm in norms) == widths
    q, k, v = layer.wq(x), layer.wk(x), layer.wv(x)
    heads = []
    for part in (q, k):
        part = F.rms_norm(part, part.shape[-1:]) if qk_norm == "full" else part
        part = part.view(2, 6, -1, 8)
        part = F.rms_norm(part, (8,)) if qk_norm == "head" else part
        pairs = torch.complex(part[..., :4], part[..., 4:]) * torch.complex(*rope)
        heads.append(torch.cat((pairs.real, pairs.imag), -1).transpose(1, 2))
    out = F.scaled_dot_product_attention(
        *heads, v.view(2, 6, 2, 8).transpose(1, 2), is_causal=True, enable_gqa=True
    )
    expected = layer.wo(out.transpose(1, 2).flatten(-2))
    torch.testing.assert_close(layer(x, rope), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rank", [0, 12])
def test_latent_attention_is_that_of_its_paper(rank: int) -> None:
    """Equations 1 to 11 of arXiv:2405.04434, head by head."""
    sizes = {"q_lora_rank": rank, "kv_lora_rank": 10, "qk_nope_head_dim": 6}
    sizes |= {"qk_rope_head_dim": 4, "v_head_dim": 5}
    small = {"hidden_size": 32, "num_heads": 3, "num_kv_heads": 3, "latent_attention": sizes}
    model = load_model("deepseek-v2").replaced(**small)
    torch.manual_seed(7)
    layers = [LatentAttention(model, eager, _kernel) for eager in (True, False)]
    layers[1].load_state_dict(layers[0].state_dict())
    x, rope = torch.randn(2, 6, 32), _rope(4)
    layer = layers[0]
    narrow = F.rms_norm(layer.wq_a(x), (12,)) if rank else x
    latent, shared = layer.wkv_a(x).split((10, 4), -1)
    latent, turned = F.rms_norm(latent, (10,)), _rotate(shared.unsqueeze(2), *rope)
    outputs = []
    for head in range(3):
        q = (narrow @ layer.wq_b.weight[10 * head : 10 * head + 10].T).unsqueeze(2)
        q = torch.cat((q[..., :6], _rotate(q[..., 6:], *rope)), -1)[:, :, 0]
        k, v = (latent @ layer.wkv_b.weight[11 * head : 11 * head + 11].T).split((6, 5), -1)
        k = torch.cat((k, turned[:, :, 0]), -1)
        scores = q @ k.transpose(-2, -1) / math.sqrt(10)
        hidden = torch.ones(6, 6, dtype=torch.bool).triu(1)
        outputs.append(scores.masked_fill(hidden, -math.inf).softmax(-1) @ v)
    expected = layer.wo(torch.cat(outputs, -1))
    for one in layers:
        torch.testing.assert_close(one(x, rope), expected, rtol=1e-4, atol=1e-5)
