"""Rules of batch and sharding: what replicas share."""

from __future__ import annotations

import numpy as np

from planner.choose.legality.job_checks import listed
from planner.choose.legality.rule import Rule, choices
from planner.cost.arrays import Mask, is_in
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.describe.layout import Layout, divisors

__all__ = ["SHARDING"]


def _batch(q: Scenario, x: Layouts) -> Mask:
    return x.global_batch == q.workload.global_batch


def _batch_message(q: Scenario, x: Layout) -> str:
    batch = q.workload.global_batch
    per_replica = batch / x.dp
    if batch < x.dp:
        return (
            f"global batch {batch} is less than dp = {x.dp}, so some replicas get none; "
            f"use {x.dp} sequences, or one of dp = {listed(divisors(batch))}"
        )
    if batch % x.dp:
        below = batch // x.dp * x.dp
        return (
            f"global batch {batch} is not a multiple of dp = {x.dp}; use "
            f"{f'{below} or ' if below else ''}{below + x.dp} sequences, or one of dp = "
            f"{listed([d for d in divisors(batch) if d <= 4 * x.dp])}"
        )
    return (
        f"micro_batch {x.micro_batch} * grad_accumulation {x.grad_accumulation} * dp {x.dp} = "
        f"{x.global_batch} is not the global batch {batch}; micro_batch * grad_accumulation must "
        f"be {per_replica:.0f}"
    )


def _zero(q: Scenario, x: Layouts) -> Mask:
    stages = is_in(x.zero_stage, q.framework.zero_stages_for(q.workload.precision))
    piped = is_in(x.zero_stage, q.framework.zero_stages_with_pipeline)
    return stages & (piped | ~x.piped)


def _zero_message(q: Scenario, x: Layout) -> str:
    allowed = q.framework.zero_stages_for(q.workload.precision)
    if x.zero_stage not in allowed:
        return (
            f"ZeRO stage {x.zero_stage} is not offered by {q.framework.name} in "
            f"{q.workload.precision}; {choices('zero_stage', allowed)}"
        )
    return (
        f"ZeRO stage {x.zero_stage} with pp = {x.pp} is not offered by {q.framework.name}; "
        + choices("zero_stage", q.framework.zero_stages_with_pipeline)
        + " or pp = 1"
    )


def _shared_states(q: Scenario, x: Layouts) -> Mask:
    """No axis that needs sharded states, or states that ranks share."""
    axes = q.framework.axes_need_sharding
    single = np.prod([np.ones_like(x.tp), *(getattr(x, axis) for axis in axes)], axis=0) == 1
    group = x.dp_shard * x.cp
    shared = (group > 1) & x.shards_gradients
    settled = x.settled(q.framework)
    is_divided = group * x.tp % (x.ep * settled.expert_tp) == 0
    return single | (shared & (("ep" not in axes) | is_divided))


def _hybrid(q: Scenario, x: Layouts) -> Mask:
    is_unhybrid = x.dp_shard == x.dp
    offered = is_in(x.zero_stage, q.framework.hybrid_stages)
    return is_unhybrid | ((x.dp % x.dp_shard == 0) & offered)


def _hybrid_message(q: Scenario, x: Layout) -> str:
    if not q.framework.hybrid_stages:
        return (
            f"dp_shard = {x.dp_shard}: {q.framework.name} shards over all replicas; use "
            f"dp_shard = {x.dp}, or a framework with hybrid sharding such as fsdp2"
        )
    return (
        f"dp_shard = {x.dp_shard} with ZeRO stage {x.zero_stage}: hybrid sharding is of other "
        f"stages in {q.framework.name}; {choices('zero_stage', q.framework.hybrid_stages)}"
    )


def _second(q: Scenario, x: Layouts) -> Mask:
    plain = (x.tp == 1) & (x.pp == 1) & x.shards_weights & x.keeps_states
    divides = x.num_shards % np.maximum(x.reshard, 1) == 0
    experts = x.reshard % x.ep == 0
    return (x.reshard == 0) | (plain & divides & experts & q.framework.second_shards)


def _second_message(q: Scenario, x: Layout) -> str:
    if not q.framework.second_shards:
        return (
            f"reshard = {x.reshard}: weights are sharded over all ranks again after a forward pass "
            f"of {q.framework.name}; use reshard = 0 or another framework such as deepspeed"
        )
    return (
        f"reshard = {x.reshard} goes with ZeRO stage 3, tp = 1, pp = 1, nothing offloaded and an "
        f"ep that divides it, not with {x}; use reshard = 0 or such a layout"
    )


def _updates_once(q: Scenario, x: Layouts) -> Mask:
    at_once = q.framework.kernels.optimizer_in_backward
    return ((x.grad_accumulation == 1) & ~x.piped) | (not at_once)


SHARDING: tuple[Rule, ...] = (
    Rule(
        "batch is not dp * micro_batch * grad_accumulation",
        ("dp", "micro_batch", "grad_accumulation"),
        _batch,
        _batch_message,
    ),
    Rule("ZeRO stage is not offered by the framework", ("zero_stage", "pp"), _zero, _zero_message),
    Rule(
        "an optimizer in backward takes one micro-batch a step",
        ("grad_accumulation", "pp"),
        _updates_once,
        lambda q, x: (
            f"{x}: {q.framework.name} updates weights in every backward pass, so a step has one; "
            "use grad_accumulation = 1 and pp = 1, or leave out its switch optimizer-in-backward"
        ),
    ),
    Rule(
        "other axes need sharded states",
        ("tp", "pp", "cp", "ep", "etp", "dp", "zero_stage"),
        _shared_states,
        lambda q, x: (
            f"{x}: {q.framework.name} takes {', '.join(q.framework.axes_need_sharding)} only "
            "beside states that ranks share; use ZeRO stage 2 or 3 with dp or cp above 1, and an "
            "ep that divides dp_shard * cp * tp"
        ),
    ),
    Rule(
        "hybrid sharding is not offered by the framework",
        ("dp", "dp_shard", "zero_stage"),
        _hybrid,
        _hybrid_message,
    ),
    Rule(
        "a second sharding group is not offered by the framework",
        ("dp", "dp_shard", "zero_stage", "reshard", "tp", "pp", "ep", "offload"),
        _second,
        _second_message,
    ),
)
