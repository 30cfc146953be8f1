"""Memory phases: what a device and a host hold in each phase of a step, a load or a save."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Unpack

import numpy as np

from planner.ask.answer import Row
from planner.ask.option import Nodes
from planner.ask.plan_point import closest_layout, point_of, recommended_layout, search_top_layouts
from planner.ask.question import Findings, JobFields, question
from planner.ask.sentences import nodes_of
from planner.choose.jobs.job_spec import JobSpec
from planner.cost.estimate import Estimate
from planner.cost.memory.host_memory import host_memory_phases
from planner.cost.memory.phases import MOMENTS, PeakInputs
from planner.cost.parts import MemoryKind, part, unseen_parts
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.cost.shards.stages import Stages
from planner.cost.uncertainty import memory_outlook
from planner.units import format_bytes

__all__ = ["host", "memory"]

_TOOLS: dict[MemoryKind, str] = {
    "allocated": "torch.cuda.max_memory_allocated()",
    "reserved": "torch.cuda.max_memory_reserved()",
    "device": "nvidia-smi, xpu-smi, rocm-smi",
}
"""Tools that report memory, by the kind of memory that they see."""


@question
def memory(job: JobSpec, *, nodes: Nodes = 1, **_: Unpack[JobFields]) -> Findings:
    """Show what a device holds in each phase of a step, and what each tool reports at the peak.

    Of the recommended layout on its fullest pipeline stage; where nothing fits, of the layout that
    is closest to fitting. The last three rows are the allocator, its cache and the driver at the
    peak, with the interval of measured runs.
    """
    job = job.replaced(nodes=nodes)
    scenario, estimate = _recommended_or_closest(job)
    place = nodes_of(job.machine, nodes)
    if scenario is None or estimate is None:
        verdict = f"{job.model.name} has no legal layout on {place}; try another batch."
        return Findings(verdict, [], success=False)
    reported = [_reported_row(estimate, kind) for kind in _TOOLS]
    capacity = format_bytes(job.machine.device.memory_bytes.value)
    amounts = ", ".join(
        f"{format_bytes(row['memory_bytes'])} {kind}"
        for row, kind in zip(reported, _TOOLS, strict=True)
    )
    low, high = (format_bytes(end) for end in estimate.interval_memory_bytes)
    fits = "fits with" if estimate.fits else "does not fit; closest to fitting is"
    phase = estimate.peak_moment
    peak = f"in the {phase}" if phase in ("forward", "backward") else f"at the {phase}"
    return Findings(
        f"{job.model.name} {fits} {estimate.layout} [{estimate.framework}]: at its peak, {peak}, "
        f"a device of {capacity} holds {amounts} (90 % interval {low} to {high}).",
        [*_phase_rows(scenario, estimate), *reported],
        notes=[
            f"The layout: {estimate.layout} [{estimate.framework}], stage {estimate.worst_stage}.",
            "Phases count tensors of a step after the first; cache and driver come on top.",
        ],
        success=estimate.fits,
    )


def _recommended_or_closest(job: JobSpec) -> tuple[Scenario | None, Estimate | None]:
    """The recommended layout, or the one that is closest to fitting."""
    candidates = search_top_layouts(job)
    point = point_of(job, candidates)
    if point.fits:
        return point.scenario, point.best
    scenario, estimate, _ = closest_layout(candidates.by_framework.values()) or (None,) * 3
    return scenario, estimate


def _phase_rows(scenario: Scenario, estimate: Estimate) -> list[Row]:
    """A record for every phase that this layout has."""
    layouts = Layouts.stack([estimate.layout])
    inputs = PeakInputs.of(Stages.of(scenario, layouts, estimate.worst_stage))
    correction = float(memory_outlook(scenario, layouts).expected[0])
    rows = []
    for name, live_tensors in MOMENTS.items():
        live = live_tensors(inputs)
        parts: dict[str, Any] = {
            each.name: correction * float(np.ravel(getattr(live, each.name))[0])
            for each in fields(live)
        }
        if not any(parts.values()):
            continue  # the layout has no such phase
        parts["optimizer_states"] = estimate.memory_bytes["optimizer_states"]
        largest = max(parts, key=lambda part_name: float(parts[part_name]))
        peak = "the peak; " if name == estimate.peak_moment else ""
        rows.append(
            {
                "what": name,
                "memory_bytes": sum(parts.values()),
                **{f"{key}_bytes": value for key, value in parts.items()},
                "reason": f"{peak}{part(largest).label} {format_bytes(parts[largest])}",
            }
        )
    return rows


def _reported_row(estimate: Estimate, kind: MemoryKind) -> Row:
    """The record of a kind of tool."""
    total, unseen = estimate.memory_bytes["total"], unseen_parts(kind)
    reported = total - sum(estimate.memory_bytes[name] for name in unseen)
    low, high = (end / total for end in estimate.interval_memory_bytes)
    missing = ", ".join(
        f"{part(name).label} {format_bytes(estimate.memory_bytes[name])}" for name in unseen
    )
    return {
        "what": f"peak, {kind}",
        "memory_bytes": reported,
        "memory_low_bytes": low * reported,
        "memory_high_bytes": high * reported,
        "reason": f"{_TOOLS[kind]}: " + (f"without {missing}" if missing else "everything"),
    }


@question
def host(job: JobSpec, *, nodes: Nodes = 1, **_: Unpack[JobFields]) -> Findings:
    """Show a node's host memory while a checkpoint is loaded, in a step, and while it is saved.

    Of the recommended layout. The save gathers the 16-bit (or fp32) weights on one rank of the
    node, as `stage3_gather_16bit_weights_on_model_save` and FSDP's full state dict do, on top of a
    step. Sharded checkpoints take less. The page cache is not counted.
    """
    scenario, estimate = recommended_layout(job.replaced(nodes=nodes))
    layout, node = estimate.layout, job.machine.node
    shared = estimate.memory_bytes["total"] if job.machine.device.uses_host_memory else 0.0
    first_stage = Stages.of(scenario, Layouts.stack([layout]), 0)
    load, step = (
        {name: float(value.item()) for name, value in parts.items()}
        for parts in host_memory_phases(first_stage, shared)
    )
    is_sharded = layout.shards_weights or layout.tp * layout.pp * layout.ep > 1
    gathered = float(scenario.model.num_params * scenario.workload.compute_bytes)
    rows = [
        _host_row("load", load),
        _host_row("step", step),
        _host_row("save", {**step, "checkpoint_load": 0.0}, gathered if is_sharded else 0.0),
    ]
    capacity = node.host_memory_bytes.value
    fullest = max(rows, key=lambda row: float(row["host_memory_bytes"]))
    amounts = ", ".join(
        f"{format_bytes(row['host_memory_bytes'])} at {row['moment']}" for row in rows
    )
    suffices = "suffice" if fullest["host_memory_bytes"] <= capacity else "do not suffice"
    reads = (
        "every rank reads the whole checkpoint where the node can hold that"
        if scenario.framework.loads_full_checkpoint
        else "a rank reads its own shard"
    )
    return Findings(
        f"The {format_bytes(capacity)} of a node's host memory on {job.machine.name} {suffices} "
        f"for {job.model.name} with {layout} [{estimate.framework}]: {amounts}; most at "
        f"{fullest['moment']} ({fullest['reason']}).",
        rows,
        notes=[
            f"{node.num_devices} ranks a node; {reads}.",
            "A save gathers the weights on one rank; sharded checkpoints take less.",
            "Not counted: page cache, data loaders' own data. Too few measurements exist for an "
            "interval.",
        ],
    )


def _host_row(phase: str, parts: dict[str, float], gathered: float = 0.0) -> Row:
    amounts = {part(name).label: value for name, value in parts.items()}
    amounts["gathered weights"] = gathered
    largest = max(amounts, key=lambda name: amounts[name])
    return {
        "moment": phase,
        "host_memory_bytes": sum(amounts.values()),
        **{f"{name}_bytes": value for name, value in parts.items()},
        "gathered_weights_bytes": gathered,
        "reason": f"{largest} {format_bytes(amounts[largest])}",
    }
