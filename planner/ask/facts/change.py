"""Change: what one change of machine, job or software would bring, each planned anew."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Unpack

from planner.ask.answer import Answer, Row
from planner.ask.asked import Asked, JobFields, asked_of
from planner.ask.option import Nodes, Option, checked
from planner.ask.point import Point, no_point, on_nodes
from planner.choose.job import frameworks_for
from planner.cost.parts import part
from planner.describe.catalogue import load_framework
from planner.describe.framework.switches import family
from planner.describe.machine import Machine
from planner.describe.machine.variants import override_fields
from planner.describe.model.model import Model
from planner.errors import PlannerError, shorten
from planner.units import counted, format_seconds

__all__ = ["change"]

_FASTER = {
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
"""Facts of a machine that are doubled together."""


@dataclass(frozen=True, slots=True)
class _Change:
    """One change, the job with it, and its nodes."""

    kind: str
    name: str
    asked: Asked
    nodes: int


@checked
def change(
    model: str | Model,
    machine: str | Machine,
    *,
    nodes: Nodes = 1,
    also: Annotated[
        tuple[str, ...],
        Option("A change of your own, section.field=value (repeatable).", metavar="CHANGE"),
    ] = (),
    **job: Unpack[JobFields],
) -> Answer:
    """What each of many changes would bring, planned anew and not scaled.

    Faster and larger parts of the machine, twice the nodes, the batch, fp8, every other framework,
    every switch of the recommended one. Gain is tokens per second over those of now.

    >>> import planner
    >>> job = planner.Workload(sequence_length=1024, global_batch=64)
    >>> answer = planner.ask.change("gpt2", "polaris", workload=job, frameworks="ddp",
    ...                             also=("device.launch_s=1us",))
    >>> [row["gain"] > 0 for row in answer.rows if row["change"] == "device.launch_s=1us"]
    [True]
    """
    asked = asked_of(model, machine, job)
    owned = [(shorten(text), override_fields(asked.machine, (text,))) for text in also]
    now = asked.on(nodes)
    changes = [_Change("machine", name, asked.at(machine=place), nodes) for name, place in owned]
    changes += _changes(asked, nodes, now)
    found = [(one, _planned(one)) for one in changes]
    found.sort(key=lambda pair: -_rate(pair[1]))
    rows = [_row("now", "as it is", now, now)]
    rows += [_row(one.kind, one.name, point, now) for one, point in found]
    return asked.answer(
        "change",
        _verdict(now, found),
        rows,
        found=any(point.fits for _, point in found),
        notes=[
            f"{counted(len(found), 'change')} planned anew, one at a time.",
            "Some switches change what is computed (number formats, compression): see "
            "`planner show FRAMEWORK`.",
        ],
        nodes=nodes,
        also=list(also),
    )


def _planned(one: _Change) -> Point:
    try:
        one.asked.machine.peak(one.asked.workload.base_precision)
    except PlannerError as error:
        return no_point(one.nodes, one.asked.machine, one.asked.workload, error.plain)
    return one.asked.tried_on(one.nodes)


def _rate(point: Point) -> float:
    return point.best.tokens_per_s if point.best else 0.0


def _changes(asked: Asked, nodes: int, now: Point) -> Iterator[_Change]:
    place, workload = asked.machine, asked.workload
    across = nodes > 1 and place.node.num_nics > 0
    for name, paths in _FASTER.items():
        if (across or not name.startswith("network")) and (changes := _doubled(place, paths)):
            yield _Change("machine", name, asked.at(machine=override_fields(place, changes)), nodes)
    if across and place.network is not None:
        half = place.network.latency_s.value / 2
        slower = override_fields(place, (f"network.latency_s={half!r}",))
        yield _Change("machine", "half the latency of the network", asked.at(machine=slower), nodes)
    if 2 * nodes <= place.num_nodes.value:
        yield _Change("job", f"{counted(2 * nodes, 'node')}", asked, 2 * nodes)
    size = 2 * workload.global_batch
    jobs: dict[str, dict[str, Any]] = {f"a batch of {size:,}": {"global_batch": size}}
    if workload.precision != "fp8" and "fp8" in place.device.peak_flop_per_s:
        jobs["fp8"] = {"precision": "fp8"}
    for name, fields in jobs.items():
        try:
            other = workload.replaced(**fields)
        except PlannerError:
            continue  # no job is so
        yield _Change("job", name, asked.at(workload=other), nodes)
    yield from _software(asked, nodes, now)


def _doubled(place: Machine, paths: tuple[str, ...]) -> tuple[str, ...]:
    """Overrides that double what the machine states of some facts."""
    found = []
    for path in paths:
        value = place
        for name in path.split("."):
            value = getattr(value, name)
        if value is not None:
            found.append(f"{path}={2 * value.value!r}")  # type: ignore[attr-defined]
    return tuple(found)


def _software(asked: Asked, nodes: int, now: Point) -> Iterator[_Change]:
    """Other frameworks, each alone, and switches of the recommended one."""
    mine = "" if now.best is None else now.best.framework
    for other in frameworks_for((), asked.machine):
        if family(other.name) != family(mine):
            alone = asked.at(frameworks=(other.name,))
            yield _Change("framework", f"with {other.name}", alone, nodes)
    if not mine:
        return
    here = next((f for f in asked.frameworks if getattr(f, "name", f) == mine), mine)
    framework = load_framework(here) if isinstance(here, str) else here
    for word, switch in framework.switches.items():
        if word in framework.active_switches or (switch.takes and not switch.usual):
            continue
        said = f"{word}={switch.usual}" if switch.takes else word
        if switch.refuses(asked.machine.device) or switch.refuses_workload(
            asked.workload, asked.model
        ):
            continue
        try:
            on = framework.with_switches(said)
        except PlannerError:
            continue  # it needs others, or does not go with one that is on
        yield _Change("switch", f"{mine}+{said}", asked.at(frameworks=(on,)), nodes)


def _row(kind: str, name: str, point: Point, now: Point) -> Row:
    row = {"change": name, "kind": kind, **point.row()}
    reason = row.pop("reason")
    if point.fits and now.fits:
        row["gain"] = _rate(point) / _rate(now) - 1
        reason = _shorter(point, now) or reason
    return {**row, "reason": reason}


def _shorter(point: Point, now: Point) -> str:
    """The part of the step, per token, that the change takes most from, or adds most to."""
    assert point.best is not None
    assert now.best is not None
    scale = now.workload.tokens_per_step / point.workload.tokens_per_step
    before, after = now.best.step_time_parts_s, point.best.step_time_parts_s
    saved = {name: before[name] - scale * after[name] for name in before}
    faster = sum(saved.values()) > 0
    most = max(saved, key=lambda name: saved[name] if faster else -saved[name])
    if abs(saved[most]) < 0.005 * now.best.step_time_s:
        return "nothing of the step changes much"
    label = part(most).label
    moved = f"{label} {format_seconds(before[most])} -> {format_seconds(scale * after[most])}"
    return moved if scale == 1 else f"{moved} for as many tokens"


def _verdict(now: Point, found: list[tuple[_Change, Point]]) -> str:
    fitting = [(one, point) for one, point in found if point.fits]
    if not now.fits:
        if not fitting:
            return f"Nothing fits on {on_nodes(now)}, and no change makes it fit: {now.reason}."
        one, point = fitting[0]
        return f"Nothing fits on {on_nodes(now)}; the most comes of {one.name}: {point.spoken()}."
    gains = [
        f"{one.name} {100 * (_rate(point) / _rate(now) - 1):+.1f} %" for one, point in fitting[:3]
    ]
    return f"Now {now.spoken()}; the most tokens/s more come of {', '.join(gains)}."
