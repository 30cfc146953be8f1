"""Machine: which of several is best for a job."""

from __future__ import annotations

from typing import Annotated, Literal, Unpack

from planner.ask.answer import Answer, Row
from planner.ask.asked import Asked, JobFields, asked_of, described
from planner.ask.option import Option, checked
from planner.ask.point import Point, amount, no_point, on_nodes
from planner.describe.catalogue import load_machine
from planner.describe.machine import Machine
from planner.describe.model.model import Model
from planner.errors import LayoutError, PlannerError
from planner.units import counted, format_amount

__all__ = ["machine"]


@checked
def machine(
    model: str | Model,
    machine: str | Machine,
    *,
    against: Annotated[
        tuple[str | Machine, ...],
        Option("Another machine, name or TOML file (repeatable).", metavar="NAME"),
    ],
    nodes: Annotated[int, Option("Nodes of the first machine.", least=1)] = 1,
    same: Annotated[
        Literal["devices", "nodes"], Option("What the machines have as many of.")
    ] = "devices",
    by: Annotated[Literal["time", "node-hours"], Option("What makes one better.")] = "time",
    **job: Unpack[JobFields],
) -> Answer:
    """The machine on which a job is fastest, or takes the fewest node-hours.

    The others have at least as many devices as the nodes of the first (`same="devices"`), or as
    many nodes. A machine on which the job cannot be asked, such as a precision that its devices
    have not, is a row with the reason.

    >>> import planner
    >>> job = planner.Workload(sequence_length=1024, global_batch=64)
    >>> planner.ask.machine("gpt2", "polaris", against=("dgx-h100",), nodes=2,
    ...                     workload=job).rows[0]["machine"]
    'dgx-h100'
    """
    asked = asked_of(model, machine, job)
    if not against:
        raise LayoutError("against names no other machine; name at least one")
    others = list({str(one): one for one in against}.values())
    places = [
        asked.machine,
        *(one if isinstance(one, Machine) else load_machine(one) for one in others),
    ]
    points = [_on(asked, place, _nodes(asked, place, nodes, same)) for place in places]
    measure = "node_hours" if by == "node-hours" else "seconds"
    # of equals the one that was named first
    points.sort(key=lambda point: float(getattr(point, measure)))
    best = points[0] if points[0].fits else None
    return asked.answer(
        "machine",
        _verdict(asked, points, by),
        [_row(point) for point in points],
        found=best is not None,
        notes=[
            "Every machine is planned on its own, with the layout and framework that suit it.",
            *_unsure(points),
        ],
        against=[one if isinstance(one, str) else described("machine", one) for one in against],
        nodes=nodes,
        same=same,
        by=by,
    )


def _nodes(asked: Asked, place: Machine, nodes: int, same: str) -> int:
    """Nodes of a machine with as many nodes, or at least as many devices, as the first has."""
    devices = nodes * asked.per_node
    return -(-devices // place.node.num_devices) if same == "devices" else nodes


def _on(asked: Asked, place: Machine, count: int) -> Point:
    """The job on another machine."""
    try:
        place.peak(asked.workload.base_precision)
    except PlannerError as error:
        return no_point(count, place, asked.workload, error.plain)
    return asked.at(machine=place).tried_on(count)


def _row(point: Point) -> Row:
    return {"machine": point.machine.name, **point.row()}


def _verdict(asked: Asked, points: list[Point], by: str) -> str:
    best, *others = points
    if not best.fits:
        return f"{asked.model.name} fits on none of them: {best.reason}."
    said = f"{on_nodes(best)} ({_devices(best)})"
    one, hours = best.nodes == 1, by == "node-hours"
    what = f"{'is' if one else 'are'} the fastest"
    if hours:
        what = f"take{'s' * one} the fewest node-hours"
    tail = f"{format_amount(best.node_hours)} node-hours for {amount(best.workload)}"
    second = next((point for point in others if point.fits), None)
    if second is None or second.best is None or best.best is None:
        return f"{said} alone can run {asked.model.name}: {best.spoken()}; {tail}."
    measure = "node_hours" if hours else "seconds"
    ratio = getattr(second, measure) / getattr(best, measure)
    overlap = _overlap(best, second, ratio)
    takes, length = f"take{'s' * (second.nodes == 1)}", "many" if hours else "long"
    times = f"{takes} {ratio:.2f} times as {length}{overlap}"
    if f"{ratio:.2f}" == "1.00":
        times = f"{takes} as {length}"
    return (
        f"{said} {what}: {best.spoken()}; {tail}. {on_nodes(second)} ({_devices(second)}) {times}."
    )


def _devices(point: Point) -> str:
    return counted(point.nodes * point.machine.node.num_devices, "device")


def _overlap(best: Point, second: Point, ratio: float) -> str:
    """Whether the intervals leave the order open; `ratio` is the second's over the best's."""
    assert best.best is not None
    assert second.best is not None
    highest = best.best.interval_step_time_s[1] / best.best.step_time_s
    lowest = ratio * second.best.interval_step_time_s[0] / second.best.step_time_s
    return ", but their 90 % intervals overlap" if lowest < highest else ""


def _unsure(points: list[Point]) -> list[str]:
    guessed = [p.machine.name for p in points if p.fits and not p.machine.evidence]
    if not guessed:
        return []
    return [f"No measured run stands behind estimates for {', '.join(guessed)}."]
