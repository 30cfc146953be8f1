"""Adapters: operators and saved tensors of LoRA pairs on frozen matrices."""

from dataclasses import replace

from planner.describe.framework.traits import Kernels
from planner.describe.model.block import Block, Gemm, Pointwise, Saved, Split, Weight
from planner.describe.model.weight_blocks import add_adapters
from planner.describe.workload import BaseFormat, Workload

_SCALE, _BLOCK, _SCALES = 4.0, 64, 256
"""Bytes of an fp32 scale; elements per scale; 8-bit scales per fp32 scale (QLoRA, section 3:
block sizes of 64 for weights and 256 for their scales; bitsandbytes' defaults)."""


def stored_bytes(base: BaseFormat, columns: int) -> float:
    """Stored bytes per element of a frozen matrix with `columns` columns; 0: not quantised [B].

    Counted: codes and scales: nf4 0.5 + 4 / 64, with double quantisation 0.5 + 1 / 64 + 4 / (64 *
    256), 8 bits with a scale per row. Left out: code tables, offsets, alignment. Dettmers et al.
    2023, arXiv:2305.14314, section 3; bitsandbytes 0.48, functional.py: quantize_blockwise.
    """
    if base == "computed":
        return 0.0
    if base == "nf4":
        return 0.5 + _SCALE / _BLOCK
    if base == "nf4-double":
        return 0.5 + 1 / _BLOCK + _SCALE / (_BLOCK * _SCALES)
    return 1 + _SCALE / columns


def with_adapters(block: Block, workload: Workload, kernels: Kernels) -> Block:
    """Add frozen weights, their storage and adapters to a block; unchanged if all of it trains.

    Counted: GEMMs without weight gradients, pairs and their additions, tensors saved by dropout and
    DoRA, unpacking. Left out: input casts for pairs. parameters.md#frozen-weights-and-adapters.
    """
    part = "layers" if block.kind == "layer" else block.kind
    if not workload.lora_rank and part not in workload.frozen:
        return block
    layer = block.kind == "layer"
    targets = workload.lora_targets if workload.lora_rank and layer else ()
    weights = add_adapters(block.weights, workload.lora_rank, targets, magnitudes=workload.dora)
    pairs = tuple(_gemm(block, w) for w in weights if w.trainable and w.matrix)
    matrices = tuple(w for w in block.weights if w.matrix in targets and w.columns > 1)
    base = workload.base_format if layer else "computed"
    if layer:
        block = _with_temporaries(block, targets)
    return replace(
        block,
        weights=tuple(_stored(weight, base) for weight in weights),
        gemms=tuple(_frozen(gemm, workload, base, targets) for gemm in block.gemms) + pairs,
        pointwise=block.pointwise
        + tuple(_adapter_kernels(block, w, workload, kernels) for w in matrices),
        saved=_saved_tensors(block, workload, targets)
        + tuple(item for w in matrices for item in _adapter_saved(block, w, workload)),
        deferred=tuple(_deferred_gradient(gemm, workload) for gemm in pairs),
    )


def _gemm(block: Block, weight: Weight) -> Gemm:
    experts = weight.copies if weight.expert else 0
    top_k = block.dispatch_top_k if weight.expert else 0
    shape = (weight.rows, weight.columns, weight.split, weight.units)
    return Gemm(weight.name, *shape, experts, top_k)


def _stored(weight: Weight, base: BaseFormat) -> Weight:
    """Set stored bytes of frozen matrices in linear layers (no embedding, router, norm or bias)."""
    linear = weight.columns > 1 and weight.split != "replicated"
    down = weight.part == "attention" and weight.columns > 1
    if weight.trainable or not (linear or down):
        return weight
    return replace(weight, stored_bytes=stored_bytes(base, weight.columns))


def _frozen(gemm: Gemm, workload: Workload, base: BaseFormat, targets: tuple[str, ...]) -> Gemm:
    """GEMM with frozen weights, which are unpacked before it in forward and in backward."""
    moved, norms = 0.0, 0.0
    if stored := stored_bytes(base, gemm.k):
        moved = stored + workload.compute_bytes
    if workload.dora and targets:
        # the pair's product is computed, added to the weights, and the sum's norm taken
        norms = 5.0 * workload.compute_bytes
    if not gemm.quantizable:
        moved = norms = 0.0
    return replace(gemm, weight_gradient=False, unpacked_bytes=moved, norm_bytes=norms)


def _share(block: Block, weight: Weight) -> int:
    """Uses of the weight per token: top_k for experts, else 1."""
    return block.dispatch_top_k if weight.expert else 1


def _adapter_kernels(block: Block, weight: Weight, workload: Workload, fused: Kernels) -> Pointwise:
    """Kernels that scale and add a pair's output, and add its input gradient to the matrix's."""
    e, times = workload.compute_bytes, _share(block, weight)
    forward, backward = 5 * e * weight.rows, 2 * e * weight.rows + 3 * e * weight.columns
    kernels = 2
    if fused.fused_adapters:
        forward, backward, kernels = e * weight.rows, e * (weight.rows + weight.columns), 0
    if workload.lora_dropout:
        forward += (2 * e + 1) * weight.columns
        backward += (2 * e + 1) * weight.columns
        kernels += 1
    if workload.dora:
        # magnitudes scale both outputs, and their gradient reads the outputs again
        forward, backward = forward + 4 * e * weight.rows, backward + 6 * e * weight.rows
        kernels = 5
    split: Split = "replicated" if weight.split == "replicated" else "sharded"
    return Pointwise(f"{weight.name}.lora", forward * times, backward * times, split, kernels)


def _saved_tensors(block: Block, workload: Workload, targets: tuple[str, ...]) -> tuple[Saved, ...]:
    """Tensors that are still saved: without inputs of frozen GEMMs that no pair reads."""
    remaining = []
    for item in block.saved:
        needed = set(item.input_of) & set(targets) and not workload.lora_dropout
        if not item.for_weights or needed:
            remaining.append(item)
        elif item.for_weights < 1:
            size = item.bytes_per_token * (1 - item.for_weights)
            remaining.append(replace(item, bytes_per_token=size))
    return tuple(remaining)


def _adapter_saved(block: Block, weight: Weight, workload: Workload) -> tuple[Saved, ...]:
    """Saved tensors of a LoRA pair, per token."""
    e, times = workload.compute_bytes, _share(block, weight)
    name = f"{weight.name}.lora"
    items = [Saved(f"{name}.middle", float(e * workload.lora_rank * times), "replicated")]
    inside: Split = "sharded" if weight.split == "row" else "gathered"
    if workload.lora_dropout:
        # each pair has its own dropout of the input: the result, and a mask of one byte
        dropped = float((e + 1) * weight.columns * times)
        items.append(Saved(f"{name}.dropped", dropped, inside))
    if workload.dora:
        # outputs of matrix and pair, which the magnitude's gradient reads
        both = float(2 * e * weight.rows * times)
        outside: Split = "sharded" if weight.split == "column" else "replicated"
        items.append(Saved(f"{name}.outputs", both, outside))
    return tuple(items)


def _with_temporaries(block: Block, targets: tuple[str, ...]) -> Block:
    """Set the temporaries of the block's backward, and those alive with an unpacked matrix."""
    (stream, wide), attention = block.working
    half_stream = replace(stream, bytes_per_token=stream.bytes_per_token / 2)
    gated = any(weight.matrix == "gate" for weight in block.weights)
    width = wide.bytes_per_token / (2 if gated else 1)
    unpacking = (half_stream, replace(wide, bytes_per_token=width))
    extra_width = 0.0 if "down" in targets else width
    wide = replace(wide, bytes_per_token=wide.bytes_per_token + extra_width)
    return replace(block, unpacking=unpacking, working=((half_stream, wide), attention))


def _deferred_gradient(gemm: Gemm, workload: Workload) -> Saved:
    """Output gradient of a pair's GEMM, kept for a separate weight-gradient pass."""
    size = float(workload.compute_bytes * gemm.n * max(gemm.top_k, 1))
    split: Split = "sharded" if gemm.split == "column" else "replicated"
    return Saved(f"gradient.{gemm.name}", size, split)
