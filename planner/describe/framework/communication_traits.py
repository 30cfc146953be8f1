"""Communication traits: which collectives overlap, and how replicas reduce gradients."""

from __future__ import annotations

from pydantic import Field

from planner.describe.base import BytesPerElement, Description, Elements, Fraction, Share, ZeroStage

__all__ = ["Communication", "Reduction"]


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


class Reduction(Description):
    """What data parallelism does with whole gradients; how wide they are and in which buckets they
    travel stands with the states and the buffers."""

    after_backward: tuple[ZeroStage, ...] = ()
    """ZeRO stages at which gradients are reduced when the backward pass is over, behind nothing,
    where others overlap (DeepSpeed's stage 0)."""
    first_bucket_elements: Elements = 0
    """Elements at which the first bucket of a pass closes, so that its reduction starts early; 0:
    it is as large as others."""
    cycle_s: float = Field(default=0, ge=0, le=1)
    """How often a thread looks which gradients every rank has, before it reduces them (Horovod);
    0: they are sent as they get ready [s]."""
    hierarchical: bool = False
    """Whether gradients are scattered inside the nodes, reduced between them and gathered inside,
    in phases of their own, rather than by the library's all-reduce."""
