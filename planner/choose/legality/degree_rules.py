"""Rules of the degrees: what model, machine and framework divide."""

from __future__ import annotations

import numpy as np

from planner.choose.legality.context_rules import CONTEXT
from planner.choose.legality.job_checks import listed
from planner.choose.legality.rule import Rule
from planner.cost.arrays import Mask
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.describe.layout import Layout, divisors
from planner.describe.workload import parse_ramp
from planner.errors import shorten

__all__ = ["AXES", "DIVISIONS"]


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


def _for_model(q: Scenario) -> str:
    """Name the model if the framework lacks an axis for it alone, and why."""
    code = q.framework.code
    if not code.models:
        return ""
    odd = code.unsupported_model(q.model, q.workload.sequence_length)
    return f" for {q.model.name}" + (f" ({odd})" if odd else "")


def _heads(q: Scenario, x: Layouts) -> Mask:
    return q.model.num_heads % x.tp == 0


def _kv_heads(q: Scenario, x: Layouts) -> Mask:
    kv = q.model.num_kv_heads
    divides = kv % x.tp == 0
    if q.model.latent_attention is not None:
        return np.ones_like(divides)
    return divides | (q.framework.replicates_kv_heads & (x.tp % max(kv, 1) == 0))


def _ffn_width(q: Scenario) -> int:
    """Width of the dense feed-forward, which tp splits; 0 where there is none."""
    experts = q.model.experts
    return q.model.ffn_size if experts is None or experts.num_dense_layers else 0


def _ffn(q: Scenario, x: Layouts) -> Mask:
    return _ffn_width(q) % x.tp == 0


def _node(q: Scenario, x: Layouts) -> Mask:
    per_node = q.machine.node.num_devices
    return (per_node % x.tp == 0) | (x.tp % per_node == 0)


def _user_buffers(q: Scenario, x: Layouts) -> Mask:
    inside = (x.tp > 1) & (x.tp <= q.machine.node.num_devices)
    return (inside & x.splits_sequence) | (not q.framework.communication.overlap_tensor_in_node)


def _user_buffers_message(q: Scenario, x: Layout) -> str:
    per_node = q.machine.node.num_devices
    inside = f"use both with tp = 2 to {per_node}, or " if per_node > 1 else ""
    return (
        f"tp = {x.tp} {'with' if x.sequence_parallel else 'without'} sequence_parallel: "
        f"{q.framework.name} overlaps tensor parallelism only with sequence_parallel inside a "
        f"node of {per_node}; {inside}leave its switch out"
    )


def _ramp(q: Scenario, x: Layouts) -> Mask:
    sizes = [size for _, size in parse_ramp(q.workload.ramp)]
    at_once = x.dp * x.micro_batch
    return np.all([size % at_once == 0 for size in sizes], axis=0) | np.zeros_like(at_once, bool)


def _unsplit_samples(name: str) -> Rule:
    return Rule(
        f"models of samples are not split over {name}",
        (name,),
        lambda q, x: (getattr(x, name) == 1) | (not q.model.counts_samples),
        lambda q, x: (
            f"{name} = {getattr(x, name)}: {q.model.name} is no transformer, and has data "
            f"parallelism alone here; use {name} = 1"
        ),
    )


_DEGREES = ("tp", "pp", "cp", "ep")

AXES: tuple[Rule, ...] = (*map(_axis, _DEGREES), *map(_unsplit_samples, _DEGREES))

DIVISIONS: tuple[Rule, ...] = (
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
        ("tp",),
        _ffn,
        lambda q, x: (
            f"tp = {x.tp} does not divide the feed-forward width {_ffn_width(q)}; use one "
            f"of {listed(divisors(int(np.gcd(_ffn_width(q), q.model.num_heads))))}"
        ),
    ),
    Rule(
        "tp straddles nodes",
        ("tp",),
        _node,
        lambda q, x: (
            f"tp = {x.tp} neither divides nor is a multiple of the {q.machine.node.num_devices} "
            f"ranks of a node of {q.machine.name}; use one of "
            f"{listed(divisors(q.machine.node.num_devices))}"
        ),
    ),
    *CONTEXT,
    Rule(
        "dp and micro_batch do not divide the ramp",
        ("dp", "micro_batch"),
        _ramp,
        lambda q, x: (
            f"ramp = {shorten(q.workload.ramp)} has batches that dp * micro_batch = "
            f"{x.dp * x.micro_batch} does not divide; change one of them"
        ),
    ),
    Rule(
        "the pieces of the loss do not divide the sequence",
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
        "overlap of tp needs sequence parallelism inside a node",
        ("tp", "sequence_parallel"),
        _user_buffers,
        _user_buffers_message,
    ),
)
