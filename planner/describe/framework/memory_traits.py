"""Memory traits: bytes per parameter, fixed buffers, and what offloading moves."""

from __future__ import annotations

from pydantic import Field

from planner.describe.base import ByteCount, BytesPerElement, Description, Elements, Share

__all__ = ["Buffers", "Offloading", "States"]


class States(Description):
    """Bytes per parameter and rank, before sharding."""

    weight_bytes: BytesPerElement
    """Compute weights, resident if weights are not sharded [B/parameter]."""
    sharded_weight_bytes: BytesPerElement
    """Compute weights that stay per owned parameter under ZeRO-3 [B/parameter]."""
    gradient_bytes: BytesPerElement
    """Gradients, sharded from ZeRO-2 on [B/parameter]."""
    unsharded_gradient_bytes: BytesPerElement = 0
    """Further gradients below ZeRO-2, such as 16-bit ones beside fp32 sums (DeepSpeed's
    BF16_Optimizer, ZeRO-1 only) [B/parameter]."""
    bucket_bytes: BytesPerElement = 0
    """Flat buckets beside gradients below ZeRO-2, if gradients are reduced. DDP makes them for one
    rank too; this trait is for programs that do not wrap the model then [B/parameter]."""
    master_bytes: BytesPerElement
    """Master weights that the optimizer updates, sharded from ZeRO-1 on: fp32, or the 16 bits
    beyond the 16-bit weight [B/parameter]."""
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
    """FP8 training keeps fp32 master weights and copies narrow gradients, though the optimizer
    could do without (Megatron Core, FP8 recipes other than delayed scaling)."""
    norm_bytes: BytesPerElement = 0
    """Copy of the largest updated gradient to compute its norm [B/element]."""


class Buffers(Description):
    """Fixed buffers, in elements or bytes."""

    reduce_bucket_elements: Elements
    """Elements of one gradient-reduction bucket; 0: gradients reduce in place."""
    num_reduce_buckets: int = Field(default=1, ge=0, le=8)
    """Buckets alive at once (2 if reduction overlaps backward)."""
    num_sharded_buckets: int = Field(default=0, ge=0, le=8)
    """The same under ZeRO-3; 0: as num_reduce_buckets."""
    buckets_in_backward: bool = False
    """The first gradient of a backward pass allocates the buckets and the reduction frees them, if
    weights are not sharded (DeepSpeed's ZeRO-1 and 2)."""
    copies_bucket: bool = False
    """The content of a bucket is copied for its reduction, if weights are not sharded."""
    whole_buckets: bool = False
    """Buckets have their full size, however small the model (DeepSpeed)."""
    gather_bucket_elements: Elements = 0
    """Elements of one parameter-gathering bucket (ZeRO-1 and 2, after the step)."""
    live_elements: Elements = 0
    """Elements that stay gathered, if the limit is a size and not a number of layers (DeepSpeed's
    stage3_max_live_parameters)."""
    placeholder_bytes: BytesPerElement = 0
    """Placeholder gradients for autograd, one tensor per weight shape, if GEMMs accumulate into
    fp32 gradients (Transformer Engine) [B/element]."""
    layer_gradient_bytes: BytesPerElement = 0
    """Unsharded gradient of the current layer in backward (ZeRO-2 and 3) [B/parameter]."""
    reduce_input_bytes: BytesPerElement = 0
    """Input of the previous layer's reduce-scatter (ZeRO-2 and 3) [B/parameter]."""
    reduces_alone: bool = False
    """Gradients are copied for a reduction also with dp = 1 (FSDP2, which wraps for its precision
    policy)."""
    whole_embedding_gradient: bool = False
    """Under tensor parallelism every rank computes the whole embedding gradient before it is split
    (DTensor)."""
    pipeline_gradients_whole: bool = False
    """A pipeline accumulates unsharded gradients and reduces them once a step, at every ZeRO stage
    (torch.distributed.pipelining)."""
    pipeline_buffers_whole: bool = False
    """A stage has receive buffers for all micro-batches of a step, in both directions, and keeps
    sent tensors until their backward pass (torch.distributed.pipelining)."""
    preallocates_gradients: bool = False
    """Gradient buffers exist from the start; else they appear in the first backward pass of a step.
    """
    keeps_temporaries: bool = False
    """Temporaries of the optimizer step are single large tensors, whose memory the allocator keeps
    while there is room."""
    allocator_fraction: Share
    """Reserve of the caching allocator / peak."""
    host_process_bytes: ByteCount
    """Host memory of one rank's process: interpreter, libraries, pinned loader buffers [B]."""


class Offloading(Description):
    """Offloading: transfers, and memory of the host."""

    overlap_weights: bool = False
    """Weights are loaded behind computation; else the host waits for every copy."""
    overlap_gradients: bool = False
    """Gradients are stored behind backward."""
    fused_update: bool = True
    """One kernel updates the states on the host, if the device's is fused; else one kernel per
    operation."""
    gradient_transfers: int = Field(default=1, ge=0, le=8)
    """Transfers of gradients over the link in a pass that accumulates them on the host."""
    step_gradient_bytes: BytesPerElement = 0
    """fp32 gradients of the optimizer beside the accumulated ones: sent in the last pass, kept on
    the host or written to the disk [B/parameter]."""
    step_host_bytes: BytesPerElement = 0
    """Host memory traffic besides the update: unscaling, copies [B/parameter]."""
    weight_copies: int = Field(default=1, ge=1, le=4)
    """Copies of offloaded weights on the host."""
    activations_piped: bool = True
    """Activations can be offloaded in a pipeline too."""
    activation_layers: int = Field(default=0, ge=0, le=16)
    """Layers whose activations are on the device while streams of their own move them; 0:
    computation waits for every copy."""
    overlap_activations: bool = False
    """Activations move behind computation; else the device waits for every copy."""
    swap_buffer_bytes: float = Field(default=0, ge=0, le=1e12)
    """Pinned buffers per rank for swapping to the disk [B]."""
