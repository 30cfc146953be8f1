"""Framework: how a training framework does things, as data.

Frameworks differ in what they keep per parameter, what they save for backward, which kernels
are fused, which buffers they hold and what they overlap. One TOML file each; no code asks for
a framework by name.
"""

from __future__ import annotations

from typing import Literal, get_args

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
from planner.describe.layout import RECOMPUTE, Recompute, Schedule
from planner.describe.machine import Requirements, Runtime
from planner.describe.model.decoders import Axis, Decoders
from planner.describe.model.model import Model
from planner.describe.workload import (
    OPTIMIZERS,
    PRECISIONS,
    OptimizerName,
    TrainingPrecision,
    Workload,
)
from planner.units import either

__all__ = [
    "Buffers",
    "Code",
    "Communication",
    "Framework",
    "HostTime",
    "Kernels",
    "Loss",
    "Offloading",
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
    """The fp32 copy the optimizer updates, sharded from ZeRO-1 on [B/parameter]."""
    cached_weight_bytes: BytesPerElement = 0
    """Low-precision copies that live during forward and backward (autocast) [B/parameter]."""
    reduce_bytes: float = Field(ge=0.125, le=64)
    """Bytes per gradient element on the wire [B]."""
    optimizer_temporary_bytes: BytesPerElement = 0
    """Temporaries of the optimizer step per parameter that the rank updates [B/parameter]."""
    norm_bytes: BytesPerElement = 0
    """What the gradients' norm copies of the largest of those that the rank updates [B/element]."""


class Kernels(Description):
    """Which kernels run, and what they keep."""

    fused_norm: bool
    """One kernel per RMS normalisation, saving its input (else decomposed: fp32 copies saved);
    a LayerNorm is always one."""
    fused_activation: bool
    """Bias and non-linearity (or the gate's product) in one kernel."""
    fused_residual: bool
    """Bias, dropout and residual addition in one kernel."""
    fused_softmax: bool
    """Scale, mask and softmax in one kernel (eager attention)."""
    fused_rope: bool
    """Rotary position in one kernel."""
    softmax_bytes: BytesPerElement = 0
    """Bytes that eager softmax keeps per score, besides dropout; 0: one compute element [B]."""
    fp8_cast_bytes: BytesPerElement = 0
    """Bytes moved per operand element of an FP8 product to scan and convert it, where no other
    kernel does that in passing [B]."""
    loss: Loss
    """eager: fp32 logits and log-softmax of the whole vocabulary; vocab-parallel: split over
    tp, in place; vocab-parallel-copy: the same on a copy, the fp32 logits beside it; fused: one
    kernel that turns 16-bit logits into their gradient in place; fused-copy: the same with the
    gradient beside the logits; fused-linear: fused with the head's product, a piece of the logits
    as large as the stream at a time, both gradients in the forward pass (Liger)."""
    loss_chunks: int = Field(default=1, ge=1, le=1024)
    """Pieces of the sequence that pass head and loss, forward and backward, one by one (eager
    loss); the head's gradient is summed over them before it is reduced."""
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
    gathers_context: bool = False
    """Whether keys and values of all context ranks are gathered at once, and only their gradients
    passed around, in fp32 (torch); else both pass around, as attention gets to them."""
    uneven_context: Trait | None = None
    """Whether all context ranks wait for the one with the last tokens of causal attention; None
    where each holds an early and a late piece, so that they share it evenly."""
    repeats_to_end: bool = False
    """Whether full recompute runs a layer to its end, and not only to the last activation that
    backward needs (torchtitan: early_stop = False)."""
    saves_gathered: bool = False
    """Whether sequence parallelism keeps the gathered inputs (DTensor) or gathers again."""
    fused_gradient_accumulation: bool = False
    """Whether weight-gradient GEMMs add into the fp32 gradient themselves."""
    attention_fraction: Factor
    """Rate of its fused attention relative to the device's `attention_efficiency` (which is
    that of FlashAttention-2)."""
    launch_fraction: Factor
    """Host time per kernel relative to eager dispatch (compiled graphs launch fewer)."""
    fused_optimizer: bool
    """One pass over states and weights (else one kernel per operation)."""


class HostTime(Description):
    """Least time of one layer's forward and backward with tensor parallelism: the host issues
    every collective and awaits it, and the devices wait for the host."""

    layer_s: Duration
    """Without a pipeline, on one node; grows with the nodes of the group [s]."""
    piped_layer_s: Duration
    """With a pipeline, for tp = 2 on one node [s]."""
    piped_power: Share
    """How the latter grows with tp and with the nodes of the group."""


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
    reduce_every_micro_batch: tuple[ZeroStage, ...] = ()
    """ZeRO stages at which every micro-batch reduces its gradients."""
    reduces_once: bool | None = None
    """Whether whole gradients are summed over the micro-batches instead, on every rank (Accelerate
    without sync_each_batch); None where there is no such choice."""
    pipeline_reduce_every_micro_batch: tuple[ZeroStage, ...] = ()
    """The same, only where pp > 1."""
    overlap_tensor: Share
    """Fraction of tensor-parallel traffic hidden behind GEMMs."""
    experts_once_per_node: bool = False
    """Whether a token goes once to every node that its experts are on and is copied there
    (DeepEP, HybridEP); else every copy crosses the network (NCCL's all-to-all)."""
    overlap_experts: bool = False
    """Whether dispatch and combine run behind the other direction's computation of the next
    micro-batch: without a pipeline or with an interleaved one, and without full recompute."""
    overlap_pipeline: bool
    """Whether transfers between stages of several chunks run behind computation; a stage of one
    chunk awaits its own."""
    gather_fraction: Fraction
    """Bandwidth that ZeRO-3 gathers and scatters reach, relative to a large collective."""
    contention: Share
    """Part of hidden data-parallel traffic that still costs time: its kernels take compute
    units and memory bandwidth from the computation they run behind."""


class Offloading(Description):
    """What moves, and what the host holds, where states or weights live off the device."""

    overlap_weights: bool = False
    """Whether weights come up behind computation; else the host awaits every copy."""
    overlap_gradients: bool = False
    """Whether gradients go down behind backward."""
    gradient_transfers: int = Field(default=1, ge=0, le=8)
    """How often a pass that adds to gradients on the host sends them over the link."""
    step_gradient_bytes: BytesPerElement = 0
    """fp32 gradients of the optimizer beside those that passes add to: sent down in the last pass,
    held on the host or written to the disk [B/parameter]."""
    step_host_bytes: BytesPerElement = 0
    """What the host moves in its memory besides the update: unscaling, copies [B/parameter]."""
    weight_copies: int = Field(default=1, ge=1, le=4)
    """How often the host holds weights that are offloaded to it."""
    swap_buffer_bytes: float = Field(default=0, ge=0, le=1e12)
    """Pinned buffers per rank for what is swapped to the disk [B]."""


class Code(Description):
    """What its own code and files can be told, where that is less than what is estimated."""

    models: tuple[Decoders, ...] = ()
    """Models that its own code builds; none: it runs the model's own code, whatever that is."""
    other_models: Literal["none", "data-parallel"] = "none"
    """What it does for other models: nothing, or data parallelism around their own code."""
    precisions: tuple[TrainingPrecision, ...] = PRECISIONS
    """Precisions that its files can ask for."""
    optimizers: tuple[OptimizerName, ...] = OPTIMIZERS
    """Optimizers that its files can ask for."""
    zero_stages: tuple[ZeroStage, ...] = ()
    """ZeRO stages that its files can ask for; none stated: all that it offers."""
    schedules: tuple[Schedule, ...] = ()
    """Pipeline schedules that its files can ask for; none stated: all that it offers."""
    axes_need_sharding: tuple[Axis, ...] = ()
    """As `Framework.axes_need_sharding`, of its files."""

    def lacks(self, model: Model, workload: Workload) -> str:
        """Why a job cannot be written at all; empty where it can."""
        if unsaid := self.unsaid(workload):
            return unsaid
        if self.other_models != "none" or not self.models:
            return ""
        if workload.adapted:
            return "its code trains no adapters and freezes no parts"
        return self.odd(model, workload.sequence_length)

    def unsaid(self, workload: Workload) -> str:
        """What of a workload its files cannot ask for; empty where they can all."""
        if workload.precision not in self.precisions:
            return f"precision {workload.precision} is not written; use {either(self.precisions)}"
        if workload.optimizer not in self.optimizers:
            return f"optimizer {workload.optimizer} is not written; use {either(self.optimizers)}"
        return ""

    def odd(self, model: Model, sequence_length: int) -> str:
        """What sets a model apart from all that its code builds; empty where nothing does."""
        reasons = [decoders.lacks(model, sequence_length) for decoders in self.models]
        return "" if not reasons or "" in reasons else f"its code builds no model that {reasons[0]}"

    def builds(self, model: Model, workload: Workload) -> Decoders | None:
        """The code that builds a job's model; None where the model's own runs, adapted or not."""
        if workload.adapted:
            return None
        for decoders in self.models:
            precise = workload.precision in decoders.precisions
            trains = precise and workload.optimizer in decoders.optimizers
            if trains and not decoders.lacks(model, workload.sequence_length):
                return decoders
        return None


class Framework(Description):
    """A training framework."""

    name: str
    """Name on the command line."""
    title: str
    """Full name and version described."""
    like: str = ""
    """The framework of the catalogue whose traits hold where this description states none; what
    is said of it by name (title, labels, source, notes, configuration, searched) is its own."""
    labels: tuple[str, ...] = ()
    """Words by which tables of runs call it besides its name, in lower case with single blanks."""
    source: str
    """Where its behaviour was read."""
    notes: tuple[str, ...] = ()
    """Limits and doubts of this description."""
    configuration: str = "none"
    """The recipe that writes its files (`planner emit`): the name of a module of
    `planner.emitters.recipes`; none: it is described for comparison only."""
    effort: float = Field(default=0, ge=0, le=10)
    """What it costs people to take up, beyond DDP around their own model: an order of preference on
    the scale of `planner.choose.recommending` [1]."""
    searched: bool = False
    """Whether it is searched where no framework is named."""
    stands_in_for: str = ""
    """The framework in whose place it is searched, only where that one does not run."""
    instead_of: str = ""
    """The framework that is searched only where this one is not, or has nothing that fits."""
    requires: Requirements = Requirements()
    """What a machine must have for it to be searched there without being named."""
    runtimes: tuple[Runtime, ...] = get_args(Runtime)
    """Device runtimes it runs on."""
    axes: tuple[Axis, ...]
    """Parallel axes besides data."""
    zero_stages: tuple[ZeroStage, ...] = Field(min_length=1)
    """ZeRO stages it offers (FSDP full shard is 3, grad-op is 2)."""
    zero_stages_with_pipeline: tuple[ZeroStage, ...] = (0, 1)
    """Stages it offers together with pp > 1."""
    unsharded_precisions: tuple[TrainingPrecision, ...] = PRECISIONS
    """Precisions in which it trains without sharding anything (ZeRO-0)."""
    axes_need_sharding: tuple[Axis, ...] = ()
    """Axes that go only with states that ranks share (ep: that many of them or a multiple)."""
    hybrid_sharding: bool = False
    """Whether sharding can stop at a group of ranks and replicate across groups."""
    schedules: tuple[Schedule, ...] = ("none",)
    """Pipeline schedules."""
    recompute: tuple[Recompute, ...] = ("none", "full")
    """Activation recompute modes."""
    deferred_recompute: tuple[Recompute, ...] = RECOMPUTE
    """Those that go with schedules whose weight gradients are passes of their own."""
    deferred_zero_stages: tuple[ZeroStage, ...] = (0, 1, 2, 3)
    """ZeRO stages that go with such schedules."""
    selective_policy: Literal["attention-core", "matmul-outputs", "alternate-matmuls"] = (
        "attention-core"
    )
    """What selective recompute means: recompute the attention core (Korthikanti), or keep
    matrix products' outputs (all, or every second one)."""
    sequence_parallel: Literal["never", "with-tp", "optional"] = "never"
    """Whether norms and dropouts are split along the sequence inside the tp group."""
    offload_optimizer: tuple[Literal["cpu", "nvme"], ...] = ()
    """Where optimizer states can live."""
    offload_parameters: tuple[Literal["cpu", "nvme"], ...] = ()
    """Where parameters can live (ZeRO-3)."""
    offload_stages: tuple[ZeroStage, ...] = (1, 2, 3)
    """ZeRO stages at which the optimizer can be offloaded."""
    tiling: bool = False
    """Whether the largest layer can be split into tiles (memory-centric tiling)."""
    uneven_stages: bool = False
    """Whether pipeline stages may differ in their number of layers."""
    balance: Literal["layers", "ends-as-layers", "cost"] = "layers"
    """How layers are dealt to stages: equally; with embedding and head as one layer each; or
    by cost, with the head weighing as many layers as its parameters."""
    shards_rows: bool = False
    """Whether each tensor is sharded by whole rows, ceil(rows / ranks) (FSDP2), or all
    tensors as one flat array."""
    replicates_kv_heads: bool = False
    """Whether tp may exceed the number of key-value heads."""
    expert_tensor_parallel: bool = True
    """Whether tp also divides the experts where ep > 1."""
    loads_full_checkpoint: bool = True
    """Whether every rank reads the whole checkpoint into host memory."""
    mixed: States
    """Bytes per parameter in 16-bit and 8-bit training."""
    bf16: States | None = None
    """Bytes per parameter in bf16 and fp8 training, where they differ from fp16's."""
    full: States
    """Bytes per parameter in fp32 and tf32 training."""
    kernels: Kernels
    """Kernels and saved tensors."""
    host: HostTime | None = None
    """Where the host sets the pace of tensor parallelism."""
    stalls: tuple[Stall, ...] = ()
    """Where runs stall now and then; said and avoided, not part of any step time."""
    buffers: Buffers
    """Fixed buffers."""
    communication: Communication
    """Overlap and synchronisation."""
    offloading: Offloading = Offloading()
    """What offloading moves and holds."""
    code: Code = Code()
    """What its code and files can be told."""

    def stages(self, precision: str) -> tuple[int, ...]:
        """ZeRO stages that it offers in a training precision."""
        plain = precision in self.unsharded_precisions
        return tuple(stage for stage in self.zero_stages if stage or plain)

    def written(self, model: Model, workload: Workload) -> Framework:
        """The part of it whose layouts can be written for a job.

        >>> from planner.describe.catalogue import load_framework, load_model
        >>> fsdp2 = load_framework("fsdp2")
        >>> [fsdp2.written(load_model(name), Workload()).axes for name in ("llama-3-8b", "gpt2")]
        [('tp', 'pp', 'cp'), ()]
        """
        code = self.code
        changes: dict[str, object] = {
            "zero_stages": code.zero_stages or self.zero_stages,
            "schedules": code.schedules or self.schedules,
            "axes_need_sharding": code.axes_need_sharding or self.axes_need_sharding,
        }
        built = code.builds(model, workload)
        if built is not None and built.axes is not None:
            changes["axes"] = tuple(axis for axis in self.axes if axis in built.axes)
        if code.models and built is None:
            plain = tuple(mode for mode in self.recompute if mode != "selective")
            changes |= {"axes": (), "recompute": plain}
        return self.model_copy(update=changes)

    def states(self, precision: str) -> States:
        """Bytes per parameter for a training precision."""
        if precision in ("fp32", "tf32"):
            return self.full
        return self.mixed if precision == "fp16" or self.bf16 is None else self.bf16
