"""Weights of a transformer: every parameter tensor of every distinct layer.

Counted: matrices, biases, norms, embeddings, routers, the pooler. Left out: buffers, padding of
the vocabulary, multi-token-prediction modules.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from planner.describe.model.block import Block, Weight
from planner.describe.model.shapes import Experts, Shapes
from planner.errors import DescriptionError

__all__ = ["LayerKind", "adapted", "layer_kinds", "num_params", "shared_size", "weight_blocks"]


def _norm(model: Shapes, name: str, width: int, copies: int = 1) -> tuple[Weight, ...]:
    vectors = 2 if model.norm == "layernorm" else 1
    return (Weight(name, width, copies=copies * vectors),)


def _linear(
    name: str,
    rows: int,
    columns: int,
    split: str,
    *,
    bias: bool = False,
    units: int = 0,
    experts: int = 0,
) -> tuple[Weight, ...]:
    copies = experts or 1
    weight = Weight(name, rows, columns, split, units, bool(experts), copies)  # type: ignore[arg-type]
    if not bias:
        return (weight,)
    # a row-parallel bias is added after the reduction, so every rank holds it whole
    split = "column" if split == "column" else "replicated"
    return (
        weight,
        Weight(f"{name}.bias", rows, 1, split, units, bool(experts), copies),  # type: ignore[arg-type]
    )


def _attention_weights(model: Shapes, prefix: str = "attention") -> tuple[Weight, ...]:
    if model.latent_attention is not None:
        return _latent_weights(model)
    hidden, dim = model.hidden_size, model.head_dim
    heads, kv = model.num_heads, model.num_kv_heads
    weights = (
        *_linear(
            f"{prefix}.query", heads * dim, hidden, "column", bias=model.qkv_bias, units=heads
        ),
        *_linear(f"{prefix}.key", kv * dim, hidden, "column", bias=model.qkv_bias, units=kv),
        *_linear(f"{prefix}.value", kv * dim, hidden, "column", bias=model.qkv_bias, units=kv),
        *_linear(f"{prefix}.out", hidden, heads * dim, "row", bias=model.out_bias, units=heads),
    )
    if model.qk_norm == "head":
        weights += (Weight(f"{prefix}.qk_norm", dim, copies=2),)
    elif model.qk_norm == "full":
        weights += (
            Weight(f"{prefix}.q_norm", heads * dim, split="column", units=heads),
            Weight(f"{prefix}.k_norm", kv * dim, split="column", units=kv),
        )
    if model.attention_sinks:
        weights += (Weight(f"{prefix}.sinks", heads, split="column", units=heads),)
    return weights


def _latent_weights(model: Shapes) -> tuple[Weight, ...]:
    mla = model.latent_attention
    assert mla is not None
    heads, hidden = model.num_heads, model.hidden_size
    qk = mla.qk_nope_head_dim + mla.qk_rope_head_dim
    queries: tuple[Weight, ...]
    if mla.q_lora_rank:
        queries = (
            Weight("attention.query_down", mla.q_lora_rank, hidden),
            Weight("attention.query_norm", mla.q_lora_rank),
            Weight("attention.query", heads * qk, mla.q_lora_rank, "column", heads),
        )
    else:
        queries = (Weight("attention.query", heads * qk, hidden, "column", heads),)
    expanded = heads * (mla.qk_nope_head_dim + mla.v_head_dim)
    return (
        *queries,
        Weight("attention.kv_down", mla.kv_lora_rank + mla.qk_rope_head_dim, hidden),
        Weight("attention.kv_norm", mla.kv_lora_rank),
        Weight("attention.kv_up", expanded, mla.kv_lora_rank, "column", heads),
        Weight("attention.out", hidden, heads * mla.v_head_dim, "row", heads),
    )


def _mlp_weights(
    model: Shapes, width: int, *, experts: int = 0, bias: bool | None = None, prefix: str = "mlp"
) -> tuple[Weight, ...]:
    bias = model.mlp_bias if bias is None else bias
    hidden = model.hidden_size
    first = ("gate", "up") if model.gated_mlp else ("up",)
    weights: tuple[Weight, ...] = ()
    for name in first:
        weights += _linear(f"{prefix}.{name}", width, hidden, "column", bias=bias, experts=experts)
    return weights + _linear(f"{prefix}.down", hidden, width, "row", bias=bias, experts=experts)


def shared_size(experts: Experts) -> int:
    """Width of the experts that every token visits, all together."""
    return experts.shared_ffn_size or experts.num_shared * experts.ffn_size


def _expert_weights(model: Shapes, experts: Experts) -> tuple[Weight, ...]:
    weights: tuple[Weight, ...] = (Weight("router", experts.num_experts, model.hidden_size),)
    if experts.router_bias:
        weights += (Weight("router.bias", experts.num_experts),)
    weights += _mlp_weights(
        model,
        experts.ffn_size,
        experts=experts.num_experts,
        bias=experts.expert_bias,
        prefix="expert",
    )
    if shared := shared_size(experts):
        weights += _mlp_weights(model, shared, bias=False, prefix="shared_expert")
    if experts.shared_gate:
        weights += (Weight("shared_gate", 1, model.hidden_size),)
    return weights


def adapted(weights: tuple[Weight, ...], rank: int, targets: tuple[str, ...]) -> tuple[Weight, ...]:
    """The weights frozen, with a trainable low-rank pair beside each targeted matrix.

    Counted: A (rank x inputs) and B (outputs x rank) of Hu et al. 2021, arXiv:2106.09685.
    """
    result: list[Weight] = []
    for weight in weights:
        result.append(replace(weight, trainable=False))
        if weight.columns == 1 or weight.name.rsplit(".", 1)[-1] not in targets:
            continue
        down = replace(weight, name=f"{weight.name}.lora_a", rows=rank)
        up = replace(weight, name=f"{weight.name}.lora_b", columns=rank)
        # the pair of a split matrix is split where the matrix is, its other half replicated
        if weight.split == "column":
            down = replace(down, split="replicated")
        elif weight.split == "row":
            up = replace(up, split="replicated")
        result += [down, up]
    return tuple(result)


@dataclass(frozen=True, slots=True)
class LayerKind:
    """A distinct layer: how often, which feed-forward, which attention window."""

    name: str
    count: int
    experts: bool = False
    window: int = 0
    cross: bool = False
    causal: bool = True


def layer_kinds(model: Shapes) -> tuple[LayerKind, ...]:
    """The distinct layers of a model in the order in which they stand."""
    causal = model.kind == "decoder"
    if model.kind == "encoder-decoder":
        return (
            LayerKind("encoder layer", model.num_layers, causal=False),
            LayerKind("decoder layer", model.num_decoder_layers, cross=True),
        )
    dense = model.experts.num_dense_layers if model.experts else model.num_layers
    kinds = []
    # windowed layers alternate with full ones; the costs do not depend on the order
    windowed = min(model.num_window_layers, dense)
    for name, count, window, experts in (
        ("dense layer (window)", windowed, model.sliding_window, False),
        ("dense layer", dense - windowed, 0, False),
        (
            "expert layer (window)",
            min(model.num_window_layers - windowed, model.num_layers - dense),
            model.sliding_window,
            True,
        ),
        (
            "expert layer",
            model.num_layers - dense - (model.num_window_layers - windowed),
            0,
            True,
        ),
    ):
        if count > 0:
            kinds.append(LayerKind(name, count, experts, window, causal=causal))
    return tuple(kinds)


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
        weights += (
            *_linear("patch", hidden, patch, "replicated", bias=True),
            Weight("cls", hidden),
        )
    else:
        weights += (Weight("embedding", model.vocab_size, width, "column"),)
    if width != hidden:
        weights += (Weight("embedding.project_in", hidden, width),)
    if model.num_position_rows:
        weights += (Weight("position", model.num_position_rows, hidden),)
    if model.num_token_types:
        weights += (Weight("token_type", model.num_token_types, hidden),)
    if model.embedding_norm:
        weights += _norm(model, "embedding.norm", hidden)
    if model.num_relative_buckets:
        stacks = 2 if model.kind == "encoder-decoder" else 1
        weights += (
            Weight("relative_bias", model.num_relative_buckets, model.num_heads, copies=stacks),
        )
    return weights


def _head_weights(model: Shapes) -> tuple[tuple[Weight, ...], int]:
    hidden = model.hidden_size
    width = model.embedding_size or hidden
    weights: tuple[Weight, ...] = ()
    tied = 0
    if model.final_norm:
        stacks = 2 if model.kind == "encoder-decoder" else 1
        weights += _norm(model, "final_norm", hidden, stacks)
    if width != hidden:
        weights += (Weight("head.project_out", width, hidden),)
    if model.output_head:
        head = Weight("head", model.vocab_size, width, "column")
        weights += (head,)
        tied = head.num_params if model.tied_embeddings else 0
        if model.head_bias:
            weights += (Weight("head.bias", model.vocab_size, split="column"),)
    if model.pooler:
        weights += _linear("pooler", hidden, hidden, "replicated", bias=True)
    return weights, tied


def weight_blocks(model: Shapes) -> tuple[Block, ...]:
    """Blocks that hold weights only: embedding, each distinct layer, head."""
    if model.convolutional is not None:
        raise DescriptionError(
            f"{model.name} is convolutional: its parameters are counted, but only transformers "
            "can be planned; choose a transformer"
        )
    head, tied = _head_weights(model)
    return (
        Block("embedding", "embedding", 1, _embedding_weights(model)),
        *(
            Block(kind.name, "layer", kind.count, _layer_weights(model, kind))
            for kind in layer_kinds(model)
        ),
        Block("head", "head", 1, head, tied_elsewhere=tied),
    )


def num_params(model: Shapes) -> int:
    """Learned parameters: the sum over the blocks, tied tensors once."""
    return sum(block.count * block.num_params for block in weight_blocks(model))
