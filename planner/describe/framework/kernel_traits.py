"""Kernel traits: which kernels run, what they save for backward, how the host keeps up."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from planner.describe.base import (
    BytesPerElement,
    Description,
    Duration,
    Factor,
    Share,
    Trait,
    ZeroStage,
)
from planner.describe.machine import Runtime

__all__ = ["HostTime", "Kernels", "Loss", "OtherKernels", "Stall"]

Loss = Literal[
    "eager", "vocab-parallel", "vocab-parallel-copy", "fused", "fused-copy", "fused-linear"
]
"""Kernels that compute the loss over the vocabulary."""


class Kernels(Description):
    """Kernels of a framework, and the tensors that they save for backward."""

    fused_norm: bool
    """One kernel per RMSNorm, which saves its input; else elementary operations with fp32 copies. A
    LayerNorm is always fused."""
    fused_activation: bool
    """Bias and activation (or the gate's product) in one kernel."""
    fused_gate: bool | None = None
    """The gate's product in one kernel; None: as fused_activation."""
    fused_residual: bool
    """Bias, dropout and residual addition in one kernel."""
    fused_softmax: bool
    """Scale, mask and softmax in one kernel (eager attention)."""
    fused_rope: bool
    """Rotary embedding in one kernel."""
    fused_adapters: bool = False
    """Outputs of adapters are scaled and added in neighbouring kernels (a compiler)."""
    softmax_bytes: BytesPerElement = 0
    """Bytes that eager softmax keeps per score, besides dropout; 0: one compute element [B]."""
    fp8_cast_bytes: BytesPerElement = 0
    """Bytes moved per operand element to scan and convert it for an FP8 GEMM, if no other kernel
    converts it [B]."""
    fp8_across_bytes: BytesPerElement = 0
    """The same for operands read across their memory order (weights for the input gradient, both
    operands for the weight gradient); 0: fp8_cast_bytes [B]."""
    fp8_rescale_bytes: BytesPerElement = 0
    """Bytes moved per result element to rescale a backward FP8 GEMM, if the GEMM does not scale by
    rows and columns itself [B]."""
    saves_fp8: bool = False
    """FP8 GEMMs keep their inputs in 8 bits for backward; the attention output projection keeps
    them beside the 16-bit ones (Transformer Engine)."""
    activation_input_bytes: BytesPerElement = 0
    """Bytes per element that a gated SiLU keeps of its input to recompute it in backward; 0: the
    input itself (Megatron Core's activation_func_fp8_input_store: 1) [B]."""
    fp8_weight_bytes: BytesPerElement = 0
    """8-bit copies of the layers' weights, by rows and by columns, kept beside the 16-bit weights
    from the first micro-batch on (Transformer Engine) [B/parameter]."""
    fp8_gather: bool = False
    """Ranks convert their weight shards to 8 bits before gathering, so that no layer is whole in 16
    bits."""
    loss: Loss
    """eager: fp32 logits and log-softmax of the whole vocabulary; vocab-parallel: split over tp, in
    place; vocab-parallel-copy: on a copy beside the fp32 logits; fused: one kernel that turns
    16-bit logits into their gradient in place; fused-copy: with the gradient beside the logits;
    fused-linear: fused with the head's GEMM, piece by piece, both gradients in the forward pass
    (Liger)."""
    loss_chunks: int = Field(default=1, ge=1, le=1024)
    """Pieces of the sequence that pass head and loss, forward and backward, one by one (eager
    loss), whose 16-bit logits the loop holds; the head's gradient is summed over them before it is
    reduced. 1: the whole loss at once."""
    loss_metrics: int = Field(default=0, ge=0, le=8)
    """Metrics that each compute the loss once more, without gradient."""
    keeps_logits: bool = True
    """Whether the 16-bit logits stay referenced until backward (eager loss)."""
    gathers_logits: bool = False
    """Whether every tp rank gathers the logits of the whole vocabulary for its loss."""
    residual_bytes: int = Field(default=0, ge=0, le=8)
    """Bytes per element of the residual stream; 0: the compute precision [B]."""
    transformers_blocks: bool = False
    """Layers run as transformers writes them (`written` of a model): some activations in elementary
    operations, eager attention over keys and values repeated for every head."""
    keeps_latent_keys: bool = False
    """Values of latent attention are a view that keeps the keys alive."""
    rescales_for_sinks: bool = False
    """Attention sinks rescale the attention output, instead of being part of the kernel."""
    copies_ring_output: bool = False
    """Ring attention merges its output in another memory order, so that it is copied before the
    projection."""
    scores_before_experts: bool = False
    """The router's scores weight tokens before the experts, in fp32 (torchtitan), instead of the
    experts' outputs."""
    scores_inside_experts: bool = False
    """The experts' activation kernel applies the router's scores (Megatron Core from 0.13 on), so
    that no output is kept for it."""
    context_exchange: Literal["pass", "gather", "gather-pass"] = "pass"
    """Exchange of keys and values between context ranks. pass: passed around during attention;
    gather: gathered before attention, gradients reduced; gather-pass: gathered behind the first
    piece, gradients passed around in fp32 (torch)."""
    repeats_kv_heads: bool = False
    """Keys and values are repeated for every head before attention, and kept so."""
    uneven_context: Trait | None = None
    """All context ranks wait for the one with the last tokens of causal attention; None: each rank
    holds an early and a late piece, with equal work."""
    repeats_to_end: bool = False
    """Full recompute runs a layer to its end, not only to the last activation that backward needs
    (torchtitan: early_stop = False)."""
    stops_early: bool = False
    """Full recompute stops at the last activation that backward needs, so that a layer's last GEMM
    is not repeated (torch.utils.checkpoint from 2.1 on, not re-entrant)."""
    saves_gathered: bool = False
    """Sequence parallelism keeps the gathered inputs (DTensor) instead of gathering them again."""
    fused_gradient_accumulation: bool = False
    """Weight-gradient GEMMs accumulate into the fp32 gradient."""
    attention_fraction: Factor
    """Rate of the framework's fused attention / the device's `attention_efficiency`
    (FlashAttention-2)."""
    fused_optimizer: bool
    """One kernel over states and weights; else one kernel per operation."""
    channels_last: bool = False
    """Convolutions use the memory order of matrix units (torch.channels_last); else operands and
    results are transposed around every convolution."""
    optimizer_in_backward: bool = False
    """The optimizer updates a weight as soon as its gradient is complete and frees the gradient, so
    that gradients of one group of weights exist at a time."""

    @property
    def across_cast_bytes(self) -> float:
        """Bytes moved to convert an element that an FP8 GEMM reads across its memory order [B]."""
        return self.fp8_across_bytes or self.fp8_cast_bytes


class OtherKernels(Description):
    """Kernels that are missing on some runtimes."""

    runtimes: tuple[Runtime, ...] = Field(min_length=1)
    """Device runtimes without them."""
    fused_activation: bool | None = None
    """As in `Kernels`; None: unchanged."""
    fused_residual: bool | None = None
    """As in `Kernels`; None: unchanged."""
    fused_softmax: bool | None = None
    """As in `Kernels`; None: unchanged."""
    fused_rope: bool | None = None
    """As in `Kernels`; None: unchanged."""
    fused_optimizer: bool | None = None
    """As in `Kernels`; None: unchanged."""


class HostTime(Description):
    """Host time per layer: launches of kernels and collectives, for which fast devices wait."""

    dispatch_ratio: Factor
    """Host time per kernel / bare launch time (`launch_s` of the device): modules, autograd and
    small uncounted operations; less with compilation or CUDA graphs."""
    awaits_kernels: bool = False
    """Every launch waits for its kernel (CUDA_LAUNCH_BLOCKING), so that host time adds to device
    time."""
    awaits_routing: bool = False
    """The host waits for the token counts of the experts in every routed layer, which drains the
    queue, so that its time for the layer adds to the devices'."""
    graphed: Share | None = None
    """Share of a layer's kernels in CUDA graphs; None: no graphs."""
    collective_s: Duration | None = None
    """Host time to issue a tensor-parallel collective; None: nothing [s]."""
    awaits_collectives: bool = False
    """The host waits for each collective, so that ranks wait for the slowest host: host time grows
    with the nodes of the tensor-parallel group."""
    piped_collective_s: Duration | None = None
    """`collective_s` with a pipeline, for tp = 2 on one node [s]."""
    piped_power: Share | None = None
    """Exponent by which host time grows with tp and the nodes of the group, with a pipeline."""


class Stall(Description):
    """Layouts of which some runs stall, for an unknown cause."""

    zero_stages: tuple[ZeroStage, ...] = (0, 1, 2, 3)
    """ZeRO stages of these layouts."""
    piped: bool
    """Whether they have a pipeline."""
    beyond_node: bool = False
    """Whether tensor parallelism must reach beyond a node."""
    min_nodes: int = Field(ge=1, le=100_000)
    """Fewest nodes."""
    share: Share
    """Share of measured runs slower than 1.67 x their estimate."""
