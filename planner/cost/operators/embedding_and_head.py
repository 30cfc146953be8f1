"""Embedding and head: operators and saved tensors of both ends of the model, and the loss."""

import math
from dataclasses import replace

from planner.cost.operators.sizes import FP32, Operators, Sizes
from planner.describe.model.block import Block, Gemm, Pointwise, Saved, Split


def embedding(sizes: Sizes, block: Block) -> Block:
    """Embedding block: positions, dropout and norm; or the patch projection of a vision model.

    Counted: bytes moved and saved per token, the GEMM of patches, one reduction of a split table.
    Left out: vocabulary padding. compute.md#memory-bound-kernels.
    """
    model, e, r, m = sizes.model, sizes.element, sizes.stream, sizes.mask
    h = model.hidden_size
    pointwise = [Pointwise("embedding", 2 * r * h, (r + 2 * FP32) * h, "residual", 2)]
    saved = [Saved("embedding.ids", 8, "replicated")]
    if model.num_position_rows:
        pointwise.append(Pointwise("position", 3 * r * h, r * h, "residual"))
    if m:
        pointwise.append(Pointwise("embedding.dropout", (2 * r + m) * h, (2 * r + m) * h))
        saved.append(Saved("embedding.dropout.mask", m * h, "residual"))
    if model.embedding_norm:
        pointwise.append(Pointwise("embedding.norm", 2 * r * h, 4 * r * h))
        saved.append(Saved("embedding.norm.input", sizes.norm_bytes(r) * h, "residual"))
    gemms: tuple[Gemm, ...] = ()
    if model.vision is not None:
        patch = model.vision.num_channels * model.vision.patch_size**2
        gemms = (Gemm("patch", h, patch, input_gradient=False),)
        saved.append(Saved("patch.input", e * patch, "replicated", for_weights=1.0))
    return replace(
        block,
        gemms=gemms,
        pointwise=tuple(pointwise),
        saved=tuple(saved),
        num_tp_collectives=0 if model.vision else 1,
    )


def head(sizes: Sizes, block: Block) -> Block:
    """Head block: final norm, projection to the vocabulary, and the loss.

    Counted: the GEMM, bytes moved and saved per token, temporaries of its backward. Left out:
    metrics beyond `loss_metrics`. activations.md#activations.
    """
    model, e, r = sizes.model, sizes.element, sizes.stream
    h, vocab = model.hidden_size, model.vocab_size
    pointwise: tuple[Pointwise, ...] = ()
    saved: tuple[Saved, ...] = ()
    if model.final_norm:
        pointwise = (Pointwise("final_norm", (r + e) * h, (2 * r + 2 * e) * h),)
        saved = (Saved("final_norm.input", sizes.norm_bytes(r) * h, "residual"),)
    if model.pooler:
        # the pooled token is a view that keeps the others alive
        saved += (Saved("pooler.input", e * h, "residual"),)
    if not model.output_head:
        return replace(block, pointwise=pointwise, saved=saved)
    share = sizes.kernels.masked_head_share if model.head_transform else 1.0
    product = Gemm("head", vocab, h, "column", quantizable=False, pieces=sizes.kernels.loss_chunks)
    loss, loss_saved, working = _loss(sizes, share * vocab)
    transform = _transform(sizes, share) if model.head_transform else Operators()
    return replace(
        block,
        gemms=(*transform.gemms, replace(product, rows=share)),
        pointwise=(*pointwise, *transform.pointwise, loss),
        saved=(
            *saved,
            *transform.saved,
            Saved("head.input", share * e * h, "gathered", for_weights=1.0),
            *loss_saved,
            *_output_and_pieces(sizes, share * vocab),
        ),
        working=(working,),
    )


def _transform(sizes: Sizes, share: float) -> Operators:
    """Dense layer, activation and norm of a share of the tokens before the projection (BERT)."""
    h, stream = sizes.model.hidden_size, share * sizes.element * sizes.model.hidden_size
    kernels = (Pointwise("head.transform", 4 * stream, 7 * stream, num_kernels=2),)
    saved = (Saved("head.transform", 3 * stream, "residual"),)  # the input of each
    return Operators((Gemm("head.dense", h, h, quantizable=False, rows=share),), (), kernels, saved)


def _output_and_pieces(sizes: Sizes, vocab: float) -> tuple[Saved, ...]:
    """Logits that a pipeline holds, and copies that a chunked loss makes."""
    e, h = sizes.element, sizes.model.hidden_size
    in_chunks = sizes.kernels.loss_chunks > 1
    # in fp32 only the eager loss has a separate tensor
    apart = e < FP32 or sizes.kernels.loss == "eager"
    logits = e * vocab * (apart and not _holds_logits(sizes))
    return (
        # a pipeline's engine keeps each micro-batch's output until its backward
        Saved("head.output", logits, _logits_split(sizes), only_piped=True),
        # chunks of several sequences are copies
        Saved("head.pieces", e * h * in_chunks, "gathered", only_batched=True),
        # chunks of the sequence accumulate the stream's gradient in fp32
        Saved("head.gradient", FP32 * h * in_chunks, "replicated"),
    )


def _loss(sizes: Sizes, vocab: float) -> tuple[Pointwise, tuple[Saved, ...], tuple[Saved, ...]]:
    """Cross entropy over the vocabulary: kernel, saved tensors, temporaries of backward."""
    e, kernels = sizes.element, sizes.kernels
    cast, eager, output_bytes = e + FP32 if e < FP32 else 0, kernels.loss == "eager", 0
    saved_bytes: float
    working: float
    if eager:
        # to fp32, log-softmax; backward: fill, log-softmax gradient, back to 16 bits
        exact = FP32 if sizes.model.written.exact_loss or not kernels.transformers_blocks else e
        cast *= exact > e
        forward, backward, working = cast + 2 * exact, 4 * exact + cast, 2 * exact
        saved_bytes, output_bytes = exact, e * (_holds_logits(sizes) + sizes.model.logits_softcap)
    elif kernels.loss.startswith("vocab-parallel"):
        # max, subtract, exponentiate, sum, divide in fp32, in place (Megatron-LM)
        forward, backward, saved_bytes, working = cast + 32, 8 + cast, FP32, e
        # or on a copy, while the caller still holds the original (nanotron)
        working += FP32 * kernels.loss.endswith("copy")
    elif kernels.loss == "fused-linear":
        # one piece of the logits at a time, as large as the stream; forward computes its gradient
        pieces = math.ceil(vocab / sizes.model.hidden_size)
        forward, backward, saved_bytes = 5 * e, 0, e * sizes.model.hidden_size / vocab
        working = e / pieces
    else:
        forward, backward, saved_bytes = 3 * e, 2 * e, e
        working = e if kernels.loss == "fused-copy" else 0
    forward += 2 * e * kernels.loss_metrics
    piece, split = vocab / kernels.loss_chunks, _logits_split(sizes)
    recomputes = eager and not kernels.gathers_logits
    return (
        Pointwise("loss", forward * vocab, backward * vocab, split, 4),
        (
            Saved("loss.logits", saved_bytes * piece, split, until_loss=True),
            # the 16-bit logits, and the tanh of their soft cap
            Saved("loss.output", output_bytes * piece, split),
        ),
        (
            Saved("loss.gradient", working * piece, split),
            # loss over a split vocabulary exponentiates once more
            Saved("loss.softmax", FP32 * piece * recomputes, split, only_split=True),
        ),
    )


def _holds_logits(sizes: Sizes) -> bool:
    """True if 16-bit logits stay until backward; a loop over chunks holds those of each chunk."""
    return sizes.kernels.keeps_logits or sizes.kernels.loss_chunks > 1


def _logits_split(sizes: Sizes) -> Split:
    return "replicated" if sizes.kernels.gathers_logits else "sharded"
