"""Rules of batch and sharding: what replicas share."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from planner.choose.legality.rule import Breaks, Rule, choices, listed, rule
from planner.cost.arrays import is_in
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.describe.layout import Layout, divisors

__all__ = ["SHARDING"]


@rule("batch is not dp * micro_batch * grad_accumulation", "dp", "micro_batch", "grad_accumulation")
def _batch(q: Scenario, x: Layouts, y: Layout, breaks: Breaks) -> Iterator[str]:
    batch = q.workload.global_batch
    if breaks(batch < x.dp):
        yield (
            f"global batch {batch} is less than dp = {y.dp}, so some replicas get none; "
            f"use {y.dp} sequences, or one of dp = {listed(divisors(batch))}"
        )
    if breaks(batch % x.dp != 0):
        below = batch // y.dp * y.dp
        yield (
            f"global batch {batch} is not a multiple of dp = {y.dp}; use "
            f"{f'{below} or ' if below else ''}{below + y.dp} sequences, or one of dp = "
            f"{listed([d for d in divisors(batch) if d <= 4 * y.dp])}"
        )
    if breaks(x.global_batch != batch):
        yield (
            f"micro_batch {y.micro_batch} * grad_accumulation {y.grad_accumulation} * dp "
            f"{y.dp} = {y.global_batch} is not the global batch {batch}; micro_batch * "
            f"grad_accumulation must be {batch / y.dp:.0f}"
        )


@rule("ZeRO stage is not offered by the framework", "zero_stage", "pp")
def _zero(q: Scenario, x: Layouts, y: Layout, breaks: Breaks) -> Iterator[str]:
    name, precision = q.framework.name, q.workload.precision
    stages, piped_stages = (
        q.framework.zero_stages_for(precision),
        q.framework.zero_stages_with_pipeline,
    )
    if breaks(~is_in(x.zero_stage, stages)):
        yield (
            f"ZeRO stage {y.zero_stage} is not offered by {name} in {precision}; "
            f"{choices('zero_stage', stages)}"
        )
    if breaks(x.piped & ~is_in(x.zero_stage, piped_stages)):
        yield (
            f"ZeRO stage {y.zero_stage} with pp = {y.pp} is not offered by {name}; "
            f"{choices('zero_stage', piped_stages)} or pp = 1"
        )


@rule("an optimizer in backward takes one micro-batch a step", "grad_accumulation", "pp")
def _optimizer_in_backward(q: Scenario, x: Layouts, y: Layout, breaks: Breaks) -> Iterator[str]:
    if breaks(((x.grad_accumulation > 1) | x.piped) & q.framework.kernels.optimizer_in_backward):
        yield (
            f"{y}: {q.framework.name} updates weights in every backward pass, so a step has one; "
            "use grad_accumulation = 1 and pp = 1, or leave out its switch optimizer-in-backward"
        )


@rule("other axes need sharded states", "tp", "pp", "cp", "ep", "etp", "dp", "zero_stage")
def _shared_states(q: Scenario, x: Layouts, y: Layout, breaks: Breaks) -> Iterator[str]:
    axes, group = q.framework.axes_need_sharding, x.dp_shard * x.cp
    is_used = np.any([np.zeros_like(x.tp), *(getattr(x, axis) > 1 for axis in axes)], axis=0)
    shared = (group > 1) & x.shards_gradients
    is_divided = group * x.tp % (x.ep * x.settled(q.framework).expert_tp) == 0
    if breaks(is_used & ~(shared & (("ep" not in axes) | is_divided))):
        yield (
            f"{y}: {q.framework.name} takes {', '.join(axes)} only beside states that ranks "
            "share; use ZeRO stage 2 or 3 with dp or cp above 1, and an ep that divides "
            "dp_shard * cp * tp"
        )


@rule("hybrid sharding is not offered by the framework", "dp", "dp_shard", "zero_stage")
def _hybrid(q: Scenario, x: Layouts, y: Layout, breaks: Breaks) -> Iterator[str]:
    name, stages, is_hybrid = q.framework.name, q.framework.hybrid_stages, x.dp_shard != x.dp
    if breaks(is_hybrid & (not stages)):
        yield (
            f"dp_shard = {y.dp_shard}: {name} shards over all replicas; use dp_shard = {y.dp}, "
            "or a framework with hybrid sharding such as fsdp2"
        )
    if breaks(is_hybrid & ((x.dp % x.dp_shard != 0) | ~is_in(x.zero_stage, stages))):
        yield (
            f"dp_shard = {y.dp_shard} with ZeRO stage {y.zero_stage}: hybrid sharding is of "
            f"other stages in {name}; {choices('zero_stage', stages)}"
        )


@rule(
    "a second sharding group is not offered by the framework",
    *("dp", "dp_shard", "zero_stage", "reshard", "tp", "pp", "ep", "offload"),
)
def _second_group(q: Scenario, x: Layouts, y: Layout, breaks: Breaks) -> Iterator[str]:
    if breaks((x.reshard > 0) & (not q.framework.second_shards)):
        yield (
            f"reshard = {y.reshard}: weights are sharded over all ranks again after a forward "
            f"pass of {q.framework.name}; use reshard = 0 or another framework such as deepspeed"
        )
    is_plain = (x.tp == 1) & (x.pp == 1) & x.shards_weights & x.keeps_states
    divides = (x.num_shards % np.maximum(x.reshard, 1) == 0) & (x.reshard % x.ep == 0)
    if breaks((x.reshard > 0) & ~(is_plain & divides)):
        yield (
            f"reshard = {y.reshard} goes with ZeRO stage 3, tp = 1, pp = 1, nothing offloaded "
            f"and an ep that divides it, not with {y}; use reshard = 0 or such a layout"
        )


SHARDING: tuple[Rule, ...] = (
    *(_batch, _zero, _optimizer_in_backward),
    *(_shared_states, _hybrid, _second_group),
)
