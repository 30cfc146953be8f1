"""Report: a layout by its degrees, traced, set beside its estimate and written down."""

from __future__ import annotations

import json
from typing import Any

from planner.cost.scenario import Scenario
from planner.describe.catalogue import load_framework, load_machine
from planner.describe.layout import Layout
from planner.describe.workload import Workload
from planner.errors import LayoutError
from planner.units import format_bytes
from planner.validate.subject import subject
from planner.validate.trace.compare import Comparison, compare
from planner.validate.trace.trace import trace
from planner.validate.trace.tracer import Tracer

__all__ = ["compare_trace", "report_json", "report_text"]

UPDATES = ("fused", "foreach")
"""How AdamW updates: in one kernel, or tensor by tensor in lists."""


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
    """Trace a layout by its degrees; dp is what is left of the world.

    Raises LayoutError where the scenario is impossible, TraceError where torch cannot answer it.
    """
    if optimizer not in UPDATES:
        raise LayoutError(f"optimizer = {optimizer!r} is not traced; use {' or '.join(UPDATES)}")
    model_ranks = 1
    for axis in ("tp", "pp", "cp"):
        model_ranks *= degrees.get(axis, 1)
    if world < 1 or world % model_ranks:
        raise LayoutError(
            f"world = {world} must be a multiple of tp * pp * cp = {model_ranks}; change one of "
            "them"
        )
    layout = Layout(**{"dp": world // model_ranks, **degrees})
    workload = workload or Workload()
    scenario = Scenario(subject(model), load_machine(machine), workload, load_framework("fsdp2"))
    traced = trace(
        scenario, layout, stage=stage, optimizer=optimizer, full_depth=full_depth, tracer=tracer
    )
    return compare(scenario, layout, traced)


def report_text(comparison: Comparison) -> str:
    """The comparison as a plain table."""
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
        f"{'collective':<22}{'axis':<14}{'count':>7}{'said':>7}"
        f"{'traced':>14}{'estimated':>14}{'difference':>12}",
    ]
    for item in comparison.collectives:
        lines.append(
            f"{item.name:<22}{item.group:<14}{item.count:>7}{item.estimated_count:>7}"
            f"{format_bytes(item.traced_bytes):>14}{format_bytes(item.estimated_bytes):>14}"
            f"{item.error:>12.2%}"
        )
    return "\n".join(lines)


def report_json(comparison: Comparison) -> str:
    """The comparison as JSON."""
    return json.dumps(comparison.as_dict(), indent=2, sort_keys=True)
