"""Start-up time: what a job takes before its first step, part by part, on more and more nodes."""

from __future__ import annotations

from typing import Annotated, Unpack

from planner.ask.answer import Row
from planner.ask.option import MostNodes, Option
from planner.ask.plan_point import PlanPoint
from planner.ask.question import Findings, JobFields, question
from planner.ask.resources.node_counts import count_range
from planner.ask.rules import doublings
from planner.ask.scan import scan
from planner.choose.jobs.job_spec import JobSpec
from planner.cost.shards.layouts import Layouts
from planner.describe.training.training_run import Environment, Loading, StartUp
from planner.training.resilience.start import START_PARTS, start_up
from planner.units import counted, format_seconds

__all__ = ["startup"]

_MOST_S = 1e6


@question
def startup(
    job: JobSpec,
    *,
    nodes: Annotated[int, Option("Fewest nodes to look at.", least=1)] = 1,
    most_nodes: MostNodes = None,
    environment: Annotated[
        Environment,
        Option("Where the Python environment lies: a parallel file system, the nodes, or NFS."),
    ] = "file-system",
    loading: Annotated[
        Loading, Option("How the job gets its weights: none makes them, others read a checkpoint.")
    ] = "none",
    global_groups: Annotated[
        bool, Option("All ranks wait for each other at every process group that is made.")
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
    **_: Unpack[JobFields],
) -> Findings:
    """Show the start of a job on doublings of the nodes, for the recommended layouts.

    Parts follow one after the other: launch, imports, process groups, communicators, the model, its
    weights, the dataset's index, compilation, slower first steps. Parts that depend on the machine
    and the ranks are modelled; the others are as long as stated.
    """
    start = StartUp(
        environment=environment,
        loading=loading,
        ordered_groups=not global_groups,
        compile_s=compile_s,
        data_index_s=data_index_s,
        warm_up_s=warm_up_s,
    )
    points = scan(job, "nodes", doublings(count_range(job, nodes, most_nodes)))
    rows = _without_empty_parts([_row(point, start) for _, point in points.by_value()])
    fitting = points.fitting()
    return Findings(
        _verdict(job, points[max(points.points)], [row for row in rows if row["fits"]]),
        rows,
        notes=[
            *(_advice(fitting[-1], start) if fitting else ()),
            "Not counted: waiting in the queue, modules, staging before the launch, evaluation "
            "before the first step. Imports are those of a first run, as measured on 8 nodes of "
            "Frontier; they take seconds where the nodes have the files in memory.",
            "Compilation, the dataset's index and slower first steps are as long as stated.",
        ],
        success=bool(fitting),
    )


def _parts(point: PlanPoint, start: StartUp) -> dict[str, float]:
    assert point.best is not None
    assert point.scenario is not None
    parts = start_up(point.scenario, Layouts.of(point.best.layout), start)
    return {name: float(seconds) for name, seconds in parts.items()}


def _row(point: PlanPoint, start: StartUp) -> Row:
    columns = {"nodes": point.nodes, "devices": point.devices, "fits": point.fits}
    if point.best is None:
        return {**columns, "reason": point.reason}
    parts = _parts(point, start)
    total = sum(parts.values())
    largest = max(parts, key=lambda name: parts[name])
    return {
        **columns,
        "framework": point.best.framework,
        "layout": str(point.best.layout),
        "start_s": total,
        **{f"{name}_s": seconds for name, seconds in parts.items()},
        "node_hours": point.nodes * total / 3600,
        "reason": f"{START_PARTS[largest]} {100 * parts[largest] / total:.0f} %",
    }


def _without_empty_parts(rows: list[Row]) -> list[Row]:
    """Drop the columns of parts that are 0 in every row."""
    empty = {f"{name}_s" for name in START_PARTS}
    empty -= {name for row in rows for name in empty if row.get(name)}
    return [{name: value for name, value in row.items() if name not in empty} for row in rows]


def _verdict(job: JobSpec, last: PlanPoint, rows: list[Row]) -> str:
    if not rows:
        return f"{job.model.name} fits on no node count that was planned: {last.reason}."
    times = [
        f"{format_seconds(row['start_s'])} on {counted(row['nodes'], 'node')} ({row['reason']})"
        for row in (rows[0], *rows[1:][-1:])
    ]
    return f"A job of {job.model.name} on {job.machine.name} starts in {', in '.join(times)}."


def _advice(point: PlanPoint, start: StartUp) -> list[str]:
    """Compare other ways to start by the same formulas."""
    now_s = sum(_parts(point, start).values())
    place = f"on {counted(point.nodes, 'node')}"
    lines = []
    if start.environment != "local-disk" and point.machine.num_nodes.value > 1:
        local_s = sum(_parts(point, start.replaced(environment="local-disk")).values())
        lines.append(
            f"With the Python environment brought to the nodes as one file (sbcast, a container, a "
            f"squashed image) the start takes {format_seconds(local_s)} {place}, "
            f"{format_seconds(now_s - local_s)} less, plus the time to bring it there."
        )
    if start.ordered_groups:
        waiting_s = sum(_parts(point, start.replaced(ordered_groups=False)).values())
        if waiting_s - now_s > 1:
            lines.append(
                f"If all ranks wait for each other at every new group, as with torch's new_group "
                f"without use_local_synchronization, the start takes {format_seconds(waiting_s)} "
                f"{place}, by an assumed time of such a wait; device meshes do not wait."
            )
    return lines
