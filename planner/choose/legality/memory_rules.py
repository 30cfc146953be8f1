"""Rules of what saves memory: recompute, offload, tiles."""

from __future__ import annotations

import math

import numpy as np

from planner.choose.legality.job_checks import listed
from planner.choose.legality.rule import Rule, coded
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

__all__ = ["OFFLOADED", "RECOMPUTED", "TRACED", "chunk_layers"]


def _by_layers(q: Scenario, x: Layouts) -> Mask:
    settings = {
        "layers": x.recompute_layers > 0,
        "every": x.recompute_every > 1,
        "span": x.recompute_span > 1,
    }
    count = np.sum(list(settings.values()), axis=0)
    refused = [settings[name] for name in settings if name not in q.framework.recompute_by]
    return (count == 0) | ((count == 1) & x.recomputes_layers & ~np.any(refused, axis=0))


def _by_layers_message(q: Scenario, x: Layout) -> str:
    plain = {"recompute_layers": 0, "recompute_every": 1, "recompute_span": 1}
    settings = [f"{name} = {getattr(x, name)}" for name in plain if getattr(x, name) != plain[name]]
    offered = [f"recompute_{name}" for name in q.framework.recompute_by]
    if not offered:
        return f"{settings[0]}: {q.framework.name} repeats all layers or none; leave it out"
    return (
        f"{' and '.join(settings)} with recompute {x.recompute}: {q.framework.name} has "
        f"{either(offered)}, one at a time, with recompute full; use that"
    )


def _modules(q: Scenario, x: Layouts) -> Mask:
    offered = q.framework.modules_for(q.workload.precision)
    refused = tuple(name for name in RECOMPUTE_MODULES if name not in offered)
    named = x.recompute_modules > 0
    return ~named | (x.recomputes_selectively & ~x.recomputes_module(refused))


def _modules_message(q: Scenario, x: Layout) -> str:
    if not q.framework.recompute_modules:
        return (
            f"recompute_modules = {'+'.join(x.recompute_modules)}: {q.framework.name} names no "
            "modules; leave them out"
        )
    if x.recompute != "selective":
        return (
            f"recompute_modules = {'+'.join(x.recompute_modules)} with recompute {x.recompute}: "
            "modules are named for selective recompute; use that"
        )
    precision = q.workload.precision
    offered = q.framework.modules_for(precision)
    in_precision = "" if offered == q.framework.recompute_modules else f" in {precision}"
    return (
        f"recompute_modules = {'+'.join(x.recompute_modules)}: {q.framework.name} repeats "
        f"{either(offered)}{in_precision}; use these{_other_recipe(q, x)}"
    )


def _other_recipe(q: Scenario, x: Layout) -> str:
    """Switches with which the framework repeats modules that it does not in 8-bit training."""
    barred = q.framework.recompute_modules_not_fp8
    if not set(x.recompute_modules) & set(barred) or q.workload.precision != "fp8":
        return ""
    lifting = [
        name
        for name, switch in q.framework.switches.items()
        if switch.changes.get("recompute_modules_not_fp8") == []
        and not switch.refuses(q.machine.device)
    ]
    return f", or its switch {either(lifting)}" if lifting else ""


def _moves(q: Scenario, x: Layouts) -> Mask:
    modes = [RECOMPUTE.index(mode) for mode in q.framework.offload_activations]
    piped = q.framework.offloading.activations_piped | ~x.piped
    apart = not q.machine.device.uses_host_memory
    return ~x.offloads_activations | (is_in(x.recompute, modes) & piped & apart)


def _moves_message(q: Scenario, x: Layout) -> str:
    modes, name = q.framework.offload_activations, q.framework.name
    if not modes:
        return f"offload_activations is not offered by {name}; leave it out"
    if q.machine.device.uses_host_memory:
        return (
            f"offload_activations frees nothing: the devices of {q.machine.name} compute in the "
            "host's memory; leave it out"
        )
    pipeline = "" if q.framework.offloading.activations_piped else " and pp = 1"
    return (
        f"offload_activations with recompute {x.recompute} and pp = {x.pp}: {name} has it with "
        f"recompute {either(modes)}{pipeline}; use that"
    )


def _spans(q: Scenario, x: Layouts) -> Mask:
    several = np.ravel(x.recompute_span > 1)
    holds = np.ones(len(several), dtype=np.bool_)
    if np.any(several):
        shapes, rows = x.distinct(*_SPANNED)
        divides = [
            not np.any(chunk_layers(q, layout) % layout.recompute_span)
            for layout in map(shapes.__getitem__, range(len(shapes)))
        ]
        holds = np.array(divides)[np.ravel(rows)]
    return holds.reshape(np.shape(x.pp))


def _spans_message(q: Scenario, x: Layout) -> str:
    layers = sorted({int(count) for count in np.ravel(chunk_layers(q, x))})
    return (
        f"recompute_span = {x.recompute_span} does not divide the layers of a chunk "
        f"({', '.join(map(str, layers))}); use {either(map(str, divisors(math.gcd(*layers))))}"
    )


def chunk_layers(q: Scenario, x: Layout) -> Float:
    """Layers of every chunk of every stage [1].

    Counted: layers of all kinds, as stages hold them. Left out: embedding and head.
    method.md#pipeline.

    >>> np.ravel(chunk_layers(scenario, Layout(pp=2, schedule="1f1b"))).tolist()    # of 32
    [16.0, 16.0]
    """
    blocks = blocks_of(q)
    counts = chunk_counts(blocks, Layouts.of(x), np.arange(x.pp), q.framework)
    pairs = zip(blocks, counts, strict=True)
    return np.asarray(sum(count for block, count in pairs if block.kind == "layer"))


def _offloads(q: Scenario, x: Layouts) -> Mask:
    """Which layouts offload nothing, or what framework and machine allow."""
    fw, disk = q.framework, q.machine.node.local_disk is not None
    staged = is_in(x.zero_stage, fw.offload_stages)
    to_host = staged & ("cpu" in fw.offload_optimizer)
    to_disk = staged & x.shards_weights & ("nvme" in fw.offload_optimizer) & disk
    all_to_host = x.shards_weights & ("cpu" in fw.offload_parameters)
    all_to_disk = x.shards_weights & ("nvme" in fw.offload_parameters) & disk
    host = np.where(x.weights_on_host, all_to_host, to_host)
    off = np.where(x.weights_on_disk, all_to_disk, to_disk)
    return x.keeps_states | np.where(x.states_on_host, host, off)


def _offload_message(q: Scenario, x: Layout) -> str:
    """Name the offload that is not available, and those that are."""
    if "nvme" in x.offload and q.machine.node.local_disk is None:
        return (
            f"offload {x.offload!r}: {q.machine.name} has no node-local NVMe; use optimizer-cpu "
            "or all-cpu"
        )
    stages = _offload_stages(q, x)
    if stages:
        return (
            f"offload {x.offload!r} of {q.framework.name} needs ZeRO stage "
            f"{listed(stages)}, not {x.zero_stage}; change one of them"
        )
    offered = [name for name in OFFLOAD if _offload_stages(q, x.replaced(offload=name))]
    return f"offload {x.offload!r} is not offered by {q.framework.name}; use {either(offered)}"


def _offload_stages(q: Scenario, x: Layout) -> list[int]:
    """ZeRO stages of the framework at which it offloads as the layout does."""
    stages = q.framework.zero_stages_for(q.workload.precision)
    allowed = _offloads(q, Layouts.stack([x.replaced(zero_stage=stage) for stage in stages]))
    return [stage for stage, holds in zip(stages, allowed, strict=True) if holds]


_SELECTIVE = RECOMPUTE.index("selective")


def _traced(q: Scenario, x: Layouts) -> Mask:
    return np.asarray((x.recompute != _SELECTIVE) | (q.model.traced is None))


_SPANNED = ("recompute_span", "pp", "vpp", "schedule", *STAGE_FIELDS)

RECOMPUTED: tuple[Rule, ...] = (
    coded("recompute", RECOMPUTE, "recompute", "none"),
    Rule(
        "recompute by layers is not offered by the framework",
        ("recompute", "recompute_layers", "recompute_every", "recompute_span"),
        _by_layers,
        _by_layers_message,
    ),
    Rule(
        "recompute_span does not divide the layers of a chunk",
        _SPANNED,
        _spans,
        _spans_message,
    ),
    Rule(
        "recompute of modules is not offered",
        ("recompute", "recompute_modules"),
        _modules,
        _modules_message,
    ),
    Rule(
        "offload of activations is not offered",
        ("recompute", "offload_activations", "pp"),
        _moves,
        _moves_message,
    ),
)

OFFLOADED: tuple[Rule, ...] = (
    Rule(
        "offload frees nothing: devices compute in host memory",
        ("offload",),
        lambda q, x: ~(x.states_on_host & q.machine.device.uses_host_memory),
        lambda q, x: (
            f"offload {x.offload!r} frees nothing: the devices of {q.machine.name} compute in the "
            "host's memory; use offload none"
        ),
    ),
    Rule("offload is not offered", ("offload", "zero_stage"), _offloads, _offload_message),
    Rule(
        "tiling is not offered by the framework",
        ("tiles", "zero_stage"),
        lambda q, x: (x.tiles == 1) | (q.framework.tiling & x.shards_weights),
        lambda q, x: (
            f"tiles = {x.tiles}: memory-centric tiling needs DeepSpeed ZeRO-3; use tiles = 1"
        ),
    ),
)

TRACED: tuple[Rule, ...] = (
    Rule(
        "selective recompute of a traced module",
        ("recompute",),
        _traced,
        lambda q, _: (
            f"recompute = selective: {q.model.name} is a traced module, whose blocks have no known "
            "parts; use recompute none or full"
        ),
    ),
)
