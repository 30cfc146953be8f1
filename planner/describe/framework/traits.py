"""Traits of a framework: collectives, bytes per parameter, buffers, kernels, host time."""

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


class Communication(Description):
    """Overlap and kind of collectives."""

    overlap_gradients: bool
    """Gradient reductions overlap the last backward pass."""
    overlap_parameters: bool
    """All-gathers of updated parameters overlap the next forward pass (ZeRO-1, 2)."""
    every_layer_alone: bool = False
    """Layers gather weights and reduce gradients in one collective (FSDP); else in buckets."""
    gather_bytes: BytesPerElement = 0
    """Bytes per element of weights that ZeRO-3 quantises to gather; 0: compute precision [B]."""
    scatter_bytes: BytesPerElement = 0
    """Bytes per element of gradients that ZeRO-3 quantises and reduces by all-to-alls, first inside
    and then between nodes; 0: reduce-scatter [B]."""
    second_shards_stay: bool = False
    """Weights resharded over fewer ranks after forward (`reshard`) keep these shards until the
    optimizer step (DeepSpeed's hpZ); else until their backward pass (FSDP2)."""
    reduce_every_micro_batch: tuple[ZeroStage, ...] = ()
    """ZeRO stages at which every micro-batch reduces its gradients."""
    all_reduced_stages: tuple[ZeroStage, ...] = ()
    """ZeRO stages that all-reduce gradients of which a rank keeps a shard; else reduce-scatter."""
    gathers_updates_whole: bool = False
    """Updated weights are gathered in one collective, not in buckets (ZeRO-1, 2)."""
    reduces_once: bool | None = None
    """Ranks accumulate unsharded gradients instead (Accelerate); None: not available."""
    pipeline_reduce_every_micro_batch: tuple[ZeroStage, ...] = ()
    """Further ZeRO stages at which every micro-batch reduces its gradients in a pipeline."""
    overlap_tensor: Share
    """Share of tensor-parallel traffic hidden behind GEMMs."""
    overlap_tensor_in_node: bool = False
    """Overlap covers only sequence parallelism in a node (user buffers); others are refused."""
    overlap_tensor_backward: bool = False
    """Backward passes of column-parallel GEMMs overlap: the gather of their input with the
    input-gradient GEMM, the reduction of that gradient with the weight-gradient GEMM."""
    routes_own_tokens: bool = False
    """Each tp rank routes its part of the sequence (Megatron Core); else it is gathered first."""
    experts_once_per_node: bool = False
    """A token is sent once to each node of its experts (DeepEP, HybridEP); else every copy."""
    dispatch_bytes: BytesPerElement = 0
    """Bytes per element of a token to the experts; 0: compute precision, as on the way back [B]."""
    overlap_experts: bool = False
    """Dispatch and combine overlap with the next micro-batch, without full recompute."""
    overlap_pipeline: bool
    """Point-to-point transfers overlap computation if stages have chunks; else they wait."""
    gather_fraction: Fraction
    """Bandwidth of ZeRO-3's all-gathers and reduce-scatters / that of a large collective."""
    contention: Share
    """Share of overlapped traffic that still costs time: its kernels take units and bandwidth."""


class Reduction(Description):
    """Data-parallel reduction of unsharded gradients: when and in which phases."""

    after_backward: tuple[ZeroStage, ...] = ()
    """ZeRO stages that reduce gradients after backward, without overlap (DeepSpeed's stage 0)."""
    first_bucket_elements: Elements = 0
    """Elements at which the first bucket closes, to start its reduction early; 0: as others."""
    cycle_s: float = Field(default=0, ge=0, le=1)
    """Period at which a thread looks for ready gradients (Horovod); 0: sent when ready [s]."""
    hierarchical: bool = False
    """Gradients are reduced inside nodes, between them and gathered inside, in separate phases."""


class States(Description):
    """Bytes per parameter and rank, before sharding."""

    weight_bytes: BytesPerElement
    """Compute weights, resident if weights are not sharded [B/parameter]."""
    sharded_weight_bytes: BytesPerElement
    """Compute weights that stay per owned parameter under ZeRO-3 [B/parameter]."""
    gradient_bytes: BytesPerElement
    """Gradients, sharded from ZeRO-2 on [B/parameter]."""
    unsharded_gradient_bytes: BytesPerElement = 0
    """Further gradients below ZeRO-2, such as 16-bit ones besides fp32 sums [B/parameter]."""
    bucket_bytes: BytesPerElement = 0
    """Flat buckets besides gradients below ZeRO-2, if gradients are reduced. DDP allocates them on
    one rank too; this trait is for programs that skip DDP on one rank [B/parameter]."""
    master_bytes: BytesPerElement
    """Master weights, sharded from ZeRO-1 on: fp32, or 16 bits beyond the weight [B/parameter]."""
    moment_bytes: BytesPerElement = 4
    """First moment of the gradient, or momentum [B/parameter]."""
    second_moment_bytes: BytesPerElement = 4
    """Second moment of the gradient [B/parameter]."""
    cached_weight_bytes: BytesPerElement = 0
    """Low-precision weight copies during forward and backward (autocast) [B/parameter]."""
    reduce_bytes: float = Field(default=4, ge=0.125, le=64)
    """Bytes per gradient element in the reduction [B]."""
    optimizer_temporary_bytes: BytesPerElement = 0
    """Temporaries of the optimizer step per updated parameter [B/parameter]."""
    copies_narrow_gradients: bool = False
    """The optimizer step makes an fp32 copy of narrower gradients."""
    whole_in_fp8: bool = False
    """FP8 training keeps fp32 masters and copies narrow gradients, needed or not (Megatron)."""
    norm_bytes: BytesPerElement = 0
    """Copy of the largest updated gradient for the gradient norm [B/element]."""


class Buffers(Description):
    """Fixed buffers, in elements or bytes."""

    reduce_bucket_elements: Elements
    """Elements of one gradient-reduction bucket; 0: gradients reduce in place."""
    num_reduce_buckets: int = Field(default=1, ge=0, le=8)
    """Buckets alive at once (2 if reduction overlaps backward)."""
    num_sharded_buckets: int = Field(default=0, ge=0, le=8)
    """Buckets alive at once under ZeRO-3; 0: as num_reduce_buckets."""
    buckets_in_backward: bool = False
    """A pass allocates its buckets if weights are not sharded (DeepSpeed, ZeRO-1 and 2)."""
    copies_bucket: bool = False
    """The content of a bucket is copied for its reduction, if weights are not sharded."""
    whole_buckets: bool = False
    """Buckets have their full size, however small the model (DeepSpeed)."""
    gather_bucket_elements: Elements = 0
    """Elements of one parameter-gathering bucket (ZeRO-1 and 2, after the step)."""
    live_elements: Elements = 0
    """Elements that stay gathered, if the limit is a size (stage3_max_live_parameters)."""
    placeholder_bytes: BytesPerElement = 0
    """Placeholder gradients, one per weight shape, if GEMMs sum into fp32 [B/element]."""
    layer_gradient_bytes: BytesPerElement = 0
    """Unsharded gradient of the current layer in backward (ZeRO-2 and 3) [B/parameter]."""
    reduce_input_bytes: BytesPerElement = 0
    """Input of the previous layer's reduce-scatter (ZeRO-2 and 3) [B/parameter]."""
    reduces_alone: bool = False
    """Gradients are copied for a reduction even with dp = 1 (FSDP2, for its precision policy)."""
    whole_embedding_gradient: bool = False
    """Under tp every rank computes the whole embedding gradient before it is split (DTensor)."""
    pipeline_gradients_whole: bool = False
    """A pipeline reduces unsharded gradients once a step (torch.distributed.pipelining)."""
    pipeline_buffers_whole: bool = False
    """A stage holds receive buffers of all micro-batches and sent tensors until backward."""
    preallocates_gradients: bool = False
    """Gradient buffers exist from the start; else from a step's first backward pass on."""
    keeps_temporaries: bool = False
    """Temporaries of the optimizer step are large; the allocator keeps them if there is room."""
    allocator_fraction: Share
    """Reserve of the caching allocator / peak."""
    host_process_bytes: ByteCount
    """Host memory of one rank's process: interpreter, libraries, pinned loader buffers [B]."""


class Offloading(Description):
    """Offloading: transfers, and memory of the host."""

    overlap_weights: bool = False
    """Copies of weights to the device overlap computation; else the host waits for each copy."""
    overlap_gradients: bool = False
    """Copies of gradients to the host overlap backward."""
    pinned: bool = True
    """Copies use page-locked host memory; else the host stages every byte and waits for it."""
    bound: bool = True
    """Ranks that update on the host have cores of their own; else they share those of the node."""
    fused_update: bool = True
    """One kernel updates states on the host if the device's is fused; else one per operation."""
    gradient_transfers: int = Field(default=1, ge=0, le=8)
    """Transfers of gradients over the link in a pass that accumulates them on the host."""
    step_gradient_bytes: BytesPerElement = 0
    """fp32 gradients of the optimizer besides the accumulated ones [B/parameter]."""
    step_host_bytes: BytesPerElement = 0
    """Host memory traffic besides the update: unscaling, copies [B/parameter]."""
    weight_copies: int = Field(default=1, ge=1, le=4)
    """Copies of offloaded weights on the host."""
    activations_piped: bool = True
    """Activations can be offloaded in a pipeline too."""
    activation_layers: int = Field(default=0, ge=0, le=16)
    """Layers on the device while streams copy their activations; 0: computation waits."""
    overlap_activations: bool = False
    """Copies of activations overlap computation; else the device waits for each copy."""
    swap_buffer_bytes: float = Field(default=0, ge=0, le=1e12)
    """Pinned buffers per rank for swapping to the disk [B]."""


Loss = Literal[
    "eager", "vocab-parallel", "vocab-parallel-copy", "fused", "fused-copy", "fused-linear"
]
"""Kernels that compute the loss over the vocabulary."""


class Kernels(Description):
    """Kernels of a framework, and the tensors that they save for backward."""

    fused_norm: bool
    """One kernel per RMSNorm, as per LayerNorm; else elementary operations with fp32 copies."""
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
    """Bytes per score of eager softmax, without what a cast or dropout keeps; 0: compute's [B]."""
    fp8_cast_bytes: BytesPerElement = 0
    """Bytes per operand element to convert it for an FP8 GEMM, if no other kernel does [B]."""
    fp8_across_bytes: BytesPerElement = 0
    """`fp8_cast_bytes` of operands read across their memory order (weights for the input gradient,
    both operands for the weight gradient); 0: fp8_cast_bytes [B]."""
    fp8_rescale_bytes: BytesPerElement = 0
    """Bytes per result element to rescale a backward FP8 GEMM, if it does not itself [B]."""
    saves_fp8: bool = False
    """FP8 GEMMs keep inputs in 8 bits for backward (Transformer Engine)."""
    activation_input_bytes: BytesPerElement = 0
    """Bytes per element that a gated SiLU keeps of its input; 0: the input itself [B]."""
    fp8_weight_bytes: BytesPerElement = 0
    """8-bit copies of layers' weights, by rows and columns, besides 16-bit ones [B/parameter]."""
    fp8_rows_alone: tuple[str, ...] = ()
    """Substrings of device names whose GEMMs read 8-bit operands in any memory order, so that half
    of `fp8_weight_bytes`, the copies by columns, does not exist."""
    fp8_gather: bool = False
    """Ranks convert weight shards to 8 bits before the all-gather, never gathering 16 bits."""
    loss: Loss
    """eager: fp32 logits and log-softmax of the whole vocabulary; vocab-parallel: split over tp, in
    place; vocab-parallel-copy: on a copy of the fp32 logits; fused: one kernel that turns 16-bit
    logits into their gradient in place; fused-copy: with a separate tensor for the gradient;
    fused-linear: fused with the head's GEMM, piece by piece, both gradients in the forward pass
    (Liger)."""
    loss_chunks: int = Field(default=1, ge=1, le=1024)
    """Pieces of the sequence that run through head and loss, forward and backward, one by one
    (eager loss). The loop holds their 16-bit logits; the head's gradient is summed over them before
    it is reduced. 1: the whole loss at once."""
    loss_metrics: int = Field(default=0, ge=0, le=8)
    """Metrics that each compute the loss once more, without gradient."""
    keeps_logits: bool = True
    """Whether the 16-bit logits stay referenced until backward (eager loss)."""
    masked_head_share: float = Field(default=1.0, gt=0, le=1)
    """Share of tokens in a masked language model's head; 1: all, not the masked ones alone."""
    gathers_logits: bool = False
    """Whether every tp rank gathers the logits of the whole vocabulary for its loss."""
    residual_bytes: int = Field(default=0, ge=0, le=8)
    """Bytes per element of the residual stream; 0: the compute precision [B]."""
    transformers_blocks: bool = False
    """Layers run as transformers implements them (`Shapes.written`), with eager attention."""
    families: tuple[str, ...] = ()
    """Families whose blocks were compared with their code; others are unknown. Empty: all known."""
    transformers_release: float = Field(default=99.0, ge=0, le=99)
    """Release of transformers, which decides on the default attention (4.4: 4.40); 99: none."""
    keeps_latent_keys: bool = False
    """Values of latent attention are a view of a tensor with the keys, which stay in memory."""
    rescales_for_sinks: bool = False
    """Attention sinks rescale the attention output in a separate step, not in the kernel."""
    copies_ring_output: bool = False
    """Ring attention merges its output in another memory order, copied before the projection."""
    scores_before_experts: bool = False
    """Router scores weight tokens before the experts, in fp32 (torchtitan), not their outputs."""
    scores_inside_experts: bool = False
    """The experts' activation kernel applies the router's scores (Megatron Core from 0.13 on)."""
    context_exchange: Literal["pass", "gather", "gather-pass"] = "pass"
    """Exchange of keys and values between context ranks. pass: passed around during attention;
    gather: gathered before attention, gradients reduced; gather-pass: gathered during the first
    piece, gradients passed around in fp32 (torch)."""
    repeats_kv_heads: bool = False
    """Keys and values are repeated for every head before attention, and saved repeated."""
    uneven_context: Trait | None = None
    """Context ranks wait for the one with the last tokens; None: pieces with equal work."""
    repeats_to_end: bool = False
    """Full recompute runs a layer to its end (torchtitan: early_stop = False)."""
    stops_early: bool = False
    """Full recompute stops at the last needed activation (torch.utils.checkpoint from 2.1 on)."""
    saves_gathered: bool = False
    """Sequence parallelism saves gathered inputs (DTensor); else backward gathers them again."""
    fused_gradient_accumulation: bool = False
    """Weight-gradient GEMMs accumulate into the fp32 gradient."""
    attention: str
    """Fused attention: a program that chooses, or a kernel's name (`kernel_releases.toml`)."""
    fused_optimizer: bool
    """One optimizer kernel over states and weights; else one kernel per operation."""
    channels_last: bool = False
    """Convolutions use torch.channels_last; else operands and results are transposed."""
    optimizer_in_backward: bool = False
    """The optimizer updates a weight and frees its gradient as soon as that is complete."""

    @property
    def across_cast_bytes(self) -> float:
        """Bytes moved to convert an element that an FP8 GEMM reads across its memory order [B]."""
        return self.fp8_across_bytes or self.fp8_cast_bytes


class OtherKernels(Description):
    """Kernels that are missing on some device runtimes."""

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
    """Host time per layer to launch kernels and collectives, which can delay fast devices."""

    dispatch_ratio: Factor
    """Host time per kernel / bare launch time (`launch_s`); less if compiled or in CUDA graphs."""
    awaits_kernels: bool = False
    """Every launch waits for its kernel (CUDA_LAUNCH_BLOCKING): host time adds to device time."""
    awaits_routing: bool = False
    """The host waits for token counts in every routed layer, so that its time adds."""
    graphed: Share | None = None
    """Share of a layer's kernels in CUDA graphs; None: no graphs."""
    collective_s: Duration | None = None
    """Host time to issue a tensor-parallel collective; None: nothing [s]."""
    awaits_collectives: bool = False
    """The host waits for each collective, so that ranks wait for the slowest host."""
    piped_collective_s: Duration | None = None
    """`collective_s` with a pipeline, for tp = 2 on one node [s]."""
    piped_power: Share | None = None
    """Exponent e with a pipeline: host time grows as (tp / 2 * nodes of the group)^e."""
