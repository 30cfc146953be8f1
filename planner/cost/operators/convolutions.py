"""Convolutions: operators and saved tensors of convolutional stages; a token is a sample."""

import math
from collections.abc import Iterator
from dataclasses import replace

from planner.cost.operators.sizes import FP32, Operators, Sizes
from planner.describe.model.block import Block, Gemm, Pointwise, Saved
from planner.describe.model.convolutional import Convolutional, Dense, SizedConvolution, SizedStage
from planner.describe.model.weight_blocks import dense_widths, weight_blocks

_INDEX = 8
"""Bytes per index of a maximum in max-pooling (torch's int64)."""


def stages(sizes: Sizes, net: Convolutional) -> tuple[Block, ...]:
    """Blocks of a convolutional network: its stages, then its fully connected layers.

    Counted: GEMMs, memory passes of all other operations, bytes per sample saved for backward,
    layout transposes around GEMMs. Left out: library workspaces, augmentation. He et al. 2015,
    arXiv:1512.03385, table 1; convolutions.md#convolutions.
    """
    placed, blocks = tuple(net.sized_stages()), []
    for number, (stage, block) in enumerate(zip(placed, weight_blocks(sizes.model), strict=False)):
        operators = _stage(sizes, stage, first=number == 0)
        gradient = _gradient(sizes, stage)
        blocks.append(
            replace(
                block,
                gemms=operators.gemms,
                pointwise=operators.pointwise,
                saved=operators.saved,
                working=(gradient, gradient),
            )
        )
    last = blocks[-1] if not net.dense else _dense(sizes, net, placed[-1])
    loss, loss_saved, working = _loss(sizes, net, placed[-1])
    last = replace(
        last, pointwise=(*last.pointwise, loss), saved=(*last.saved, loss_saved), working=(working,)
    )
    return (*(blocks if net.dense else blocks[:-1]), last)


def _stage(sizes: Sizes, placed: SizedStage, *, first: bool) -> Operators:
    """Operators and saved tensors of a stage, per sample, without its input."""
    e, stage, operators = sizes.element, placed.stage, Operators()
    for number, convolution in enumerate(placed.convolutions):
        operators += _convolution(sizes, convolution, first=first and number == 0)
        joins = stage.joins and number == 0
        if joins:
            operators += _concatenation(sizes, convolution, placed.joined)
        elif convolution.of.activation != "none":
            operators += _activation(sizes, convolution)
        elif not convolution.shortcut and convolution is not _last(placed):
            operators += Operators(
                saved=(Saved(f"{convolution.name}.out", e * convolution.outputs, "replicated"),)
            )
    if stage.residual:
        operators += _residual_addition(sizes, placed)
    if stage.pool is not None:
        operators += _pooled(sizes, placed)
    if first:
        # the sample as read, and cast to compute precision
        sample_bytes = placed.inputs * (e + FP32 * (e < FP32))
        operators += Operators(
            saved=(Saved("sample", sample_bytes, "replicated", for_weights=1.0),)
        )
    return operators


def _last(placed: SizedStage) -> SizedConvolution:
    return [conv for conv in placed.convolutions if not conv.shortcut][-1]


def _convolution(sizes: Sizes, placed: SizedConvolution, *, first: bool) -> Operators:
    """A convolution with its bias, norm and layout transposes."""
    e, of, name = sizes.element, placed.of, placed.name
    inputs, outputs = placed.inputs, placed.outputs
    pointwise, saved = [], []
    if sizes.workload.precision != "fp32" and not sizes.kernels.channels_last:
        # operands and result of each of the three GEMMs are transposed
        moved = 2 * e * (inputs + outputs)
        both = moved if first else 2 * moved
        pointwise.append(Pointwise(f"{name}.order", moved, both, "replicated", 2))
    if of.bias:
        pointwise.append(Pointwise(f"{name}.bias", 2 * e * outputs, e * outputs, "replicated"))
    if of.norm != "none":
        # forward: statistics, then scale; backward: sums, then the gradient of the input
        pointwise.append(
            Pointwise(f"{name}.norm", 3 * e * outputs, 5 * e * outputs, "replicated", 2)
        )
        saved.append(Saved(f"{name}.norm.input", e * outputs, "replicated"))
    return Operators((_gemm(placed, first),), (), tuple(pointwise), tuple(saved))


def _gemm(placed: SizedConvolution, first: bool) -> Gemm:
    of, dimensions = placed.of, len(placed.in_places)
    taps, inside = of.taps(dimensions), placed.in_channels // of.groups
    if of.transposed:
        rows, n, k = math.prod(placed.in_places), of.out_channels // of.groups * taps, inside
    else:
        rows, n, k = math.prod(placed.out_places), of.out_channels // of.groups, placed.fan_in
    return Gemm(
        placed.name,
        n,
        k,
        input_gradient=not first,
        quantizable=False,
        rows=rows * of.groups,
        inputs=0.0 if of.transposed else float(placed.inputs),
        convolution=True,
        small_kernel=_is_small(placed),
    )


def _is_small(placed: SizedConvolution) -> bool:
    of, plane = placed.of, len(placed.in_places) == 2
    plain = of.dilation == of.groups == 1 and not of.transposed
    return plane and plain and set(of.kernel) == {3} and set(of.stride) == {1}


def _activation(sizes: Sizes, placed: SizedConvolution) -> Operators:
    """An activation that saves its output; a leaky one without a norm also saves its input."""
    e, outputs, leaky = sizes.element, placed.outputs, placed.of.activation == "leaky-relu"
    saved = [Saved(f"{placed.name}.out", e * outputs, "replicated")]
    if leaky and placed.of.norm == "none":
        saved.append(Saved(f"{placed.name}.activation.input", e * outputs, "replicated"))
    return Operators(pointwise=(_element_wise(sizes, placed.name, outputs),), saved=tuple(saved))


def _element_wise(sizes: Sizes, name: str, elements: int) -> Pointwise:
    """Memory passes of an activation, forward and backward; fewer if fused."""
    e = sizes.element
    if sizes.kernels.fused_residual:
        return Pointwise(f"{name}.activation", 0.0, e * elements, "replicated", 0)
    return Pointwise(f"{name}.activation", 2 * e * elements, 3 * e * elements, "replicated")


def _residual_addition(sizes: Sizes, placed: SizedStage) -> Operators:
    """Residual addition of a stage's input, and the activation after it."""
    e, outputs = sizes.element, _last(placed).outputs
    moved = e * outputs if sizes.kernels.fused_residual else 3 * e * outputs
    add = Pointwise("residual", moved, 3 * e * placed.inputs, "replicated")
    after = _element_wise(sizes, "residual", outputs)
    output = Saved("residual.out", e * outputs, "replicated")
    return Operators(pointwise=(add, after), saved=(output,))


def _concatenation(sizes: Sizes, placed: SizedConvolution, channels: int) -> Operators:
    """Concatenation of a convolution's channels with those of another stage: a copy of both."""
    e, more = sizes.element, channels * math.prod(placed.out_places)
    both = placed.outputs + more
    join = Pointwise(
        f"{placed.name}.join", 2 * e * both, e * (2 * placed.outputs + 3 * more), "replicated"
    )
    output = Saved(f"{placed.name}.join", e * both, "replicated", for_weights=1.0)
    return Operators(pointwise=(join,), saved=(output,))


def _pooled(sizes: Sizes, placed: SizedStage) -> Operators:
    """Pooling; max-pooling saves the index of each maximum for backward."""
    e, stage, into = sizes.element, placed.stage, _last(placed).outputs
    assert stage.pool is not None
    index = _INDEX if stage.pool.kind == "max" else 0
    forward = e * into + (e + index) * placed.outputs
    pool = Pointwise("pool", forward, forward + e * into * bool(index), "replicated", 2)
    output = Saved("pool.out", (e + index) * placed.outputs, "replicated")
    return Operators(pointwise=(pool,), saved=(output,))


def _gradient(sizes: Sizes, placed: SizedStage) -> tuple[Saved, ...]:
    """Gradients alive in the backward of a stage's largest convolution and shortcut."""
    e = sizes.element
    largest = max(conv.inputs + conv.outputs for conv in placed.convolutions)
    around = e * _last(placed).outputs * placed.stage.residual
    return (
        Saved("gradient", e * largest, "replicated"),
        Saved("gradient.residual", around, "replicated"),
    )


def _dense(sizes: Sizes, net: Convolutional, last: SizedStage) -> Block:
    """Fully connected layers after the last stage."""
    e, block = sizes.element, weight_blocks(sizes.model)[-1]
    widths = dense_widths(net, last)
    mean = e * (last.outputs + widths[0][0])
    return replace(
        block,
        gemms=tuple(
            Gemm(f"dense.{number + 1}", outputs, inputs)
            for number, (inputs, outputs) in enumerate(widths)
        ),
        pointwise=(
            Pointwise("flatten", mean, mean, "replicated"),
            *(_dense_kernels(sizes, number, dense) for number, dense in enumerate(net.dense)),
        ),
        saved=tuple(_dense_saved(sizes, net, widths)),
    )


def _dense_kernels(sizes: Sizes, number: int, dense: Dense) -> Pointwise:
    moved = sizes.element * dense.outputs
    kernels = 1 + (dense.activation != "none") + dense.dropout
    return Pointwise(
        f"dense.{number + 1}", 2 * kernels * moved, 3 * kernels * moved, "replicated", kernels
    )


def _dense_saved(
    sizes: Sizes, net: Convolutional, widths: tuple[tuple[int, int], ...]
) -> Iterator[Saved]:
    """Saved inputs, activations and dropout masks of the fully connected layers."""
    e = sizes.element
    for number, (inputs, outputs) in enumerate(widths):
        dense = net.dense[number]
        yield Saved(f"dense.{number + 1}.input", e * inputs, "replicated", for_weights=1.0)
        saved_bytes = e * outputs * (dense.activation != "none") + outputs * dense.dropout
        yield Saved(f"dense.{number + 1}.out", saved_bytes, "replicated")


def _loss(
    sizes: Sizes, net: Convolutional, last: SizedStage
) -> tuple[Pointwise, Saved, tuple[Saved, ...]]:
    """Kernel, saved tensors and backward temporaries of the loss: softmax, or Dice of positions."""
    outputs = net.dense[-1].outputs if net.dense else last.outputs
    places = net.loss == "places"
    saved_bytes = FP32 * outputs * (3 if places else 1)
    if places:
        saved_bytes += _INDEX * math.prod(last.out_places)
    moved = FP32 * outputs * (12 if places else 4)
    working = Saved("loss.gradient", 2 * FP32 * outputs, "replicated")
    return (
        Pointwise("loss", moved, moved, "replicated", 8 if places else 4),
        Saved("loss.kept", saved_bytes, "replicated", until_loss=True),
        (working,),
    )
