"""Blocks: products have the shapes of the weights, whatever module states them."""

from __future__ import annotations

import pytest

from planner.cost.operators.backward import _products
from planner.cost.operators.blocks import blocks_of
from planner.cost.operators.sizes import Sizes
from planner.describe.catalogue import load_model, names
from planner.describe.model.weight_blocks import layer_kinds
from tests.descriptions import scenario

TRANSFORMERS = [n for n in names("model") if load_model(n).convolutional is None]


@pytest.mark.parametrize("model", TRANSFORMERS)
def test_products_use_every_matrix_once(model: str) -> None:
    """2 m n k operations of a layer's products are 2 m times its matrices' parameters."""
    asked = scenario(model, sequence_length=64)
    for block in blocks_of(asked):
        if block.kind != "layer":
            continue
        matrices = sum(
            w.num_params for w in block.weights if w.columns > 1 and w.name != "shared_gate"
        )
        products = sum(gemm.n * gemm.k * (gemm.experts or 1) for gemm in block.gemms)
        assert products == matrices, block.name


@pytest.mark.parametrize("model", TRANSFORMERS)
def test_ordinary_products_are_as_wide_as_their_weights(model: str) -> None:
    """What selective recompute keeps: outputs of the layer's own matrices, in their order."""
    asked = scenario(model, framework="fsdp2", sequence_length=64)
    sizes = Sizes(asked.model, asked.workload, asked.framework)
    kinds = {kind.name: kind for kind in layer_kinds(asked.model)}
    for block in blocks_of(asked):
        if block.kind != "layer":
            continue
        own = ("attention", "feed_forward", "shared_experts", "router")
        rows = [
            weight.rows
            for weight in block.weights
            if weight.part in own and weight.columns > 1 and weight.name != "shared_gate"
        ]
        assert [width for _, width, _, _ in _products(sizes, kinds[block.name])] == rows


@pytest.mark.parametrize(("framework", "softmax"), [("megatron-lm-2021", 1), ("deepspeed", 4)])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_scores_in_memory_take_a_softmax_and_one_kernel_more_to_drop(
    framework: str, softmax: int, dropout: float
) -> None:
    """Fused, or scale, mask, softmax and cast one after the other."""
    model = load_model("gpt2").replaced(dropout=dropout)
    blocks = blocks_of(scenario(model, framework, sequence_length=512, attention="eager"))
    layer = next(block for block in blocks if block.kind == "layer")
    (scores,) = (part for part in layer.pointwise if part.scores)
    assert scores.num_kernels == softmax + (dropout > 0)


@pytest.mark.parametrize(("model", "kept"), [("llama-3-8b", 4), ("gpt2", 2)])
def test_code_that_fuses_bias_and_gelu_need_not_fuse_a_gate(model: str, kept: int) -> None:
    """Megatron-DeepSpeed, megatron/model/transformer.py: swiglu is F.silu(x[0]) * x[1], so gate,
    up, the activated gate and their product stay; of GELU its input and its output."""
    asked = scenario(model, "megatron-deepspeed", sequence_length=512)
    layer = next(block for block in blocks_of(asked) if block.kind == "layer")
    saved = [part.bytes_per_token for part in layer.saved if "activation" in part.name]
    assert sum(saved) == kept * 2 * asked.model.ffn_size


@pytest.mark.parametrize(("framework", "saved"), [("megatron-lm", 4096 + 14336), ("fsdp2", 0)])
def test_eight_bit_products_keep_eight_bit_inputs(framework: str, saved: int) -> None:
    """Transformer Engine saves the inputs of qkv, both products of the feed-forward in one byte
    less; that of the output projection beside what attention keeps. torchtitan's runs with float8
    of torchao hold as much as without: 76.8 and 77.0 GiB, 61.8 and 62.0 (docs/performance.md)."""
    sizes = []
    for precision in ("bf16", "fp8"):
        asked = scenario("llama-3-8b", framework, sequence_length=512, precision=precision)
        layer = next(block for block in blocks_of(asked) if block.kind == "layer")
        sizes.append(sum(part.bytes_per_token for part in layer.saved))
    assert sizes[0] - sizes[1] == saved
