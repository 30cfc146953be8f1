"""Convolutional: a network of convolutions as stages, with the size of what each of them sees.

A token of such a model is a whole sample: sequences have one. The size of a picture goes through
the stages, so that a description states kernels and strides and never a size twice.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from planner.describe.base import Description, Width

__all__ = ["ConvStage", "Convolution", "Convolutional", "Dense", "Placed", "PlacedStage", "Pool"]

_Edge = Annotated[int, Field(ge=1, le=100_000)]


def _tuple(value: object) -> object:
    return (value,) if isinstance(value, int) and not isinstance(value, bool) else value


Edges = Annotated[tuple[_Edge, ...], BeforeValidator(_tuple), Field(min_length=1, max_length=3)]
"""An edge for all dimensions, or one for each."""


def _at(edges: tuple[int, ...], axis: int) -> int:
    return edges[axis] if len(edges) > 1 else edges[0]


class Pool(Description):
    """A pooling behind the convolutions of a stage."""

    kind: Literal["max", "average"] = "max"
    """Which of the places it takes."""
    kernel: Edges
    """Edge of its window."""
    stride: Edges
    """Places by which the window moves."""
    padding: int = Field(default=0, ge=0, le=1000)
    """Places added at every border."""

    def after(self, places: tuple[int, ...]) -> tuple[int, ...]:
        """The size behind it.

        >>> Pool(kernel=3, stride=2, padding=1).after((112, 112))
        (56, 56)
        """
        return tuple(
            (edge + 2 * self.padding - _at(self.kernel, i)) // _at(self.stride, i) + 1
            for i, edge in enumerate(places)
        )


class Convolution(Description):
    """A convolution with the normalisation and the non-linearity behind it."""

    out_channels: Width = Field(ge=1)
    """Output channels."""
    kernel: Edges
    """Edge of its kernel, or its edges."""
    stride: Edges = (1,)
    """Places by which the kernel moves; of a transposed convolution by which the output grows."""
    padding: int | None = Field(default=None, ge=0, le=1000)
    """Places added at every border; none stated: what keeps the size with an odd kernel."""
    dilation: int = Field(default=1, ge=1, le=1000)
    """Distance of the places that the kernel reads."""
    groups: Width = Field(default=1, ge=1)
    """Groups of channels that see each other alone."""
    transposed: bool = False
    """Whether it is a transposed convolution, which enlarges."""
    bias: bool = False
    """Whether it has a bias."""
    norm: Literal["batch", "instance", "none"] = "batch"
    """Normalisation with scale and shift behind it."""
    activation: Literal["relu", "leaky-relu", "none"] = "relu"
    """Non-linearity behind that; a leaky one is not computed in place and keeps its input."""

    def taps(self, dimensions: int) -> int:
        """Places that the kernel reads at once."""
        return math.prod(_at(self.kernel, i) for i in range(dimensions))

    def after(self, places: tuple[int, ...]) -> tuple[int, ...]:
        """The size behind it.

        >>> Convolution(out_channels=64, kernel=7, stride=2).after((224, 224))
        (112, 112)
        >>> Convolution(out_channels=64, kernel=2, stride=2, transposed=True).after((8, 8, 8))
        (16, 16, 16)
        """
        return tuple(self._edge(edge, i) for i, edge in enumerate(places))

    def _edge(self, edge: int, axis: int) -> int:
        kernel, stride = _at(self.kernel, axis), _at(self.stride, axis)
        padding = (kernel - 1) // 2 * self.dilation if self.padding is None else self.padding
        reach = self.dilation * (kernel - 1) + 1
        if self.transposed:
            return (edge - 1) * stride - 2 * padding + reach
        return (edge + 2 * padding - reach) // stride + 1


class ConvStage(Description):
    """`count` equal blocks of convolutions, one after the other."""

    name: str = Field(min_length=1, max_length=100)
    """What it is called."""
    convolutions: tuple[Convolution, ...] = Field(min_length=1, max_length=100)
    """Its convolutions in order."""
    count: int = Field(default=1, ge=1, le=100_000)
    """How many such blocks; of several each leaves the shape as it is."""
    residual: bool = False
    """Whether its input is added before the last non-linearity, through a convolution of one place
    with a normalisation where channels or size change."""
    joins: str = ""
    """Earlier stage whose output is joined, as more channels, to that of the first convolution."""
    pool: Pool | None = None
    """Pooling at its end."""


class Dense(Description):
    """A fully connected layer behind the stages."""

    outputs: Width = Field(ge=1)
    """Outputs."""
    activation: Literal["relu", "leaky-relu", "tanh", "none"] = "none"
    """Non-linearity."""
    dropout: bool = False
    """Whether a dropout follows."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A convolution with what enters it and what leaves it."""

    name: str
    of: Convolution
    in_channels: int
    in_places: tuple[int, ...]
    out_places: tuple[int, ...]
    shortcut: bool = False
    """Whether it stands beside the others of its stage."""

    @property
    def inputs(self) -> int:
        """Elements of a sample that enter it."""
        return self.in_channels * math.prod(self.in_places)

    @property
    def outputs(self) -> int:
        """Elements of a sample that leave it."""
        return self.of.out_channels * math.prod(self.out_places)

    @property
    def fan_in(self) -> int:
        """Elements of which an output is a sum."""
        return self.in_channels // self.of.groups * self.of.taps(len(self.in_places))


@dataclass(frozen=True, slots=True)
class PlacedStage:
    """A stage with the sizes of all that it computes."""

    stage: ConvStage
    in_channels: int
    in_places: tuple[int, ...]
    convolutions: tuple[Placed, ...]
    joined: int
    """Channels that another stage joins to it."""
    out_channels: int
    out_places: tuple[int, ...]

    @property
    def inputs(self) -> int:
        """Elements of a sample that enter it."""
        return self.in_channels * math.prod(self.in_places)

    @property
    def outputs(self) -> int:
        """Elements of a sample that leave it."""
        return self.out_channels * math.prod(self.out_places)


class Convolutional(Description):
    """A convolutional network: stages of convolutions, then fully connected layers."""

    dimensions: Literal[1, 2, 3]
    """Spatial dimensions."""
    in_channels: Width = Field(ge=1)
    """Channels of a sample."""
    size: Edges
    """Edges of a sample: one for all dimensions, or one for each [places]."""
    stages: tuple[ConvStage, ...] = Field(min_length=2, max_length=10_000)
    """Stages in order."""
    pooled: bool = False
    """Whether the mean over all places enters the first fully connected layer, not all of them."""
    dense: tuple[Dense, ...] = Field(default=(), max_length=100)
    """Fully connected layers, each with a bias."""
    loss: Literal["classes", "places", "values"] = "classes"
    """classes: cross entropy of a sample; places: of every place, with Dice; values: regression."""

    @model_validator(mode="after")
    def _check(self) -> Convolutional:
        list(self.placed())
        return self

    def placed(self) -> Iterator[PlacedStage]:
        """Its stages with the sizes that go through them; ValueError where one cannot be."""
        channels, places = self.in_channels, self._places(self.size)
        outputs: dict[str, tuple[int, tuple[int, ...]]] = {}
        for stage in self.stages:
            if stage.joins and stage.joins not in outputs:
                raise ValueError(
                    f"joins = {stage.joins!r} of stage {stage.name!r} is no stage before it; "
                    f"use one of {', '.join(outputs) or 'none, as it is the first'}"
                )
            found = _placed(stage, channels, places, outputs.get(stage.joins))
            yield found
            shape = (found.out_channels, found.out_places)
            if stage.count > 1 and shape != (channels, places):
                raise ValueError(
                    f"count = {stage.count} of stage {stage.name!r}: its blocks change the shape; "
                    "state the first as a stage of its own"
                )
            outputs[stage.name] = (channels, places) = shape

    def _places(self, size: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(_at(size, axis) for axis in range(self.dimensions))


def _placed(
    stage: ConvStage,
    channels: int,
    places: tuple[int, ...],
    joined: tuple[int, tuple[int, ...]] | None,
) -> PlacedStage:
    """A stage that such a shape enters."""
    found, entering, width, size = [], (channels, places), channels, places
    more = joined[0] if joined else 0
    for number, convolution in enumerate(stage.convolutions):
        if width % convolution.groups or convolution.out_channels % convolution.groups:
            raise ValueError(
                f"groups = {convolution.groups} of stage {stage.name!r} must divide {width} and "
                f"{convolution.out_channels} channels; correct them"
            )
        after = convolution.after(size)
        if min(after) < 1:
            raise ValueError(
                f"stage {stage.name!r}: a kernel of {convolution.kernel[0]} does not go into "
                f"{size[0]} places; enlarge the size of samples"
            )
        found.append(Placed(f"{stage.name}.{number + 1}", convolution, width, size, after))
        width, size = convolution.out_channels, after
        if joined and number == 0:
            if joined[1] != size:
                raise ValueError(
                    f"stage {stage.name!r} joins {stage.joins!r} of {joined[1]} places to {size}; "
                    "they must be alike"
                )
            width += more
    if stage.residual and entering != (width, size):
        stride = tuple(before // after for before, after in zip(places, size, strict=True))
        one = Convolution(out_channels=width, kernel=(1,), stride=stride, activation="none")
        found.append(Placed(f"{stage.name}.shortcut", one, *entering, size, shortcut=True))
    if stage.pool is not None:
        size = stage.pool.after(size)
    return PlacedStage(stage, channels, places, tuple(found), more, width, size)
