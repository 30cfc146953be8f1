"""Transformer blocks: operators and saved tensors of each distinct layer.

The inventory of saved tensors follows what autograd keeps, operator by operator: Korthikanti
et al. 2022 (arXiv:2205.05198, section 4) for the GPT layer, and the same counting for gated,
grouped-query, expert and latent-attention layers. Which operators are fused, and what each
keeps, are traits of the framework.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

from planner.describe.framework import Framework, Kernels
from planner.describe.model.block import Attention, Block, Gemm, Pointwise, Saved, Split
from planner.describe.model.model import Model
from planner.describe.model.shapes import Experts
from planner.describe.model.weights import (
    LayerKind,
    adapted,
    layer_kinds,
    shared_size,
    weight_blocks,
)
from planner.describe.question import Question
from planner.describe.workload import Workload

__all__ = ["blocks", "blocks_of"]

_FP32 = 4
_MASK = 1  # a dropout mask is one byte per element


def blocks_of(question: Question) -> tuple[Block, ...]:
    """Distinct blocks of the model under the question's workload and framework."""
    return blocks(question.model, question.workload, question.framework)


@functools.lru_cache(maxsize=64)
def blocks(model: Model, workload: Workload, framework: Framework) -> tuple[Block, ...]:
    """Distinct blocks of a model with weights, operators and saved tensors.

    >>> from planner.describe.catalogue import load_framework, load_model
    >>> llama = blocks(load_model("llama-3-8b"), Workload(), load_framework("fsdp2"))
    >>> [(block.name, block.count) for block in llama]
    [('embedding', 1), ('dense layer', 32), ('head', 1)]
    """
    build = _Builder(model, workload, framework)
    kinds = {kind.name: kind for kind in layer_kinds(model)}
    complete = []
    for block in weight_blocks(model):
        if block.kind == "embedding":
            block = build.embedding(block)
        elif block.kind == "head":
            block = build.head(block)
        else:
            block = build.layer(block, kinds[block.name])
        complete.append(_trainable(block, workload))
    return tuple(complete)


def _trainable(block: Block, workload: Workload) -> Block:
    """The block with adapters and frozen parts; frozen products have no weight gradient."""
    part = "layers" if block.kind == "layer" else block.kind
    if not workload.lora_rank and part not in workload.frozen:
        return block
    targets = workload.lora_targets if workload.lora_rank and block.kind == "layer" else ()
    weights = adapted(block.weights, workload.lora_rank, targets)
    gemms = tuple(replace(gemm, weight_gradient=False) for gemm in block.gemms)
    pairs = tuple(
        Gemm(weight.name, weight.rows, weight.columns, weight.split, weight.units)
        for weight in weights
        if weight.trainable and not weight.expert
    )
    return replace(block, weights=weights, gemms=gemms + pairs)


@dataclass(frozen=True, slots=True)
class _Builder:
    """Sizes that every operator of a model needs."""

    model: Model
    workload: Workload
    framework: Framework

    @property
    def kernels(self) -> Kernels:
        return self.framework.kernels

    @property
    def element(self) -> int:
        """Bytes of an activation inside the layer."""
        return self.workload.compute_bytes

    @property
    def stream(self) -> int:
        """Bytes of an element of the residual stream."""
        return max(self.kernels.residual_bytes, self.element)

    @property
    def mask(self) -> int:
        """Bytes of a dropout mask element, 0 without dropout."""
        chosen = self.workload.dropout
        return _MASK if (self.model.dropout if chosen is None else chosen) > 0 else 0

    # --- layers ------------------------------------------------------------------------------

    def layer(self, block: Block, kind: LayerKind) -> Block:
        gemms, attentions, pointwise, saved = self._attention(kind, "attention")
        if kind.cross:
            cross = self._attention(replace(kind, causal=False), "cross_attention")
            gemms, attentions = gemms + cross[0], attentions + cross[1]
            pointwise, saved = pointwise + cross[2], saved + cross[3]
        routed = self.model.experts if kind.experts else None
        ffn = self._experts(routed) if routed else self._mlp(self.model.ffn_size)
        gemms, pointwise, saved = gemms + ffn[0], pointwise + ffn[1], saved + ffn[2]
        norms = self._norms(self.model.norms_per_layer + kind.cross)
        pointwise, saved = pointwise + norms[0], saved + norms[1]
        if self.framework.selective_policy != "attention-core":
            saved = self._selective_products(saved, kind)
        return replace(
            block,
            gemms=gemms,
            attentions=attentions,
            pointwise=pointwise,
            saved=saved,
            num_tp_collectives=(1 if self.model.parallel_residual else 2) + kind.cross,
            dispatch_top_k=routed.top_k if routed else 0,
            working=self._working(routed),
            after_ffn=self._after_ffn(routed),
            ffn_saved=tuple(
                f"{'expert' if routed else 'mlp'}.activation.{end}" for end in ("input", "output")
            ),
        )

    def _norms(self, count: int) -> tuple[tuple[Pointwise, ...], tuple[Saved, ...]]:
        """Normalisations with their input, and the residual additions between them."""
        h, e, r, m = self.model.hidden_size, self.element, self.stream, self.mask
        if self.kernels.fused_norm:
            norm = Pointwise("norm", (r + e) * h, (2 * r + 2 * e) * h, num_kernels=1)
            kept = Saved("norm.input", r * h, "residual")
        else:
            # to fp32, square, mean, scale, back to 16 bits, weight: every result in memory
            norm = Pointwise("norm", 36.0 * h, 60.0 * h, num_kernels=6)
            kept = Saved("norm.input", (_FP32 + e) * h, "residual")
        if self.kernels.fused_residual:
            add = Pointwise("residual", (e + 2 * r + m) * h, (3 * r + m + e * bool(m)) * h)
        else:
            dropout = (2 * e + m) * bool(m)
            add = Pointwise(
                "residual", (3 * e + 2 * r + dropout) * h, (3 * r + dropout) * h, num_kernels=3
            )
        additions = 1 if self.model.parallel_residual else min(count, 2)
        dropped = (Saved("dropout.mask", m * h, "residual"),) * (additions * bool(m))
        return (norm,) * count + (add,) * additions, (kept,) * count + dropped

    def _attention(
        self, kind: LayerKind, name: str
    ) -> tuple[tuple[Gemm, ...], tuple[Attention, ...], tuple[Pointwise, ...], tuple[Saved, ...]]:
        model, e = self.model, self.element
        h, heads, kv = model.hidden_size, model.num_heads, model.num_kv_heads
        gemms, qk_dim, v_dim, latent = self._projections(name)
        keys = heads if self.kernels.repeats_kv else kv
        q, k, v, out = heads * qk_dim, keys * qk_dim, keys * v_dim, heads * v_dim
        saved = [
            Saved(f"{name}.input", e * h, "gathered"),
            Saved(f"{name}.qkv", e * (q + k + v), "sharded"),
            Saved(f"{name}.out", e * out, "sharded"),
            *latent,
        ]
        pointwise: list[Pointwise] = []
        if self.kernels.copies_attention_output:
            saved.append(Saved(f"{name}.out.copy", e * out, "sharded"))
            pointwise.append(Pointwise(f"{name}.copy", 2 * e * out, 2 * e * out, "sharded"))
        if self.workload.attention == "flash":
            saved.append(Saved(f"{name}.logsumexp", _FP32 * heads, "sharded"))
        else:
            scores = self._scores(name)
            saved, pointwise = saved + scores[1], pointwise + scores[0]
        pointwise += self._rotary(name, (heads + kv) * qk_dim)
        if model.qk_norm != "none":
            width = e * (heads + kv) * qk_dim
            saved.append(Saved(f"{name}.qk_norm", width, "sharded"))
            pointwise.append(Pointwise(f"{name}.qk_norm", 2 * width, 4 * width, "sharded", 2))
        attention = Attention(
            heads, kv, qk_dim, v_dim, kind.causal, kind.window if kind.causal else 0
        )
        return gemms, (attention,), tuple(pointwise), tuple(saved)

    def _projections(self, name: str) -> tuple[tuple[Gemm, ...], int, int, tuple[Saved, ...]]:
        """Projections around attention, head widths, and what latent projections keep."""
        model, e = self.model, self.element
        h, heads, kv, mla = (
            model.hidden_size,
            model.num_heads,
            model.num_kv_heads,
            model.latent_attention,
        )
        if mla is None:
            dim = model.head_dim
            return (
                (
                    Gemm(f"{name}.qkv", (heads + 2 * kv) * dim, h, "column", heads),
                    Gemm(f"{name}.out", h, heads * dim, "row", heads),
                ),
                dim,
                dim,
                (),
            )
        qk = mla.qk_nope_head_dim + mla.qk_rope_head_dim
        compressed = mla.kv_lora_rank + mla.qk_rope_head_dim
        expanded = heads * (mla.qk_nope_head_dim + mla.v_head_dim)
        gemms: tuple[Gemm, ...] = (
            Gemm(f"{name}.kv_down", compressed, h),
            Gemm(f"{name}.kv_up", expanded, mla.kv_lora_rank, "column", heads),
            Gemm(f"{name}.query", heads * qk, mla.q_lora_rank or h, "column", heads),
            Gemm(f"{name}.out", h, heads * mla.v_head_dim, "row", heads),
        )
        if mla.q_lora_rank:
            gemms += (Gemm(f"{name}.query_down", mla.q_lora_rank, h),)
        # the compressed tensors before and after their norms
        low_rank = 2 * e * (mla.q_lora_rank + mla.kv_lora_rank) + e * mla.qk_rope_head_dim
        return gemms, qk, mla.v_head_dim, (Saved(f"{name}.latent", low_rank, "replicated"),)

    def _scores(self, name: str) -> tuple[list[Pointwise], list[Saved]]:
        """Attention scores in memory, per head and key: softmax, dropout and its mask."""
        heads, e, m = self.model.num_heads, self.element, self.mask
        softmax = self.kernels.softmax_bytes or e
        kept = softmax + (m + e) * bool(m)
        passes = 2 * e if self.kernels.fused_softmax else 8 * e
        dropout = (2 * e + m) * bool(m)
        kernels = (1 if self.kernels.fused_softmax else 4) + bool(m)
        return (
            [
                Pointwise(
                    f"{name}.softmax",
                    heads * (passes + dropout),
                    heads * (passes + e + dropout),
                    "sharded",
                    kernels,
                    scores=True,
                )
            ],
            [Saved(f"{name}.scores", heads * kept, "sharded", scores=True, selective=False)],
        )

    def _rotary(self, name: str, width: int) -> list[Pointwise]:
        if self.model.position != "rope":
            return []
        passes = 2 if self.kernels.fused_rope else 10
        moved = passes * self.element * width
        kernels = 2 if self.kernels.fused_rope else 10
        return [Pointwise(f"{name}.rope", moved, moved, "sharded", kernels)]

    # --- feed-forward ------------------------------------------------------------------------

    def _activation(self, width: float, name: str) -> tuple[Pointwise, tuple[Saved, ...]]:
        """Non-linearity: its inputs, and its output, which is the input of the down product."""
        e, gated, fused = self.element, self.model.gated_mlp, self.kernels.fused_activation
        if gated:
            forward, backward = (3, 5) if fused else (5, 8)
            kept = 2 if fused else 3  # gate, up, and the activated gate where not fused
        else:
            forward, backward = (2, 3) if fused else (4, 5)
            kept = 1
        operator = Pointwise(
            name, forward * e * width, backward * e * width, "sharded", 1 if fused else 2
        )
        return operator, (
            Saved(f"{name}.input", kept * e * width, "sharded"),
            Saved(f"{name}.output", e * width, "sharded"),
        )

    def _mlp(
        self, width: int, name: str = "mlp"
    ) -> tuple[tuple[Gemm, ...], tuple[Pointwise, ...], tuple[Saved, ...]]:
        h, first = self.model.hidden_size, 2 if self.model.gated_mlp else 1
        operator, kept = self._activation(width, f"{name}.activation")
        return (
            (
                Gemm(f"{name}.up", first * width, h, "column"),
                Gemm(f"{name}.down", h, width, "row"),
            ),
            (operator,),
            (Saved(f"{name}.input", self.element * h, "gathered"), *kept),
        )

    def _experts(
        self, experts: Experts
    ) -> tuple[tuple[Gemm, ...], tuple[Pointwise, ...], tuple[Saved, ...]]:
        h, e, k = self.model.hidden_size, self.element, experts.top_k
        first = 2 if self.model.gated_mlp else 1
        operator, kept = self._activation(k * experts.ffn_size, "expert.activation")
        routing = _FP32 * experts.num_experts
        gemms: tuple[Gemm, ...] = (
            Gemm("router", experts.num_experts, h, quantizable=False),
            Gemm("expert.up", first * experts.ffn_size, h, "column", 0, experts.num_experts, k),
            Gemm("expert.down", h, experts.ffn_size, "row", 0, experts.num_experts, k),
        )
        pointwise: tuple[Pointwise, ...] = (
            operator,
            Pointwise("router", 6 * routing, 6 * routing, num_kernels=6),
            # copy every token to its experts' order and back
            Pointwise("dispatch", e * h * (2 + 3 * k), e * h * (2 + 3 * k), num_kernels=8),
        )
        saved = (
            Saved("mlp.input", e * h, "gathered"),
            Saved("router", 3 * routing, "dispatched"),
            *self._dispatched(e * h * k),
            *kept,
        )
        if shared := shared_size(experts):
            more = self._mlp(shared, "shared_expert")
            # the shared expert reads the same input as the routed ones
            gemms, pointwise = gemms + more[0], pointwise + more[1]
            saved = saved + more[2][1:]
        return gemms, pointwise, saved

    def _dispatched(self, size: float) -> tuple[Saved, ...]:
        """Tokens in the experts' order, and what weighting them by the router keeps."""
        if self.kernels.scores_before_experts:
            exact = size * _FP32 / self.element
            return (Saved("expert.input", size + exact, "dispatched"),)
        return tuple(Saved(f"expert.{end}", size, "dispatched") for end in ("input", "output"))

    def _products(self, kind: LayerKind) -> list[tuple[str, float, Split, bool]]:
        """Ordinary matrix products in program order: name, output width, split, bias."""
        model = self.model
        kv, heads, dim = model.num_kv_heads, model.num_heads, model.head_dim
        qkv, out = model.qkv_bias, model.out_bias
        products: list[tuple[str, float, Split, bool]] = []
        if mla := model.latent_attention:
            qk = mla.qk_nope_head_dim + mla.qk_rope_head_dim
            if mla.q_lora_rank:
                products.append(("query_down", mla.q_lora_rank, "replicated", False))
            products += [
                ("query", heads * qk, "sharded", False),
                ("kv_down", mla.kv_lora_rank + mla.qk_rope_head_dim, "replicated", False),
                ("kv_up", heads * (mla.qk_nope_head_dim + mla.v_head_dim), "sharded", False),
            ]
        else:
            products += [
                ("query", heads * dim, "sharded", qkv),
                ("key", kv * dim, "sharded", qkv),
                ("value", kv * dim, "sharded", qkv),
            ]
        products.append(("out", model.hidden_size, "replicated", out))
        width: float = model.ffn_size
        if kind.experts and model.experts:
            # the routed experts' grouped products are not ordinary ones
            products.append(("router", model.experts.num_experts, "replicated", False))
            width = shared_size(model.experts)
        if width:
            names = ("gate", "up") if model.gated_mlp else ("up",)
            products += [(name, width, "sharded", model.mlp_bias) for name in names]
            products.append(("down", model.hidden_size, "replicated", model.mlp_bias))
        return products

    def _selective_products(self, saved: tuple[Saved, ...], kind: LayerKind) -> tuple[Saved, ...]:
        """Operator-wise selective recompute keeps attention and products without bias.

        torchtitan's policy: of the plain products every second one, starting with the first;
        one with a bias is another operator, which is not on its list. A row-parallel product is
        kept before its reduction, whole on every rank; a reduce-scatter's output is kept too.
        """
        e, h = self.element, self.model.hidden_size
        step = 1 if self.framework.selective_policy == "matmul-outputs" else 2
        outputs = [
            Saved(f"{name}.output", e * width, split, selective_only=True)
            for name, width, split, bias in self._products(kind)[::step]
            if not bias
        ]
        stream = Saved("layer.input", self.stream * h, "residual", selective_only=True)
        scattered = Saved(
            "reduce_scatter.outputs", 2 * e * h, "scattered", selective_only=True, only_split=True
        )
        kept = ("attention.out", "attention.logsumexp")
        return (
            *(item if item.name in kept else replace(item, selective=False) for item in saved),
            *outputs,
            stream,
            scattered,
        )

    def _working(self, routed: Experts | None) -> tuple[tuple[Saved, ...], ...]:
        """Gradients alive in the middle of a layer's backward: feed-forward or attention."""
        model, e = self.model, self.element
        stream = Saved("gradient", 2 * self.stream * model.hidden_size, "residual")
        width = routed.ffn_size * routed.top_k if routed else model.ffn_size
        wide = (3 if model.gated_mlp else 2) * e * width
        heads = model.num_heads * model.head_dim
        attention: tuple[Saved, ...] = (stream, Saved("gradient.qkv", 4 * e * heads, "sharded"))
        if self.workload.attention == "eager":
            scores = 2 * e * model.num_heads
            attention += (Saved("gradient.scores", scores, "sharded", scores=True),)
        return (stream, Saved("gradient.ffn", wide, "sharded")), attention

    def _after_ffn(self, routed: Experts | None) -> tuple[Saved, ...]:
        """Gradients of the stream, and of tokens at their experts."""
        model, e = self.model, self.element
        stream = Saved("gradient", self.stream * model.hidden_size, "residual")
        if routed is None:
            return (stream, stream)
        # from both products, and in fp32 before they are weighted
        exact = 2 * _FP32 if self.kernels.scores_before_experts else 0
        size = (2 * e + exact) * model.hidden_size * routed.top_k
        return (stream, Saved("gradient.dispatch", size, "dispatched"))

    # --- ends --------------------------------------------------------------------------------

    def embedding(self, block: Block) -> Block:
        model, e, r, m = self.model, self.element, self.stream, self.mask
        h = model.hidden_size
        pointwise = [Pointwise("embedding", 2 * r * h, (r + 2 * _FP32) * h, "residual", 2)]
        saved = [Saved("embedding.ids", 8, "replicated")]
        if model.num_position_rows:
            pointwise.append(Pointwise("position", 3 * r * h, r * h, "residual"))
        if m:
            pointwise.append(Pointwise("embedding.dropout", (2 * r + m) * h, (2 * r + m) * h))
            saved.append(Saved("embedding.dropout.mask", m * h, "residual"))
        if model.embedding_norm:
            pointwise.append(Pointwise("embedding.norm", 2 * r * h, 4 * r * h))
            saved.append(Saved("embedding.norm.input", r * h, "residual"))
        gemms: tuple[Gemm, ...] = ()
        if model.vision is not None:
            patch = model.vision.num_channels * model.vision.patch_size**2
            gemms = (Gemm("patch", h, patch, input_gradient=False),)
            saved.append(Saved("patch.input", e * patch, "replicated"))
        return replace(
            block,
            gemms=gemms,
            pointwise=tuple(pointwise),
            saved=tuple(saved),
            num_tp_collectives=0 if model.vision else 1,
        )

    def head(self, block: Block) -> Block:
        model, e, r = self.model, self.element, self.stream
        h, vocab = model.hidden_size, model.vocab_size
        pointwise: tuple[Pointwise, ...] = ()
        saved: tuple[Saved, ...] = ()
        if model.final_norm:
            pointwise = (Pointwise("final_norm", (r + e) * h, (2 * r + 2 * e) * h),)
            saved = (Saved("final_norm.input", r * h, "residual"),)
        if not model.output_head:
            return replace(block, pointwise=pointwise, saved=saved)
        loss, kept, working = self._loss(vocab)
        return replace(
            block,
            gemms=(Gemm("head", vocab, h, "column", quantizable=False),),
            pointwise=(*pointwise, loss),
            saved=(
                *saved,
                Saved("head.input", e * h, "gathered"),
                kept,
                # a pipeline's engine keeps each micro-batch's output until its backward
                Saved(
                    "head.output",
                    e * vocab * (not self.kernels.keeps_logits and e < _FP32),
                    "sharded",
                    only_piped=True,
                ),
            ),
            working=(working,),
        )

    def _loss(self, vocab: int) -> tuple[Pointwise, Saved, tuple[Saved, ...]]:
        """Cross entropy over the vocabulary: passes, what it keeps, what its backward needs."""
        e = self.element
        cast = e + _FP32 if e < _FP32 else 0
        if self.kernels.loss == "eager":
            # to fp32, log-softmax; backward: fill, log-softmax gradient, back to 16 bits
            forward, backward, working = cast + 8, 4 + 12 + cast, 2 * _FP32
            kept = _FP32 + (e if self.kernels.keeps_logits else 0)
        elif self.kernels.loss == "vocab-parallel":
            # max, subtract, exponentiate, sum, divide in fp32, in place (Megatron-LM)
            forward, backward, kept, working = cast + 28, 8 + cast, _FP32, e
        else:
            forward, backward, kept = 3 * e, 2 * e, e
            working = e if self.kernels.loss == "fused-copy" else 0
        forward += 2 * e * self.kernels.loss_metrics
        return (
            Pointwise("loss", forward * vocab, backward * vocab, "sharded", 4),
            Saved("loss.logits", kept * vocab, "sharded"),
            (
                Saved("loss.gradient", working * vocab, "sharded"),
                # loss over a split vocabulary exponentiates once more
                Saved(
                    "loss.softmax",
                    _FP32 * vocab * (self.kernels.loss == "eager"),
                    "sharded",
                    only_split=True,
                ),
            ),
        )
