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
"""Which kernels compute the loss over the vocabulary."""


class Kernels(Description):
    """Which kernels run, and what they keep."""

    fused_norm: bool
    """One kernel per RMS normalisation, saving its input (else decomposed: fp32 copies saved);
    a LayerNorm is always one."""
    fused_activation: bool
    """Bias and non-linearity (or the gate's product) in one kernel."""
    fused_gate: bool | None = None
    """The same of the gate's product alone; None: as bias and non-linearity."""
    fused_residual: bool
    """Bias, dropout and residual addition in one kernel."""
    fused_softmax: bool
    """Scale, mask and softmax in one kernel (eager attention)."""
    fused_rope: bool
    """Rotary position in one kernel."""
    fused_adapters: bool = False
    """Outputs of adapters scaled and added in the kernels before and after them (a compiler)."""
    softmax_bytes: BytesPerElement = 0
    """Bytes that eager softmax keeps per score, besides dropout; 0: one compute element [B]."""
    fp8_cast_bytes: BytesPerElement = 0
    """Bytes moved per operand element of an FP8 product to scan and convert it, where no other
    kernel does that in passing [B]."""
    fp8_across_bytes: BytesPerElement = 0
    """The same of operands that a product reads across the order in which they lie in memory:
    weights for the gradient of its input, both for the gradient of its weights; 0: as others
    [B]."""
    fp8_rescale_bytes: BytesPerElement = 0
    """Bytes moved per element of the result of a backward FP8 product to scale it afterwards,
    where the product does not scale by rows and columns itself [B]."""
    saves_fp8: bool = False
    """Whether 8-bit products keep their inputs in 8 bits for backward; that of the attention's
    output projection beside the 16-bit one, which attention keeps (Transformer Engine)."""
    activation_input_bytes: BytesPerElement = 0
    """What a gated SiLU keeps of an element of its input for backward, in whose precision it is
    computed again; 0: the input itself (Megatron Core's activation_func_fp8_input_store: 1) [B]."""
    fp8_weight_bytes: BytesPerElement = 0
    """8-bit copies of the weights of layers, by rows and by columns, made by the first micro-batch
    and kept beside the 16-bit ones (Transformer Engine) [B/parameter]."""
    fp8_gather: bool = False
    """Whether ranks convert their shards of the weights of layers to 8 bits before they are
    gathered, so that there are no 16-bit ones of a whole layer."""
    loss: Loss
    """eager: fp32 logits and log-softmax of the whole vocabulary; vocab-parallel: split over
    tp, in place; vocab-parallel-copy: the same on a copy, the fp32 logits beside it; fused: one
    kernel that turns 16-bit logits into their gradient in place; fused-copy: the same with the
    gradient beside the logits; fused-linear: fused with the head's product, a piece of the logits
    as large as the stream at a time, both gradients in the forward pass (Liger)."""
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
    """Whether layers are those of transformers as they are written (`written` of a model): some
    activations in elementary operations, eager attention over keys and values that are repeated
    for every head."""
    keeps_latent_keys: bool = False
    """Whether values of latent attention are a view that keeps the keys beside them alive."""
    rescales_for_sinks: bool = False
    """Whether attention sinks rescale the attention output, rather than its kernel knowing them."""
    copies_ring_output: bool = False
    """Whether ring attention leaves its merged output in another memory order, so that it is
    copied before projection."""
    scores_before_experts: bool = False
    """Whether tokens are weighted by the router before the experts, in fp32 (torchtitan), and
    not their outputs."""
    scores_inside_experts: bool = False
    """Whether the experts' activation weights them in passing (Megatron Core from 0.13 on), so that
    no output is kept to be weighted."""
    context_exchange: Literal["pass", "gather", "gather-pass"] = "pass"
    """How keys and values travel between context ranks: passed around as attention gets to them;
    gathered before it and their gradients reduced; gathered behind the first piece and their
    gradients passed around, in fp32 (torch)."""
    repeats_kv_heads: bool = False
    """Whether keys and values are repeated for every head before attention, and kept so."""
    uneven_context: Trait | None = None
    """Whether all context ranks wait for the one with the last tokens of causal attention; None
    where each holds an early and a late piece, so that they share it evenly."""
    repeats_to_end: bool = False
    """Whether full recompute runs a layer to its end, and not only to the last activation that
    backward needs (torchtitan: early_stop = False)."""
    stops_early: bool = False
    """Whether full recompute stops as soon as it has what backward needs, so that a layer's last
    product is not repeated (torch.utils.checkpoint from 2.1 on, not re-entrant)."""
    saves_gathered: bool = False
    """Whether sequence parallelism keeps the gathered inputs (DTensor) or gathers again."""
    fused_gradient_accumulation: bool = False
    """Whether weight-gradient GEMMs add into the fp32 gradient themselves."""
    attention_fraction: Factor
    """Rate of its fused attention relative to the device's `attention_efficiency` (which is
    that of FlashAttention-2)."""
    fused_optimizer: bool
    """One pass over states and weights (else one kernel per operation)."""
    channels_last: bool = False
    """Whether convolutions find their channels side by side in memory, as matrix units read them
    (torch.channels_last); else operands and results are turned around every product."""
    optimizer_in_backward: bool = False
    """Whether a weight is updated as soon as its gradient is there, which is gone then: gradients
    of one group of weights exist at a time."""

    @property
    def across_cast_bytes(self) -> float:
        """Bytes moved to convert an element that an FP8 product reads across its order [B]."""
        return self.fp8_across_bytes or self.fp8_cast_bytes


class OtherKernels(Description):
    """Kernels that do not exist on some runtimes, where single operations do their work."""

    runtimes: tuple[Runtime, ...] = Field(min_length=1)
    """Device runtimes without them."""
    fused_activation: bool | None = None
    """As in `Kernels`; None: as everywhere."""
    fused_residual: bool | None = None
    """As in `Kernels`; None: as everywhere."""
    fused_softmax: bool | None = None
    """As in `Kernels`; None: as everywhere."""
    fused_rope: bool | None = None
    """As in `Kernels`; None: as everywhere."""
    fused_optimizer: bool | None = None
    """As in `Kernels`; None: as everywhere."""


class HostTime(Description):
    """What the host does for a layer's pass, forward and backward: it issues every kernel and every
    collective, and devices that are faster wait for it."""

    dispatch_ratio: Factor
    """Host time per kernel over that of a bare launch (`launch_s` of the device): modules, autograd
    and small operations that are not counted; compiled code and CUDA graphs leave less of it."""
    awaits_kernels: bool = False
    """Whether every launch waits until its kernel has run (CUDA_LAUNCH_BLOCKING), so that the
    host's time comes on top of the devices'."""
    awaits_routing: bool = False
    """Whether the host waits for the counts of tokens per expert in every layer that routes, which
    empties the queue, so that its time for the layer comes on top of the devices'."""
    graphed: Share | None = None
    """Part of a layer's kernels in CUDA graphs, which are launched as one; none: nothing."""
    collective_s: Duration | None = None
    """Host time to issue a collective of tensor parallelism; none known: nothing [s]."""
    awaits_collectives: bool = False
    """Whether the host awaits its collectives one by one, so that ranks wait for the slowest host:
    the host's time of a layer grows with the nodes of the tensor-parallel group."""
    piped_collective_s: Duration | None = None
    """`collective_s` with a pipeline, for tp = 2 on one node [s]."""
    piped_power: Share | None = None
    """How the host's time of a layer grows with tp and with the nodes of the group, with a
    pipeline."""


class Stall(Description):
    """Layouts of which some runs take far longer than their work, for a cause that is not known."""

    zero_stages: tuple[ZeroStage, ...] = (0, 1, 2, 3)
    """ZeRO stages of these layouts."""
    piped: bool
    """Whether they have a pipeline."""
    beyond_node: bool = False
    """Whether tensor parallelism must reach beyond a node."""
    min_nodes: int = Field(ge=1, le=100_000)
    """Fewest nodes."""
    share: Share
    """Part of measured runs that took more than 1 / 0.6 of their estimate."""
