"""Changes: what one change of machine, job or software brings, each planned anew."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple, Unpack

from planner.ask.answer import Row
from planner.ask.option import Nodes, Option
from planner.ask.plan_point import PlanPoint, plan_or_reason, plan_point
from planner.ask.question import Findings, JobFields, question
from planner.choose.jobs.job_spec import JobSpec, frameworks_for
from planner.cost.parts import part
from planner.describe.catalogue import load_framework
from planner.describe.framework.switches import strip_switches
from planner.describe.machine import Machine
from planner.describe.machine.variants import override_fields
from planner.errors import PlannerError, shorten
from planner.units import counted, format_seconds

__all__ = ["change"]

_DOUBLED = {
    "network twice as fast": ("node.nic_bytes_per_s",),
    "links inside the node twice as fast": (
        "node.fabric.pair_bytes_per_s",
        "node.fabric.device_bytes_per_s",
        "node.fabric.card_bytes_per_s",
        "node.fabric.socket_bytes_per_s",
    ),
    "links to the host twice as fast": ("node.host_link_bytes_per_s",),
    "device memory twice as large": ("device.memory_bytes",),
    "device memory twice as fast": ("device.memory_bytes_per_s",),
    "host memory twice as large": ("node.host_memory_bytes",),
}
"""Quantities of a machine that are doubled together."""
_SMALL_PART = 0.005


class _Change(NamedTuple):
    """A change: its kind, its name, and the fields of the job or its workload that it sets."""

    kind: str
    name: str
    fields: dict[str, Any]


@question
def change(
    job: JobSpec,
    *,
    nodes: Nodes = 1,
    also: Annotated[
        tuple[str, ...],
        Option("A change of your own, section.field=value (repeatable).", metavar="CHANGE"),
    ] = (),
    **_: Unpack[JobFields],
) -> Findings:
    """Plan a job anew with each of many changes to machine, job and software.

    Faster and larger parts of the machine, twice the nodes, twice the batch, fp8, every other
    framework, every switch of the recommended one. Gain is tokens per second over today's.
    """
    job = job.replaced(nodes=nodes)
    machines = {shorten(text): override_fields(job.machine, (text,)) for text in also}
    now = plan_point(job)
    changes = [_Change("machine", name, {"machine": each}) for name, each in machines.items()]
    changes += [*_machine_changes(job), *_job_changes(job), *_software_changes(job, now)]
    points = [(each, plan_or_reason(job, **each.fields)) for each in changes]
    points.sort(key=lambda pair: -pair[1].tokens_per_s)
    rows = [_row("now", "as it is", now, now)]
    rows += [_row(each.kind, each.name, point, now) for each, point in points]
    return Findings(
        _verdict(now, points),
        rows,
        notes=[
            f"{counted(len(points), 'change')} planned anew, one at a time.",
            "Some switches change what is computed (number formats, compression): see "
            "`planner show FRAMEWORK`.",
        ],
        success=any(point.fits for _, point in points),
    )


def _machine_changes(job: JobSpec) -> Iterator[_Change]:
    machine = job.machine
    networked = job.nodes > 1 and machine.node.num_nics > 0
    for name, paths in _DOUBLED.items():
        doubled = _doubled(machine, paths)
        if doubled and (networked or not name.startswith("network")):
            yield _Change("machine", name, {"machine": override_fields(machine, doubled)})
    if networked and machine.network is not None:
        latency = f"network.latency_s={machine.network.latency_s.value / 2!r}"
        halved = override_fields(machine, (latency,))
        yield _Change("machine", "half the latency of the network", {"machine": halved})


def _doubled(machine: Machine, paths: tuple[str, ...]) -> tuple[str, ...]:
    """Overrides that double those quantities that the machine states."""
    overrides = []
    for path in paths:
        value: Any = machine
        for name in path.split("."):
            value = getattr(value, name)
        if value is not None:
            overrides.append(f"{path}={2 * value.value!r}")
    return tuple(overrides)


def _job_changes(job: JobSpec) -> Iterator[_Change]:
    workload = job.workload
    if 2 * job.nodes <= job.machine.num_nodes.value:
        yield _Change("job", counted(2 * job.nodes, "node"), {"nodes": 2 * job.nodes})
    batch = 2 * workload.global_batch
    changes: dict[str, dict[str, Any]] = {f"a batch of {batch:,}": {"global_batch": batch}}
    if workload.precision != "fp8" and "fp8" in job.machine.device.peak_flop_per_s:
        changes["fp8"] = {"precision": "fp8"}
    for name, fields in changes.items():
        try:
            workload.replaced(**fields)
        except PlannerError:
            continue  # no workload has such a batch
        yield _Change("job", name, fields)


def _software_changes(job: JobSpec, now: PlanPoint) -> Iterator[_Change]:
    """Every other framework, and every switch of the recommended one."""
    current = "" if now.best is None else now.best.framework
    for framework in frameworks_for((), job.machine):
        if strip_switches(framework.name) != strip_switches(current):
            yield _Change("framework", f"with {framework.name}", {"frameworks": framework})
    if not current:
        return
    same_name = (each for each in job.frameworks if each.name == current)
    framework = next(same_name, None) or load_framework(current)
    for name, switch in framework.switches.items():
        if name in framework.active_switches or (switch.takes and not switch.usual):
            continue
        word = f"{name}={switch.usual}" if switch.takes else name
        if switch.refuses(job.machine.device) or switch.refuses_workload(job.workload, job.model):
            continue
        try:
            switched = framework.with_switches(word)
        except PlannerError:
            continue  # it needs another switch, or excludes one that is on
        yield _Change("switch", f"{current}+{word}", {"frameworks": (switched,)})


def _row(kind: str, name: str, point: PlanPoint, now: PlanPoint) -> Row:
    row = {"change": name, "kind": kind, **point.row()}
    reason = row.pop("reason")
    if point.fits and now.fits:
        row["gain"] = point.tokens_per_s / now.tokens_per_s - 1
        reason = _largest_difference(point, now) or reason
    return {**row, "reason": reason}


def _largest_difference(point: PlanPoint, now: PlanPoint) -> str:
    """The part of the step that gets shorter, or longer, by most for as many tokens."""
    assert point.best is not None
    assert now.best is not None
    scale = now.workload.tokens_per_step / point.workload.tokens_per_step
    before, after = now.best.step_time_parts_s, point.best.step_time_parts_s
    saved = {name: before[name] - scale * after[name] for name in before}
    faster = sum(saved.values()) > 0
    name = max(saved, key=lambda name: saved[name] if faster else -saved[name])
    if abs(saved[name]) < _SMALL_PART * now.best.step_time_s:
        return "no part of the step changes much"
    times = f"{format_seconds(before[name])} -> {format_seconds(scale * after[name])}"
    return f"{part(name).label} {times}" + ("" if scale == 1 else " for as many tokens")


def _verdict(now: PlanPoint, points: list[tuple[_Change, PlanPoint]]) -> str:
    fitting = [(each, point) for each, point in points if point.fits]
    if now.fits:
        gains = [
            f"{each.name} {100 * (point.tokens_per_s / now.tokens_per_s - 1):+.1f} %"
            for each, point in fitting[:3]
        ]
        return f"Largest gains in tokens/s: {', '.join(gains)}. Today: {now.describe()}."
    if not fitting:
        return f"Nothing fits on {now.place}, and no change makes it fit: {now.reason}."
    each, point = fitting[0]
    return (
        f"Nothing fits on {now.place}; the fastest change that fits is {each.name}: "
        f"{point.describe()}."
    )
