"""Attention: projections, scores and rotary positions of one layer."""

from dataclasses import replace

from planner.cost.operators.sizes import FP32, Operators, Sizes
from planner.describe.layout import Module
from planner.describe.model.block import Attention, Gemm, Matrix, Pointwise, Saved
from planner.describe.model.weight_blocks import LayerKind


def attention(sizes: Sizes, kind: LayerKind, *, cross: bool = False) -> Operators:
    """Operators of a layer's attention: projections, core, rotary positions, query-key norms.

    Counted: GEMMs, kernels, and bytes per token saved for backward: input, queries, keys and
    values, output and softmax statistics, or the scores. Left out: the norm before. Korthikanti et
    al. 2022, arXiv:2205.05198, section 4.1; activations.md#activations.
    """
    model, name = sizes.model, "cross_attention" if cross else "attention"
    heads, kv, eager = model.num_heads, model.num_kv_heads, sizes.workload.attention == "eager"
    gemms, qk_dim, v_dim, latent = _projections(sizes, name)
    copied = model.written.key_copies in ("always", sizes.workload.attention)
    copied = copied and sizes.kernels.transformers_blocks
    keys = heads if copied or sizes.kernels.repeats_kv_heads else kv
    q, k, v, out = heads * qk_dim, keys * qk_dim, keys * v_dim, heads * v_dim
    exact = {"scores": q + k, "all": q + k + v}.get(sizes.exact_attention, 0) * eager
    qkv = sizes.element * (q + k + v) + (FP32 - sizes.element) * exact
    saved = [*_operands(sizes, name, qkv, out, cross=cross), *latent]
    if sizes.saves_fp8:
        saved.append(Saved(f"{name}.out.fp8", out, "sharded", input_of=("out",), for_weights=1.0))
    pointwise: tuple[Pointwise, ...] = ()
    if sizes.kernels.transformers_blocks:
        copies = _as_written(sizes, name, (q, k, v, out))
        saved, pointwise = [*saved, *copies.saved], copies.pointwise
    elif sizes.kernels.copies_ring_output:
        saved.append(_output_copy(sizes, name, out, only_context=True))
    core = _scores(sizes, name) if eager else _fused_core(sizes, name, out, cross=cross)
    norms = _qk_norms(sizes, name, (heads + kv) * qk_dim)
    rotary = _rotary(sizes, name, (heads + kv) * qk_dim)
    causal = kind.causal and not cross
    window, chunked = kind.window if causal else 0, model.chunked_window
    attention_core = Attention(heads, kv, qk_dim, v_dim, causal, window, chunked)
    return Operators(
        gemms,
        (attention_core,),
        (*pointwise, *core.pointwise, *rotary, *norms.pointwise),
        (*saved, *core.saved, *norms.saved),
    )


def _operands(
    sizes: Sizes, name: str, qkv_bytes: int, out: int, *, cross: bool
) -> tuple[Saved, Saved, Saved]:
    """Saved input of attention, its queries, keys and values together, and its output."""
    # without latent attention the norm is fused with the projection (Transformer Engine)
    norm: tuple[Module, ...] = ("layernorm",) if sizes.model.latent_attention else ()
    up: tuple[Module, ...] = ("mla_up_proj",) if sizes.model.latent_attention else ()
    entering = Saved(f"{name}.input", sizes.product_input * sizes.model.hidden_size, "gathered")
    leaving = Saved(f"{name}.out", sizes.element * out, "sharded", of_attention=not cross)
    eager = float(sizes.workload.attention == "eager")
    readers: tuple[Matrix, ...] = ("query", "key", "value")
    if sizes.shares_norm:
        readers += ("gate", "up")
    return (
        replace(entering, input_of=readers, for_weights=1.0, recomputed_with=norm),
        Saved(f"{name}.qkv", qkv_bytes, "sharded", recomputed_with=up),
        replace(leaving, input_of=("out",), for_weights=eager),
    )


def _output_copy(sizes: Sizes, name: str, out: int, *, only_context: bool = False) -> Saved:
    """A copy of attention's output, which the output projection reads."""
    copy = Saved(f"{name}.out.copy", sizes.element * out, "sharded", only_context=only_context)
    return replace(copy, input_of=("out",), for_weights=1.0)


def _fused_core(sizes: Sizes, name: str, out: int, *, cross: bool) -> Operators:
    """Softmax statistics of fused attention, and the rescaling of its output for sinks."""
    model, e, heads = sizes.model, sizes.element, sizes.model.num_heads
    statistics = Saved(f"{name}.logsumexp", FP32 * heads, "sharded", of_attention=not cross)
    statistics = replace(statistics, recomputed_with=("core_attn",))
    if not (model.attention_sinks and sizes.kernels.rescales_for_sinks):
        return Operators(saved=(statistics,))
    # the rescaled output, and the share without the sink in fp32 and in compute precision
    rescaled = Saved(f"{name}.sinks", e * out + (FP32 + e) * heads, "sharded")
    rescaling = Pointwise(f"{name}.sinks", 2 * e * out, 4 * e * out, "sharded", 3)
    return Operators(pointwise=(rescaling,), saved=(statistics, rescaled))


def _qk_norms(sizes: Sizes, name: str, width: int) -> Operators:
    """Norms of queries and keys, with `width` elements per token in total."""
    if sizes.model.qk_norm == "none":
        return Operators()
    e = sizes.element
    norm_input = Saved(f"{name}.qk_norm", sizes.norm_bytes(e) * width, "sharded")
    moved = 2 * e * width
    return Operators(
        pointwise=(Pointwise(f"{name}.qk_norm", moved, 2 * moved, "sharded", 2),),
        saved=(norm_input,),
    )


def _as_written(sizes: Sizes, name: str, widths: tuple[int, int, int, int]) -> Operators:
    """Further saved tensors and copies in the attention code of transformers."""
    (q, k, v, out), e, written = widths, sizes.element, sizes.model.written
    eager = sizes.workload.attention == "eager"
    saved, pointwise = [], []
    if written.joined_qkv and sizes.model.position == "rope":
        # the saved values are a view that keeps the joined QKV output alive
        saved.append(Saved(f"{name}.rotated", e * (q + k), "sharded"))
    if written.clipped_qkv:
        # clamping saves its input
        saved.append(Saved(f"{name}.unclipped", e * (q + k + v), "sharded"))
    if written.joined_rotary or eager:
        # the kernel's output has the memory order of its queries
        pointwise.append(Pointwise(f"{name}.copy", 2 * e * out, 2 * e * out, "sharded"))
    if written.joined_rotary and not eager:
        saved.append(_output_copy(sizes, name, out))
    return Operators(pointwise=tuple(pointwise), saved=tuple(saved))


def _projections(sizes: Sizes, name: str) -> tuple[tuple[Gemm, ...], int, int, tuple[Saved, ...]]:
    """Projections, widths of a query-key and a value head, saved tensors of latent attention."""
    model, e = sizes.model, sizes.element
    h, heads, kv = model.hidden_size, model.num_heads, model.num_kv_heads
    mla = model.latent_attention
    if mla is None:
        dim = model.head_dim
        out = Gemm(f"{name}.out", h, heads * dim, "row", heads)
        if name == "cross_attention":
            # keys and values come from the encoder's tokens
            query = Gemm(f"{name}.query", heads * dim, h, "column", heads)
            return (query, Gemm(f"{name}.kv", 2 * kv * dim, h, "column", heads), out), dim, dim, ()
        plain = (Gemm(f"{name}.qkv", (heads + 2 * kv) * dim, h, "column", heads), out)
        return plain, dim, dim, ()
    qk = mla.qk_nope_head_dim + mla.qk_rope_head_dim
    compressed = mla.kv_lora_rank + mla.qk_rope_head_dim
    expanded = heads * (mla.qk_nope_head_dim + mla.v_head_dim)
    up = Operators(
        (
            Gemm(f"{name}.kv_up", expanded, mla.kv_lora_rank, "column", heads),
            Gemm(f"{name}.query", heads * qk, mla.q_lora_rank or h, "column", heads),
        )
    )
    gemms: tuple[Gemm, ...] = (
        Gemm(f"{name}.kv_down", compressed, h),
        *up.recomputed_with("mla_up_proj").gemms,
        Gemm(f"{name}.out", h, heads * mla.v_head_dim, "row", heads),
    )
    if mla.q_lora_rank:
        gemms += (Gemm(f"{name}.query_down", mla.q_lora_rank, h),)
    # the compressed tensors before and after their norms
    low_rank = (sizes.norm_bytes(e) + e) * (mla.q_lora_rank + mla.kv_lora_rank)
    low_rank += e * mla.qk_rope_head_dim * sizes.fuses_norm
    latent_keys = e * heads * mla.qk_nope_head_dim * sizes.kernels.keeps_latent_keys
    latent = (
        Saved(f"{name}.latent", low_rank, "replicated"),
        Saved(f"{name}.latent.keys", latent_keys, "sharded", recomputed_with=("mla_up_proj",)),
    )
    return gemms, qk, mla.v_head_dim, latent


def _scores(sizes: Sizes, name: str) -> Operators:
    """Scores of eager attention, per head and key: softmax, dropout and its mask."""
    heads, e, m = sizes.model.num_heads, sizes.element, sizes.mask
    fused = sizes.kernels.fused_softmax
    exact = sizes.exact_attention
    softmax = {"none": e, "softmax": sizes.kernels.softmax_bytes or e}.get(exact, FP32)
    # the operand of the product with values, if it is not the softmax itself
    operand = e * (bool(m) or (softmax != e and exact != "all"))
    saved_bytes = softmax + e * sizes.model.attention_softcap + m + operand
    passes = 2 * e if fused else 8 * e
    dropout = (2 * e + m) * bool(m)
    kernels = (1 if fused else 4) + bool(m)
    forward, backward = heads * (passes + dropout), heads * (passes + e + dropout)
    operator = Pointwise(f"{name}.softmax", forward, backward, "sharded", kernels, scores=True)
    scores = Saved(f"{name}.scores", heads * saved_bytes, "sharded", scores=True, selective=False)
    return Operators(pointwise=(operator,), saved=(scores,)).recomputed_with("core_attn")


def _rotary(sizes: Sizes, name: str, width: int) -> list[Pointwise]:
    if sizes.model.position != "rope":
        return []
    passes = 2 if sizes.kernels.fused_rope else 10
    moved = passes * sizes.element * width
    kernels = 2 if sizes.kernels.fused_rope else 10
    up: tuple[Module, ...] = ("mla_up_proj",) if sizes.model.latent_attention else ()
    return [Pointwise(f"{name}.rope", moved, moved, "sharded", kernels, recomputed_with=up)]
