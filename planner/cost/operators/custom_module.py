"""Custom modules: operators and saved tensors of a traced module; a token is a sample."""

from collections.abc import Iterator
from dataclasses import replace

from planner.cost.operators.sizes import FP32, Sizes
from planner.describe.model.block import Attention, Block, Gemm, Pointwise, Saved
from planner.describe.model.traced_file import (
    InPrecisions,
    Traced,
    TracedBlock,
    TracedOperation,
    traced_weights,
)

_REDUCED = {"column": (1, 0), "gathered": (1, 0.5), "row": (0, 1), "replicated": (0, 0)}
"""All-reduces of the gradient that enters a product, and of its result."""


def traced_blocks(sizes: Sizes, traced: Traced) -> tuple[Block, ...]:
    """Blocks of a traced module under a workload and a framework.

    Counted: traced figures per sample in the framework's precision: fp32, autocast if it keeps the
    stream in fp32, else 16-bit weights; fp64 as twice fp32; results of forward, if the framework's
    loop holds them. Left out: compiler fusion; buffers; memory of a batch that does not grow with
    its size. convolutions.md#modules-of-your-own.
    """
    pairs = zip(traced_weights(traced), traced.blocks, strict=True)
    built = tuple(_block(sizes, block, traced_block) for block, traced_block in pairs)
    if not sizes.kernels.keeps_logits:
        return built
    module_results = Saved("results", _bytes(sizes, traced.results), "replicated")
    return (*built[:-1], replace(built[-1], saved=(*built[-1].saved, module_results)))


def _chosen(sizes: Sizes, figure: InPrecisions) -> float:
    """Figure for the framework's precision: fp32, autocast or 16-bit weights."""
    if sizes.element >= FP32:
        return figure.fp32
    return figure.autocast if sizes.kernels.residual_bytes >= FP32 else figure.cast


def _bytes(sizes: Sizes, figure: InPrecisions) -> float:
    """Bytes per sample; fp64 takes twice as many as fp32 [B]."""
    return _chosen(sizes, figure) * max(sizes.element / FP32, 1)


def _block(sizes: Sizes, block: Block, traced: TracedBlock) -> Block:
    kernels_run = [operation for operation in traced.operations for _ in range(operation.count)]
    working = _saved(sizes, traced, "gradients", "working")
    forward, backward = _parts(sizes, traced, "forward"), _parts(sizes, traced, "backward")
    count = round(_chosen(sizes, traced.kernels))
    kernels = [Pointwise("kernels", forward[0], backward[0], "replicated", num_kernels=count)]
    if forward[1] or backward[1]:
        kernels.append(Pointwise("split kernels", forward[1], backward[1], "sharded", 0))
    return replace(
        block,
        gemms=tuple(_gemm(block.name, run) for run in kernels_run if run.kind != "attention"),
        attentions=tuple(_attention(run) for run in kernels_run if run.kind == "attention"),
        pointwise=(*kernels, *_orders(sizes, kernels_run)),
        saved=_saved(sizes, traced, "kept", "saved"),
        num_tp_collectives=_collectives(sizes, kernels_run),
        # a layer has one alternative per half; here both are the same
        working=(working, working) if block.kind == "layer" else (working,),
    )


def _parts(sizes: Sizes, traced: TracedBlock, figure: str) -> tuple[float, float]:
    """Bytes per sample that tensor parallelism leaves whole, and those that it divides [B]."""
    total = _bytes(sizes, getattr(traced, figure))
    divided = total * float(getattr(traced.divided, figure))
    return total - divided, divided


def _saved(sizes: Sizes, traced: TracedBlock, name: str, figure: str) -> tuple[Saved, ...]:
    whole, divided = _parts(sizes, traced, figure)
    split = (Saved(f"split {name}", divided, "sharded"),) if divided else ()
    return (Saved(name, whole, "replicated"), *split)


def _collectives(sizes: Sizes, operations: list[TracedOperation]) -> float:
    """All-reduces of the widest tensor between blocks, as a mean of forward and backward.

    Counted: results of rows, gradients that enter columns, and gathers as halves. Left out: the
    latency of several small ones. Shoeybi et al. 2019, arXiv:1909.08053.
    """
    elements = 0.0
    for operation in operations:
        entering, leaving = _REDUCED[operation.split]
        width = entering * operation.k * operation.input_gradient + leaving * operation.n
        elements += operation.rows * width
    return elements / 2 / max(sizes.model.hidden_size, 1)


def _orders(sizes: Sizes, operations: list[TracedOperation]) -> Iterator[Pointwise]:
    """Layout transposes around convolutions, unless channels are last in memory."""
    if sizes.workload.precision == "fp32" or sizes.kernels.channels_last:
        return
    for operation in operations:
        if operation.kind == "convolution":
            inputs = operation.inputs or operation.rows * operation.k
            moved = 2.0 * sizes.element * (inputs + operation.rows * operation.n)
            both = moved * (1 + operation.input_gradient)
            yield Pointwise("order", moved, both, "replicated", 2)


def _gemm(name: str, operation: TracedOperation) -> Gemm:
    return Gemm(
        f"{name}.{operation.kind}",
        operation.n,
        operation.k,
        "column" if operation.split == "gathered" else operation.split,
        rows=operation.rows,
        inputs=float(operation.inputs),
        convolution=operation.kind == "convolution",
        small_kernel=operation.small_kernel,
        copies=operation.copies if operation.kind == "batched" else 0,
        input_gradient=operation.input_gradient,
        weight_gradient=operation.weight_gradient,
        quantizable=False,
    )


def _attention(operation: TracedOperation) -> Attention:
    return Attention(
        num_heads=operation.copies,
        num_kv_heads=operation.copies,
        qk_dim=operation.k,
        v_dim=operation.values,
        causal=operation.causal,
        queries=float(operation.rows),
        keys=float(operation.n),
    )
