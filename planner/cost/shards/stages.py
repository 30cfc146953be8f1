"""Stages: blocks and parameters of pipeline stages, computed once for a set of layouts."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from planner.cost.arrays import Arrays, Float, Int, Mask, broadcast_to, distinct
from planner.cost.operators.blocks import blocks_of
from planner.cost.scenario import Scenario
from planner.cost.shards.candidate_stages import candidate_stages
from planner.cost.shards.layouts import Layouts
from planner.cost.shards.optimizers import OPTIMIZERS, moment_bytes
from planner.cost.shards.partial_recompute import (
    model_block_counts,
    recompute_columns,
    split_for_partial_recompute,
    stage_block_counts,
)
from planner.cost.shards.states import StageParams, stage_params, without_frozen
from planner.describe.framework.traits import States
from planner.describe.layout import Layout
from planner.describe.model.block import Block

_MAX_WITHOUT_DEDUPLICATION = 512
"""Up to this many layouts, computing each directly is faster than deduplicating."""
_OF_STATES = ("dp_shard", "zero_stage", "reshard", "offload")
"""Columns that affect only the parameters and states of a rank."""
_OF_WORK = (
    "sequence_parallel", "ulysses", "micro_batch", "grad_accumulation", "recompute",
    "recompute_layers", "recompute_every", "recompute_span", "recompute_modules",
    "offload_activations", "schedule",
)  # fmt: skip
"""Columns that affect only the computation, activations and traffic of passes."""

_COLUMNS = tuple(field.name for field in fields(Layouts))

_Figures = TypeVar("_Figures", bound=Arrays)


@dataclass(frozen=True, slots=True)
class _UniqueStages:
    """Unique stages and the index that expands them back to all layouts."""

    stages: Stages
    index: Int

    def rows(self, index: Int) -> Self:
        """Select the unique stages of the rows at `index`."""
        index = self.index[index]
        first, number = distinct(index)
        return replace(self, stages=self.stages.rows(index.ravel()[first]), index=number)


@dataclass(frozen=True)
class Stages:
    """Pipeline stages (L, S), or (L,) for one per layout: blocks and parameters of a rank."""

    scenario: Scenario
    blocks: tuple[Block, ...]
    layouts: Layouts
    """Layouts with the framework's default expert-tensor-parallel degree filled in."""
    requested: Layouts
    """Layouts as requested; for candidate stages (L, S) without the stage axis."""
    stage: Int
    """Index of the stage in its pipeline."""
    _by_work: _UniqueStages | None = None
    """Unique layouts by the work of a pass, each with all its stages."""
    _by_states: _UniqueStages | None = None
    """Unique stages by the parameters and states of a rank."""
    _parent: tuple[Stages, tuple[Any, ...]] | None = None
    """Stages from which these were selected, and the index that selected them."""

    @classmethod
    def of(cls, scenario: Scenario, layouts: Layouts, stage: ArrayLike) -> Self:
        """Make stages from their indices; `layouts` and `stage` broadcast."""
        blocks = _blocks_of(scenario, layouts)
        with_etp = layouts.with_default_etp(scenario.framework)
        return cls(scenario, blocks, with_etp, layouts, np.asarray(stage, dtype=np.int64))

    @classmethod
    def candidates(cls, scenario: Scenario, layouts: Layouts) -> Self:
        """Candidate stages (L, S): one of them is the memory peak, one the slowest."""
        blocks, framework = _blocks_of(scenario, layouts), scenario.framework
        if len(layouts) <= _MAX_WITHOUT_DEDUPLICATION:
            stage = candidate_stages(blocks, layouts, framework)
            with_etp = layouts.with_default_etp(framework).take((..., None))
            return cls(scenario, blocks, with_etp, layouts, stage)
        with_etp = layouts.with_default_etp(framework)
        work, row = with_etp.distinct(*(n for n in _COLUMNS if n not in _OF_STATES))
        unique = candidate_stages(blocks, work, framework)
        stage = unique.take(row, axis=0)
        first, of_states = distinct(*_states_columns(scenario, with_etp))
        first, index = distinct(of_states[:, None], stage)
        states = with_etp.take(first // stage.shape[1])
        make_stages = functools.partial(cls, scenario, blocks)
        spread = work.take((..., None))
        return make_stages(
            with_etp.take((..., None)),
            layouts,
            stage,
            _UniqueStages(make_stages(spread, work, unique), row),
            _UniqueStages(make_stages(states, states, stage.ravel()[first]), index),
        )

    @classmethod
    def of_pipeline(cls, scenario: Scenario, layout: Layout) -> Self:
        """All stages (S,) of one layout."""
        return cls.of(scenario, Layouts.of(layout), np.arange(layout.pp))

    def rows(self, index: Int) -> Self:
        """Select rows at `index` along the first axis; figures computed so far are shared."""
        return replace(
            self,
            layouts=self.layouts.take(index),
            requested=self.requested.take(index),
            stage=self.stage[index],
            _by_work=self._by_work and self._by_work.rows(index),
            _by_states=self._by_states and self._by_states.rows(index),
            _parent=(self, (index,)),
        )

    def at(self, index: Int) -> Self:
        """Select one stage of each layout: from (L, S) at `index` (L, 1) to (L,)."""
        places: tuple[Any, ...] = (..., 0)
        if self.shape[-1] > 1:
            places = (*np.indices(np.shape(index)[:-1], sparse=True), index[..., 0])
        states = self._by_states
        return replace(
            self,
            layouts=self.per_layout,
            stage=self._chosen(self.stage, places),
            _by_work=None,
            _by_states=states and _UniqueStages(states.stages, self._chosen(states.index, places)),
            _parent=(self, places),
        )

    def _chosen(self, values: Any, places: tuple[Any, ...]) -> Any:
        broadcast = values if values.shape == self.shape else broadcast_to(values, self.shape)
        return broadcast[places]

    @functools.cached_property
    def per_layout(self) -> Layouts:
        """Layouts of shape (L,), without the stage axis."""
        return self.layouts.take((..., 0))

    @property
    def by_work(self) -> tuple[Stages, Int | None]:
        """Stages unique in the work of passes, and each layout's index; None: all are unique."""
        return (self._by_work.stages, self._by_work.index) if self._by_work else (self, None)

    def of_work(self, figures: Callable[[Stages], _Figures]) -> _Figures:
        """Compute figures of passes (computation, activations, traffic) once per unique layout."""
        unique, index = self.by_work
        return figures(unique) if index is None else figures(unique).spread(index)

    def of_states(self, figures: Callable[[Stages], _Figures]) -> _Figures:
        """Compute figures of parameters and states once per unique stage."""
        unique = self._by_states
        return figures(unique.stages).spread(unique.index) if unique else figures(self)

    @functools.cached_property
    def counts(self) -> tuple[Float, ...]:
        """Block counts of the stage, in the order of `blocks`."""
        if self._parent:
            parent, index = self._parent
            return tuple(parent._chosen(count, index) for count in parent.counts)
        if self._by_work:
            return tuple(c.take(self._by_work.index, 0) for c in self._by_work.stages.counts)
        framework = self.scenario.framework
        return tuple(stage_block_counts(self.blocks, self.layouts, self.stage, framework))

    @functools.cached_property
    def params(self) -> StageParams:
        """Parameters of one rank of the stage."""
        return self._params("params", self.blocks)

    @functools.cached_property
    def trained(self) -> StageParams:
        """Trainable parameters of one rank: those with gradients and optimizer states."""
        moving = tuple(without_frozen(block) for block in self.blocks)
        return self.params if moving == self.blocks else self._params("trained", moving)

    def _params(self, name: str, blocks: tuple[Block, ...]) -> StageParams:
        if self._by_states:
            params: StageParams = getattr(self._by_states.stages, name)
            return params.take(self._by_states.index)
        if self._parent:
            parent, index = self._parent
            params = getattr(parent, name)
            return params.map(lambda values: parent._chosen(values, index))
        return stage_params(self.scenario, blocks, self.layouts, self.counts)

    @functools.cached_property
    def shape(self) -> tuple[int, ...]:
        """Common shape of layouts and stages."""
        return np.broadcast_shapes(np.shape(self.layouts.dp), np.shape(self.stage))

    @functools.cached_property
    def states(self) -> States:
        """Bytes per parameter of weights, gradients and optimizer states in the framework."""
        return self.scenario.framework.states(self.scenario.workload.precision)

    @property
    def tokens(self) -> Float:
        """Tokens of one micro-batch on one context rank."""
        return self.layouts.tokens(self.scenario.workload.sequence_length)

    @property
    def frozen_bytes(self) -> float:
        """Bytes per frozen weight, which is loaded in compute precision [B]."""
        # only trained weights become fp32 (Accelerate 1.15; peft 0.18, autocast_adapter_dtype)
        return float(self.scenario.workload.compute_bytes)

    @property
    def weight_shard_bytes(self) -> Float:
        """A rank's shard of the compute weights, without fp32 copies [B]."""
        params = self.params
        frozen = params.sharded - params.trainable_sharded
        moving = params.trainable_sharded * self.states.sharded_weight_bytes
        return moving + frozen * self.frozen_bytes

    @property
    def updated(self) -> Float:
        """Parameters that a rank's optimizer updates [elements]."""
        sharded = self.layouts.shards_states
        return np.where(sharded, self.params.trainable_sharded, self.params.trainable)

    @property
    def moment_bytes(self) -> Float:
        """Optimizer moments of the parameters that a rank updates, without the master copy [B]."""
        params, sharded = self.params, self.layouts.shards_states
        per_param = moment_bytes(self.scenario.workload.optimizer, self.states)
        ratio = params.trainable / np.maximum(params.trainable_sharded, 1)
        extra = params.extra_state_bytes * np.where(sharded, 1.0, ratio)
        return self.updated * per_param + extra

    def layouts_of_block(self, block: Block) -> Layouts:
        """Layouts for a block: without recompute if partial recompute keeps its activations."""
        return self.layouts.without_partial_recompute() if block.kept_whole else self.layouts

    def of_model(self, figures: list[Float]) -> Float:
        """Sum a figure per block over the blocks of the whole model."""
        counts = model_block_counts(self.blocks, self.layouts, self.scenario.framework)
        return np.asarray(sum(x * count for x, count in zip(figures, counts, strict=True)))

    @property
    def paged_bytes(self) -> Float:
        """Moments that a paged optimizer may move to the host [B]."""
        paged = OPTIMIZERS[self.scenario.workload.optimizer].paged
        return np.where(self.layouts.keeps_states & paged, self.moment_bytes, 0.0)

    @property
    def optimizer_state_bytes(self) -> Float:
        """Master copy and moments of the parameters that a rank updates [B]."""
        return self.updated * self.states.master_bytes + self.moment_bytes

    @property
    def updated_at_once(self) -> Float:
        """Parameters updated together: all, or one group in backward [elements]."""
        if not self.scenario.framework.kernels.optimizer_in_backward:
            return self.updated
        return np.minimum(self.updated, self.largest_group / self._parts)

    @property
    def largest_group(self) -> Float:
        """Largest FSDP group: a layer, the embedding or the head [elements]."""
        params = self.trained
        return np.maximum(np.maximum(params.largest_layer, params.embedding), params.head)

    @property
    def _parts(self) -> Float:
        """Ranks that shard the states of a group."""
        return np.where(self.layouts.shards_states, self.layouts.num_shards, 1)

    @property
    def eight_bits(self) -> bool:
        """True if weights of layers are gathered in 8 bits."""
        kernels, precision = self.scenario.framework.kernels, self.scenario.workload.precision
        return kernels.fp8_gather and precision == "fp8"

    @property
    def layer_element(self) -> float:
        """Bytes per gathered element of a layer's weights [B]."""
        return 1.0 if self.eight_bits else float(self.scenario.workload.compute_bytes)

    @property
    def in_layers(self) -> Float:
        """Share of a stage's parameters in its layers [1]."""
        params = self.params
        ends = params.embedding + params.head - params.tied
        return 1 - ends / np.maximum(params.all_gathered, 1)

    @property
    def element(self) -> Float:
        """Mean bytes per element of all-gathered weights [B]."""
        parent = float(self.scenario.workload.compute_bytes)
        return parent - (parent - self.layer_element) * self.in_layers

    def total(self, figures: list[Float]) -> Float:
        """Sum a figure per block over the blocks of each stage."""
        pairs = zip(figures, self.counts, strict=True)
        return np.asarray(sum(figure * count for figure, count in pairs))


def _blocks_of(scenario: Scenario, layouts: Layouts) -> tuple[Block, ...]:
    """Blocks of the model; layer blocks split in two if a layout recomputes only some layers."""
    blocks = blocks_of(scenario)
    return split_for_partial_recompute(blocks) if np.any(layouts.recomputes_partly) else blocks


def _states_columns(scenario: Scenario, layouts: Layouts) -> list[Int | Mask]:
    """Columns that decide the parameters, states and data-parallel traffic of a rank."""
    columns = [getattr(layouts, name) for name in _COLUMNS if name not in _OF_WORK]
    # the number of passes matters if only one of them sends, or the loss is chunked
    counted = scenario.framework.kernels.loss_chunks > 1
    several = layouts.num_microbatches if counted else layouts.num_microbatches > 1
    return [*columns, *recompute_columns(layouts), layouts.v_shaped, several]
