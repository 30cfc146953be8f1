"""Node traffic: why several nodes are slower than one, axis by axis."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Unpack

import numpy as np

from planner.ask.answer import Row
from planner.ask.option import Option
from planner.ask.plan_point import largest_parts, plan_point, point_of, search_every_layout
from planner.ask.question import Findings, JobFields, question
from planner.choose.jobs.job_spec import JobSpec
from planner.choose.plots import parallel_axes
from planner.choose.recommendation import recommend
from planner.cost.estimate import Estimate
from planner.cost.shards.layouts import Layouts
from planner.describe.workload import Workload
from planner.errors import LayoutError
from planner.units import counted, format_bytes, format_rate, format_seconds

__all__ = ["network"]


def _data_parallel(x: Layouts) -> np.ndarray:
    return np.asarray(x.tp * x.pp * x.cp * x.ep == 1)


def _in_groups(x: Layouts) -> np.ndarray:
    return np.asarray((x.dp_shard < x.dp) | (x.reshard > 0))


_KINDS = {
    "recommended": lambda x: np.ones(np.shape(x.dp), dtype=bool),
    "sharded over all (ZeRO-3, FSDP)": lambda x: (
        _data_parallel(x) & x.shards_weights & ~_in_groups(x)
    ),
    "sharded inside groups (HSDP)": lambda x: _data_parallel(x) & x.shards_weights & _in_groups(x),
    "replicated or ZeRO-1": lambda x: _data_parallel(x) & (x.zero_stage <= 1),
}
"""Kinds of layouts to compare."""


@question
def network(
    job: JobSpec,
    *,
    nodes: Annotated[int, Option("Number of nodes.", least=1)] = 2,
    **_: Unpack[JobFields],
) -> Findings:
    """Compare tokens per second and device on some nodes and on one, and show what crosses nodes.

    One node has the same batch per node. A row is a parallel axis of a layout: what leaves a node
    for it in a step, the least time for that at the stated rate of all interfaces, and how much of
    its communication is exposed.
    """
    if nodes < 2:
        raise LayoutError(f"nodes = {nodes}: nothing leaves one node; give 2 or more")
    job = job.replaced(nodes=nodes)
    candidates = search_every_layout(job)
    point = point_of(job, candidates)
    rows: list[Row] = []
    for name, is_kind in _KINDS.items():
        of_kind = [each.only(is_kind) for each in candidates.by_framework.values()]
        best = recommend(of_kind, job.tolerance)
        if best is not None:
            rows += _axis_rows(name, best, job, candidates.workload)
    share = max(round(job.workload.global_batch / nodes), 1)
    workload = job.workload.replaced(global_batch=share, ramp="")
    one_node = job.replaced(nodes=1, workload=workload)
    single = plan_point(one_node)
    if single.best is not None:
        rows += _axis_rows("one node", single.best, one_node, single.workload)
    if point.best is None:
        verdict = f"Nothing fits on {point.place}: {point.reason}."
        return Findings(verdict, rows, success=False)
    machine = job.machine
    return Findings(
        _verdict(job, point.best, single.best, rows),
        rows,
        notes=[
            f"One node has a batch of {share:,}, as many sequences as each of "
            f"{counted(nodes, 'node')} has.",
            f"A node sends at most {format_rate(machine.node_bytes_per_s)} over its "
            f"{counted(machine.node.num_nics, 'interface')}; collectives reach a part of it.",
        ],
    )


def _axis_rows(name: str, estimate: Estimate, job: JobSpec, workload: Workload) -> Iterator[Row]:
    """A record for every parallel axis of a layout."""
    machine = job.machine.network_of(estimate.framework)
    columns = {
        "what": name,
        "nodes": job.nodes,
        "framework": estimate.framework,
        "layout": str(estimate.layout),
        "step_time_s": estimate.step_time_s,
        "step_time_low_s": estimate.interval_step_time_s[0],
        "step_time_high_s": estimate.interval_step_time_s[1],
        "tokens_per_s_per_device": estimate.tokens_per_s / job.num_devices,
    }
    axes = parallel_axes(job.model, machine, workload, estimate)
    rate = machine.node_bytes_per_s
    for axis in axes:
        leaving = axis.traffic.node_bytes if axis.nodes > 1 else 0.0
        yield {
            **columns,
            "axis": axis.name,
            "ranks": axis.size,
            "group_nodes": axis.nodes,
            "leaves_node_bytes": leaving,
            "least_time_s": leaving / rate if rate else 0.0,
            "exposed_s": axis.time_s,
            "reason": axis.carries,
        }
    if not axes:
        yield {**columns, "axis": "", "reason": largest_parts(estimate)}


def _verdict(job: JobSpec, best: Estimate, single: Estimate | None, rows: list[Row]) -> str:
    rate = best.tokens_per_s / job.num_devices
    sentence = (
        f"{job.model.name} has {rate:,.0f} tokens/s per device on {counted(job.nodes, 'node')}"
    )
    if single is not None:
        single_rate = single.tokens_per_s / job.machine.node.num_devices
        percent = 100 * abs(rate / single_rate - 1)
        direction = "less" if rate < single_rate else "more"
        sentence += f", {percent:.1f} % {direction} than the {single_rate:,.0f} on one"
    crossing = [r for r in rows if r["what"] == "recommended" and r.get("leaves_node_bytes")]
    if not crossing:
        return f"{sentence}; nothing leaves a node."
    leaving, least_s, exposed_s = (
        sum(float(row[column]) for row in crossing)
        for column in ("leaves_node_bytes", "least_time_s", "exposed_s")
    )
    sentence += (
        f": {format_bytes(leaving)} leave each node in a step of "
        f"{format_seconds(best.step_time_s)}, which takes its interfaces at least "
        f"{format_seconds(least_s)}; {format_seconds(exposed_s)} are exposed"
    )
    hybrid = next((row for row in rows if row["what"].endswith("(HSDP)")), None)
    if hybrid is None or hybrid["layout"] == str(best.layout):
        return f"{sentence}."
    hybrid_rate = hybrid["tokens_per_s_per_device"]
    return f"{sentence}. Sharding inside groups ({hybrid['layout']}) has {hybrid_rate:,.0f}."
