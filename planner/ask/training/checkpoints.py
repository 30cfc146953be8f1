"""Checkpoints: their size, how long they take, how often to write them, and what failures cost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Unpack

from planner.ask.answer import Answer, Row
from planner.ask.asked import Asked, JobFields, asked_of
from planner.ask.fewest import doublings
from planner.ask.option import Nodes, Option, checked
from planner.ask.point import Point, on_nodes
from planner.ask.resources.nodes import up_to
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.describe.machine import Machine
from planner.describe.model.model import Model
from planner.describe.training_run import Checkpoints, Failures
from planner.errors import LayoutError
from planner.training.resilience.checkpoints import (
    Checkpoint,
    bounds_s,
    checkpoint_of,
    constants,
    nodes_of,
    saved_bytes,
)
from planner.training.resilience.failures import (
    Losses,
    detection_s,
    mean_time_between_failures_s,
    useful,
)
from planner.training.resilience.start import restart_s
from planner.units import counted, format_bytes, format_rate, format_seconds

__all__ = ["checkpoints"]

_MONTH_S = 30 * 86400.0
# what shares are of where no tokens are asked; they hardly depend on it
_SYSTEMS = 2
# file systems that are compared: the fastest ones


@checked
def checkpoints(
    model: str | Model,
    machine: str | Machine,
    *,
    nodes: Nodes = 1,
    most_nodes: Annotated[
        int | None,
        Option("Look at doublings of the nodes up to so many; at nodes alone by default.", least=1),
    ] = None,
    interval_minutes: Annotated[
        float | None,
        Option(
            "Minutes of work between two checkpoints; by default what loses least.",
            least=0.01,
            most=1e7,
        ),
    ] = None,
    device_mtbf_hours: Annotated[
        float | None,
        Option(
            "Mean hours between failures of the job for each of its devices; by default Llama 3's.",
            least=1,
            most=1e12,
        ),
    ] = None,
    detection_minutes: Annotated[
        float,
        Option("Minutes until a failure is noticed and nodes are there again.", least=0, most=1e5),
    ] = 10.0,
    share: Annotated[
        float, Option("Percent of the file system's rate that the job gets.", least=0.001, most=100)
    ] = 100.0,
    **job: Unpack[JobFields],
) -> Answer:
    """Size of a checkpoint, how long steps wait for it, how often to save, and the time lost.

    Of the recommended layout: to the fastest shared file systems, at once or asynchronously, to the
    nodes' own disks and from there to the file system, and whole by one rank. Without
    `interval_minutes` checkpoints are as often as loses least by Daly's formula. With `most_nodes`
    also on doublings of the nodes.

    >>> import planner
    >>> job = planner.Workload(sequence_length=1024, global_batch=64)
    >>> answer = planner.ask.checkpoints("gpt2", "polaris", workload=job)
    >>> answer.rows[0]["way"], answer.rows[0]["checkpoint_bytes"] / 124_439_808
    ('eagle', 12.0)
    """
    asked = asked_of(model, machine, job)
    limit = up_to(asked, most_nodes) if most_nodes is not None else nodes
    if nodes > limit:
        raise LayoutError(f"nodes = {nodes} exceeds most_nodes = {limit}; give fewer, or more")
    rate = None if device_mtbf_hours is None else 1 / device_mtbf_hours
    stated = _Stated(
        Failures(per_device_hour=rate, detection_s=60 * detection_minutes),
        None if interval_minutes is None else 60 * interval_minutes,
        share / 100,
    )
    points = [asked.on(nodes)] if limit == nodes else []
    points = points or [asked.tried_on(count) for count in doublings(range(nodes, limit + 1))]
    saves = [_Saves(point, stated) for point in points if point.best is not None]
    rows = [row for point in points for row in _rows(point, stated)]
    return asked.answer(
        "checkpoints",
        saves[0].verdict() if saves else _nothing(asked, points),
        rows,
        found=bool(saves),
        notes=_notes(saves, stated),
        nodes=nodes,
        most_nodes=most_nodes,
        interval_minutes=interval_minutes,
        device_mtbf_hours=device_mtbf_hours,
        detection_minutes=detection_minutes,
        share=share,
    )


@dataclass(frozen=True, slots=True)
class _Stated:
    """What the question says of failures and of saving."""

    failures: Failures
    interval_s: float | None
    share: float


@dataclass(frozen=True, slots=True)
class _Way:
    """One way to save, and what comes of it."""

    name: str
    how: Checkpoints
    saved: Checkpoint
    restart_s: float
    losses: Losses


@dataclass(frozen=True, slots=True)
class _Saves:
    """The ways to save a point's recommended layout."""

    point: Point
    stated: _Stated

    @property
    def layouts(self) -> Layouts:
        assert self.point.best is not None
        return Layouts.of(self.point.best.layout)

    @property
    def mtbf_s(self) -> float:
        """Mean time between failures of the job [s]."""
        devices = self.point.nodes * self.point.machine.node.num_devices
        return float(mean_time_between_failures_s(devices, self.stated.failures))

    @property
    def ways(self) -> list[_Way]:
        """Those that the machine has."""
        return [self._way(name, how) for name, how in self._names()]

    def _names(self) -> Iterator[tuple[str, Checkpoints]]:
        machine, share = self.point.machine, self.stated.share
        known = [one for one in machine.file_systems if one.bytes_per_s is not None]
        known.sort(key=lambda one: -(one.bytes_per_s.value if one.bytes_per_s else 0.0))
        first = known[0].name if known else ""
        named = [one.name for one in known[:_SYSTEMS]] or ["files"]
        for name in named:
            how = Checkpoints(file_system=name if known else "", share=share)
            yield name, how
            yield f"{name}, asynchronous", how.replaced(asynchronous=True)
        plain = Checkpoints(file_system=first, share=share)
        if machine.node.local_disk is not None:
            yield f"local disks, then {named[0]}", plain.replaced(storage="local-disk")
        if self.layouts.world > 1 and checkpoint_of(self._scenario, self.layouts).writers > 1:
            yield f"{named[0]}, whole by one rank", plain.replaced(full=True)

    @property
    def _scenario(self) -> Scenario:
        assert self.point.scenario is not None
        return self.point.scenario

    def _way(self, name: str, how: Checkpoints) -> _Way:
        saved = checkpoint_of(self._scenario, self.layouts, how)
        again = restart_s(
            self._scenario, self.layouts, failures=self.stated.failures, checkpoints=how
        )
        work = self.point.seconds if self.point.workload.all_tokens else _MONTH_S
        interval, behind = self.stated.interval_s, saved.behind_s
        found = useful(work, saved.blocking_s, self.mtbf_s, again, interval, behind)
        return _Way(name, how, saved, float(again), found)

    @property
    def best(self) -> _Way:
        """The way that loses least; the first of equals."""
        return max(self.ways, key=lambda way: float(way.losses.fraction))

    def verdict(self) -> str:
        """The answer."""
        first, best = self.ways[0], self.best
        assert self.point.best is not None
        weights = float(saved_bytes(self._scenario, self.layouts, "weights")["weights"])
        said = (
            f"A checkpoint of {self._scenario.model.name} on {on_nodes(self.point)} "
            f"({self.point.best.layout} [{self.point.best.framework}]) is "
            f"{format_bytes(float(first.saved.total_bytes))} in "
            f"{counted(int(first.saved.files), 'file')} ({format_bytes(weights)} for weights "
            f"alone); steps wait {format_seconds(float(first.saved.blocking_s))} for it "
            f"({first.name})"
        )
        if best.name != first.name:
            said += f", {format_seconds(float(best.saved.blocking_s))} with {best.name}"
        often = format_seconds(float(best.losses.interval_s))
        least = "" if self.stated.interval_s else ", which loses least"
        return (
            f"{said}. Saved every {often}{least}, with a failure every "
            f"{format_seconds(self.mtbf_s)}, {_percent(float(best.losses.fraction))} of the time "
            "is work that is kept."
        )


def _percent(share: float) -> str:
    """A share near 1 with what it is short of it.

    >>> _percent(0.918), _percent(0.99997)
    ('91.8 %', '99.997 %')
    """
    digits = 1
    while digits < 6 and f"{100 * share:.{digits}f}" == f"{100:.{digits}f}":
        digits += 1
    return f"{100 * share:.{digits}f} %"


def _nothing(asked: Asked, points: list[Point]) -> str:
    last = points[-1]
    return f"Nothing of {asked.model.name} fits on {on_nodes(last)}: {last.reason}."


def _rows(point: Point, stated: _Stated) -> list[Row]:
    """A record for each way to save."""
    place = {"nodes": point.nodes, "devices": point.nodes * point.machine.node.num_devices}
    if point.best is None or point.scenario is None:
        return [{**place, "fits": False, "reason": point.reason}]
    saves = _Saves(point, stated)
    weights = saved_bytes(point.scenario, saves.layouts, "weights")["weights"]
    return [
        {
            **place,
            "fits": True,
            "way": way.name,
            "framework": point.best.framework,
            "layout": str(point.best.layout),
            "checkpoint_bytes": float(way.saved.total_bytes),
            "weights_alone_bytes": float(weights),
            "files": int(way.saved.files),
            "wait_s": float(way.saved.blocking_s),
            "behind_s": float(way.saved.behind_s),
            "mtbf_s": saves.mtbf_s,
            "restart_s": way.restart_s,
            "interval_s": float(way.losses.interval_s),
            "saving_share": float(way.losses.checkpoints_s / way.losses.total_s),
            "lost_share": float(way.losses.lost_s / way.losses.total_s),
            "restarts_share": float(way.losses.restarts_s / way.losses.total_s),
            "useful_share": float(way.losses.fraction),
            "reason": _why(saves, way),
        }
        for way in saves.ways
    ]


def _why(saves: _Saves, way: _Way) -> str:
    """What holds the writing up."""
    machine, saved = saves.point.machine, way.saved
    nodes = min(float(nodes_of(machine, saves.layouts)), float(saved.writers))
    rate = constants().writer_bytes_per_s.value
    args = (machine, way.how, saved.total_bytes, saved.most_bytes, nodes)
    found = {name: float(s) for name, s in bounds_s(*args, process_bytes_per_s=rate).items()}
    slowest = max(found, key=lambda name: found[name])
    system = machine.file_system(way.how.file_system)
    words = {
        "process": f"a process writes {format_rate(rate)}",
        "interfaces": f"nodes' interfaces, {format_rate(machine.node_bytes_per_s)} each",
        "file_system": f"{system.name if system else 'file system'} as a whole",
    }
    if way.how.asynchronous:
        return f"waits for the copy to the host; then {words[slowest]}"
    disk = machine.node.local_disk
    if way.how.storage == "local-disk" and disk is not None:
        local = float(saved.total_bytes) / nodes / disk.write_bytes_per_s.value
        by_disk = local > found["process"]
        return "waits for the nodes' disks" if by_disk else f"{words['process']} to its node's disk"
    return words[slowest]


def _notes(saves: list[_Saves], stated: _Stated) -> list[str]:
    """What else to know: where files go, what a checkpoint must hold, what is not counted."""
    lines = []
    if saves:
        lines = _advice(saves[0])
    source = (
        "as stated"
        if stated.failures.per_device_hour is not None
        else "as of Llama 3 405B, 419 interruptions in 54 days on 16,384 H100"
    )
    return [
        *lines,
        f"Failures come at a constant rate per device, {source}; a restart is "
        f"{format_seconds(detection_s(stated.failures))} until it is noticed, and a start that "
        "reads the checkpoint.",
        "To go on as if nothing had happened a checkpoint also holds the step, the schedule, the "
        "random states and where the data loader was, with the epoch that seeds a "
        "DistributedSampler; or samples are seen twice. These are small and not counted.",
        "Not counted: other jobs on the file system, metadata, stripes, opening many files.",
    ]


def _advice(saves: _Saves) -> list[str]:
    """What other ways cost, in numbers of the same formulas."""
    first, *others = saves.ways
    lines = [line for way in others if (line := _instead(saves, first, way))]
    return [*lines, *_in_a_row(saves)]


def _instead(saves: _Saves, first: _Way, way: _Way) -> str:
    """One way beside the first; empty where it brings nothing."""
    wait, now = (format_seconds(float(one.saved.blocking_s)) for one in (way, first))
    behind = format_seconds(float(way.saved.behind_s))
    if way.how.full:
        return (
            f"Sharded checkpoints are {_times(way, first)} as fast as one rank that gathers and "
            f"writes all of it ({wait})."
        )
    if (
        way.saved.blocking_s >= first.saved.blocking_s
        or way.how.file_system != first.how.file_system
    ):
        return ""
    if way.how.asynchronous:
        host = float(way.saved.most_bytes) * saves.point.machine.node.num_devices
        return (
            f"Asynchronous checkpoints wait {wait} instead of {now}, take up to "
            f"{format_bytes(host)} of a node's memory, and cannot follow each other closer than "
            f"{behind}."
        )
    return (
        f"Checkpoints on the nodes' own disks wait {wait} instead of {now}; until they are "
        f"drained, {behind} later, they are lost with their node."
    )


def _in_a_row(saves: _Saves) -> list[str]:
    """What the wall time of the longest queue costs."""
    nodes, best = saves.point.nodes, saves.best
    queues = [q for q in saves.point.machine.scheduler.queues if not q.on_request]
    longest = max(
        (q for q in queues if q.min_nodes <= nodes <= q.max_nodes),
        key=lambda q: q.max_hours,
        default=None,
    )
    if longest is None:
        return []
    wall, start = 3600 * longest.max_hours, best.restart_s - detection_s(saves.stated.failures)
    write = float(best.saved.blocking_s)
    half = min(float(best.losses.interval_s), wall) / 2
    return [
        f"In jobs of {longest.max_hours:g} h ({longest.name}) starting takes "
        f"{100 * start / wall:.1f} % of the time, and an end without a checkpoint loses "
        f"{format_seconds(half)} of work on the average; with a signal before the limit it is one "
        f"checkpoint, {format_seconds(write)}."
    ]


def _times(slow: _Way, fast: _Way) -> str:
    return f"{float(slow.saved.blocking_s) / max(float(fast.saved.blocking_s), 1e-9):.3g} times"
