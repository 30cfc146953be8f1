"""Blocks: operators and saved tensors of each distinct layer of a model."""

import functools
from dataclasses import replace

from planner.cost.operators import embedding_and_head as ends
from planner.cost.operators.adapters import with_adapters
from planner.cost.operators.attention import attention
from planner.cost.operators.backward import (
    after_ffn,
    deferred,
    kept_selectively,
    repeating,
    working,
)
from planner.cost.operators.convolutions import stages
from planner.cost.operators.custom_module import traced_blocks
from planner.cost.operators.feed_forward import dense, routed
from planner.cost.operators.sizes import FP32, Operators, Sizes
from planner.cost.scenario import Scenario
from planner.describe.framework.framework import Framework
from planner.describe.model.block import Attention, Block, Gemm, Pointwise, Saved
from planner.describe.model.model import Model
from planner.describe.model.weight_blocks import LayerKind, layer_kinds, shared_size, weight_blocks
from planner.describe.workload import Workload


def blocks_of(scenario: Scenario) -> tuple[Block, ...]:
    """Distinct blocks of the model under the scenario's workload and framework.

    Counted: as `blocks`. Left out: the machine. activations.md#activations.
    """
    return blocks(scenario.model, scenario.workload, scenario.framework)


@functools.lru_cache(maxsize=64)
def blocks(model: Model, workload: Workload, framework: Framework) -> tuple[Block, ...]:
    """Distinct blocks of a model with weights, operators and saved tensors.

    Counted: every layer, with adapters and frozen parts. Left out: the layout; model buffers.
    activations.md#activations, parameters.md#parameters.
    """
    sizes = Sizes(model, workload, framework)
    if model.convolutional is not None:
        network = stages(sizes, model.convolutional)
        return tuple(with_adapters(block, workload, framework.kernels) for block in network)
    if model.traced is not None:
        return traced_blocks(sizes, model.traced)
    first, *layers, last = weight_blocks(model)
    kinds = layer_kinds(model)
    complete = (
        ends.embedding(sizes, first),
        *(_layer(sizes, block, kind) for block, kind in zip(layers, kinds, strict=True)),
        ends.head(sizes, last),
    )
    if model.decoder_share != 1.0:
        decoding = [False, *(kind.cross for kind in kinds), kinds[-1].cross]
        pairs = zip(complete, decoding, strict=True)
        complete = tuple(
            scale_to_decoder(model, block) if is_decoder else block for block, is_decoder in pairs
        )
    return tuple(with_adapters(block, workload, framework.kernels) for block in complete)


def _layer(sizes: Sizes, block: Block, kind: LayerKind) -> Block:
    model, experts = sizes.model, sizes.model.experts if kind.experts else None
    operators = attention(sizes, kind)
    if kind.cross:
        operators += attention(sizes, kind, cross=True)
    operators += routed(sizes, experts) if experts else dense(sizes, model.ffn_size)
    # norms fused with the next GEMM are not recomputed (Transformer Engine)
    num_recomputed_norms = bool(experts) + (model.latent_attention is not None)
    operators += _norms(sizes, model.norms_per_layer + kind.cross, num_recomputed_norms)
    return replace(
        block,
        gemms=operators.gemms,
        attentions=operators.attentions,
        pointwise=operators.pointwise,
        saved=kept_selectively(sizes, operators.saved, kind),
        num_tp_collectives=_regions(sizes, kind),
        dispatch_top_k=experts.top_k if experts else 0,
        working=working(sizes, experts),
        repeating=repeating(sizes),
        after_ffn=after_ffn(sizes, experts),
        deferred=deferred(sizes, operators.gemms, model.norms_per_layer + kind.cross),
    )


def _regions(sizes: Sizes, kind: LayerKind) -> int:
    """Tensor-parallel regions of a layer: attention and feed-forward, also side by side."""
    experts = sizes.model.experts if kind.experts else None
    if experts is not None and sizes.framework.communication.routes_own_tokens:
        # routed experts are reduced by their exchange
        return 1 + bool(shared_size(experts)) + kind.cross
    return 2 + kind.cross


def _norms(sizes: Sizes, count: int, num_recomputed: int) -> Operators:
    """Norms with their saved inputs, `num_recomputed` of them recomputed; residual additions."""
    h, e, r, m = sizes.model.hidden_size, sizes.element, sizes.stream, sizes.mask
    fused = sizes.fuses_norm
    if fused:
        norm = Pointwise("norm", (r + e) * h, (2 * r + 2 * e) * h, num_kernels=1)
    else:
        # to fp32, square, mean, scale, back to 16 bits, weight: each writes its result
        norm = Pointwise("norm", 36.0 * h, 60.0 * h, num_kernels=6)
    for_weights = 0.0 if fused else 1 - FP32 / sizes.norm_bytes(r)
    norm_input = Saved("norm.input", sizes.norm_bytes(r) * h, "residual", for_weights=for_weights)
    # norms of parallel branches read the same input
    inputs = 1 if fused and sizes.model.parallel_residual else count
    if sizes.kernels.fused_residual:
        add = Pointwise("residual", (e + 2 * r + m) * h, (3 * r + m + e * bool(m)) * h)
    else:
        dropout = (2 * e + m) * bool(m)
        forward, backward = (3 * e + 2 * r + dropout) * h, (3 * r + dropout) * h
        add = Pointwise("residual", forward, backward, num_kernels=3)
    additions = 1 if sizes.model.parallel_residual else min(count, 2)
    dropped = (Saved("dropout.mask", m * h, "residual"),) * (additions * bool(m))
    return Operators(
        pointwise=(replace(norm, recomputed_with=("layernorm",)),) * num_recomputed
        + (norm,) * (count - num_recomputed)
        + (add,) * additions,
        saved=(norm_input,) * inputs + dropped,
    )


def scale_to_decoder(model: Model, block: Block) -> Block:
    """Scale a decoder block to figures per token of the encoder.

    Counted: everything by the decoder's share of tokens; keys and values of cross attention by all
    encoder tokens. Left out: the number of tensor-parallel collectives, which stays. Raffel et al.
    2019, arXiv:1910.10683, section 3.1.4: 512 tokens, 114 of targets; activations.md#activations.
    """
    share = model.decoder_share
    crossing = model.num_kv_heads * 2 / (model.num_heads + 2 * model.num_kv_heads)

    def product(gemm: Gemm) -> Gemm:
        return gemm if gemm.name == "cross_attention.kv" else replace(gemm, rows=share * gemm.rows)

    def core(number: int, attention: Attention) -> Attention:
        return replace(attention, queries=share, keys=share if number == 0 else 1.0)

    def kernel(operator: Pointwise) -> Pointwise:
        part = share * _of_keys(operator, share)
        return replace(
            operator,
            forward_bytes=part * operator.forward_bytes,
            backward_bytes=part * operator.backward_bytes,
        )

    def scale_all(items: tuple[Saved, ...]) -> tuple[Saved, ...]:
        return tuple(map(scaled, items))

    def scaled(item: Saved) -> Saved:
        part = share * _of_keys(item, share)
        if item.name == "cross_attention.qkv":
            part = share * (1 - crossing) + crossing
        return replace(item, bytes_per_token=part * item.bytes_per_token)

    return replace(
        block,
        gemms=tuple(map(product, block.gemms)),
        attentions=tuple(core(number, scaled) for number, scaled in enumerate(block.attentions)),
        pointwise=tuple(map(kernel, block.pointwise)),
        saved=scale_all(block.saved),
        working=tuple(map(scale_all, block.working)),
        unpacking=scale_all(block.unpacking),
        repeating=scale_all(block.repeating),
        after_ffn=scale_all(block.after_ffn),
        deferred=scale_all(block.deferred),
        width=round(share * block.width),
        num_tp_collectives=share * block.num_tp_collectives,
    )


def _of_keys(item: Pointwise | Saved, share: float) -> float:
    """Decoder's share of the keys for scores of self-attention; 1 for all else [1]."""
    return share if item.scores and not item.name.startswith("cross") else 1.0
