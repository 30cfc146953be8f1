"""Nodes: on how few a job fits, fits safely, and fits as people would run it."""

from __future__ import annotations

from typing import Annotated, Unpack

from planner.ask.answer import Answer
from planner.ask.asked import Asked, JobFields, Points, asked_of
from planner.ask.fewest import doublings, fewest
from planner.ask.option import Option, checked
from planner.ask.point import Point, on_nodes
from planner.choose.preferences import preferences
from planner.describe.machine import Machine
from planner.describe.model.model import Model
from planner.errors import LayoutError
from planner.units import counted

__all__ = ["MostNodes", "nodes", "up_to"]

MostNodes = Annotated[
    int | None, Option("Most nodes to look at; all of the machine where none is given.", least=1)
]
_ROWS = 3
# doublings shown beyond the sensible number


@checked
def nodes(
    model: str | Model,
    machine: str | Machine,
    *,
    most_nodes: MostNodes = None,
    **job: Unpack[JobFields],
) -> Answer:
    """The fewest nodes on which a job fits, on which it is safe, and on which one would run it.

    Safe: it runs out of memory with 5 % at most. As one would run it: besides, nothing is
    offloaded, tensor parallelism stays among wired devices, no pipeline is deeper than published
    ones, sequences are not cut short. Rows are the node counts that were searched.

    >>> import planner
    >>> job = planner.Workload(sequence_length=1024, global_batch=64)
    >>> planner.ask.nodes("gpt2-xl", "polaris", most_nodes=4, workload=job).rows[0]["nodes"]
    1
    """
    asked = asked_of(model, machine, job)
    limit = up_to(asked, most_nodes)
    points, counts = Points(asked), range(1, limit + 1)
    first = fewest(counts, lambda count: points(count).fits)
    safe = first and fewest(counts, lambda count: points(count).safe)
    sensible = safe and fewest(counts, lambda count: points(count).sensible)
    _more(points, sensible or safe or first, limit)
    searched = (
        f"{len(points.known)} of {counted(limit, 'node count')} searched: doublings, and below the "
        "first that holds all up to 16 or by bisection with three neighbours."
    )
    return asked.answer(
        "nodes",
        _verdict(points, limit, first, safe, sensible),
        points.rows,
        found=first is not None,
        notes=[*_notes(asked, sensible or safe or first), searched],
        most_nodes=most_nodes,
        fewest={"fits": first, "safe": safe, "sensible": sensible},
    )


def up_to(asked: Asked, most: int | None) -> int:
    """The most nodes to look at; LayoutError where the machine has not so many."""
    there = int(asked.machine.num_nodes.value)
    if most is not None and most > there:
        raise LayoutError(
            f"most_nodes = {most} exceeds the {there} nodes of {asked.machine.name}; use fewer, or "
            "set num_nodes to what it has"
        )
    return most or there


def _more(points: Points, found: int | None, limit: int) -> None:
    """Work out some doublings beyond what was found, for the table."""
    for count in [n for n in doublings(range(1, limit + 1)) if n > (found or limit)][:_ROWS]:
        points(count)


def _verdict(
    points: Points, limit: int, first: int | None, safe: int | None, sensible: int | None
) -> str:
    asked = points.asked
    where = f"{counted(limit, 'node')} of {asked.machine.name}"
    if first is None:
        none = "does not fit on" if limit == 1 else "fits on none of up to"
        return f"{asked.model.name} {none} {where}: {points(limit).reason}."
    if sensible is None:
        least = points(safe or first)
        return (
            f"{asked.model.name} fits from {on_nodes(points(first))} on, but on none of up to "
            f"{where} as one would run it: {least.spoken()}, {least.reason}."
        )
    best = points(sensible)
    said = f"{asked.model.name} runs well from {on_nodes(best)} on: {best.spoken()}."
    parts = []
    if first < sensible:
        parts.append(f"it fits from {counted(first, 'node')} on ({_odd(points(first))})")
    if safe and first < safe < sensible:
        parts.append(f"safely from {counted(safe, 'node')} on ({_odd(points(safe))})")
    return f"{said} {', '.join(parts).capitalize()}." if parts else said


def _odd(point: Point) -> str:
    return "; ".join(point.oddities) or "as one would run it"


def _notes(asked: Asked, found: int | None) -> list[str]:
    """Queues that admit what was found, and how safe safe is."""
    lines = [f"Safe: a chance of at most {100 * preferences().risk:.0f} % to run out of memory."]
    queues = asked.machine.scheduler.queues
    if found and queues:
        names = [q.name for q in queues if q.min_nodes <= found <= q.max_nodes]
        listed = ", ".join(names) or "none of the machine"
        lines.append(f"Queues that admit {counted(found, 'node')}: {listed}.")
    return lines
