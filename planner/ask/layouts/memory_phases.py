"""Memory phases: device memory by phase of a step, host memory of load, step and save."""

from dataclasses import fields
from typing import Unpack

import numpy as np

from planner.ask.answer import Row
from planner.ask.plan_point import (
    closest_layout,
    plan_point,
    point_of,
    search_top_layouts,
    with_interval,
)
from planner.ask.question import Findings, JobFields, question
from planner.choose.jobs.job_spec import JobSpec
from planner.choose.verdicts.layout_words import estimate_words
from planner.cost.estimate import Estimate
from planner.cost.memory.host_memory import host_memory_phases
from planner.cost.memory.phases import MOMENTS, PeakInputs
from planner.cost.parts import MemoryKind, part, unseen_parts
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.cost.shards.stages import Stages
from planner.cost.uncertainty import memory_outlook
from planner.units import format_bytes

_TOOLS: dict[MemoryKind, str] = {
    "allocated": "torch.cuda.max_memory_allocated()",
    "reserved": "torch.cuda.max_memory_reserved()",
    "device": "nvidia-smi, xpu-smi, rocm-smi",
}
"""Tools that report memory, by the kind of memory that they report."""


@question
def memory(job: JobSpec, *, nodes: int = 1, **_: Unpack[JobFields]) -> Findings:
    """Show device memory in each phase of a step, and the peak that each tool would report.

    Uses the recommended layout on its fullest pipeline stage. If nothing fits, uses the layout
    closest to fitting. The last three rows are the peak as allocated, reserved and device tools
    report it, with the interval of measured runs.
    """
    job = job.replaced(nodes=nodes)
    chosen, candidates = search_top_layouts(job)
    point = point_of(chosen, candidates, job)
    if point.fits:
        scenario, best = point.recommended()
    elif closest := closest_layout(candidates.values()):
        scenario, best, _footprints = closest
    else:
        verdict = f"{job.model.name} has no legal layout on {point.place}; try another batch."
        return Findings(verdict, [], success=False)
    reported = {kind: _reported_row(best, kind) for kind in _TOOLS}
    amounts = ", ".join(f"{format_bytes(r['memory_bytes'])} {kind}" for kind, r in reported.items())
    capacity, low, high = map(
        format_bytes, (job.machine.device.memory_bytes.value, *best.interval_memory_bytes)
    )
    fits = "fits with" if best.fits else "does not fit; closest to fitting is"
    peak = f"{'in' if best.peak_moment in ('forward', 'backward') else 'at'} the {best.peak_moment}"
    return Findings(
        f"{job.model.name} {fits} {estimate_words(best)}: at its peak, {peak}, "
        f"a device of {capacity} holds {amounts} (90 % interval {low} to {high}).",
        [*_phase_rows(scenario, best), *reported.values()],
        notes=[
            f"The layout: {best.layout} [{best.framework}], stage {best.worst_stage}.",
            "Phases count tensors of a step after the first; cache and driver come on top.",
        ],
        success=best.fits,
    )


def _phase_rows(scenario: Scenario, estimate: Estimate) -> list[Row]:
    layouts = Layouts.stack([estimate.layout])
    inputs = PeakInputs.of(Stages.of(scenario, layouts, estimate.worst_stage))
    correction, rows = float(memory_outlook(scenario, layouts).expected[0]), []
    for name, live_tensors in MOMENTS.items():
        live = live_tensors(inputs)
        arrays = {each.name: np.ravel(getattr(live, each.name)) for each in fields(live)}
        parts = {part_name: correction * float(array[0]) for part_name, array in arrays.items()}
        if not any(parts.values()):
            continue  # the layout has no such phase
        parts["optimizer_states"] = estimate.memory_bytes["optimizer_states"]
        largest = max(parts, key=lambda part_name: float(parts[part_name]))
        peak = "the peak; " if name == estimate.peak_moment else ""
        reason = f"{peak}{part(largest).label} {format_bytes(parts[largest])}"
        columns = {f"{key}_bytes": value for key, value in parts.items()}
        total = sum(parts.values())
        rows.append({"what": name, "memory_bytes": total, **columns, "reason": reason})
    return rows


def _reported_row(estimate: Estimate, kind: MemoryKind) -> Row:
    amounts = estimate.memory_bytes
    unseen = {part(name).label: amounts[name] for name in unseen_parts(kind)}
    reported = amounts["total"] - sum(unseen.values())
    ends = [end / amounts["total"] * reported for end in estimate.interval_memory_bytes]
    missing = ", ".join(f"{label} {format_bytes(amount)}" for label, amount in unseen.items())
    return {
        "what": f"peak, {kind}",
        **with_interval("memory_bytes", reported, ends),
        "reason": f"{_TOOLS[kind]}: " + (f"without {missing}" if missing else "everything"),
    }


@question
def host(job: JobSpec, *, nodes: int = 1, **_: Unpack[JobFields]) -> Findings:
    """Show a node's host memory during a checkpoint load, a step, and a checkpoint save.

    Uses the recommended layout. The save gathers the 16-bit (or fp32) weights on one rank of the
    node, as `stage3_gather_16bit_weights_on_model_save` and FSDP's full state dict do, on top of a
    step. Sharded checkpoints take less. The page cache is not counted.
    """
    scenario, best = plan_point(job.replaced(nodes=nodes)).recommended()
    layout, node = best.layout, job.machine.node
    shared = best.memory_bytes["total"] if job.machine.device.uses_host_memory else 0.0
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
    amounts = (f"{format_bytes(row['host_memory_bytes'])} at {row['moment']}" for row in rows)
    suffices = "suffice" if fullest["host_memory_bytes"] <= capacity else "do not suffice"
    reads = "a rank reads its own shard"
    if scenario.framework.loads_full_checkpoint:
        reads = "every rank reads the whole checkpoint where the node can hold that"
    return Findings(
        f"The {format_bytes(capacity)} of a node's host memory on {job.machine.name} {suffices} "
        f"for {job.model.name} with {estimate_words(best)}: {', '.join(amounts)}; most at "
        f"{fullest['moment']} ({fullest['reason']}).",
        rows,
        notes=[
            f"The layout: {layout} [{best.framework}]; {node.num_devices} ranks a node; {reads}.",
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
