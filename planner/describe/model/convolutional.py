"""Convolutional networks: stages of convolutions, with the tensor sizes of one sample."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from planner.describe.base import Description, PositiveWidth

_Edge = Annotated[int, Field(ge=1, le=100_000)]


def _tuple(value: object) -> object:
    return (value,) if isinstance(value, int) and not isinstance(value, bool) else value


Edges = Annotated[tuple[_Edge, ...], BeforeValidator(_tuple), Field(min_length=1, max_length=3)]
"""One length for all dimensions, or one per dimension."""


def _at(edges: tuple[int, ...], axis: int) -> int:
    return edges[axis] if len(edges) > 1 else edges[0]


class Pool(Description):
    """Pooling at the end of a stage."""

    kind: Literal["max", "average"] = "max"
    """Largest or mean value of the window."""
    kernel: Edges
    """Edge of the window."""
    stride: Edges
    """Stride of the window."""
    padding: int = Field(default=0, ge=0, le=1000)
    """Padding at every border."""

    def after(self, places: tuple[int, ...]) -> tuple[int, ...]:
        """Spatial size of the output."""
        return tuple(
            (edge + 2 * self.padding - _at(self.kernel, i)) // _at(self.stride, i) + 1
            for i, edge in enumerate(places)
        )


class Convolution(Description):
    """A convolution, its normalisation and its activation."""

    out_channels: PositiveWidth
    """Output channels."""
    kernel: Edges
    """Edge of the kernel, or one edge for each dimension."""
    stride: Edges = (1,)
    """Stride; a transposed convolution enlarges its input by it."""
    padding: int | None = Field(default=None, ge=0, le=1000)
    """Padding at every border; None: an odd kernel keeps the size at stride 1."""
    dilation: int = Field(default=1, ge=1, le=1000)
    """Dilation of the kernel."""
    groups: PositiveWidth = 1
    """Groups of channels."""
    transposed: bool = False
    """Whether it is a transposed convolution."""
    bias: bool = False
    """Whether it has a bias."""
    norm: Literal["batch", "instance", "none"] = "batch"
    """Normalisation after the convolution, with scale and shift."""
    activation: Literal["relu", "leaky-relu", "none"] = "relu"
    """Activation after the normalisation; leaky-relu is not in place and saves its input."""

    def taps(self, dimensions: int) -> int:
        """Kernel elements per pair of input and output channels."""
        return math.prod(_at(self.kernel, i) for i in range(dimensions))

    def after(self, places: tuple[int, ...]) -> tuple[int, ...]:
        """Spatial size of the output."""
        return tuple(self._edge(edge, i) for i, edge in enumerate(places))

    def _edge(self, edge: int, axis: int) -> int:
        kernel, stride = _at(self.kernel, axis), _at(self.stride, axis)
        padding = (kernel - 1) // 2 * self.dilation if self.padding is None else self.padding
        reach = self.dilation * (kernel - 1) + 1
        if self.transposed:
            return (edge - 1) * stride - 2 * padding + reach
        return (edge + 2 * padding - reach) // stride + 1


class ConvStage(Description):
    """`count` equal blocks of convolutions, one after another."""

    name: str = Field(min_length=1, max_length=100)
    """Name of the stage."""
    convolutions: tuple[Convolution, ...] = Field(min_length=1, max_length=100)
    """Convolutions of one block, in order."""
    count: int = Field(default=1, ge=1, le=100_000)
    """Number of equal blocks; with several, a block must keep the shape of its input."""
    residual: bool = False
    """Whether the input is added before the last activation, by a 1 x 1 convolution if needed."""
    joins: str = ""
    """Earlier stage whose output is concatenated to the output of the first convolution."""
    pool: Pool | None = None
    """Pooling at the end of the stage."""


class Dense(Description):
    """A fully connected layer after the stages."""

    outputs: PositiveWidth
    """Width of the output."""
    activation: Literal["relu", "leaky-relu", "tanh", "none"] = "none"
    """Activation."""
    dropout: bool = False
    """Whether dropout follows."""


@dataclass(frozen=True, slots=True)
class SizedConvolution:
    """A convolution with the sizes of its input and its output."""

    name: str
    of: Convolution
    in_channels: int
    in_places: tuple[int, ...]
    out_places: tuple[int, ...]
    shortcut: bool = False
    """Whether it is the shortcut of a residual connection."""

    @property
    def inputs(self) -> int:
        """Input elements of one sample."""
        return self.in_channels * math.prod(self.in_places)

    @property
    def outputs(self) -> int:
        """Output elements of one sample."""
        return self.of.out_channels * math.prod(self.out_places)

    @property
    def fan_in(self) -> int:
        """Products summed for one output element."""
        return self.in_channels // self.of.groups * self.of.taps(len(self.in_places))


@dataclass(frozen=True, slots=True)
class SizedStage:
    """A stage with the sizes of its input, its convolutions and its output."""

    stage: ConvStage
    in_channels: int
    in_places: tuple[int, ...]
    convolutions: tuple[SizedConvolution, ...]
    joined: int
    """Channels concatenated from another stage."""
    out_channels: int
    out_places: tuple[int, ...]

    @property
    def inputs(self) -> int:
        """Input elements of one sample."""
        return self.in_channels * math.prod(self.in_places)

    @property
    def outputs(self) -> int:
        """Output elements of one sample."""
        return self.out_channels * math.prod(self.out_places)


class Convolutional(Description):
    """A convolutional network: stages of convolutions, then fully connected layers."""

    dimensions: Literal[1, 2, 3]
    """Spatial dimensions."""
    in_channels: PositiveWidth
    """Channels of a sample."""
    size: Edges
    """Spatial size of a sample: one edge for all dimensions, or one for each."""
    stages: tuple[ConvStage, ...] = Field(min_length=2, max_length=10_000)
    """Stages in order."""
    pooled: bool = False
    """Whether global average pooling precedes the first fully connected layer."""
    dense: tuple[Dense, ...] = Field(default=(), max_length=100)
    """Fully connected layers, each with a bias."""
    loss: Literal["classes", "places", "values"] = "classes"
    """Cross entropy: classes, per sample; places, per voxel, with Dice; values: regression."""

    @model_validator(mode="after")
    def _check(self) -> Convolutional:
        list(self.sized_stages())
        return self

    def sized_stages(self) -> Iterator[SizedStage]:
        """Yield the stages with their sizes; raise ValueError if a stage does not fit its input."""
        channels, places = (
            self.in_channels,
            tuple(_at(self.size, i) for i in range(self.dimensions)),
        )
        outputs: dict[str, tuple[int, tuple[int, ...]]] = {}
        for stage in self.stages:
            if stage.joins and stage.joins not in outputs:
                raise ValueError(
                    f"joins = {stage.joins!r} of stage {stage.name!r} is not a stage before it; "
                    f"use one of {', '.join(outputs) or 'none, as it is the first'}"
                )
            sized = _size_stage(stage, channels, places, outputs.get(stage.joins))
            yield sized
            shape = (sized.out_channels, sized.out_places)
            if stage.count > 1 and shape != (channels, places):
                raise ValueError(
                    f"count = {stage.count} of stage {stage.name!r}: its blocks change the shape; "
                    "write the first block as a separate stage"
                )
            outputs[stage.name] = (channels, places) = shape


def _size_stage(
    stage: ConvStage,
    channels: int,
    places: tuple[int, ...],
    joined: tuple[int, tuple[int, ...]] | None,
) -> SizedStage:
    sized: list[SizedConvolution] = []
    input_shape, width, size = (channels, places), channels, places
    joined_channels = joined[0] if joined else 0
    for number, convolution in enumerate(stage.convolutions):
        if width % convolution.groups or convolution.out_channels % convolution.groups:
            raise ValueError(
                f"groups = {convolution.groups} of stage {stage.name!r} must divide {width} and "
                f"{convolution.out_channels} channels; correct them"
            )
        after = convolution.after(size)
        if min(after) < 1:
            axis = after.index(min(after))
            raise ValueError(
                f"stage {stage.name!r}: a kernel of {_at(convolution.kernel, axis)} does not fit "
                f"its input of {size[axis]}; use larger samples"
            )
        name = f"{stage.name}.{number + 1}"
        sized.append(SizedConvolution(name, convolution, width, size, after))
        width, size = convolution.out_channels, after
        if joined and number == 0:
            if joined[1] != size:
                raise ValueError(
                    f"stage {stage.name!r} joins {stage.joins!r} of size {joined[1]} to size "
                    f"{size}; both must have the same size"
                )
            width += joined_channels
    if stage.residual and input_shape != (width, size):
        stride = tuple(before // after for before, after in zip(places, size, strict=True))
        projection = Convolution(out_channels=width, kernel=(1,), stride=stride, activation="none")
        name = f"{stage.name}.shortcut"
        sized.append(SizedConvolution(name, projection, *input_shape, size, shortcut=True))
    if stage.pool is not None:
        size = stage.pool.after(size)
    return SizedStage(stage, channels, places, tuple(sized), joined_channels, width, size)
