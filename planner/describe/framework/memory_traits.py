"""Memory traits: bytes per parameter, fixed buffers, and what offloading moves."""

from __future__ import annotations

from pydantic import Field

from planner.describe.base import ByteCount, BytesPerElement, Description, Elements, Share

__all__ = ["Buffers", "Offloading", "States"]


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
