"""Start-up: what a job takes before its first step, part by part and node count by node count."""

from __future__ import annotations

from typing import Annotated, Unpack

from planner.ask.answer import Answer, Row
from planner.ask.asked import Asked, JobFields, asked_of
from planner.ask.fewest import doublings
from planner.ask.option import Option, checked
from planner.ask.point import Point, on_nodes
from planner.ask.resources.nodes import MostNodes, up_to
from planner.cost.shards.layouts import Layouts
from planner.describe.machine import Machine
from planner.describe.model.model import Model
from planner.describe.training_run import Environment, Loading, StartUp
from planner.errors import LayoutError
from planner.training.resilience.start import START_PARTS, start_up
from planner.units import counted, format_seconds

__all__ = ["startup"]

_FIRST = Option("Fewest nodes to look at.", least=1)
_MOST_S = 1e6


@checked
def startup(
    model: str | Model,
    machine: str | Machine,
    *,
    nodes: Annotated[int, _FIRST] = 1,
    most_nodes: MostNodes = None,
    environment: Annotated[
        Environment,
        Option("Where the Python environment lies: a parallel file system, the nodes, or NFS."),
    ] = "file-system",
    loading: Annotated[
        Loading, Option("How the job gets its weights: none makes them, others read a checkpoint.")
    ] = "none",
    global_groups: Annotated[
        bool, Option("Whether all ranks wait for each other at every process group that is made.")
    ] = False,
    compile_s: Annotated[
        float, Option("Seconds to compile the model.", least=0, most=_MOST_S)
    ] = 0.0,
    data_index_s: Annotated[
        float, Option("Seconds to build or read the dataset's index.", least=0, most=_MOST_S)
    ] = 0.0,
    warm_up_s: Annotated[
        float, Option("Seconds that the first steps take longer.", least=0, most=_MOST_S)
    ] = 0.0,
    **job: Unpack[JobFields],
) -> Answer:
    """What the start of a job takes on doublings of the nodes, of the recommended layouts.

    Parts follow one after the other: launch, imports, process groups, communicators, the model, its
    weights, the dataset's index, compilation, slower first steps. Only those that depend on the
    machine and on the ranks are modelled; the others are as long as they are stated.

    >>> import planner
    >>> job = planner.Workload(sequence_length=1024, global_batch=64)
    >>> answer = planner.ask.startup("gpt2", "polaris", workload=job, most_nodes=2)
    >>> [row["nodes"] for row in answer.rows], answer.rows[0]["imports_s"]
    ([1, 2], 51.0)
    """
    asked = asked_of(model, machine, job)
    limit = up_to(asked, most_nodes)
    if nodes > limit:
        raise LayoutError(f"nodes = {nodes} exceeds most_nodes = {limit}; give fewer, or more")
    start = StartUp(
        environment=environment,
        loading=loading,
        ordered_groups=not global_groups,
        compile_s=compile_s,
        data_index_s=data_index_s,
        warm_up_s=warm_up_s,
    )
    points = [asked.tried_on(count) for count in doublings(range(nodes, limit + 1))]
    rows = _without_nothing([_row(point, start) for point in points])
    fitting = [row for row in rows if row["fits"]]
    return asked.answer(
        "startup",
        _verdict(asked, points, fitting),
        rows,
        found=bool(fitting),
        notes=_notes(points, start),
        nodes=nodes,
        most_nodes=most_nodes,
        environment=environment,
        loading=loading,
        global_groups=global_groups,
        compile_s=compile_s,
        data_index_s=data_index_s,
        warm_up_s=warm_up_s,
    )


def _parts(point: Point, start: StartUp) -> dict[str, float]:
    assert point.best is not None
    assert point.scenario is not None
    found = start_up(point.scenario, Layouts.of(point.best.layout), start)
    return {name: float(part) for name, part in found.items()}


def _row(point: Point, start: StartUp) -> Row:
    place = {"nodes": point.nodes, "devices": point.nodes * point.machine.node.num_devices}
    if point.best is None:
        return {**place, "fits": False, "reason": point.reason}
    parts = _parts(point, start)
    total = sum(parts.values())
    largest = max(parts, key=lambda name: parts[name])
    return {
        **place,
        "fits": True,
        "framework": point.best.framework,
        "layout": str(point.best.layout),
        "start_s": total,
        **{f"{name}_s": seconds for name, seconds in parts.items()},
        "node_hours": point.nodes * total / 3600,
        "reason": f"{START_PARTS[largest]} {100 * parts[largest] / total:.0f} %",
    }


def _without_nothing(rows: list[Row]) -> list[Row]:
    """Rows without parts that take nothing in any of them."""
    nothing = {f"{name}_s" for name in START_PARTS}
    nothing -= {name for row in rows for name in nothing if row.get(name)}
    return [{name: value for name, value in row.items() if name not in nothing} for row in rows]


def _verdict(asked: Asked, points: list[Point], fitting: list[Row]) -> str:
    if not fitting:
        return (
            f"{asked.model.name} fits on none of the node counts that were looked at: "
            f"{points[-1].reason}."
        )
    first, last = fitting[0], fitting[-1]
    point = next(one for one in points if one.nodes == first["nodes"])
    said = (
        f"A job of {asked.model.name} takes {format_seconds(first['start_s'])} to start on "
        f"{on_nodes(point)} ({first['reason']})"
    )
    if first is last:
        return f"{said}."
    more = f"{format_seconds(last['start_s'])} on {counted(last['nodes'], 'node')}"
    return f"{said}, {more} ({last['reason']})."


def _notes(points: list[Point], start: StartUp) -> list[str]:
    """What would start sooner, and what is not counted."""
    lines = []
    able = [point for point in points if point.best is not None]
    if able:
        lines = _advice(able[-1], start)
    return [
        *lines,
        "Not counted: waiting in the queue, modules, what is staged before the launch, evaluation "
        "before the first step. Imports are those of a first run, as measured on 8 nodes of "
        "Frontier; they are seconds where the nodes have the files in memory.",
        "Compilation, the dataset's index and slower first steps are as long as they are stated.",
    ]


def _advice(point: Point, start: StartUp) -> list[str]:
    """Other ways to start, by the same formulas."""
    now = sum(_parts(point, start).values())
    on = f"on {counted(point.nodes, 'node')}"
    lines = []
    if start.environment != "local-disk" and point.machine.num_nodes.value > 1:
        other = sum(_parts(point, start.replaced(environment="local-disk")).values())
        lines.append(
            f"With the Python environment brought to the nodes as one file (sbcast, a container, a "
            f"squashed image) the start takes {format_seconds(other)} {on}, "
            f"{format_seconds(now - other)} less, besides bringing it there."
        )
    if start.ordered_groups:
        other = sum(_parts(point, start.replaced(ordered_groups=False)).values())
        if other - now > 1:
            lines.append(
                f"Where all ranks wait for each other at every group that is made, as with "
                f"torch's new_group without use_local_synchronization, the start takes "
                f"{format_seconds(other)} {on}, by an assumed time of such a wait; "
                "device meshes make groups without."
            )
    return lines
