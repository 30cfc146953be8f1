"""Decoder: blocks of an encoder-decoder, scaled to the decoder's fewer tokens."""

from __future__ import annotations

from dataclasses import replace

from planner.describe.model.block import Attention, Block, Gemm, Pointwise, Saved
from planner.describe.model.model import Model

__all__ = ["scale_to_decoder"]


def scale_to_decoder(model: Model, block: Block) -> Block:
    """A block of the decoder by token of the encoder.

    Counted: everything by its share of the tokens; keys and values of cross attention are of all of
    the encoder's. Left out: collectives of tensor parallelism are as many, each of fewer bytes.
    Raffel et al. 2019, arXiv:1910.10683, section 3.1.4: 512 tokens, 114 of targets;
    method.md#activations.

    >>> from planner.cost.operators.blocks import blocks
    >>> model, job = load_model("t5-3b-nemo"), Workload(sequence_length=512)
    >>> _, encoder, decoder, _ = blocks(model, job, load_framework("megatron-lm"))
    >>> [(gemm.name, gemm.rows) for gemm in decoder.gemms if "cross" in gemm.name]
    [('cross_attention.query', 0.25), ('cross_attention.kv', 1), ('cross_attention.out', 0.25)]
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
    """The decoder's part of the keys, of what there is per token and key."""
    return share if item.scores and not item.name.startswith("cross") else 1.0
