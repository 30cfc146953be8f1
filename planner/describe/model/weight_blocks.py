"""Weight blocks: every parameter tensor of every distinct layer or stage of a model."""

import itertools
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, Literal

from planner.describe.model.block import Block, Matrix, Part, Weight
from planner.describe.model.convolutional import Convolutional, SizedConvolution, SizedStage
from planner.describe.model.shapes import Experts, Shapes
from planner.describe.model.traced_file import traced_weights

Split = Literal["column", "row", "replicated"]
Kind = Literal["embedding", "layer", "head"]


def _norm(
    model: Shapes, name: str, width: int, copies: int = 1, part: Part = "norm"
) -> tuple[Weight, ...]:
    vectors = {"layernorm": 2, "layernorm-nonparametric": 0}.get(model.norm, 1)
    return (Weight(name, width, copies=copies * vectors, part=part),) if vectors else ()


def _linear(weight: Weight, bias: bool) -> tuple[Weight, ...]:
    if not bias:
        return (weight,)
    # a row-parallel bias is added after the reduction, so every rank holds all of it
    split: Split = "column" if weight.split == "column" else "replicated"
    return weight, replace(weight, name=f"{weight.name}.bias", columns=1, split=split)


def _attention_weights(model: Shapes, part: Part = "attention") -> tuple[Weight, ...]:
    if model.latent_attention is not None:
        return _latent_weights(model)
    hidden, dim = model.hidden_size, model.head_dim
    heads, kv = model.num_heads, model.num_kv_heads

    def split(matrix: Matrix, count: int) -> tuple[Weight, ...]:
        name = f"{part}.{matrix}"
        weight = Weight(name, count * dim, hidden, "column", count, part=part, matrix=matrix)
        return _linear(weight, model.qkv_bias)

    out = Weight(f"{part}.out", hidden, heads * dim, "row", heads, part=part, matrix="out")
    weights = (
        *split("query", heads),
        *split("key", kv),
        *split("value", kv),
        *_linear(out, model.out_bias),
    )
    if model.qk_norm == "head":
        weights += (Weight(f"{part}.qk_norm", dim, copies=2, part="qk_norm"),)
    elif model.qk_norm == "full":
        weights += tuple(
            Weight(f"{part}.{name}", count * dim, split="column", units=count, part="qk_norm")
            for name, count in (("q_norm", heads), ("k_norm", kv))
        )
    if model.attention_sinks:
        weights += (Weight(f"{part}.sinks", heads, split="column", units=heads, part=part),)
    return weights


def _latent_weights(model: Shapes) -> tuple[Weight, ...]:
    mla = model.latent_attention
    assert mla is not None
    heads, hidden = model.num_heads, model.hidden_size
    qk = mla.qk_nope_head_dim + mla.qk_rope_head_dim
    query = Weight("attention.query", heads * qk, hidden, "column", heads, matrix="query")
    queries: tuple[Weight, ...] = (query,)
    if mla.q_lora_rank:
        queries = (
            Weight("attention.query_down", mla.q_lora_rank, hidden),
            Weight("attention.query_norm", mla.q_lora_rank),
            replace(query, columns=mla.q_lora_rank),
        )
    expanded = heads * (mla.qk_nope_head_dim + mla.v_head_dim)
    weights = (
        *queries,
        Weight("attention.kv_down", mla.kv_lora_rank + mla.qk_rope_head_dim, hidden),
        Weight("attention.kv_norm", mla.kv_lora_rank),
        Weight("attention.kv_up", expanded, mla.kv_lora_rank, "column", heads),
        Weight("attention.out", hidden, heads * mla.v_head_dim, "row", heads, matrix="out"),
    )
    return tuple(replace(weight, part="attention") for weight in weights)


def _mlp_weights(
    model: Shapes,
    width: int,
    *,
    part: Part = "feed_forward",
    experts: int = 0,
    bias: bool | None = None,
) -> tuple[Weight, ...]:
    bias = model.mlp_bias if bias is None else bias
    hidden, name = model.hidden_size, _MLP_NAMES[part]
    first: tuple[Matrix, ...] = ("gate", "up") if model.gated_mlp else ("up",)
    shared: dict[str, Any] = {"expert": bool(experts), "copies": experts or 1, "part": part}
    weights: tuple[Weight, ...] = ()
    for matrix in first:
        weight = Weight(f"{name}.{matrix}", width, hidden, "column", matrix=matrix, **shared)
        weights += _linear(weight, bias)
    down = Weight(f"{name}.down", hidden, width, "row", matrix="down", **shared)
    return weights + _linear(down, bias)


_MLP_NAMES = {"feed_forward": "mlp", "experts": "expert", "shared_experts": "shared_expert"}


def shared_size(experts: Experts) -> int:
    """Total width of the shared experts."""
    return experts.shared_ffn_size or experts.num_shared * experts.ffn_size


def _expert_weights(model: Shapes, experts: Experts) -> tuple[Weight, ...]:
    hidden, num = model.hidden_size, experts.num_experts
    weights: tuple[Weight, ...] = (Weight("router", num, hidden, part="router"),)
    if experts.router_bias:
        weights += (Weight("router.bias", num, part="router"),)
    weights += _mlp_weights(
        model, experts.ffn_size, part="experts", experts=num, bias=experts.expert_bias
    )
    if shared := shared_size(experts):
        weights += _mlp_weights(model, shared, part="shared_experts", bias=False)
    if experts.shared_gate:
        weights += (Weight("shared_gate", 1, hidden, part="router"),)
    return weights


def add_adapters(
    weights: tuple[Weight, ...], rank: int, targets: tuple[str, ...], *, magnitudes: bool = False
) -> tuple[Weight, ...]:
    """Freeze weights, and add low-rank pairs (arXiv:2106.09685) or DoRA's (arXiv:2402.09353)."""
    result: list[Weight] = []
    for weight in weights:
        result.append(replace(weight, trainable=False))
        if weight.columns == 1 or weight.matrix not in targets:
            continue
        down = replace(weight, name=f"{weight.name}.lora_a", rows=rank, adapter=True)
        up = replace(weight, name=f"{weight.name}.lora_b", columns=rank, adapter=True)
        # one half of the pair is split as the matrix is, the other half is replicated
        if weight.split == "column":
            down = replace(down, split="replicated")
        elif weight.split == "row":
            up = replace(up, split="replicated")
        result += [down, up]
        if magnitudes:
            split: Split = "column" if weight.split == "column" else "replicated"
            name = f"{weight.name}.magnitude"
            result.append(
                replace(weight, name=name, columns=1, split=split, matrix="", adapter=True)
            )
    return tuple(result)


@dataclass(frozen=True, slots=True)
class LayerKind:
    """A distinct kind of layer: count, feed-forward, attention."""

    name: str
    count: int
    experts: bool = False
    window: int = 0
    cross: bool = False
    causal: bool = True


def layer_kinds(model: Shapes) -> tuple[LayerKind, ...]:
    """List the distinct kinds of layers of a model, in order."""
    causal = model.kind == "decoder"
    if model.kind == "encoder-decoder":
        return (
            LayerKind("encoder layer", model.num_layers, causal=False),
            LayerKind("decoder layer", model.num_decoder_layers, cross=True),
        )
    dense = model.experts.num_dense_layers if model.experts else model.num_layers
    sparse, window = model.num_layers - dense, model.sliding_window
    # windowed layers alternate with full ones; the costs do not depend on the order
    windowed = min(model.num_window_layers, dense)
    sparse_windowed = min(model.num_window_layers - windowed, sparse)
    kinds = (
        LayerKind("dense layer (window)", windowed, False, window, causal=causal),
        LayerKind("dense layer", dense - windowed, causal=causal),
        LayerKind("expert layer (window)", sparse_windowed, True, window, causal=causal),
        LayerKind("expert layer", sparse - sparse_windowed, True, causal=causal),
    )
    return tuple(kind for kind in kinds if kind.count > 0)


def _layer_weights(model: Shapes, kind: LayerKind) -> tuple[Weight, ...]:
    weights = _attention_weights(model)
    norms = model.norms_per_layer
    if kind.cross:
        weights += _attention_weights(model, "cross_attention")
        norms += 1
    weights += (
        _expert_weights(model, model.experts)
        if kind.experts and model.experts
        else _mlp_weights(model, model.ffn_size)
    )
    return weights + _norm(model, "norm", model.hidden_size, norms)


def _embedding_weights(model: Shapes) -> tuple[Weight, ...]:
    hidden = model.hidden_size
    width = model.embedding_size or hidden
    weights: tuple[Weight, ...] = ()
    if model.vision is not None:
        patch = model.vision.num_channels * model.vision.patch_size**2
        weights += (*_linear(Weight("patch", hidden, patch), bias=True), Weight("cls", hidden))
    else:
        weights += (Weight("embedding", model.vocab_size, width, "column"),)
    if width != hidden:
        weights += (Weight("embedding.project_in", hidden, width),)
    if model.num_position_rows:
        weights += (Weight("position", model.num_position_rows, hidden, part="position"),)
    if model.num_token_types:
        weights += (Weight("token_type", model.num_token_types, hidden),)
    if model.embedding_norm:
        weights += _norm(model, "embedding.norm", hidden, part="embedding")
    if model.num_relative_buckets:
        stacks = 2 if model.kind == "encoder-decoder" else 1
        weights += (
            Weight("relative_bias", model.num_relative_buckets, model.num_heads, copies=stacks),
        )
    return weights


def _head_weights(model: Shapes) -> tuple[Weight, ...]:
    hidden = model.hidden_size
    width = model.embedding_size or hidden
    weights: tuple[Weight, ...] = ()
    if model.final_norm:
        stacks = 2 if model.kind == "encoder-decoder" else 1
        weights += _norm(model, "final_norm", hidden, stacks)
    if width != hidden:
        weights += (Weight("head.project_out", width, hidden, part="head"),)
    if model.head_transform:
        weights += _linear(Weight("head.dense", hidden, hidden, part="head"), bias=True)
        weights += _norm(model, "head.norm", hidden, part="head")
    if model.output_head:
        tied = model.tied_embeddings
        weights += (Weight("head", model.vocab_size, width, "column", part="head", tied=tied),)
        if model.head_bias:
            weights += (Weight("head.bias", model.vocab_size, split="column", part="head"),)
    if model.pooler:
        weights += _linear(Weight("pooler", hidden, hidden, part="head"), bias=True)
    return weights


def _convolution_weights(placed: SizedConvolution) -> tuple[Weight, ...]:
    of = placed.of
    weights: tuple[Weight, ...] = (
        Weight(placed.name, of.out_channels, placed.fan_in, part="feed_forward"),
    )
    if of.bias:
        weights += (Weight(f"{placed.name}.bias", of.out_channels, part="feed_forward"),)
    if of.norm != "none":
        weights += (Weight(f"{placed.name}.norm", of.out_channels, copies=2, part="norm"),)
    return weights


def dense_widths(net: Convolutional, last: SizedStage) -> tuple[tuple[int, int], ...]:
    """Input and output widths of the fully connected layers after the last stage."""
    widths = (last.out_channels if net.pooled else last.outputs, *(d.outputs for d in net.dense))
    return tuple(itertools.pairwise(widths))


def _stage_blocks(net: Convolutional) -> tuple[Block, ...]:
    stages = tuple(net.sized_stages())
    blocks = []
    for number, placed in enumerate(stages):
        last = number == len(stages) - 1 and not net.dense
        kind: Kind = "embedding" if number == 0 else "head" if last else "layer"
        weights = tuple(w for conv in placed.convolutions for w in _convolution_weights(conv))
        stage = placed.stage
        blocks.append(Block(stage.name, kind, stage.count, weights, width=placed.inputs))
    if net.dense:
        widths = enumerate(dense_widths(net, stages[-1]))
        weights = tuple(
            weight
            for number, (inputs, outputs) in widths
            for weight in _linear(Weight(f"dense.{number + 1}", outputs, inputs, part="head"), True)
        )
        blocks.append(Block("head", "head", 1, weights, width=stages[-1].outputs))
    return tuple(blocks)


def weight_blocks(model: Shapes) -> tuple[Block, ...]:
    """Blocks with weights only: embedding, each distinct layer or stage, head."""
    if model.traced is not None:
        return traced_weights(model.traced)
    if model.convolutional is not None:
        return _stage_blocks(model.convolutional)
    width = model.hidden_size
    interleaved = model.experts is not None and model.experts.interleaved
    layer = partial(Block, kind="layer", width=width, interleaved=interleaved)
    return (
        Block("embedding", "embedding", 1, _embedding_weights(model), width=width),
        *(
            layer(name=kind.name, count=kind.count, weights=_layer_weights(model, kind))
            for kind in layer_kinds(model)
        ),
        Block("head", "head", 1, _head_weights(model), width=width),
    )


@lru_cache(maxsize=64)
def num_params(model: Shapes) -> int:
    """Learned parameters over all blocks, tied tensors once."""
    return sum(block.count * block.num_params for block in weight_blocks(model))
