"""Backward: tensors that selective recompute saves, and temporaries of a layer's backward."""

from dataclasses import replace

from planner.cost.operators.sizes import FP32, Sizes
from planner.cost.scenario import Scenario
from planner.describe.model.block import Gemm, Saved, Split
from planner.describe.model.shapes import Experts
from planner.describe.model.weight_blocks import LayerKind, shared_size

FREES_NOTHING = "fused attention stores no scores to free"


def selective_frees_nothing(scenario: Scenario) -> bool:
    """True where selective recompute repeats only attention, which keeps no scores."""
    attention = scenario.framework.selective_policy == "attention-core"
    return attention and scenario.workload.attention == "flash"


def kept_selectively(sizes: Sizes, saved: tuple[Saved, ...], kind: LayerKind) -> tuple[Saved, ...]:
    """Tensors that operator-wise selective recompute saves: attention, GEMMs without bias.

    Counted: torchtitan's policy saves every second plain GEMM, starting with the first; a GEMM with
    bias is another operator. A row-parallel GEMM is saved before its reduction, unsplit on every
    rank; results of reduce-scatters and all-to-alls are saved too. Left out: recomputed FLOP
    (`block_time`). host.md#recompute.
    """
    policy, e, h = sizes.framework.selective_policy, sizes.element, sizes.model.hidden_size
    if policy == "attention-core":
        return saved
    step = 1 if policy == "matmul-outputs" else 2
    outputs = [
        Saved(f"{name}.output", e * width, split, selective_only=True)
        for name, width, split, bias in _products(sizes, kind)[::step]
        if not bias
    ]
    stream = Saved("layer.input", sizes.stream * h, "residual", selective_only=True)
    scattered = Saved(
        "reduce_scatter.outputs", 2 * e * h, "scattered", selective_only=True, only_split=True
    )
    experts = sizes.model.experts.top_k if sizes.model.experts and kind.experts else 0
    size = 2 * e * h * experts
    exchanged = Saved(
        "all_to_all.outputs", size, "dispatched", selective_only=True, only_spread=True
    )
    return (
        *(item if item.of_attention else replace(item, selective=False) for item in saved),
        *outputs,
        stream,
        scattered,
        *([exchanged] if experts else []),
    )


def _products(sizes: Sizes, kind: LayerKind) -> list[tuple[str, float, Split, bool]]:
    """Plain GEMMs in program order: name, output width, split, bias."""
    model = sizes.model
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
        # grouped GEMMs of routed experts are not plain GEMMs
        products.append(("router", model.experts.num_experts, "replicated", False))
        width = shared_size(model.experts)
    if width:
        names = ("gate", "up") if model.gated_mlp else ("up",)
        products += [(name, width, "sharded", model.mlp_bias) for name in names]
        products.append(("down", model.hidden_size, "replicated", model.mlp_bias))
    return products


def working(sizes: Sizes, experts: Experts | None) -> tuple[tuple[Saved, ...], ...]:
    """Gradients alive in the middle of a layer's backward: feed-forward or attention.

    Counted: bytes per token of gradients of the residual stream and inside the half, less the last
    GEMM's input, which is freed. Left out: recomputed activations. memory.md#memory-per-device.
    """
    model, e = sizes.model, sizes.element
    stream = Saved("gradient", 2 * sizes.stream * model.hidden_size, "residual")
    width = experts.ffn_size * experts.top_k if experts else model.ffn_size
    # gradients of the activated product and of its factors, less the freed product itself
    wide = (2 if model.gated_mlp else 1) * e * width
    if model.activation == "squared-relu" and not sizes.fuses_activation:
        # torch's pow_backward holds the power of its input and twice that power
        wide += 2 * e * width
    heads = model.num_heads * model.head_dim
    attention: tuple[Saved, ...] = (stream, Saved("gradient.qkv", 4 * e * heads, "sharded"))
    if sizes.kernels.context_exchange == "gather-pass" or sizes.kernels.copies_ring_output:
        attention += _ring(sizes, heads, 2 * model.num_kv_heads * model.head_dim)
    if sizes.workload.attention == "eager":
        # of the softmax and its input; in fp32 until they are cast back
        softmax = {"none": 2 * e, "softmax": e + (sizes.kernels.softmax_bytes or e)}
        scores = softmax.get(sizes.exact_attention, 2 * FP32) * model.num_heads
        attention += (Saved("gradient.scores", scores, "sharded", scores=True),)
    return (stream, Saved("gradient.ffn", wide, "expert" if experts else "sharded")), attention


def _ring(sizes: Sizes, query: int, pair: int) -> tuple[Saved, Saved]:
    """Buffers of torch's ring attention in the second step of its backward pass.

    Counted: gradient sums in fp32, of keys and values three times (own, packed, received); keys and
    values packed, and gathered of all ranks; gradients of the first step, and of the second, which
    has half of the queries or of the keys and values. Left out: what attention has without a ring.
    torch 2.13, _context_parallel/_attention.py.
    """
    e, gathers = sizes.element, sizes.kernels.context_exchange == "gather-pass"
    half_step = max(query / 2 + pair, query + pair / 2)
    # `working` has part of these gradients already; the output's copy is freed by then
    counted = 2 * query + query * sizes.kernels.copies_ring_output
    size = FP32 * (query + 3 * pair) + e * (2 * pair + half_step - counted)
    return (
        Saved("ring.gradients", size, "sharded", only_context=True),
        Saved("ring.gathered", e * pair * gathers, "rotated", only_context=True),
    )


def repeating(sizes: Sizes) -> tuple[Saved, ...]:
    """Temporaries, besides recomputed activations, when full recompute ends a layer.

    Counted: bytes per token of the last GEMM's unsplit output, its copy by rows, its sum, the
    norm's output, the incoming gradient. Left out: unsplit sequences. memory.md#memory-per-device.
    """
    if not sizes.kernels.repeats_to_end:
        return ()
    stream_gradients, stream = 2 * sizes.element * sizes.model.hidden_size, 3 * sizes.stream
    return (
        Saved("output", stream_gradients, "whole", only_split=True),
        Saved("gradient", stream * sizes.model.hidden_size, "scattered", only_split=True),
    )


def after_ffn(sizes: Sizes, experts: Experts | None) -> tuple[Saved, ...]:
    """Gradients of the residual stream, and of tokens at their experts.

    Counted: bytes per token once the feed-forward's weight gradients are complete. Left out:
    activations that are still alive. memory.md#memory-per-device.
    """
    model, e = sizes.model, sizes.element
    stream = Saved("gradient", sizes.stream * model.hidden_size, "residual")
    if experts is None:
        return (stream, stream)
    # from both GEMMs, and in fp32 before they are weighted
    exact = 2 * FP32 if sizes.kernels.scores_before_experts else 0
    size = (2 * e + exact) * model.hidden_size * experts.top_k
    return (stream, Saved("gradient.dispatch", size, "dispatched"))


def deferred(sizes: Sizes, gemms: tuple[Gemm, ...], norms: int) -> tuple[Saved, ...]:
    """Output gradients of a layer's GEMMs and norms, kept for a separate weight-gradient pass.

    Counted: bytes per token of the output of every GEMM and norm; unsplit on every rank after a
    row-parallel GEMM, in 8 bits where inputs are (TransformerEngine, pytorch/module/linear.py:
    wgrad_store). Left out: norms of queries and keys. torch 2.13, pipelining/_backward.py:
    stage_backward_input; memory.md#memory-per-device.
    """
    e, h = sizes.element, sizes.model.hidden_size
    results = tuple(
        Saved(
            f"gradient.{gemm.name}",
            float(sizes.product_input * gemm.rows * gemm.n * max(gemm.top_k, 1)),
            _split_of(gemm),
        )
        for gemm in gemms
        if gemm.weight_gradient
    )
    return (*results, Saved("gradient.norms", float(e * h * norms), "residual"))


def _split_of(gemm: Gemm) -> Split:
    """Split of a GEMM's output over tensor-parallel ranks."""
    if gemm.experts and gemm.top_k:
        return "expert" if gemm.split == "column" else "dispatched"
    return "sharded" if gemm.split == "column" else "replicated"
