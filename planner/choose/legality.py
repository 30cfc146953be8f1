"""Legality: which layouts a model, a machine and a framework allow, and why not.

One table of rules serves both uses: as masks over many layouts in the search, and as one
sentence with the legal values for a layout that a user asks for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from planner.choose.job import check_sequence, listed
from planner.choose.offloading import offload_message, offloads
from planner.cost.arrays import Mask
from planner.cost.question import Question
from planner.cost.schedules.bubble import defers_weight_gradients, interleaved
from planner.cost.shards.layouts import Layouts
from planner.describe.layout import RECOMPUTE, SCHEDULES, Layout, divisors
from planner.errors import LayoutError
from planner.units import either

__all__ = ["RULES", "Rule", "check", "legal"]


@dataclass(frozen=True, slots=True)
class Rule:
    """A condition on layouts and how to say that it is broken."""

    reason: str
    """Short reason, as counted in `dropped`."""
    needs: tuple[str, ...]
    """Columns that the rule looks at; it can be applied once these are known."""
    holds: Callable[[Question, Layouts], Mask]
    message: Callable[[Question, Layout], str]


def _choices(axis: str, allowed: tuple[object, ...]) -> str:
    return f"use {axis} = {', '.join(map(str, allowed)) or '1'}"


def _heads(q: Question, x: Layouts) -> Mask:
    return q.model.num_heads % x.tp == 0


def _kv_heads(q: Question, x: Layouts) -> Mask:
    kv = q.model.num_kv_heads
    divides = kv % x.tp == 0
    if q.model.latent_attention is not None:
        return np.ones_like(divides)
    return divides | (q.framework.replicates_kv_heads & (x.tp % kv == 0))


def _ffn_width(q: Question, ep: int) -> int:
    """Greatest width that every feed-forward which tp splits is a multiple of."""
    widths = [q.model.ffn_size] if q.model.ffn_size else []
    experts = q.model.experts
    if experts is not None:
        split = q.framework.expert_tensor_parallel or ep == 1
        dense = experts.num_dense_layers > 0
        widths = (widths if dense else []) + ([experts.ffn_size] if split else [])
    return int(np.gcd.reduce(widths)) if widths else 0


def _ffn(q: Question, x: Layouts) -> Mask:
    alone, spread = _ffn_width(q, 1) % x.tp == 0, _ffn_width(q, 2) % x.tp == 0
    return np.where(x.ep > 1, spread, alone)


def _node(q: Question, x: Layouts) -> Mask:
    per_node = q.machine.node.num_devices
    return (per_node % x.tp == 0) | (x.tp % per_node == 0)


def _num_layers(q: Question) -> int:
    return q.model.num_layers + q.model.num_decoder_layers


def _stages(q: Question, x: Layouts) -> Mask:
    chunks, layers = x.pp * x.vpp, _num_layers(q)
    return chunks <= layers if q.framework.uneven_stages else layers % chunks == 0


def _stages_message(q: Question, x: Layout) -> str:
    layers, chunks = _num_layers(q), x.pp * x.vpp
    if q.framework.uneven_stages:
        return f"pp * vpp = {chunks} exceeds the {layers} layers; use at most {layers}"
    return (
        f"pp * vpp = {chunks} does not divide the {layers} layers, which {q.framework.name} "
        f"demands; use one of {listed(divisors(layers))}"
    )


def _batch(q: Question, x: Layouts) -> Mask:
    return x.global_batch == q.workload.global_batch


def _batch_message(q: Question, x: Layout) -> str:
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


def _axis(name: str) -> Rule:
    return Rule(
        f"{name} is not offered by the framework",
        (name,),
        lambda q, x: (getattr(x, name) == 1) | (name in q.framework.axes),
        lambda q, x: (
            f"{name} = {getattr(x, name)}: {q.framework.name} has no {name} axis"
            f"{_for_model(q)}; use {name} = 1 or another framework"
        ),
    )


def _for_model(q: Question) -> str:
    """Of what a framework lacks: that it does so for this model, and why."""
    code = q.framework.code
    if not code.models:
        return ""
    odd = code.odd(q.model, q.workload.sequence_length)
    return f" for {q.model.name}" + (f" ({odd})" if odd else "")


def _coded(name: str, table: tuple[object, ...], allowed: str, implied: object) -> Rule:
    """A choice that the framework's tuple `allowed` must hold."""

    def holds(q: Question, x: Layouts) -> Mask:
        offered = {implied, *getattr(q.framework, allowed)}
        codes = [i for i, value in enumerate(table) if value in offered]
        return np.isin(getattr(x, name), codes)

    return Rule(
        f"{name} is not offered by the framework",
        (name,),
        holds,
        lambda q, x: (
            f"{name} = {getattr(x, name)} is not offered by {q.framework.name}; "
            + _choices(name, (implied, *getattr(q.framework, allowed)))
        ),
    )


def _zero(q: Question, x: Layouts) -> Mask:
    stages = np.isin(x.zero_stage, q.framework.stages(q.workload.precision))
    piped = np.isin(x.zero_stage, q.framework.zero_stages_with_pipeline)
    return stages & (piped | ~x.piped)


def _zero_message(q: Question, x: Layout) -> str:
    allowed = q.framework.stages(q.workload.precision)
    if x.zero_stage not in allowed:
        return (
            f"ZeRO stage {x.zero_stage} is not offered by {q.framework.name} in "
            f"{q.workload.precision}; {_choices('zero_stage', allowed)}"
        )
    return (
        f"ZeRO stage {x.zero_stage} with pp = {x.pp} is not offered by {q.framework.name}; "
        + _choices("zero_stage", q.framework.zero_stages_with_pipeline)
        + " or pp = 1"
    )


def _alone(q: Question, x: Layouts) -> Mask:
    """No axis that needs it, or one beside states that ranks share."""
    axes = q.framework.axes_need_sharding
    single = np.prod([np.ones_like(x.tp), *(getattr(x, axis) for axis in axes)], axis=0) == 1
    group = x.dp_shard * x.cp
    shared = (group > 1) & x.shards_gradients
    return single | (shared & (("ep" not in axes) | (group % x.ep == 0)))


def _hybrid(q: Question, x: Layouts) -> Mask:
    whole = x.dp_shard == x.dp
    return whole | ((x.dp % x.dp_shard == 0) & q.framework.hybrid_sharding & x.shards_gradients)


def _hybrid_message(q: Question, x: Layout) -> str:
    if not q.framework.hybrid_sharding:
        return (
            f"dp_shard = {x.dp_shard}: {q.framework.name} shards over all replicas; use "
            f"dp_shard = {x.dp}, or a framework with hybrid sharding such as fsdp2"
        )
    return (
        f"dp_shard = {x.dp_shard} with ZeRO stage {x.zero_stage}: hybrid sharding shards gradients "
        "too; use stage 2 or 3"
    )


def _schedule(q: Question, x: Layouts) -> Mask:
    scheduled = x.piped != x.scheduled("none")
    chunked = np.where(x.v_shaped, x.vpp == 2, (x.vpp > 1) == interleaved(x))
    return scheduled & chunked & (~interleaved(x) | (x.grad_accumulation % x.pp == 0))


def _schedule_message(q: Question, x: Layout) -> str:
    if (x.pp > 1) != (x.schedule != "none"):
        return (
            f"pp = {x.pp} with schedule {x.schedule!r}: a pipeline needs a schedule and a schedule "
            "a pipeline; use 1f1b with pp > 1 and none with pp = 1"
        )
    if x.v_shaped and x.vpp != 2:
        return (
            f"vpp = {x.vpp} with schedule {x.schedule!r}, whose stages hold two chunks each; set "
            "vpp = 2"
        )
    if not x.v_shaped and (x.vpp > 1) != (x.schedule == "interleaved-1f1b"):
        return (
            f"vpp = {x.vpp} with schedule {x.schedule!r}: only interleaved-1f1b has several chunks "
            "per stage; set vpp = 1 or that schedule"
        )
    return (
        f"grad_accumulation = {x.grad_accumulation} is not a multiple of pp = {x.pp}, which the "
        "interleaved schedule demands; change micro_batch or use 1f1b"
    )


def _deferred(q: Question, x: Layouts) -> Mask:
    recompute = [RECOMPUTE.index(mode) for mode in q.framework.deferred_recompute]
    stages = np.isin(x.zero_stage, q.framework.deferred_zero_stages)
    return ~defers_weight_gradients(x) | (np.isin(x.recompute, recompute) & stages)


def _deferred_message(q: Question, x: Layout) -> str:
    recompute, stages = q.framework.deferred_recompute, q.framework.deferred_zero_stages
    return (
        f"schedule {x.schedule!r}, whose weight gradients are passes of their own, with recompute "
        f"{x.recompute!r} and ZeRO stage {x.zero_stage}: {q.framework.name} has it with recompute "
        f"{either(recompute)} and stage {either(map(str, stages))}; use these or another schedule"
    )


def _experts(q: Question, x: Layouts) -> Mask:
    experts = q.model.experts.num_experts if q.model.experts else 1
    return (experts % x.ep == 0) & (x.dp * x.cp % x.ep == 0)


def _experts_message(q: Question, x: Layout) -> str:
    if q.model.experts is None:
        return f"ep = {x.ep}: {q.model.name} has no experts; use ep = 1"
    experts = q.model.experts.num_experts
    common = int(np.gcd(experts, x.dp * x.cp))
    return (
        f"ep = {x.ep} must divide num_experts = {experts} and dp * cp = {x.dp * x.cp}; use one of "
        f"{listed(divisors(common))}"
    )


RULES: tuple[Rule, ...] = (
    *(_axis(name) for name in ("tp", "pp", "cp", "ep")),
    Rule(
        "tp does not divide the heads",
        ("tp",),
        _heads,
        lambda q, x: (
            f"tp = {x.tp} does not divide num_heads = {q.model.num_heads}; use one of "
            f"{listed(divisors(q.model.num_heads))}"
        ),
    ),
    Rule(
        "tp does not divide the key-value heads",
        ("tp",),
        _kv_heads,
        lambda q, x: (
            f"tp = {x.tp} does not divide num_kv_heads = {q.model.num_kv_heads}, and "
            f"{q.framework.name} does not replicate them; use one of "
            f"{listed(divisors(q.model.num_kv_heads))}"
        ),
    ),
    Rule(
        "tp does not divide the feed-forward width",
        ("tp", "ep"),
        _ffn,
        lambda q, x: (
            f"tp = {x.tp} does not divide the feed-forward width {_ffn_width(q, x.ep)}; use one "
            f"of {listed(divisors(int(np.gcd(_ffn_width(q, x.ep), q.model.num_heads))))}"
        ),
    ),
    Rule(
        "tp straddles nodes",
        ("tp",),
        _node,
        lambda q, x: (
            f"tp = {x.tp} neither divides nor is a multiple of the {q.machine.node.num_devices} "
            f"ranks of a {q.machine.name} node; use one of "
            f"{listed(divisors(q.machine.node.num_devices))}"
        ),
    ),
    Rule("stages do not divide the layers", ("pp", "vpp"), _stages, _stages_message),
    Rule("ep does not divide experts and replicas", ("ep", "dp", "cp"), _experts, _experts_message),
    Rule(
        "cp does not divide the sequence",
        ("cp",),
        lambda q, x: (x.cp == 1) | (q.workload.sequence_length % (2 * x.cp) == 0),
        lambda q, x: (
            f"cp = {x.cp}: the sequence of {q.workload.sequence_length} tokens is cut into 2 * cp "
            f"pieces; use a cp whose double divides it, such as "
            f"{listed([d for d in divisors(q.workload.sequence_length // 2) if d <= 64])}"
        ),
    ),
    Rule(
        "the loss does not divide the sequence",
        ("cp",),
        lambda q, x: q.workload.sequence_length % (x.cp * q.framework.kernels.loss_chunks) == 0,
        lambda q, x: (
            f"the sequence of {q.workload.sequence_length} tokens over cp = {x.cp} is no multiple "
            f"of the {q.framework.kernels.loss_chunks} pieces of the loss of {q.framework.name}; "
            "use one that is, or another framework"
        ),
    ),
    Rule(
        "tp does not divide the sequence (sequence parallel)",
        ("tp", "cp", "sequence_parallel"),
        lambda q, x: (
            ~x.splits_sequence | ((x.tp > 1) & (q.workload.sequence_length % (x.tp * x.cp) == 0))
        ),
        lambda q, x: (
            f"sequence_parallel with tp = {x.tp}, cp = {x.cp} and {q.workload.sequence_length} "
            "tokens: needs tp > 1 and a sequence that tp * cp divides; switch it off or change tp"
        ),
    ),
    Rule(
        "batch does not divide", ("dp", "micro_batch", "grad_accumulation"), _batch, _batch_message
    ),
    Rule("ZeRO stage is not offered by the framework", ("zero_stage", "pp"), _zero, _zero_message),
    Rule(
        "other axes need sharded states",
        ("tp", "pp", "cp", "ep", "dp", "zero_stage"),
        _alone,
        lambda q, x: (
            f"{x}: {q.framework.name} takes {', '.join(q.framework.axes_need_sharding)} only "
            "beside states that ranks share; use ZeRO stage 2 or 3 with dp or cp above 1, and an "
            "ep that divides dp_shard * cp"
        ),
    ),
    Rule(
        "hybrid sharding is not offered by the framework",
        ("dp", "dp_shard", "zero_stage"),
        _hybrid,
        _hybrid_message,
    ),
    _coded("recompute", RECOMPUTE, "recompute", "none"),
    _coded("schedule", SCHEDULES, "schedules", "none"),
    Rule(
        "schedule does not fit the pipeline",
        ("pp", "vpp", "schedule", "grad_accumulation"),
        _schedule,
        _schedule_message,
    ),
    Rule(
        "schedule does not go with recompute or ZeRO stage",
        ("schedule", "recompute", "zero_stage"),
        _deferred,
        _deferred_message,
    ),
    Rule(
        "the devices compute in the host's memory: nothing leaves it",
        ("offload",),
        lambda q, x: ~(x.states_on_host & q.machine.device.uses_host_memory),
        lambda q, x: (
            f"offload {x.offload!r} frees nothing: the devices of {q.machine.name} compute in the "
            "host's memory; use offload none"
        ),
    ),
    Rule("offload is not offered", ("offload", "zero_stage"), offloads, offload_message),
    Rule(
        "tiling is not offered by the framework",
        ("tiles", "zero_stage"),
        lambda q, x: (x.tiles == 1) | (q.framework.tiling & x.shards_weights),
        lambda q, x: (
            f"tiles = {x.tiles}: memory-centric tiling needs DeepSpeed ZeRO-3; use tiles = 1"
        ),
    ),
)


def legal(question: Question, layouts: Layouts, known: set[str]) -> tuple[Mask, dict[str, int]]:
    """Which layouts keep every rule that can be applied once the `known` columns are set.

    Returns the mask and, per reason, how many layouts fell on it first.
    """
    alive = np.ones(np.shape(layouts.dp), dtype=np.bool_)
    dropped: dict[str, int] = {}
    for rule in RULES:
        if not set(rule.needs) <= known:
            continue
        holds = np.broadcast_to(rule.holds(question, layouts), alive.shape)
        fell = int(np.count_nonzero(alive & ~holds))
        if fell:
            dropped[rule.reason] = dropped.get(rule.reason, 0) + fell
        alive &= holds
    return alive, dropped


def check(question: Question, layout: Layout) -> None:
    """Raise LayoutError for the first rule that one layout breaks, with the legal values."""
    one = Layouts.of(layout)
    runtime = question.machine.device.runtime
    if runtime not in question.framework.runtimes:
        raise LayoutError(
            f"{question.framework.name} does not run on {runtime} devices "
            f"({question.machine.name}); use a framework for {runtime}"
        )
    check_sequence(question)
    for rule in RULES:
        if not np.all(rule.holds(question, one)):
            raise LayoutError(rule.message(question, layout))
