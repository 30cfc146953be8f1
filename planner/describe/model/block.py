"""Block: one distinct kind of layer as weights, operators and saved tensors.

A model is a short tuple of blocks with counts. Everything here is plain data; `planner.cost`
computes memory and time of blocks for any number of layouts at once.

One word says how a tensor is split over the tensor-parallel group:

    column      weight rows (outputs) / output of a column-parallel GEMM: divided by tp
    row         weight columns (inputs) / input of a row-parallel GEMM: divided by tp
    sharded     activation inside the tensor-parallel region: divided by tp
    replicated  the same on every tp rank
    residual    activation of the residual stream: divided by tp only with sequence parallelism
    gathered    input of a column-parallel GEMM: as residual, or unsplit if the framework keeps
                the gathered tensor
    dispatched  token at its expert: divided by tp / etp, as ranks that split an expert share it
    expert      inside a routed expert: divided by tp, whether tokens or experts are split
    scattered   exists only with sequence parallelism, divided by tp
    whole       exists only with sequence parallelism, not divided
"""

import functools
from dataclasses import dataclass, fields
from typing import Literal

from planner.describe.layout import Module

Split = Literal[
    "column", "row", "replicated", "sharded", "residual", "gathered", "dispatched", "expert",
    "scattered", "whole", "rotated",
]  # fmt: skip

Part = Literal[
    "attention", "cross_attention", "qk_norm", "feed_forward", "experts", "shared_experts",
    "router", "norm", "embedding", "position", "head",
]  # fmt: skip
"""Part of the model that a parameter tensor belongs to."""

Matrix = Literal["", "query", "key", "value", "out", "gate", "up", "down"]
"""Projection that a matrix computes; empty for other tensors."""


@dataclass(frozen=True, slots=True)
class Weight:
    """`copies` parameter tensors of shape (rows, columns)."""

    name: str
    """Name for people; nothing depends on it."""
    rows: int
    columns: int = 1
    split: Literal["column", "row", "replicated"] = "replicated"
    units: int = 0
    """Indivisible pieces along the split (heads); 0: any division is possible."""
    expert: bool = False
    """Whether it exists once per expert (`copies` counts the experts)."""
    copies: int = 1
    trainable: bool = True
    part: Part = "embedding"
    matrix: Matrix = ""
    adapter: bool = False
    """Whether it belongs to the adapter of a matrix (LoRA, DoRA)."""
    tied: bool = False
    """Whether another block owns and counts it."""
    stored_bytes: float = 0.0
    """Bytes per element of a frozen matrix in storage; 0: compute precision."""

    @property
    def num_params(self) -> int:
        """Elements of all copies."""
        return self.rows * self.columns * self.copies


@dataclass(frozen=True, slots=True)
class Gemm:
    """A GEMM (tokens * rows, k) x (k, n) and its two backward GEMMs."""

    name: str
    n: int
    k: int
    split: Literal["column", "row", "replicated"] = "replicated"
    units: int = 0
    """Heads along the split dimension: tp cannot divide further than one head."""
    experts: int = 0
    """Routed experts that share the tokens (grouped GEMM); 0: an ordinary GEMM."""
    top_k: int = 0
    """Experts per token."""
    weight_gradient: bool = True
    input_gradient: bool = True
    quantizable: bool = True
    """Whether FP8 training runs it in FP8 (not the output projection)."""
    recomputed_with: tuple[Module, ...] = ()
    """Modules of selective recompute that repeat it."""
    pieces: int = 1
    """Pieces of the tokens computed one after another, with weight gradients summed in fp32."""
    unpacked_bytes: float = 0.0
    """Bytes moved per weight element to unpack it before each GEMM."""
    norm_bytes: float = 0.0
    """Bytes moved per weight element to compute DoRA's norms, before the forward GEMM."""
    rows: float = 1
    """Rows per token (output positions of a convolution)."""
    inputs: float = 0.0
    """Input elements of one token, if its rows share them; 0: rows * k."""
    convolution: bool = False
    """Whether it runs at the rate of convolutions."""
    small_kernel: bool = False
    """Whether it is a 3 x 3 kernel with stride 1, as Winograd's algorithm needs."""
    copies: int = 0
    """GEMMs of one token without a shared operand (heads); 0: all share the (k, n) operand."""


@dataclass(frozen=True, slots=True)
class Attention:
    """Scaled dot-product attention over `sequence` tokens."""

    num_heads: int
    num_kv_heads: int
    qk_dim: int
    v_dim: int
    causal: bool
    window: int = 0
    """Most keys per query; 0: all."""
    chunked: bool = False
    """Whether the window is a chunk of the sequence, and does not slide."""
    recomputed_with: tuple[Module, ...] = ("core_attn",)
    """Modules of selective recompute that repeat it."""
    queries: float = 1.0
    """Queries per token of the sequence."""
    keys: float = 1.0
    """Keys / sequence length."""


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
    recomputed_with: tuple[Module, ...] = ()
    """Modules of selective recompute that repeat it."""
    except_spread: bool = False
    """Whether it is left out where experts are spread over ranks."""


@dataclass(frozen=True)
class Saved:
    """A tensor saved from forward to backward: bytes per token."""

    name: str
    bytes_per_token: float
    split: Split
    scores: bool = False
    """Whether the bytes are per token and per key (attention scores)."""
    selective: bool = True
    """Whether it is still saved under selective recompute."""
    selective_only: bool = False
    """Whether it is saved only under selective recompute."""
    of_attention: bool = False
    """Whether fused attention saves it for its own backward (output, softmax statistics)."""
    until_ffn: bool = False
    """Whether it is freed once the feed-forward's weight gradients are complete."""
    until_loss: bool = False
    """Whether it is freed once the backward of the loss has used it."""
    only_split: bool = False
    """Whether it exists only with tensor parallelism."""
    only_context: bool = False
    """Whether it exists only with context parallelism."""
    only_spread: bool = False
    """Whether it exists only with expert parallelism."""
    only_piped: bool = False
    """Whether it exists only in a pipeline."""
    only_batched: bool = False
    """Whether it exists only with several sequences per micro-batch."""
    recomputed_with: tuple[Module, ...] = ()
    """Modules of selective recompute that recompute it instead of saving it."""
    input_of: tuple[Matrix, ...] = ()
    """Matrices that take it as input; their adapters need it for their gradients."""
    for_weights: float = 0.0
    """Fraction that only weight gradients need [1]."""

    @functools.cached_property
    def only(self) -> tuple[str, ...]:
        """Names of its `only_` fields that are true."""
        return tuple(
            f.name for f in fields(self) if f.name[:5] == "only_" and getattr(self, f.name)
        )


@dataclass(frozen=True)
class Block:
    """A distinct layer kind, `count` times in the model."""

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
    """Tensor-parallel reductions in one forward pass."""
    dispatch_top_k: int = 0
    """Experts per token that its all-to-all serves; 0: dense."""
    working: tuple[tuple[Saved, ...], ...] = ()
    """Temporary tensors at alternative peaks of backward; the largest set counts."""
    unpacking: tuple[Saved, ...] = ()
    """Temporary tensors while a frozen matrix is unpacked or merged with its adapters."""
    repeating: tuple[Saved, ...] = ()
    """Temporary tensors after full recompute has repeated the block."""
    after_ffn: tuple[Saved, ...] = ()
    """Temporary tensors after the feed-forward's weight gradients are complete."""
    places: tuple[int, ...] = ()
    """Positions of its layers among all; empty: consecutive, or interleaved."""
    interleaved: bool = False
    """Whether its layers are spread among the other layers; else they are consecutive."""
    kept_whole: bool = False
    """Whether partial recompute skips its layers; the block before it includes their count."""
    deferred: tuple[Saved, ...] = ()
    """Gradients saved for a separate weight-gradient pass."""

    @functools.cached_property
    def tied_elsewhere(self) -> int:
        """Parameters that another block owns and counts."""
        return sum(weight.num_params for weight in self.weights if weight.tied)

    @functools.cached_property
    def num_params(self) -> int:
        """Parameters of one block, without tied ones."""
        return sum(weight.num_params for weight in self.weights) - self.tied_elsewhere
