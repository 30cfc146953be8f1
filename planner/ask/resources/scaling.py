"""Scaling: how a job grows with the nodes, and where that stops to pay."""

from __future__ import annotations

from typing import Annotated, Literal, Unpack

from planner.ask.answer import Answer, Row
from planner.ask.asked import Asked, JobFields, asked_of
from planner.ask.fewest import doublings
from planner.ask.option import Option, checked
from planner.ask.point import Point, between, no_point, on_nodes
from planner.ask.resources.nodes import MostNodes, up_to
from planner.describe.machine import Machine
from planner.describe.model.model import Model
from planner.errors import PlannerError
from planner.units import counted

__all__ = ["scaling"]


@checked
def scaling(
    model: str | Model,
    machine: str | Machine,
    *,
    nodes: Annotated[int, Option("Nodes that the batch is stated for.", least=1)] = 1,
    kind: Annotated[
        Literal["strong", "weak"],
        Option("strong keeps the global batch; weak lets it grow with the nodes."),
    ] = "strong",
    efficiency: Annotated[
        float, Option("Percent of parallel efficiency down to which it pays.", least=1, most=100)
    ] = 80.0,
    most_nodes: MostNodes = None,
    **job: Unpack[JobFields],
) -> Answer:
    """Step time, throughput and parallel efficiency on doublings of the nodes, and the knee.

    Efficiency is tokens per second and node over those of the first count on which the job runs as
    people would run it (the first that fits where none does). The knee is a plain rule: the last
    count before efficiency falls below the percentage that is asked.

    >>> import planner
    >>> job = planner.Workload(sequence_length=1024, global_batch=64)
    >>> planner.ask.scaling("gpt2", "polaris", workload=job, most_nodes=2).rows[0]["efficiency"]
    1.0
    """
    asked = asked_of(model, machine, job)
    limit = up_to(asked, most_nodes)
    points = [_sized(asked, n, nodes, kind) for n in doublings(range(1, limit + 1))]
    fitting = [point for point in points if point.fits]
    first = next((point for point in fitting if point.sensible), fitting[0] if fitting else None)
    rows = [_row(point, first) for point in points]
    knee = _knee(points, rows, first, efficiency / 100)
    return asked.answer(
        "scaling",
        _verdict(asked, kind, first, knee, efficiency, rows),
        rows,
        found=first is not None,
        notes=_notes(first, efficiency),
        nodes=nodes,
        kind=kind,
        efficiency=efficiency,
        most_nodes=most_nodes,
        knee=knee.nodes if knee else None,
    )


def _notes(first: Point | None, efficiency: float) -> list[str]:
    over = "nothing" if first is None else f"those on {counted(first.nodes, 'node')}"
    return [
        f"Efficiency is tokens/s of a node over {over}.",
        f"The knee is the last doubling before efficiency falls below {efficiency:g} %.",
    ]


def _sized(asked: Asked, count: int, nodes: int, kind: str) -> Point:
    """The job on some nodes, with its batch; none where there is no such batch."""
    if kind == "strong":
        return asked.tried_on(count)
    batch = max(round(asked.workload.global_batch * count / nodes), 1)
    try:
        workload = asked.workload.replaced(global_batch=batch)
    except PlannerError as error:
        return no_point(count, asked.machine, asked.workload, error.plain)
    return asked.at(workload=workload).tried_on(count)


def _efficiency(point: Point, first: Point) -> float:
    assert point.best is not None
    assert first.best is not None
    return point.best.tokens_per_s / point.nodes / (first.best.tokens_per_s / first.nodes)


def _row(point: Point, first: Point | None) -> Row:
    row = point.row()
    if not point.fits or first is None:
        return row
    reason = row.pop("reason")
    batch = {"global_batch": point.workload.global_batch}
    return {**row, **batch, "efficiency": _efficiency(point, first), "reason": reason}


def _knee(points: list[Point], rows: list[Row], first: Point | None, least: float) -> Point | None:
    """The last point before efficiency falls too low."""
    knee = None
    for point, row in zip(points, rows, strict=True):
        if first is None or point.nodes < first.nodes:
            continue
        if row.get("efficiency", 0.0) < least:
            break
        knee = point
    return knee


def _verdict(
    asked: Asked,
    kind: str,
    first: Point | None,
    knee: Point | None,
    efficiency: float,
    rows: list[Row],
) -> str:
    if first is None or knee is None or knee.best is None:
        return (
            f"{asked.model.name} fits on no number of nodes of {asked.machine.name} that was "
            f"searched: {rows[-1]['reason']}."
        )
    after = next((row for row in rows if row["nodes"] > knee.nodes), None)
    said = (
        f"{kind.capitalize()} scaling of {asked.model.name} pays up to {on_nodes(knee)}: "
        f"{100 * _efficiency(knee, first):.0f} % of the tokens/s per node on "
        f"{counted(first.nodes, 'node')}, {between(knee.best)}"
    )
    if after is None and knee.nodes == rows[-1]["nodes"]:
        return f"{said}; that is the largest number that was searched."
    if after is None:
        return f"{said}; no larger number that was searched falls below {efficiency:g} %."
    larger = f"{said}; on {counted(after['nodes'], 'node')}"
    if not after["fits"]:
        return f"{larger} it does not fit ({after['reason']})."
    return f"{larger} it is {100 * after['efficiency']:.0f} % ({after['reason']})."
