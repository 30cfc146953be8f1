"""Block: one distinct kind of layer as weights, operators and saved tensors.

A model is a short tuple of blocks with counts. Everything here is plain data; what it costs
under a layout is worked out in `planner.cost`, once, for any number of layouts.

How a piece is split over the tensor-parallel group is one word:

    column      weight rows (outputs) / output of a column-parallel GEMM: divided by tp
    row         weight columns (inputs) / input of a row-parallel GEMM: divided by tp
    sharded     activation inside the tensor-parallel region: divided by tp
    replicated  the same on every tp rank
    residual    activation of the residual stream: divided by tp only with sequence parallelism
    gathered    input of a column-parallel GEMM: as residual, or unsplit where the framework
                keeps the gathered tensor
    dispatched  token at its expert: divided by tp, and on every rank that splits the expert
    expert      inside a routed expert: divided by tp, whether tokens or experts are split
    scattered   exists only with sequence parallelism, divided by tp
    whole       exists only with sequence parallelism, before it is divided
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, fields
from typing import Literal

from planner.describe.layout import Module

__all__ = ["Attention", "Block", "Gemm", "Matrix", "Part", "Pointwise", "Saved", "Split", "Weight"]

Split = Literal[
    "column",
    "row",
    "replicated",
    "sharded",
    "residual",
    "gathered",
    "dispatched",
    "expert",
    "scattered",
    "whole",
]

Part = Literal[
    "attention",
    "cross_attention",
    "qk_norm",
    "feed_forward",
    "experts",
    "shared_experts",
    "router",
    "norm",
    "embedding",
    "position",
    "head",
]
"""What a parameter tensor belongs to."""

Matrix = Literal["", "query", "key", "value", "out", "gate", "up", "down"]
"""Which projection of its part a matrix is; empty for other tensors."""


@dataclass(frozen=True, slots=True)
class Weight:
    """A parameter tensor of shape (rows, columns), `copies` times."""

    name: str
    """For people: nothing is decided by it."""
    rows: int
    columns: int = 1
    split: Literal["column", "row", "replicated"] = "replicated"
    units: int = 0
    """Indivisible pieces along the split (heads); 0 where any division is possible."""
    expert: bool = False
    """Whether the tensor exists once per expert (then `copies` counts the experts)."""
    copies: int = 1
    trainable: bool = True
    part: Part = "embedding"
    matrix: Matrix = ""
    adapter: bool = False
    """Whether it is one of a low-rank pair beside a matrix."""
    tied: bool = False
    """Whether it is another block's tensor, which counts it."""
    stored_bytes: float = 0.0
    """Bytes of an element in which a frozen matrix is stored; 0: as it computes."""

    @property
    def num_params(self) -> int:
        """Elements of all copies."""
        return self.rows * self.columns * self.copies


@dataclass(frozen=True, slots=True)
class Gemm:
    """A matrix product (tokens * rows, k) x (k, n) and its two backward products."""

    name: str
    n: int
    k: int
    split: Literal["column", "row", "replicated"] = "replicated"
    units: int = 0
    """Heads along the split dimension: tp cannot divide further than one head."""
    experts: int = 0
    """Routed experts that share the tokens (grouped GEMM); 0 for an ordinary product."""
    top_k: int = 0
    """Experts that each token visits."""
    weight_gradient: bool = True
    input_gradient: bool = True
    quantizable: bool = True
    """Whether FP8 training runs it in FP8 (not the output projection)."""
    again_with: tuple[Module, ...] = ()
    """Modules that run it again where selective recompute names them."""
    pieces: int = 1
    """Parts of the tokens that pass it one by one, their weight gradients summed in fp32."""
    unpacked_bytes: float = 0.0
    """Bytes moved per element of its weights to unpack them, before each product with them."""
    norm_bytes: float = 0.0
    """Bytes moved per element of its weights to take their norms, before the forward product."""
    rows: float = 1
    """Rows of it that one token has (places of a picture to which a kernel is applied)."""
    inputs: float = 0.0
    """Elements of one token's input where its rows share them; 0 where they do not: rows * k."""
    convolution: bool = False
    """Whether it runs at the rate of convolutions, in tiles that run beside each other."""
    small_kernel: bool = False
    """Whether it is a kernel of 3 x 3 that moves by one place, which Winograd's algorithm suits."""
    copies: int = 0
    """Products of one token that share no operand with others (heads); 0 where all tokens share the
    (k, n) operand."""


@dataclass(frozen=True, slots=True)
class Attention:
    """Scaled dot-product attention over `sequence` tokens."""

    num_heads: int
    num_kv_heads: int
    qk_dim: int
    v_dim: int
    causal: bool
    window: int = 0
    """Keys that a query sees at most; 0 for all."""
    again_with: tuple[Module, ...] = ("core_attn",)
    """Modules that run it again where selective recompute names them."""
    queries: float = 1.0
    """Queries that a token of the sequence has."""
    keys: float = 1.0
    """Keys over the length of the sequence."""


@dataclass(frozen=True, slots=True)
class Pointwise:
    """A memory-bound kernel: bytes read and written per token, forward and backward."""

    name: str
    forward_bytes: float
    backward_bytes: float
    split: Split = "residual"
    num_kernels: int = 1
    scores: bool = False
    """Whether the bytes are per token and per key (attention scores)."""
    again_with: tuple[Module, ...] = ()
    """Modules that run it again where selective recompute names them."""


@dataclass(frozen=True)
class Saved:
    """A tensor kept from forward to backward: bytes per token."""

    name: str
    bytes_per_token: float
    split: Split
    scores: bool = False
    """Whether the bytes are per token and per key (attention scores)."""
    selective: bool = True
    """Whether it is still kept under selective recompute."""
    selective_only: bool = False
    """Whether it is kept under selective recompute alone."""
    of_attention: bool = False
    """Whether fused attention keeps it for its own backward (output, softmax statistics)."""
    until_ffn: bool = False
    """Whether it is freed when the gradients of the feed-forward's weights are complete."""
    until_loss: bool = False
    """Whether it is freed when the backward of the loss has used it."""
    only_split: bool = False
    """Whether it exists only where the tp group has more than one rank."""
    only_context: bool = False
    """Whether it exists only where the context group has more than one rank."""
    only_spread: bool = False
    """Whether it exists only where the expert group has more than one rank."""
    only_piped: bool = False
    """Whether it exists only in a pipeline."""
    only_batched: bool = False
    """Whether it exists only where a micro-batch has several sequences."""
    again_with: tuple[Module, ...] = ()
    """Modules that make it again, and do not keep it, where selective recompute names them."""
    input_of: tuple[Matrix, ...] = ()
    """Matrices whose input it is, so that the gradients of pairs beside them need it too."""
    for_weights: float = 0.0
    """Part of it that is kept for the gradients of weights alone [1]."""

    @functools.cached_property
    def only(self) -> tuple[str, ...]:
        """Its marks that say where alone it exists.

        >>> Saved("scores", 2.0, "sharded", only_split=True).only
        ('only_split',)
        """
        return tuple(
            f.name for f in fields(self) if f.name[:5] == "only_" and getattr(self, f.name)
        )


@dataclass(frozen=True)
class Block:
    """A distinct layer kind; `count` of them stand in the model."""

    name: str
    kind: Literal["embedding", "layer", "head"]
    count: int
    weights: tuple[Weight, ...]
    gemms: tuple[Gemm, ...] = ()
    attentions: tuple[Attention, ...] = ()
    pointwise: tuple[Pointwise, ...] = ()
    saved: tuple[Saved, ...] = ()
    width: int = 0
    """Width of the residual stream."""
    num_tp_collectives: float = 0
    """Reductions over the tensor-parallel group in one forward pass."""
    dispatch_top_k: int = 0
    """Experts per token whose all-to-all the block needs; 0 for dense blocks."""
    working: tuple[tuple[Saved, ...], ...] = ()
    """Temporary tensors of the block's backward: alternatives of which the largest counts."""
    unpacking: tuple[Saved, ...] = ()
    """Temporary tensors beside a frozen matrix that is unpacked or summed with its adapters."""
    repeating: tuple[Saved, ...] = ()
    """Temporary tensors when full recompute has repeated the block to its end."""
    after_ffn: tuple[Saved, ...] = ()
    """Temporary tensors when the gradients of the feed-forward's weights are complete."""
    kept_whole: bool = False
    """Whether it is what a partial recompute leaves of its kind, counted with the one before it."""
    deferred: tuple[Saved, ...] = ()
    """Gradients that are kept where those of the weights are computed in a pass of their own."""

    @functools.cached_property
    def tied_elsewhere(self) -> int:
        """Parameters that this block shares with another one, which counts them."""
        return sum(weight.num_params for weight in self.weights if weight.tied)

    @functools.cached_property
    def num_params(self) -> int:
        """Parameters of one such block, shared ones left to their owner."""
        return sum(weight.num_params for weight in self.weights) - self.tied_elsewhere
