"""Communication traits: which collectives overlap, and how replicas reduce gradients."""

from __future__ import annotations

from pydantic import Field

from planner.describe.base import BytesPerElement, Description, Elements, Fraction, Share, ZeroStage

__all__ = ["Communication", "Reduction"]


class Communication(Description):
    """Overlap and form of collectives."""

    overlap_gradients: bool
    """Gradients are reduced behind the last backward pass."""
    overlap_parameters: bool
    """Updated parameters are gathered behind the next forward pass (ZeRO-1, 2)."""
    every_layer_alone: bool = False
    """Every layer gathers its weights and reduces its gradients in one collective, below ZeRO-3 too
    (FSDP); else they travel in buckets."""
    gather_bytes: BytesPerElement = 0
    """Bytes per element of weights that ZeRO-3 gathers quantised; 0: compute precision [B]."""
    scatter_bytes: BytesPerElement = 0
    """Bytes per element of gradients that ZeRO-3 reduces quantised, by all-to-alls inside and then
    between nodes; 0: reduce-scatter [B]."""
    replicas_once: bool = False
    """Ranks with the same shard (hybrid sharding) all-reduce gradients once a step, not with every
    reduction (MiCS)."""
    second_shards_stay: bool = False
    """Weights resharded over fewer ranks after forward (`reshard`) stay so until the optimizer step
    (DeepSpeed's hpZ); else until their backward pass (FSDP2)."""
    reduce_every_micro_batch: tuple[ZeroStage, ...] = ()
    """ZeRO stages at which every micro-batch reduces its gradients."""
    all_reduced_stages: tuple[ZeroStage, ...] = ()
    """ZeRO stages at which gradients are all-reduced, though a rank keeps only its shard; else they
    are reduce-scattered."""
    gathers_updates_whole: bool = False
    """Updated weights are gathered in one collective, not in buckets (ZeRO-1, 2)."""
    reduces_once: bool | None = None
    """Unsharded gradients are accumulated over the micro-batches on every rank instead (Accelerate
    without sync_each_batch); None: no such choice."""
    pipeline_reduce_every_micro_batch: tuple[ZeroStage, ...] = ()
    """As reduce_every_micro_batch, with a pipeline only."""
    overlap_tensor: Share
    """Share of tensor-parallel traffic hidden behind GEMMs."""
    overlap_tensor_in_node: bool = False
    """Overlap covers only sequence-parallel traffic inside a node, and other layouts are refused
    (user buffers of Transformer Engine)."""
    overlap_tensor_backward: bool = False
    """Backward passes of column-parallel GEMMs overlap: the gather of their input with the
    input-gradient GEMM, the reduction of that gradient with the weight-gradient GEMM."""
    routes_own_tokens: bool = False
    """Each tensor-parallel rank routes its part of the sequence, and the ranks that split an expert
    gather its tokens (Megatron Core); else the stream is gathered before routing."""
    experts_once_per_node: bool = False
    """A token is sent once to every node of its experts and copied there (DeepEP, HybridEP); else
    every copy crosses the network (NCCL's all-to-all)."""
    dispatch_bytes: BytesPerElement = 0
    """Bytes per element of a token on its way to the experts; the way back and gradients use the
    compute precision. 0: compute precision both ways [B]."""
    overlap_experts: bool = False
    """Dispatch and combine overlap with the other direction's computation of the next micro-batch,
    without a pipeline or with an interleaved one, and without full recompute."""
    overlap_pipeline: bool
    """Transfers between stages with several chunks overlap with computation; with one chunk a stage
    waits."""
    gather_fraction: Fraction
    """Bandwidth of ZeRO-3 gathers and scatters / bandwidth of a large collective."""
    contention: Share
    """Share of hidden traffic that still costs time, as its kernels take compute units and memory
    bandwidth."""


class Reduction(Description):
    """Data-parallel reduction of unsharded gradients, besides their width and buckets."""

    after_backward: tuple[ZeroStage, ...] = ()
    """ZeRO stages at which gradients are reduced after backward, without overlap (DeepSpeed's stage
    0)."""
    first_bucket_elements: Elements = 0
    """Elements at which the first bucket of a pass closes, so that its reduction starts early; 0:
    as the other buckets."""
    cycle_s: float = Field(default=0, ge=0, le=1)
    """Period at which a thread looks for gradients that every rank has (Horovod); 0: they are sent
    when ready [s]."""
    hierarchical: bool = False
    """Gradients are reduce-scattered inside the nodes, all-reduced between them and gathered
    inside, in separate phases."""
