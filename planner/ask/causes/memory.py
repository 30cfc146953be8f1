"""Memory: what a device holds from moment to moment, and the three numbers that people read."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Unpack

import numpy as np

from planner.ask.answer import Answer, Row
from planner.ask.asked import Asked, JobFields, asked_of
from planner.ask.option import Nodes, checked
from planner.choose.recommendation import recommend
from planner.choose.verdicts.fixes import closest_to_fitting
from planner.cost.estimate import Estimate, timed
from planner.cost.memory.moments import MOMENTS, Worksheet
from planner.cost.parts import MemoryKind, part, unseen_parts
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.cost.shards.stages import Stages
from planner.cost.uncertainty.memory import memory_outlook
from planner.describe.machine import Machine
from planner.describe.model.model import Model
from planner.units import counted, format_bytes

__all__ = ["memory"]

_READ: dict[MemoryKind, str] = {
    "allocated": "torch.cuda.max_memory_allocated()",
    "reserved": "torch.cuda.max_memory_reserved()",
    "device": "nvidia-smi, xpu-smi, rocm-smi",
}
"""Where people read memory, by what is seen there."""


@checked
def memory(
    model: str | Model,
    machine: str | Machine,
    *,
    nodes: Nodes = 1,
    **job: Unpack[JobFields],
) -> Answer:
    """What a device holds at every moment of a step, and what each way of measuring sees of it.

    Of the recommended layout on its fullest stage; where nothing fits of the one that is nearest
    to fitting. Rows are moments in their order, then what the allocator, its cache and the driver
    show at the peak, with the interval of measured runs.

    >>> import planner
    >>> job = planner.Workload(sequence_length=1024, global_batch=64)
    >>> answer = planner.ask.memory("gpt2", "polaris", workload=job)
    >>> allocated, reserved, device = [row["memory_bytes"] for row in answer.rows[-3:]]
    >>> allocated < reserved < device
    True
    """
    asked = asked_of(model, machine, job)
    scenario, one = _one(asked, nodes)
    where = f"{counted(nodes, 'node')} of {asked.machine.name}"
    if scenario is None or one is None:
        verdict = f"{asked.model.name} has no legal layout on {where}; try another batch."
        return asked.answer("memory", verdict, [], found=False, nodes=nodes)
    moments, seen = _moments(scenario, one), [_seen(one, kind) for kind in _READ]
    return asked.answer(
        "memory",
        _verdict(asked, one, seen),
        [*moments, *seen],
        found=one.fits,
        notes=[
            f"The layout: {one.layout} [{one.framework}], stage {one.worst_stage}.",
            "Moments hold what tensors take; cache and driver come on top. They are those of one "
            "step after the first.",
        ],
        nodes=nodes,
    )


def _one(asked: Asked, nodes: int) -> tuple[Scenario | None, Estimate | None]:
    """The recommended layout, or the one that is nearest to fitting, and its question."""
    done = asked.searched(nodes)
    best = recommend(done.by_framework.values(), asked.tolerance)
    if best is not None:
        return done.by_framework[best.framework].scenario, best
    closest = [
        (*closest_to_fitting(f), f.scenario)
        for f in done.by_framework.values()
        if len(f.footprints)
    ]
    if not closest:
        return None, None
    _, taken, scenario = min(closest, key=lambda each: each[0])
    return scenario, timed(scenario, taken)[0]


def _moments(scenario: Scenario, one: Estimate) -> list[Row]:
    """A record for every moment that this layout has."""
    layouts = Layouts.stack([one.layout])
    sheet = Worksheet.of(Stages.of(scenario, layouts, one.worst_stage))
    measured = float(memory_outlook(scenario, layouts).expected[0])
    rows = []
    for name, moment in MOMENTS.items():
        alive = moment(sheet)
        parts: dict[str, Any] = {
            each.name: measured * float(np.ravel(getattr(alive, each.name))[0])
            for each in fields(alive)
        }
        if not any(parts.values()):
            continue  # the layout has no such moment
        parts["optimizer_states"] = one.memory_bytes["optimizer_states"]
        largest = max(parts, key=lambda part_name: float(parts[part_name]))
        row = {"what": name, "memory_bytes": sum(parts.values())}
        row |= {f"{key}_bytes": value for key, value in parts.items()}
        peak = "the peak; " if name == one.peak_moment else ""
        most = f"{part(largest).label} {format_bytes(parts[largest])}"
        rows.append({**row, "reason": f"{peak}{most}"})
    return rows


def _seen(one: Estimate, kind: MemoryKind) -> Row:
    """The record of a way of measuring."""
    unseen = unseen_parts(kind)
    total = one.memory_bytes["total"]
    seen = total - sum(one.memory_bytes[name] for name in unseen)
    low, high = (end / total for end in one.interval_memory_bytes)
    missing = ", ".join(f"{part(n).label} {format_bytes(one.memory_bytes[n])}" for n in unseen)
    return {
        "what": f"peak, {kind}",
        "memory_bytes": seen,
        "memory_low_bytes": low * seen,
        "memory_high_bytes": high * seen,
        "reason": f"{_READ[kind]}: " + (f"without {missing}" if missing else "everything"),
    }


def _verdict(asked: Asked, one: Estimate, seen: list[Row]) -> str:
    room = asked.machine.device.memory_bytes.value
    said = ", ".join(
        f"{format_bytes(row['memory_bytes'])} {kind}" for row, kind in zip(seen, _READ, strict=True)
    )
    low, high = (format_bytes(end) for end in one.interval_memory_bytes)
    fits = "fits with" if one.fits else "does not fit; nearest to it is"
    return (
        f"{asked.model.name} {fits} {one.layout} [{one.framework}]: at its peak, "
        f"{_when(one.peak_moment)}, a device of {format_bytes(room)} holds {said} (90 % between "
        f"{low} and {high})."
    )


def _when(moment: str) -> str:
    return f"in the {moment}" if moment in ("forward", "backward") else f"at the {moment}"
