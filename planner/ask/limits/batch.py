"""Batch: the best global batch near the one that is asked for."""

from __future__ import annotations

from typing import Annotated, Unpack

from planner.ask.answer import Answer, Row
from planner.ask.asked import Asked, JobFields, asked_of
from planner.ask.option import Nodes, Option, checked
from planner.ask.point import Point, no_point, on_nodes
from planner.describe.machine import Machine
from planner.describe.model.model import Model
from planner.errors import PlannerError
from planner.units import counted

__all__ = ["batch", "near"]

_MOST = 12


@checked
def batch(
    model: str | Model,
    machine: str | Machine,
    *,
    nodes: Nodes = 1,
    within: Annotated[
        float, Option("Factor by which the batch may be larger or smaller.", least=1, most=64)
    ] = 1.25,
    **job: Unpack[JobFields],
) -> Answer:
    """The nearest global batch with about the most tokens per second and device within a factor.

    About: within the tolerance (5 % unless said) of the most. Looked at are the batch itself and
    the nearest that all devices, half of them, and so on, share evenly, each searched. Larger
    batches are faster as steps go, not always as learning goes.

    >>> import planner
    >>> job = planner.Workload(sequence_length=1024, global_batch=63)
    >>> planner.ask.batch("gpt2", "polaris", nodes=4, workload=job).asked["best"]
    64
    """
    asked = asked_of(model, machine, job)
    mine = asked.workload.global_batch
    points = {mine: _sharing(mine, asked.on(nodes))}
    sizes = near(mine, nodes * asked.per_node, within)
    points |= {size: _with(asked, size, nodes) for size in sizes if size != mine}
    fitting = {size: point for size, point in points.items() if point.safe}
    best = _nearest(fitting, asked)
    return asked.answer(
        "batch",
        _verdict(asked, points, best, nodes),
        [_row(size, points, asked) for size in sizes],
        found=best is not None,
        notes=[
            f"Taken is the nearest whose tokens/s are within {100 * asked.tolerance:g} % of the "
            "most, not the fastest.",
            f"{counted(len(points), 'size')} of the batch searched, within a factor of {within:g}.",
            "How much a step of another size learns is not estimated; "
            "learning rates are scaled with it.",
        ],
        nodes=nodes,
        within=within,
        best=best,
    )


def near(size: int, ranks: int, within: float) -> list[int]:
    """Batches within a factor of one that ranks, or a half, a fourth ... of them, share evenly [1].

    Counted: the batch itself, and up to eleven others, those shared by more ranks first, then
    nearer ones. Left out: all others. Definition.

    >>> near(100, 16, 1.25)
    [80, 84, 88, 92, 96, 100, 104, 108, 112, 116, 120, 124]
    """
    low, high = size / within, size * within
    found = [size]
    while ranks >= 1 and len(found) <= _MOST:
        multiples = range(-int(-low // ranks) * ranks, int(high) + 1, ranks)
        if len(multiples) > _MOST and len(found) > 1:
            break
        found += sorted((n for n in multiples if n and n not in found), key=lambda n: abs(n - size))
        if ranks % 2:
            break
        ranks //= 2
    return sorted(found[:_MOST])


def _with(asked: Asked, size: int, nodes: int) -> Point:
    """The point of another batch."""
    try:
        workload = asked.workload.replaced(global_batch=size)
    except PlannerError as error:
        return no_point(nodes, asked.machine, asked.workload, error.plain)
    return _sharing(size, asked.at(workload=workload).tried_on(nodes))


def _sharing(size: int, point: Point) -> Point:
    """The point of a batch; none where the job could be answered only with another one."""
    other = point.workload.global_batch
    if not point.fits or other == size:
        return point
    reason = f"no layout that one would run shares it; {other:,} is near"
    return no_point(point.nodes, point.machine, point.workload, reason)


def _nearest(fitting: dict[int, Point], asked: Asked) -> int | None:
    """The batch nearest to the one asked of those that are about as fast as the fastest."""
    if not fitting:
        return None
    enough = max(map(_rate, fitting.values())) / (1 + asked.tolerance)
    fast = [size for size, point in fitting.items() if _rate(point) >= enough]
    return min(fast, key=lambda size: (abs(size - asked.workload.global_batch), size))


def _rate(point: Point) -> float:
    return point.best.tokens_per_s if point.best else 0.0


def _row(size: int, points: dict[int, Point], asked: Asked) -> Row:
    point, mine = points[size], points[asked.workload.global_batch]
    row = {"global_batch": size, **point.row()}
    reason = row.pop("reason")
    devices = point.nodes * asked.per_node
    if point.fits:
        row["tokens_per_s_per_device"] = _rate(point) / devices
    if point.fits and mine.fits:
        row["gain"] = _rate(point) / _rate(mine) - 1
    return {**row, "reason": reason}


def _verdict(asked: Asked, points: dict[int, Point], best: int | None, nodes: int) -> str:
    size = asked.workload.global_batch
    mine = points[size]
    if best is None:
        return f"No batch near {size:,} is safe in memory on {on_nodes(mine)}: {mine.reason}."
    point, devices = points[best], nodes * asked.per_node
    rate = f"{_rate(point) / devices:,.0f} tokens/s per device"
    if best == size:
        return f"A batch of {size:,} is about as fast as any near it: {rate}; {point.spoken()}."
    said = f"A batch of {best:,} is better than {size:,}: {rate}"
    if not mine.fits:
        return f"{said}, {point.spoken()}; {size:,} itself: {mine.reason}."
    gain = 100 * (_rate(point) / _rate(mine) - 1)
    return f"{said}, {gain:.1f} % more than {_rate(mine) / devices:,.0f}; {point.spoken()}."
