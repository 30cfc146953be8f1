"""Compare: a trace beside the planner's estimate, part by part."""

from __future__ import annotations

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
from planner.describe.layout import Layout
from planner.validate.trace.expected import expected_collectives
from planner.validate.trace.trace import Trace

__all__ = ["CollectiveDifference", "Comparison", "PartDifference", "compare"]

_NOT_TRACED = ("runtime_context", "allocator_reserve")


@dataclass(frozen=True, slots=True)
class PartDifference:
    """A part of memory, traced and estimated [B]."""

    name: str
    traced_bytes: int
    estimated_bytes: int

    @property
    def error(self) -> float:
        """Estimate over trace, minus one; 0 where both are nothing."""
        return _error(self.estimated_bytes, self.traced_bytes)


@dataclass(frozen=True, slots=True)
class CollectiveDifference:
    """Operations of one kind over one axis, traced and estimated."""

    name: str
    group: str
    count: int
    estimated_count: int
    traced_bytes: int
    estimated_bytes: int

    @property
    def error(self) -> float:
        """Estimated bytes over traced ones, minus one."""
        return _error(self.estimated_bytes, self.traced_bytes)


@dataclass(frozen=True, slots=True)
class Comparison:
    """A trace and what the planner says of the same rank."""

    trace: Trace
    parts: tuple[PartDifference, ...]
    """weights, gradients, optimizer_states: resident. activations: when backward starts.
    logits_and_loss: at the highest point of the loss. peak: the whole step."""
    collectives: tuple[CollectiveDifference, ...]
    estimated_moment: str
    """When in the step the estimate has its peak: one of planner.cost.memory.peak.MOMENTS."""

    def as_dict(self) -> dict[str, Any]:
        """JSON-able form."""
        return {
            "trace": self.trace.as_dict(),
            "estimated_moment": self.estimated_moment,
            "parts": [{**asdict(part), "error": part.error} for part in self.parts],
            "collectives": [{**asdict(item), "error": item.error} for item in self.collectives],
        }


def _error(estimated: int, traced: int) -> float:
    if traced == estimated:
        return 0.0
    return estimated / traced - 1 if traced else float("inf")


def compare(scenario: Scenario, layout: Layout, traced: Trace) -> Comparison:
    """The trace beside the estimate of the same stage."""
    stages = Stages.of(scenario, Layouts.of(layout), traced.stage)
    parts, moment = device_memory(stages)
    peak = sum(float(value) for name, value in parts.items() if name not in _NOT_TRACED)
    return Comparison(
        traced,
        _parts(stages, layout, traced, peak),
        _collectives(scenario, layout, traced),
        tuple(MOMENTS)[int(moment)],
    )


def _parts(
    stages: Stages, layout: Layout, traced: Trace, peak: float
) -> tuple[PartDifference, ...]:
    saved_activations, stay = stage_activations(stages), resident(stages)
    start, loss = traced.start_of_backward_bytes, traced.loss_parts_bytes
    # below ZeRO-3 the gathered compute copy is resident
    gathered = start.get("gathered_parameters", 0) if not layout.shards_weights else 0
    saved = start.get("activations", 0) + start.get("receive_buffers", 0)
    rows: list[tuple[str, float, Any]] = [
        ("weights", traced.parameters_bytes + gathered, stay.weights),
        ("gradients", traced.gradients_bytes, stay.gradients),
        ("optimizer_states", traced.optimizer_states_bytes, stay.optimizer_states),
        ("activations", saved, saved_activations.kept + saved_activations.buffers.at_peak),
    ]
    if loss:
        logits = loss.get("logits", 0) + loss.get("temporaries", 0)
        rows.append(
            (
                "logits_and_loss",
                logits,
                saved_activations.logits + saved_activations.buffers.sent_gradient,
            )
        )
    rows.append(("peak", traced.peak_bytes, peak))
    return tuple(
        PartDifference(name, round(traced_bytes), round(float(np.max(estimated_bytes))))
        for name, traced_bytes, estimated_bytes in rows
    )


def _collectives(
    scenario: Scenario, layout: Layout, traced: Trace
) -> tuple[CollectiveDifference, ...]:
    estimated_by_key = {
        (c.name, c.group): c for c in expected_collectives(scenario, layout, traced.stage)
    }
    traced_by_key = {(c.name, c.group): c for c in traced.collectives}
    rows = []
    for key in sorted({*estimated_by_key, *traced_by_key}):
        real, estimate = traced_by_key.get(key), estimated_by_key.get(key)
        rows.append(
            CollectiveDifference(
                *key,
                count=real.count if real else 0,
                estimated_count=estimate.count if estimate else 0,
                traced_bytes=real.bytes if real else 0,
                estimated_bytes=estimate.bytes if estimate else 0,
            )
        )
    return tuple(rows)
