"""Layouts: many layouts as integer arrays of one shape; one layout is the 0-d case."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import numpy as np

from planner.cost.arrays import Arrays, Float, Int, Mask, broadcast_to, distinct, is_in
from planner.cost.shards.layout_codes import decode_layout, encode_layout, module_bits
from planner.describe.framework.framework import Framework
from planner.describe.layout import (
    OFFLOAD,
    PAIRED,
    RECOMPUTE,
    SCHEDULES,
    STAGE_FIELDS,
    V_SHAPED,
    Chunks,
    Layout,
    Module,
    Sharding,
)


@dataclass(frozen=True, slots=True)
class Layouts(Sharding, Chunks, Arrays):
    """Many layouts as arrays of one shape."""

    dp: Int
    dp_shard: Int
    tp: Int
    sequence_parallel: Int
    pp: Int
    vpp: Int
    cp: Int
    ulysses: Int
    ep: Int
    etp: Int
    zero_stage: Int
    reshard: Int
    micro_batch: Int
    grad_accumulation: Int
    recompute: Int
    recompute_layers: Int
    recompute_every: Int
    recompute_span: Int
    recompute_modules: Int
    """A bit for each of RECOMPUTE_MODULES."""
    offload_activations: Int
    schedule: Int
    offload: Int
    tiles: Int
    embedding_slots: Int
    head_slots: Int
    first_layers: Int
    last_layers: Int
    split: Int
    """Index in the table of user-defined splits; 0: none."""

    @classmethod
    def of(cls, layout: Layout) -> Self:
        """One layout as 0-d arrays."""
        return cls(**{name: np.asarray(value) for name, value in encode_layout(layout).items()})

    @classmethod
    def stack(cls, layouts: Iterable[Layout]) -> Self:
        """Explicit layouts as 1-d arrays."""
        rows = [encode_layout(layout) for layout in layouts]
        return cls(*np.array([[row[name] for row in rows] for name in _NAMES], dtype=np.int64))

    @classmethod
    def broadcast(cls, **columns: Any) -> Self:
        """Broadcast columns against each other; missing ones take `Layout`'s defaults."""
        arrays = {name: np.asarray(values, dtype=np.int64) for name, values in columns.items()}
        shape = np.broadcast_shapes(*(values.shape for values in arrays.values()))
        # np.broadcast_to takes ten times as long
        same = (0,) * len(shape)
        complete = {
            name: np.ndarray(shape, np.int64, default, strides=same)
            for name, default in _DEFAULTS.items()
        }
        complete |= {name: broadcast_to(values, shape) for name, values in arrays.items()}
        assert len(complete) == len(_DEFAULTS), f"not fields: {columns.keys() - _DEFAULTS.keys()}"
        shards = complete["dp_shard"]
        return cls(**{**complete, "dp_shard": np.where(shards == 0, complete["dp"], shards)})

    def distinct(self, *names: str) -> tuple[Self, Int]:
        """Unique rows by the columns `names`, and the index that expands them to all rows."""
        first, index = distinct(*(getattr(self, name) for name in names))
        return self.of_each(first, index.size), index

    def __len__(self) -> int:
        return int(np.size(self.dp))

    def __getitem__(self, index: int) -> Layout:
        return decode_layout(_NAMES, tuple(int(getattr(self, name).flat[index]) for name in _NAMES))

    def __iter__(self) -> Iterator[Layout]:
        columns = (getattr(self, name).ravel().tolist() for name in _NAMES)
        return (decode_layout(_NAMES, row) for row in zip(*columns, strict=True))

    @property
    def has_custom_split(self) -> Mask:
        """The user sets the layers of some or all stages."""
        return (self.first_layers > 0) | (self.last_layers > 0) | (self.split > 0)

    @property
    def counts_embedding_or_head(self) -> Mask:
        """The user sets how many layers embedding or head count for."""
        return (self.embedding_slots >= 0) | (self.head_slots >= 0)

    @property
    def split_settings(self) -> tuple[Int, ...]:
        """User settings of the layer split, as numbers from 0 on."""
        return tuple(getattr(self, name) + (name in _START_AT_MINUS_ONE) for name in STAGE_FIELDS)

    def distinct_splits(self) -> tuple[Self, Int]:
        """Unique layer splits over stages and chunks, and the index that expands them."""
        custom = self.has_custom_split
        chunks = [np.where(custom, column, 0) for column in (self.pp, self.vpp, self.schedule)]
        first, index = distinct(*self.split_settings, *chunks)
        return self.of_each(first, index.size), index

    # --- counts --------------------------------------------------------------------------------

    @property
    def world(self) -> Int:
        """Ranks of each layout."""
        return self.dp * self.tp * self.pp * self.cp

    @property
    def global_batch(self) -> Int:
        """Sequences per step of each layout."""
        return self.micro_batch * self.grad_accumulation * self.dp

    @property
    def num_microbatches(self) -> Int:
        """Micro-batches per step."""
        return self.grad_accumulation

    @property
    def num_replicas(self) -> Int:
        """Ranks that train the same weights: dp * cp (context ranks share them)."""
        return self.dp * self.cp

    @property
    def num_shards(self) -> Int:
        """Ranks over which ZeRO or FSDP shards: dp_shard * cp."""
        return self.dp_shard * self.cp

    # --- experts ---------------------------------------------------------------------------------

    def with_default_etp(self, framework: Framework) -> Self:
        """Fill in the framework's default expert-tensor-parallel degree."""
        return self if (self.etp > 0).all() else replace(self, etp=self.expert_tp_in(framework))

    def expert_tp_in(self, framework: Framework) -> Int:
        """Ranks that split each expert; the framework's default unless `etp` is set."""
        default = self.tp
        if framework.expert_tensor_parallel[0] == "one":
            default = np.where(self.ep > 1, 1, self.tp)
        return np.where(self.etp > 0, self.etp, default)

    @property
    def expert_tp(self) -> Int:
        """Ranks that split each expert; tp unless `etp` is set."""
        return np.where(self.etp > 0, self.etp, self.tp)

    @property
    def num_second_shards(self) -> Int:
        """Ranks over which weights stay sharded from a forward pass to its backward pass."""
        return np.where(self.reshard > 0, self.reshard, self.num_shards)

    @property
    def ring(self) -> Int:
        """Ring size: groups of context ranks that exchange keys and values."""
        return self.cp // self.ulysses

    @property
    def expert_dp(self) -> Int:
        """Replicas of each expert: dp * cp * tp / (ep * etp)."""
        return self.dp * self.cp * self.tp // (self.ep * self.expert_tp)

    @property
    def expert_shards(self) -> Int:
        """Ranks that shard the states of an expert; at least 1."""
        return np.maximum(self.num_shards * self.tp // (self.ep * self.expert_tp), 1)

    @property
    def expert_second_shards(self) -> Int:
        """Ranks that keep an expert's weights sharded from forward to backward; at least 1."""
        return np.maximum(self.num_second_shards * self.tp // (self.ep * self.expert_tp), 1)

    @property
    def spreads_experts(self) -> Mask:
        """Experts are spread over ranks differently from the layers around them."""
        return (self.ep > 1) | (self.expert_tp != self.tp)

    # --- when gradients are reduced -------------------------------------------------------------

    def sums_gradients(self, framework: Framework) -> Mask:
        """Gradients are summed unsharded over the micro-batches of a step and reduced once."""
        reduces_every_pass = self._reduces_every(framework)
        piped = self.piped & framework.buffers.pipeline_gradients_whole
        return (self.num_microbatches > 1) & (piped | ~reduces_every_pass)

    def reductions_per_step(self, framework: Framework) -> Int:
        """Gradient reductions per step: one, or one per micro-batch."""
        rules = framework.communication
        every_micro_batch = self._reduces_every(framework)
        piped = is_in(self.zero_stage, rules.pipeline_reduce_every_micro_batch) & self.piped
        every_micro_batch = every_micro_batch | piped
        if framework.buffers.pipeline_gradients_whole:
            every_micro_batch = every_micro_batch & ~self.piped
        return np.where(every_micro_batch, self.num_microbatches, 1)

    def merges_passes(self, framework: Framework) -> Mask:
        """True where passes of neighbouring micro-batches overlap to hide expert all-to-alls."""
        # Megatron-LM, combined_1f1b.py; torchtitan, dual_pipe_v.py
        piped = ~self.piped | (self.vpp > 1)
        several = (self.num_microbatches > 1) & (self.ep > 1) & ~self.repeats_dispatch
        return several & (self.paired | (piped & framework.communication.overlap_experts))

    def gathers_per_step(self, framework: Framework) -> Int:
        """Weight all-gathers per step for forward passes, if layers are FSDP units."""
        freed = is_in(self.zero_stage, framework.communication.reduce_every_micro_batch)
        stays_gathered = self.piped & framework.buffers.pipeline_gradients_whole
        return np.where(self.shards_weights | (freed & ~stays_gathered), self.num_microbatches, 1)

    def keeps_second_shards(self, framework: Framework) -> Mask:
        """Weights stay resharded over fewer ranks from the first forward pass to the step's end."""
        second = self.shards_weights & (self.reshard > 0)
        return second & framework.communication.second_shards_stay

    def backward_gathers_per_step(self, framework: Framework) -> Int:
        """Weight all-gathers per step for backward passes (ZeRO-3)."""
        stays_gathered = self.piped & framework.buffers.pipeline_gradients_whole
        return np.where(stays_gathered, 1, self.num_microbatches)

    def extra_head_gathers(self, framework: Framework) -> Int:
        """Extra FSDP all-gathers of the head per step, beyond a layer's, for a chunked loss."""
        if framework.kernels.loss_chunks == 1:
            return np.zeros_like(self.num_microbatches)
        # three per pass: norm forward, all chunks, norm backward (torchtitan 0.3, loss.py)
        backward = np.where(self.shards_weights, self.backward_gathers_per_step(framework), 0)
        further_gathers = 3 * self.num_microbatches - self.gathers_per_step(framework) - backward
        layer_units = framework.communication.every_layer_alone
        return np.where(self.shards_states & layer_units, further_gathers, 0)

    def _reduces_every(self, framework: Framework) -> Mask:
        rules = framework.communication
        return is_in(self.zero_stage, rules.reduce_every_micro_batch) & (not rules.reduces_once)

    # --- offload --------------------------------------------------------------------------------

    @property
    def keeps_states(self) -> Mask:
        """Optimizer states stay on the device."""
        return self.offload == OFFLOAD.index("none")

    @property
    def offloads_weights(self) -> Mask:
        """Weights are offloaded too, to the host or the disk."""
        return self.weights_on_host | self.weights_on_disk

    @property
    def weights_on_host(self) -> Mask:
        """Weights live in host memory."""
        return self.offload == OFFLOAD.index("all-cpu")

    @property
    def weights_on_disk(self) -> Mask:
        """Weights live on the node's local disk."""
        return self.offload == OFFLOAD.index("all-nvme")

    @property
    def states_on_host(self) -> Mask:
        """Optimizer states live in host memory."""
        return (self.offload == OFFLOAD.index("optimizer-cpu")) | self.weights_on_host

    @property
    def states_on_disk(self) -> Mask:
        """Optimizer states live on the node's local disk."""
        return (self.offload == OFFLOAD.index("optimizer-nvme")) | self.weights_on_disk

    # --- how a pass runs -------------------------------------------------------------------------

    @property
    def piped(self) -> Mask:
        """There is more than one pipeline stage."""
        return self.pp > 1

    @property
    def splits_sequence(self) -> Mask:
        """Norms and dropouts are split along the sequence over the tp group."""
        return self.sequence_parallel > 0

    @property
    def recomputes_layers(self) -> Mask:
        """Full recompute: layers are recomputed in backward, all or some of them."""
        return self.recompute == RECOMPUTE.index("full")

    @property
    def recomputes_selectively(self) -> Mask:
        """Selective recompute: some operators are recomputed in backward."""
        return self.recompute == RECOMPUTE.index("selective")

    @property
    def recomputes_partly(self) -> Mask:
        """Some layers of a stage are recomputed in backward, others keep their activations."""
        is_partial = (self.recompute_layers > 0) | (self.recompute_every > 1)
        return self.recomputes_layers & is_partial

    def recomputes_module(self, names: tuple[Module, ...]) -> Mask:
        """True where selective recompute of the layout names one of these modules."""
        return self.recomputes_selectively & ((self.recompute_modules & module_bits(names)) > 0)

    @property
    def offloads_activations(self) -> Mask:
        """Layer activations are offloaded to host memory until their backward."""
        return self.offload_activations > 0

    @property
    def repeats_dispatch(self) -> Mask:
        """Recompute repeats the dispatch of tokens to experts."""
        return self.recomputes_layers | self.recomputes_module(("moe",))

    def recomputes_attention(self, framework: Framework) -> Mask:
        """True where recompute repeats the attention core and its context-parallel exchanges."""
        core = self.recomputes_selectively & (self.recompute_modules == 0)
        core = core & (framework.selective_policy == "attention-core")
        return self.recomputes_layers | self.recomputes_module(("core_attn",)) | core

    def without_partial_recompute(self) -> Self:
        """Layouts for layers that partial recompute leaves out: without recompute."""
        none = np.full_like(self.recompute, RECOMPUTE.index("none"))
        return replace(self, recompute=np.where(self.recomputes_partly, none, self.recompute))

    def uses_schedule(self, name: str) -> Mask:
        """The pipeline uses the schedule `name`."""
        return self.schedule == SCHEDULES.index(name)

    @property
    def v_shaped(self) -> Mask:
        """V-shaped schedule: the model turns at the last stage; the first stage has both ends."""
        return is_in(self.schedule, [SCHEDULES.index(name) for name in V_SHAPED])

    @property
    def paired(self) -> Mask:
        """The schedule itself overlaps a forward with a backward pass (DualPipe)."""
        return is_in(self.schedule, [SCHEDULES.index(name) for name in PAIRED])

    def tokens(self, sequence_length: int) -> Float:
        """Tokens of one micro-batch on one context rank."""
        return self.micro_batch * sequence_length / self.cp


_NAMES = tuple(field.name for field in fields(Layouts))
_DEFAULTS = {
    name: np.int64(0 if name == "dp_shard" else value).tobytes()
    for name, value in encode_layout(Layout()).items()
}

_START_AT_MINUS_ONE = ("embedding_slots", "head_slots")
"""Columns whose values start at -1."""
