"""Compare: traces and the planner's estimates of them, part by part, as text and JSON."""

import json
import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from planner.cost.memory.activations import stage_activations
from planner.cost.memory.peak import device_memory
from planner.cost.memory.phases import MOMENTS
from planner.cost.memory.weights import resident
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.cost.shards.stages import Stages
from planner.describe.catalogue import load_framework, load_machine
from planner.describe.layout import Layout
from planner.describe.workload import Workload
from planner.errors import LayoutError
from planner.units import format_bytes
from planner.validate.trace.expected_collectives import Collective, expected_collectives
from planner.validate.trace.limits import load_transformer
from planner.validate.trace.stage_trace import Trace, trace
from planner.validate.trace.tracer import Tracer

NOT_TRACED = ("runtime_context", "allocator_reserve")


@dataclass(frozen=True, slots=True)
class PartDifference:
    """A part of memory, traced and estimated [B]."""

    name: str
    traced_bytes: int
    estimated_bytes: int

    @property
    def error(self) -> float:
        """Estimate / trace - 1; 0 if both are equal, infinite if only the trace is 0."""
        if self.traced_bytes == self.estimated_bytes:
            return 0.0
        return self.estimated_bytes / self.traced_bytes - 1 if self.traced_bytes else float("inf")


@dataclass(frozen=True, slots=True)
class CollectiveDifference(PartDifference):
    """Operations of one kind over one axis, traced and estimated."""

    group: str
    count: int
    estimated_count: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """A trace and the planner's estimate of the same rank."""

    trace: Trace
    parts: tuple[PartDifference, ...]
    """weights, gradients, optimizer_states: resident. activations: at the start of backward.
    logits_and_loss: at the peak of the loss. peak: of the whole step."""
    collectives: tuple[CollectiveDifference, ...]
    estimated_moment: str
    """Phase of the step at which the estimate peaks: one of planner.cost.memory.phases.MOMENTS."""

    def as_dict(self) -> dict[str, Any]:
        """Return data that JSON can hold."""
        return {
            "trace": self.trace.as_dict(),
            "estimated_moment": self.estimated_moment,
            "parts": [{**asdict(part), "error": part.error} for part in self.parts],
            "collectives": [{**asdict(item), "error": item.error} for item in self.collectives],
        }


def compare(scenario: Scenario, layout: Layout, traced: Trace) -> Comparison:
    """Compare a trace with the estimate of its stage."""
    stages = Stages.of(scenario, Layouts.of(layout), traced.stage)
    parts, moment = device_memory(stages)
    peak = sum(float(value) for name, value in parts.items() if name not in NOT_TRACED)
    return Comparison(
        traced,
        _parts(stages, layout, traced, peak),
        _collectives(scenario, layout, traced),
        tuple(MOMENTS)[int(moment)],
    )


def _parts(
    stages: Stages, layout: Layout, traced: Trace, peak: float
) -> tuple[PartDifference, ...]:
    estimated, stay = stage_activations(stages), resident(stages)
    start, loss = traced.start_of_backward_bytes, traced.loss_parts_bytes
    # below ZeRO-3 the gathered compute copy is resident
    gathered = start.get("gathered_parameters", 0) if not layout.shards_weights else 0
    saved = start.get("activations", 0) + start.get("receive_buffers", 0)
    rows: list[tuple[str, float, Any]] = [
        ("weights", traced.parameters_bytes + gathered, stay.weights),
        ("gradients", traced.gradients_bytes, stay.gradients),
        ("optimizer_states", traced.optimizer_states_bytes, stay.optimizer_states),
        ("activations", saved, estimated.saved + estimated.buffers.at_peak),
    ]
    if loss:
        logits = loss.get("logits", 0) + loss.get("temporaries", 0)
        estimated_logits = estimated.head.at_loss + estimated.buffers.sent_gradient
        rows.append(("logits_and_loss", logits, estimated_logits))
    rows.append(("peak", traced.peak_bytes, peak))
    return tuple(
        PartDifference(name, round(traced_bytes), round(float(np.max(estimated_bytes))))
        for name, traced_bytes, estimated_bytes in rows
    )


def _collectives(
    scenario: Scenario, layout: Layout, traced: Trace
) -> tuple[CollectiveDifference, ...]:
    expected = expected_collectives(scenario, layout, traced.stage)
    estimates, traces = (
        {(c.name, c.group): c for c in collectives}
        for collectives in (expected, traced.collectives)
    )
    rows = []
    for name, group in sorted({*estimates, *traces}):
        nothing = Collective(name, group, 0, 0)
        real, estimate = (table.get((name, group), nothing) for table in (traces, estimates))
        counts = (real.count, estimate.count)
        rows.append(CollectiveDifference(name, real.bytes, estimate.bytes, group, *counts))
    return tuple(rows)


UPDATES = ("fused", "foreach")
"""AdamW implementations: one fused kernel, or foreach over lists of tensors."""


def compare_trace(
    model: str,
    *,
    world: int,
    machine: str = "dgx-h100",
    stage: int = 0,
    optimizer: str = "fused",
    full_depth: bool = False,
    workload: Workload | None = None,
    tracer: Tracer | None = None,
    **degrees: Any,
) -> Comparison:
    """Trace a layout and compare it with its estimate; without a given dp, dp fills the world."""
    if optimizer not in UPDATES:
        raise LayoutError(f"optimizer = {optimizer!r} is not traced; use {' or '.join(UPDATES)}")
    model_ranks = math.prod(degrees.get(axis, 1) for axis in ("tp", "pp", "cp"))
    if world < 1 or world % model_ranks:
        raise LayoutError(
            f"world = {world} must be a multiple of tp * pp * cp = {model_ranks}; change one of "
            "them"
        )
    layout = Layout(**{"dp": world // model_ranks, **degrees})
    workload = workload or Workload()
    framework = load_framework("fsdp2").with_own_blocks()
    scenario = Scenario(load_transformer(model), load_machine(machine), workload, framework)
    traced = trace(
        scenario, layout, stage=stage, optimizer=optimizer, full_depth=full_depth, tracer=tracer
    )
    return compare(scenario, layout, traced)


def report_text(comparison: Comparison) -> str:
    """Format a comparison as a text table."""
    traced = comparison.trace
    depth = f"{traced.num_layers} layers"
    if traced.depths != (traced.num_layers,):
        depth += f" extended from {' and '.join(map(str, traced.depths))}"
    lines = [
        f"{traced.model}, {traced.layout}, stage {traced.stage}, {depth}, torch {traced.torch}",
        f"peak in {traced.peak_phase}; estimated at {comparison.estimated_moment}",
        "",
        f"{'part':<22}{'traced':>14}{'estimated':>14}{'difference':>12}",
    ]
    for part in comparison.parts:
        lines.append(
            f"{part.name:<22}{format_bytes(part.traced_bytes):>14}"
            f"{format_bytes(part.estimated_bytes):>14}{part.error:>12.2%}"
        )
    lines += [
        "",
        f"{'collective':<22}{'axis':<14}{'count':>7}{'expected':>9}"
        f"{'traced':>14}{'estimated':>14}{'difference':>12}",
    ]
    for item in comparison.collectives:
        lines.append(
            f"{item.name:<22}{item.group:<14}{item.count:>7}{item.estimated_count:>9}"
            f"{format_bytes(item.traced_bytes):>14}{format_bytes(item.estimated_bytes):>14}"
            f"{item.error:>12.2%}"
        )
    return "\n".join(lines)


def report_json(comparison: Comparison) -> str:
    """Format a comparison as JSON."""
    return json.dumps(comparison.as_dict(), indent=2, sort_keys=True)
