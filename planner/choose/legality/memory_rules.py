"""Rules of batch and memory: recompute, offload, tiles, and sharding over replicas."""

import math
from collections.abc import Iterator

import numpy as np

from planner.choose.legality.rule import Breaks, choices, coded, listed, rule
from planner.cost.arrays import Float, Mask, is_in
from planner.cost.operators.blocks import blocks_of
from planner.cost.scenario import Scenario
from planner.cost.shards.layers_per_stage import chunk_counts
from planner.cost.shards.layouts import Layouts
from planner.describe.layout import (
    OFFLOAD,
    RECOMPUTE,
    RECOMPUTE_MODULES,
    STAGE_FIELDS,
    Layout,
    divisors,
)
from planner.units import either


@rule("selective recompute of a traced module", "recompute")
def _traced(q: Scenario, x: Layouts, y: Layout, breaks: Breaks) -> Iterator[str]:
    if breaks(x.recomputes_selectively & (q.model.traced is not None)):
        yield (
            f"recompute = selective: {q.model.name} is a traced module, whose blocks have no known "
            "parts; use recompute none or full"
        )


_PLAIN = {"recompute_layers": 0, "recompute_every": 1, "recompute_span": 1}


@rule("recompute by layers is not offered by the framework", "recompute", *_PLAIN)
def _by_layers(q: Scenario, x: Layouts, y: Layout, breaks: Breaks) -> Iterator[str]:
    offered = [f"recompute_{name}" for name in q.framework.recompute_by]
    is_set = {name: getattr(x, name) > plain for name, plain in _PLAIN.items()}
    count = np.sum(list(is_set.values()), axis=0)
    is_refused = np.any(
        [x.pp < 0, *(is_set[name] for name in _PLAIN if name not in offered)], axis=0
    )
    if breaks((count > 0) & ((count > 1) | ~x.recomputes_layers | is_refused)):
        values = {name: getattr(y, name) for name in _PLAIN}
        settings = [f"{name} = {value}" for name, value in values.items() if value != _PLAIN[name]]
        if offered:
            yield (
                f"{' and '.join(settings)} with recompute {y.recompute}: {q.framework.name} "
                f"supports only {either(offered)}, one at a time, with recompute full; use that"
            )
        yield f"{settings[0]}: {q.framework.name} recomputes all layers or none; leave it out"


_SPANNED = ("recompute_span", "pp", "vpp", "schedule", *STAGE_FIELDS)


@rule("recompute_span does not divide the layers of a chunk", *_SPANNED)
def _spans(q: Scenario, x: Layouts, y: Layout, breaks: Breaks) -> Iterator[str]:
    is_uneven = x.recompute_span > 1
    if np.any(is_uneven):
        shapes, rows = x.distinct(*_SPANNED)
        uneven = [
            bool(np.any(chunk_layers(q, layout) % layout.recompute_span))
            for layout in map(shapes.__getitem__, range(len(shapes)))
        ]
        is_uneven = np.array(uneven)[rows]
    if breaks(is_uneven):
        layers = sorted({int(count) for count in np.ravel(chunk_layers(q, y))})
        yield (
            f"recompute_span = {y.recompute_span} does not divide the layers of a chunk "
            f"({', '.join(map(str, layers))}); use "
            f"{either(map(str, divisors(math.gcd(*layers))))}"
        )


def chunk_layers(q: Scenario, x: Layout) -> Float:
    """Layers of each chunk of each stage, without embedding and head."""
    blocks = blocks_of(q)
    counts = chunk_counts(blocks, Layouts.of(x), np.arange(x.pp), q.framework)
    pairs = zip(blocks, counts, strict=True)
    return np.asarray(sum(count for block, count in pairs if block.kind == "layer"))


@rule("recompute of modules is not offered", "recompute", "recompute_modules")
def _modules(q: Scenario, x: Layouts, y: Layout, breaks: Breaks) -> Iterator[str]:
    fw, precision, is_named = q.framework, q.workload.precision, x.recompute_modules > 0
    offered, modules = fw.modules_for(precision), "+".join(y.recompute_modules)
    if breaks(is_named & (not fw.recompute_modules)):
        yield f"recompute_modules = {modules}: {fw.name} has no choice of modules; leave them out"
    if breaks(is_named & ~x.recomputes_selectively):
        yield (
            f"recompute_modules = {modules} with recompute {y.recompute}: modules apply only to "
            "selective recompute; use that"
        )
    if breaks(x.recomputes_module(tuple(m for m in RECOMPUTE_MODULES if m not in offered))):
        in_precision = "" if offered == fw.recompute_modules else f" in {precision}"
        yield (
            f"recompute_modules = {modules}: {fw.name} recomputes only "
            f"{either(offered)}{in_precision}; use these{_other_recipe(q, y)}"
        )


def _other_recipe(q: Scenario, y: Layout) -> str:
    """Suggest switches that lift the framework's limits on recompute in fp8; else empty."""
    barred = q.framework.recompute_modules_not_fp8
    if not set(y.recompute_modules) & set(barred) or q.workload.precision != "fp8":
        return ""
    lifting = [
        name
        for name, switch in q.framework.switches.items()
        if switch.changes.get("recompute_modules_not_fp8") == []
        and not switch.refuses(q.machine.device)
    ]
    return f", or its switch {either(lifting)}" if lifting else ""


@rule("offload of activations is not offered", "recompute", "offload_activations", "pp")
def _activations(q: Scenario, x: Layouts, y: Layout, breaks: Breaks) -> Iterator[str]:
    name, modes = q.framework.name, q.framework.offload_activations
    if breaks(x.offloads_activations & (not modes)):
        yield f"offload_activations is not offered by {name}; leave it out"
    if breaks(x.offloads_activations & q.machine.device.uses_host_memory):
        yield (
            f"offload_activations frees nothing: the devices of {q.machine.name} compute in the "
            "host's memory; leave it out"
        )
    piped = q.framework.offloading.activations_piped
    goes = is_in(x.recompute, [RECOMPUTE.index(mode) for mode in modes]) & (piped | ~x.piped)
    if breaks(x.offloads_activations & ~goes):
        yield (
            f"offload_activations with recompute {y.recompute} and pp = {y.pp}: {name} "
            f"supports it only with recompute {either(modes)}{'' if piped else ' and pp = 1'}; use "
            "that"
        )


@rule("offload frees nothing: devices compute in host memory", "offload")
def _frees_nothing(q: Scenario, x: Layouts, y: Layout, breaks: Breaks) -> Iterator[str]:
    if breaks(x.states_on_host & q.machine.device.uses_host_memory):
        yield (
            f"offload {y.offload!r} frees nothing: the devices of {q.machine.name} compute in "
            "the host's memory; use offload none"
        )


@rule("offload is not offered", "offload", "zero_stage")
def _offload(q: Scenario, x: Layouts, y: Layout, breaks: Breaks) -> Iterator[str]:
    if breaks(~_offloads(q, x)):
        if "nvme" in y.offload and q.machine.node.local_disk is None:
            yield (
                f"offload {y.offload!r}: {q.machine.name} has no node-local NVMe; use "
                "optimizer-cpu or all-cpu"
            )
        if stages := _offload_stages(q, y):
            yield (
                f"offload {y.offload!r} of {q.framework.name} needs ZeRO stage {listed(stages)}, "
                f"not {y.zero_stage}; change one of them"
            )
        offered = [name for name in OFFLOAD if _offload_stages(q, y.replaced(offload=name))]
        yield f"offload {y.offload!r} is not offered by {q.framework.name}; use {either(offered)}"


def _offloads(q: Scenario, x: Layouts) -> Mask:
    """True for layouts without offload, or with offload that framework and machine allow."""
    fw, disk = q.framework, q.machine.node.local_disk is not None
    staged = is_in(x.zero_stage, fw.offload_stages)
    to_host = staged & ("cpu" in fw.offload_optimizer)
    to_disk = staged & x.shards_weights & ("nvme" in fw.offload_optimizer) & disk
    all_to_host = x.shards_weights & ("cpu" in fw.offload_parameters)
    all_to_disk = x.shards_weights & ("nvme" in fw.offload_parameters) & disk
    host = np.where(x.weights_on_host, all_to_host, to_host)
    off = np.where(x.weights_on_disk, all_to_disk, to_disk)
    return x.keeps_states | np.where(x.states_on_host, host, off)


def _offload_stages(q: Scenario, y: Layout) -> list[int]:
    """ZeRO stages at which the framework allows the layout's offload."""
    stages = q.framework.zero_stages_for(q.workload.precision)
    allowed = _offloads(q, Layouts.stack([y.replaced(zero_stage=stage) for stage in stages]))
    return [stage for stage, holds in zip(stages, allowed, strict=True) if holds]


@rule("tiling is not offered by the framework", "tiles", "zero_stage")
def _tiles(q: Scenario, x: Layouts, y: Layout, breaks: Breaks) -> Iterator[str]:
    if breaks((x.tiles > 1) & ~(q.framework.tiling & x.shards_weights)):
        yield f"tiles = {y.tiles}: memory-centric tiling needs DeepSpeed ZeRO-3; use tiles = 1"


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
    stages = q.framework.zero_stages_for(precision)
    piped_stages = q.framework.zero_stages_with_pipeline
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
            f"{y}: {q.framework.name} updates weights in every backward pass, so a step has only "
            "one; use grad_accumulation = 1 and pp = 1, or leave out its switch "
            "optimizer-in-backward"
        )


@rule("other axes need sharded states", "tp", "pp", "cp", "ep", "etp", "dp", "zero_stage")
def _shared_states(q: Scenario, x: Layouts, y: Layout, breaks: Breaks) -> Iterator[str]:
    axes, group = q.framework.axes_need_sharding, x.dp_shard * x.cp
    is_used = np.any([np.zeros_like(x.tp), *(getattr(x, axis) > 1 for axis in axes)], axis=0)
    shared = (group > 1) & x.shards_gradients
    is_divided = group * x.tp % (x.ep * x.expert_tp_in(q.framework)) == 0
    if breaks(is_used & ~(shared & (("ep" not in axes) | is_divided))):
        yield (
            f"{y}: {q.framework.name} supports {', '.join(axes)} only with sharded states; use "
            "ZeRO stage 2 or 3 with dp or cp above 1, and an ep that divides dp_shard * cp * tp"
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
            f"dp_shard = {y.dp_shard} with ZeRO stage {y.zero_stage}: {name} supports hybrid "
            f"sharding only with other stages; {choices('zero_stage', stages)}"
        )


@rule(
    "a second sharding group is not offered by the framework",
    *("dp", "dp_shard", "zero_stage", "reshard", "tp", "pp", "ep", "offload"),
)
def _second_group(q: Scenario, x: Layouts, y: Layout, breaks: Breaks) -> Iterator[str]:
    if breaks((x.reshard > 0) & (not q.framework.second_shards)):
        yield (
            f"reshard = {y.reshard}: {q.framework.name} shards weights over all ranks again after "
            "a forward pass; use reshard = 0 or another framework such as deepspeed"
        )
    is_plain = (x.tp == 1) & (x.pp == 1) & x.shards_weights & x.keeps_states
    divides = (x.num_shards % np.maximum(x.reshard, 1) == 0) & (x.reshard % x.ep == 0)
    if breaks((x.reshard > 0) & ~(is_plain & divides)):
        yield (
            f"reshard = {y.reshard} needs ZeRO stage 3, tp = 1, pp = 1, no offload and an ep that "
            f"divides it, unlike {y}; use reshard = 0 or change the layout"
        )


TRACED = (_traced,)
SHARDING = (_batch, _zero, _optimizer_in_backward, _shared_states, _hybrid, _second_group)
_MODES = coded("recompute", RECOMPUTE, "recompute")
RECOMPUTED = (_MODES, _by_layers, _spans, _modules, _activations)
OFFLOADED = (_frees_nothing, _offload, _tiles)
