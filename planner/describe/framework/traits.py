"""Traits: what a framework keeps, runs, allocates, hides and waits for.

Frameworks differ in what they keep per parameter, what they save for backward, which kernels
are fused, which buffers they hold and what they overlap.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from planner.describe.base import (
    ByteCount,
    BytesPerElement,
    Description,
    Duration,
    Elements,
    Factor,
    Fraction,
    Share,
    Trait,
    ZeroStage,
)
from planner.describe.machine import Runtime

__all__ = [
    "Buffers",
    "Communication",
    "HostTime",
    "Kernels",
    "Loss",
    "Offloading",
    "OtherKernels",
    "Stall",
    "States",
]

Loss = Literal[
    "eager", "vocab-parallel", "vocab-parallel-copy", "fused", "fused-copy", "fused-linear"
]
"""Which kernels compute the loss over the vocabulary."""


class States(Description):
    """Bytes kept per parameter and rank, before sharding."""

    weight_bytes: BytesPerElement
    """The copy that computes, resident where weights are not sharded [B/parameter]."""
    sharded_weight_bytes: BytesPerElement
    """What stays of that copy per owned parameter where weights are sharded (ZeRO-3) [B]."""
    gradient_bytes: BytesPerElement
    """Gradients, sharded from ZeRO-2 on [B/parameter]."""
    unsharded_gradient_bytes: BytesPerElement = 0
    """Further gradients below ZeRO-2: 16-bit ones beside fp32 sums (DeepSpeed's BF16_Optimizer,
    for ZeRO-1 alone) [B/parameter]."""
    bucket_bytes: BytesPerElement = 0
    """Flat buckets beside gradients below ZeRO-2, where gradients are reduced: DDP makes them for
    one rank too, so this is of programs that do not wrap the model there [B/parameter]."""
    master_bytes: BytesPerElement
    """The copy that the optimizer updates, sharded from ZeRO-1 on: fp32, or the 16 bits that it has
    beyond the 16-bit weight [B/parameter]."""
    moment_bytes: BytesPerElement = 4
    """A moment of the gradient, or a momentum [B/parameter]."""
    second_moment_bytes: BytesPerElement = 4
    """The moment of the gradient's square [B/parameter]."""
    cached_weight_bytes: BytesPerElement = 0
    """Low-precision copies that live during forward and backward (autocast) [B/parameter]."""
    reduce_bytes: float = Field(ge=0.125, le=64)
    """Bytes per gradient element on the wire [B]."""
    optimizer_temporary_bytes: BytesPerElement = 0
    """Temporaries of the optimizer step per parameter that the rank updates [B/parameter]."""
    copies_narrow_gradients: bool = False
    """Whether the optimizer step makes an fp32 copy of gradients that are kept in less."""
    whole_in_fp8: bool = False
    """Whether 8-bit training keeps whole fp32 master weights and copies narrow gradients, where the
    optimizer could do without (Megatron Core, of 8-bit recipes but delayed scaling)."""
    norm_bytes: BytesPerElement = 0
    """What the gradients' norm copies of the largest of those that the rank updates [B/element]."""


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


class Buffers(Description):
    """Fixed buffers, in elements or bytes."""

    reduce_bucket_elements: Elements
    """Elements of one gradient-reduction bucket; 0 where gradients reduce in place."""
    num_reduce_buckets: int = Field(default=1, ge=0, le=8)
    """Buckets alive at once (2 where reduction overlaps backward)."""
    num_sharded_buckets: int = Field(default=0, ge=0, le=8)
    """The same where weights are sharded (ZeRO-3); 0: as many."""
    buckets_in_backward: bool = False
    """Whether buckets are made by the first gradient of a backward pass and gone when gradients
    are reduced, where weights are not sharded (DeepSpeed's ZeRO-1 and 2)."""
    copies_bucket: bool = False
    """Whether what fills a bucket is copied to be reduced, where weights are not sharded."""
    whole_buckets: bool = False
    """Whether a bucket is allocated whole, however small the model (DeepSpeed)."""
    gather_bucket_elements: Elements = 0
    """Elements of one parameter-gathering bucket (ZeRO-1 and 2 after the step)."""
    num_prefetched_layers: int = Field(default=1, ge=0, le=8)
    """Gathered layers alive beside the computing one (ZeRO-3)."""
    live_elements: Elements = 0
    """Elements that stay gathered where the limit is a size and not a number of layers
    (DeepSpeed's stage3_max_live_parameters)."""
    placeholder_bytes: BytesPerElement = 0
    """What stands for gradients that GEMMs add into the fp32 ones themselves: one tensor per
    shape of weights, for autograd (Transformer Engine) [B/element]."""
    layer_gradient_bytes: BytesPerElement = 0
    """Unsharded gradient of the layer in backward (ZeRO-2 and 3) [B/parameter]."""
    reduce_input_bytes: BytesPerElement = 0
    """Input of the reduce-scatter of the layer before it (ZeRO-2 and 3) [B/parameter]."""
    reduces_alone: bool = False
    """Whether gradients are copied as if to reduce them also where dp = 1 (FSDP2, which wraps for
    its precision policy)."""
    whole_embedding_gradient: bool = False
    """Whether tensor parallelism computes the embedding's gradient whole on every rank before
    it is split (DTensor)."""
    pipeline_gradients_whole: bool = False
    """Whether a pipeline accumulates unsharded gradients and reduces them once a step, whatever
    the ZeRO stage (torch.distributed.pipelining)."""
    pipeline_buffers_whole: bool = False
    """Whether a stage has receive buffers for all micro-batches of a step, in both directions,
    and keeps what it sent until its backward pass (torch.distributed.pipelining)."""
    preallocates_gradients: bool = False
    """Whether gradients have buffers of their own from the start (else they appear in the
    first backward pass of a step)."""
    keeps_temporaries: bool = False
    """Whether temporaries of the optimizer step are single large tensors: the allocator holds
    memory of their own for them, while there is room."""
    allocator_fraction: Share
    """What the caching allocator reserves beyond the peak, as a fraction of it."""
    host_process_bytes: ByteCount
    """Host memory of one rank's process: interpreter, libraries, pinned loader buffers [B]."""


class Communication(Description):
    """Which collectives hide behind what."""

    overlap_gradients: bool
    """Whether gradient reduction runs behind the last backward pass."""
    overlap_parameters: bool
    """Whether gathering updated parameters (ZeRO-1, 2) runs behind the next forward pass."""
    every_layer_alone: bool = False
    """Whether every layer is a unit that gathers its weights and reduces its gradients in one
    collective, below ZeRO-3 too (FSDP); else they travel there in buckets."""
    gather_bytes: BytesPerElement = 0
    """Bytes per element of weights that ZeRO-3 gathers, where they are quantised for it; 0: as they
    compute [B]."""
    scatter_bytes: BytesPerElement = 0
    """Bytes per element of gradients that ZeRO-3 reduces by all-to-alls, inside the nodes and then
    between them, where they are quantised for it; 0: they are reduced and scattered [B]."""
    replicas_once: bool = False
    """Whether ranks that hold the same shard (hybrid sharding) sum their gradients once a step and
    not with every reduction (MiCS)."""
    second_shards_stay: bool = False
    """Whether weights that are sharded over fewer ranks after a forward pass (`reshard`) stay so
    until the optimizer changes them (DeepSpeed's hpZ); else until their backward pass (FSDP2)."""
    reduce_every_micro_batch: tuple[ZeroStage, ...] = ()
    """ZeRO stages at which every micro-batch reduces its gradients."""
    all_reduced_stages: tuple[ZeroStage, ...] = ()
    """ZeRO stages at which gradients are all-reduced whole, though a rank keeps only its shard of
    them; else they are scattered as they are reduced."""
    gathers_updates_whole: bool = False
    """Whether updated weights are gathered in one collective, whatever its bucket (ZeRO-1, 2)."""
    reduces_once: bool | None = None
    """Whether whole gradients are summed over the micro-batches instead, on every rank (Accelerate
    without sync_each_batch); None where there is no such choice."""
    pipeline_reduce_every_micro_batch: tuple[ZeroStage, ...] = ()
    """The same, only where pp > 1."""
    overlap_tensor: Share
    """Fraction of tensor-parallel traffic hidden behind GEMMs."""
    overlap_tensor_in_node: bool = False
    """Whether it overlaps only what sequence parallelism sends inside a node, and refuses to train
    otherwise (user buffers of Transformer Engine)."""
    overlap_tensor_backward: bool = False
    """Whether backward passes of column-parallel products overlap: what gathers their input again
    runs behind the product that gives the input's gradient, what reduces that gradient behind the
    one that gives the weight's."""
    routes_own_tokens: bool = False
    """Whether every tensor-parallel rank routes its own part of the sequence, and the ranks that
    split an expert gather the tokens that came for it (Megatron Core); else the stream is gathered
    for routed experts as for dense layers."""
    experts_once_per_node: bool = False
    """Whether a token goes once to every node that its experts are on and is copied there
    (DeepEP, HybridEP); else every copy crosses the network (NCCL's all-to-all)."""
    dispatch_bytes: BytesPerElement = 0
    """An element of a token on its way to its experts; the way back, and gradients likewise, are in
    the compute precision. 0: that one both ways [B]."""
    overlap_experts: bool = False
    """Whether dispatch and combine run behind the other direction's computation of the next
    micro-batch: without a pipeline or with an interleaved one, and without full recompute."""
    overlap_pipeline: bool
    """Whether transfers between stages of several chunks run behind computation; a stage of one
    chunk awaits its own."""
    gather_fraction: Fraction
    """Bandwidth that ZeRO-3 gathers and scatters reach, relative to a large collective."""
    contention: Share
    """Part of hidden traffic that still costs time: its kernels take compute units and memory
    bandwidth from the computation they run behind."""


class Offloading(Description):
    """What moves, and what the host holds, where states or weights live off the device."""

    overlap_weights: bool = False
    """Whether weights come up behind computation; else the host awaits every copy."""
    overlap_gradients: bool = False
    """Whether gradients go down behind backward."""
    fused_update: bool = True
    """Whether one kernel updates states on the host, where the device's is fused too; else one per
    operation."""
    gradient_transfers: int = Field(default=1, ge=0, le=8)
    """How often a pass that adds to gradients on the host sends them over the link."""
    step_gradient_bytes: BytesPerElement = 0
    """fp32 gradients of the optimizer beside those that passes add to: sent down in the last pass,
    held on the host or written to the disk [B/parameter]."""
    step_host_bytes: BytesPerElement = 0
    """What the host moves in its memory besides the update: unscaling, copies [B/parameter]."""
    weight_copies: int = Field(default=1, ge=1, le=4)
    """How often the host holds weights that are offloaded to it."""
    activations_piped: bool = True
    """Whether activations can leave the device in a pipeline too."""
    activation_layers: int = Field(default=0, ge=0, le=16)
    """Layers whose activations are on the device on their way to the host or back, where streams of
    their own move them; 0: computation awaits every copy."""
    overlap_activations: bool = False
    """Whether activations move behind computation; else the device awaits every copy."""
    swap_buffer_bytes: float = Field(default=0, ge=0, le=1e12)
    """Pinned buffers per rank for what is swapped to the disk [B]."""
