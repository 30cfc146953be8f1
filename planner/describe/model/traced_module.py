"""Traced modules: computation and memory of a user's module for one sample, as plain numbers.

A token of such a model is a whole sample: sequences have one. It is found once with torch
(`planner.validate.trace.module_trace`) and planned with these numbers alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, model_validator

from planner.describe.base import Description
from planner.describe.model.block import Block, Part, Weight

__all__ = [
    "InPrecisions",
    "Traced",
    "TracedBlock",
    "TracedOperation",
    "TracedWeight",
    "traced_weights",
]

_Size = Annotated[int, Field(ge=0, le=10**15)]
_Bytes = Annotated[float, Field(ge=0, le=1e18)]


class InPrecisions(Description):
    """A figure per precision mode: bytes of one sample, or a number of kernels."""

    fp32: _Bytes = 0.0
    """With everything in fp32."""
    autocast: _Bytes = 0.0
    """With autocast: GEMMs in 16 bits, sensitive operations in fp32."""
    cast: _Bytes = 0.0
    """With 16-bit weights and inputs."""


class TracedWeight(Description):
    """`count` parameter tensors of one shape."""

    rows: _Size
    """First dimension, along which it is sharded."""
    columns: _Size = 1
    """Product of the other dimensions."""
    count: int = Field(default=1, ge=1, le=10**6)
    """Number of such tensors."""
    trainable: bool = True
    """Whether it has a gradient."""
    shared: bool = False
    """Whether another block owns and counts it."""


class TracedOperation(Description):
    """`count` equal GEMMs, convolutions or fused attentions of one sample."""

    kind: Literal["product", "batched", "convolution", "attention"]
    """product: (rows, k) x (k, n); batched: `copies` of them without a shared operand; convolution:
    a product whose rows share inputs; attention: rows are queries of width k, n is the number of
    keys, `values` the width of a value."""
    rows: _Size
    """Rows of a sample."""
    n: _Size
    """Columns of the result, or keys."""
    k: _Size
    """Length of the sum, or width of a query."""
    copies: int = Field(default=1, ge=1, le=10**9)
    """Batched products, or heads of attention, of a sample."""
    inputs: _Size = 0
    """Elements of a sample that the rows share; 0: none."""
    values: _Size = 0
    """Width of a value (attention)."""
    causal: bool = False
    """Whether attention is causal."""
    input_gradient: bool = True
    """Whether backward computes the gradient of the first operand."""
    weight_gradient: bool = True
    """Whether backward computes the gradient of the second."""
    small_kernel: bool = False
    """Whether it is a 3 x 3 convolution with stride 1."""
    count: int = Field(default=1, ge=1, le=10**6)
    """Number of such operations."""

    @property
    def flop(self) -> int:
        """Operations of the forward passes for one sample, masked halves included [FLOP].

        >>> TracedOperation(kind="product", rows=10, n=3, k=4, count=2).flop
        480
        """
        width = self.k + self.values if self.kind == "attention" else self.k
        return 2 * self.count * self.copies * self.rows * self.n * width


class TracedBlock(Description):
    """`count` equal blocks; figures are for one block and one sample."""

    name: str = Field(min_length=1, max_length=300)
    """Name of the first such block in the module."""
    role: Literal["first", "repeated", "last"]
    """first: runs before the blocks; repeated; last: runs between and after them."""
    count: int = Field(default=1, ge=1, le=100_000)
    """Number of equal blocks."""
    width: _Size = 0
    """Input elements of real numbers."""
    weights: tuple[TracedWeight, ...] = ()
    """Parameter tensors."""
    operations: tuple[TracedOperation, ...] = ()
    """GEMMs, convolutions and attentions."""
    forward: InPrecisions = InPrecisions()
    """Bytes moved by memory-bound kernels in forward."""
    backward: InPrecisions = InPrecisions()
    """Bytes moved by memory-bound kernels in backward."""
    kernels: InPrecisions = InPrecisions()
    """Memory-bound kernels of the forward pass."""
    saved: InPrecisions = InPrecisions()
    """Bytes saved for backward."""
    working: InPrecisions = InPrecisions()
    """Most bytes alive in backward, besides those saved by this and earlier blocks."""

    @property
    def num_params(self) -> int:
        """Parameters of one block, without shared ones."""
        owned = (weight for weight in self.weights if not weight.shared)
        return sum(weight.rows * weight.columns * weight.count for weight in owned)


class Traced(Description):
    """A module as blocks, with their computation and memory for one sample."""

    blocks: tuple[TracedBlock, ...] = Field(min_length=2, max_length=10_000)
    """The first block, the repeated blocks, the last block."""
    results: InPrecisions = InPrecisions()
    """Bytes per sample that forward returns and backward does not need."""
    buffer_bytes: _Bytes = 0.0
    """Buffers beside the parameters, not in the estimates [B]."""
    constant_bytes: _Bytes = 0.0
    """Bytes saved per batch of any size, not in the estimates [B]."""
    cast_by_half: bool = False
    """Whether figures for 16-bit weights are half of fp32, as the module does not run with them."""
    torch: str = ""
    """Version of torch that traced it."""

    @model_validator(mode="after")
    def _check(self) -> Traced:
        roles = [block.role for block in self.blocks]
        if roles != ["first", *["repeated"] * (len(roles) - 2), "last"]:
            raise ValueError(
                "blocks must be one that is first, repeated ones, and one that is last"
            )
        return self

    @property
    def num_params(self) -> int:
        """Parameters, shared ones once."""
        return sum(block.count * block.num_params for block in self.blocks)

    @property
    def flop(self) -> int:
        """Operations of the GEMMs of one forward pass of a sample [FLOP]."""
        return sum(
            block.count * operation.flop for block in self.blocks for operation in block.operations
        )


_KINDS: Mapping[str, tuple[Literal["embedding", "layer", "head"], Part]] = {
    "first": ("embedding", "embedding"),
    "repeated": ("layer", "feed_forward"),
    "last": ("head", "head"),
}
"""Block kind and part that stand for a role."""


def traced_weights(traced: Traced) -> tuple[Block, ...]:
    """Blocks of a traced module with weights only."""
    return tuple(_weights(block) for block in traced.blocks)


def _weights(block: TracedBlock) -> Block:
    kind, part = _KINDS[block.role]
    weights = tuple(
        Weight(
            f"{block.name}.{number}",
            weight.rows,
            weight.columns,
            copies=weight.count,
            trainable=weight.trainable,
            tied=weight.shared,
            part=part,
        )
        for number, weight in enumerate(block.weights)
    )
    return Block(block.name, kind, block.count, weights, width=block.width)
