"""Traced: what a module of someone's own computes and keeps for a sample, as plain numbers.

A token of such a model is a whole sample: sequences have one. It is found once with torch
(`planner.validate.modules`) and planned with these numbers alone.
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
    """A figure that depends on how the module computes: bytes of one sample, or kernels."""

    fp32: _Bytes = 0.0
    """Where everything is fp32."""
    autocast: _Bytes = 0.0
    """Where autocast runs products in 16 bits, and what needs it in fp32."""
    cast: _Bytes = 0.0
    """Where weights and inputs are of 16 bits."""


class TracedWeight(Description):
    """`count` parameter tensors of one shape."""

    rows: _Size
    """Its first dimension, along which it is sharded."""
    columns: _Size = 1
    """Product of the others."""
    count: int = Field(default=1, ge=1, le=10**6)
    """How many such tensors."""
    trainable: bool = True
    """Whether it has a gradient."""
    shared: bool = False
    """Whether it is another block's, which counts it."""


class TracedOperation(Description):
    """`count` equal products, convolutions or fused attentions of one sample."""

    kind: Literal["product", "batched", "convolution", "attention"]
    """product: (rows, k) x (k, n); batched: `copies` of them that share no operand; convolution: a
    product whose rows share inputs; attention: rows are queries of width k, n is the number of
    keys, and values have the width `values`."""
    rows: _Size
    """Rows that a sample has."""
    n: _Size
    """Columns of the result, or keys."""
    k: _Size
    """What is summed over, or the width of a query."""
    copies: int = Field(default=1, ge=1, le=10**9)
    """Batched products, or heads of attention, of a sample."""
    inputs: _Size = 0
    """Elements of a sample that the rows share; 0 where they share none."""
    values: _Size = 0
    """Width of a value, of attention."""
    causal: bool = False
    """Whether attention is masked by order."""
    input_gradient: bool = True
    """Whether backward computes the gradient of the first operand."""
    weight_gradient: bool = True
    """Whether backward computes the gradient of the second."""
    small_kernel: bool = False
    """Whether it is a convolution of 3 x 3 that moves by one place."""
    count: int = Field(default=1, ge=1, le=10**6)
    """How many such operations."""

    @property
    def flop(self) -> int:
        """Operations of the forward passes of all, for one sample, masked halves included [FLOP].

        >>> TracedOperation(kind="product", rows=10, n=3, k=4, count=2).flop
        480
        """
        width = self.k + self.values if self.kind == "attention" else self.k
        return 2 * self.count * self.copies * self.rows * self.n * width


class TracedBlock(Description):
    """`count` equal blocks; every figure is of one of them and one sample."""

    name: str = Field(min_length=1, max_length=300)
    """Name of the first of them in the module."""
    role: Literal["first", "repeated", "last"]
    """first: what runs before the blocks; last: what runs between and after them."""
    count: int = Field(default=1, ge=1, le=100_000)
    """How many."""
    width: _Size = 0
    """Elements of real numbers that enter it."""
    weights: tuple[TracedWeight, ...] = ()
    """Its parameter tensors."""
    operations: tuple[TracedOperation, ...] = ()
    """Its products, convolutions and attentions."""
    forward: InPrecisions = InPrecisions()
    """Bytes that its memory-bound kernels move forward."""
    backward: InPrecisions = InPrecisions()
    """Bytes that they move backward."""
    kernels: InPrecisions = InPrecisions()
    """Number of the memory-bound kernels of its forward pass."""
    saved: InPrecisions = InPrecisions()
    """Bytes that are kept from forward to backward."""
    working: InPrecisions = InPrecisions()
    """The most bytes that are alive in its backward pass beyond those kept by it and before it."""

    @property
    def num_params(self) -> int:
        """Parameters of one of them, shared ones left to their owner."""
        owned = (weight for weight in self.weights if not weight.shared)
        return sum(weight.rows * weight.columns * weight.count for weight in owned)


class Traced(Description):
    """A module as blocks, each with what it computes and keeps for a sample."""

    blocks: tuple[TracedBlock, ...] = Field(min_length=2, max_length=10_000)
    """What runs first, the repeated blocks, what runs last."""
    results: InPrecisions = InPrecisions()
    """Bytes of a sample that forward returns and backward does not need."""
    buffer_bytes: _Bytes = 0.0
    """Buffers that stand beside the parameters, and are not in the estimates [B]."""
    constant_bytes: _Bytes = 0.0
    """Bytes kept for a batch whatever its size, which are not in the estimates [B]."""
    cast_by_half: bool = False
    """Whether what is said of 16-bit weights is half of fp32, because it does not run with them."""
    torch: str = ""
    """Version of torch that it was traced with."""

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
        """Operations of one forward pass of a sample, in products alone [FLOP]."""
        return sum(
            block.count * operation.flop for block in self.blocks for operation in block.operations
        )


_KINDS: Mapping[str, tuple[Literal["embedding", "layer", "head"], Part]] = {
    "first": ("embedding", "embedding"),
    "repeated": ("layer", "feed_forward"),
    "last": ("head", "head"),
}
"""Which blocks and parts of a model stand for a role."""


def traced_weights(traced: Traced) -> tuple[Block, ...]:
    """Blocks of a traced module that hold weights only."""
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
