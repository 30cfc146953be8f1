"""Transfers: traffic between nodes by parallel axis, and the cost of each offload path."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from operator import attrgetter
from typing import Unpack

import numpy as np

from planner.ask.answer import Row
from planner.ask.plan_point import (
    PlanPoint,
    plan_point,
    point_of,
    search_every_layout,
    step_time,
    with_interval,
)
from planner.ask.question import Findings, JobFields, nothing_fits, question
from planner.choose.jobs.job_spec import JobSpec
from planner.choose.plots import parallel_axes
from planner.choose.search.recommendation import recommend
from planner.choose.verdicts.differences import largest_parts
from planner.choose.verdicts.layout_words import estimate_words
from planner.cost.estimate import Estimate, estimate_layouts
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.describe.machine.variants import override_fields
from planner.describe.workload import Workload
from planner.errors import LayoutError
from planner.units import counted, format_bytes, format_rate, format_seconds


def _data_parallel(x: Layouts) -> np.ndarray:
    return np.asarray(x.tp * x.pp * x.cp * x.ep == 1)


def _in_groups(x: Layouts) -> np.ndarray:
    return np.asarray((x.dp_shard < x.dp) | (x.reshard > 0))


_KINDS: dict[str, Callable[[Layouts], np.ndarray]] = {
    "recommended": lambda x: np.ones(np.shape(x.dp), dtype=bool),
    "sharded over all (ZeRO-3, FSDP)": lambda x: (
        _data_parallel(x) & x.shards_weights & ~_in_groups(x)
    ),
    "sharded inside groups (HSDP)": lambda x: _data_parallel(x) & x.shards_weights & _in_groups(x),
    "replicated or ZeRO-1": lambda x: _data_parallel(x) & (x.zero_stage <= 1),
}
"""Kinds of layouts to compare: a mask by name."""


@question
def network(job: JobSpec, *, nodes: int = 2, **_: Unpack[JobFields]) -> Findings:
    """Compare tokens/s per device on several nodes with one, and show traffic between nodes.

    One node has the same batch per node. A row is a parallel axis of a layout: the bytes that leave
    a node in a step, the least time for them at the full rate of all interfaces, and the exposed
    time of its communication.
    """
    if nodes < 2:
        raise LayoutError(f"nodes = {nodes}: nothing leaves one node; give 2 or more")
    job = job.replaced(nodes=nodes)
    chosen, candidates = search_every_layout(job)
    point = point_of(chosen, candidates, job)
    rows: list[Row] = []
    for name, is_kind in _KINDS.items():
        of_kind = [each.only(is_kind) for each in candidates.values()]
        if best := recommend(of_kind, job.tolerance):
            rows += _axis_rows(name, best, job, chosen.workload)
    share = max(round(job.workload.global_batch / nodes), 1)
    workload = job.workload.replaced(global_batch=share, ramp="")
    one_node = job.replaced(nodes=1, workload=workload)
    single = plan_point(one_node)
    if single.best is not None:
        rows += _axis_rows("one node", single.best, one_node, single.workload)
    if point.best is None:
        return replace(nothing_fits(point), rows=rows)
    machine = job.machine
    return Findings(
        _network_verdict(job, point.best, single.best, rows),
        rows,
        notes=[
            f"One node has a batch of {share:,}, as many sequences as each of "
            f"{counted(nodes, 'node')} has.",
            f"A node sends at most {format_rate(machine.bytes_per_s_between(nodes))}; collectives "
            "reach a part of it.",
        ],
    )


def _axis_rows(name: str, estimate: Estimate, job: JobSpec, workload: Workload) -> Iterator[Row]:
    machine = job.machine.network_of(estimate.framework)
    columns = {
        "what": name,
        "nodes": job.nodes,
        "framework": estimate.framework,
        "layout": str(estimate.layout),
        **with_interval("step_time_s", estimate.step_time_s, estimate.interval_step_time_s),
        "tokens_per_s_per_device": estimate.tokens_per_s / job.num_devices,
    }
    job = job.replaced(machine=machine, workload=workload)
    axes = parallel_axes(job.scenario_of(estimate), estimate)
    rate = machine.bytes_per_s_between(job.nodes)
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


def _network_verdict(job: JobSpec, best: Estimate, single: Estimate | None, rows: list[Row]) -> str:
    """Compare tokens/s per device with one node, and sum up the traffic that leaves a node."""
    rate = best.tokens_per_s / job.num_devices
    sentence = (
        f"{job.model.name} has {rate:,.0f} tokens/s per device on {counted(job.nodes, 'node')}"
    )
    if single is not None:
        single_rate = single.tokens_per_s / job.machine.node.num_devices
        change = f"{100 * abs(rate / single_rate - 1):.1f} %"
        direction = "less" if rate < single_rate else "more"
        sentence += f", {change} {direction} than the {single_rate:,.0f} on one"
    crossing_rows = [r for r in rows if r["what"] == "recommended" and r.get("leaves_node_bytes")]
    if not crossing_rows:
        return f"{sentence}; nothing leaves a node."
    leaving, least_s, exposed_s = (
        sum(float(row[column]) for row in crossing_rows)
        for column in ("leaves_node_bytes", "least_time_s", "exposed_s")
    )
    sentence += (
        f": each node sends {format_bytes(leaving)} per step of "
        f"{format_seconds(best.step_time_s)}; its interfaces need at least "
        f"{format_seconds(least_s)}, and {format_seconds(exposed_s)} are exposed"
    )
    hybrid = next((row for row in rows if row["what"].endswith("(HSDP)")), None)
    if hybrid is None or hybrid["layout"] == str(best.layout):
        return f"{sentence}."
    hybrid_rate = hybrid["tokens_per_s_per_device"]
    return f"{sentence}. Sharding inside groups ({hybrid['layout']}) has {hybrid_rate:,.0f}."


_SLOWEST, _INFINITE = 1e6, 1e18
# lowest and highest rate that a description may state [B/s]


_DISK = "node.local_disk"
_PATHS = (
    ("link between host and device", ("node.host_link_bytes_per_s",), "device"),
    ("memory of the host (optimizer on the CPU)", ("node.host_memory_bytes_per_s",), "node"),
    ("local disk", (f"{_DISK}.read_bytes_per_s", f"{_DISK}.write_bytes_per_s"), "node"),
)
"""Paths of offloaded bytes: name, machine fields of the limiting rates, unit that has them."""


@question
def offload(
    job: JobSpec, *, nodes: int = 1, share: float = 10.0, **_: Unpack[JobFields]
) -> Findings:
    """Show how much each offload path adds to the step, and how fast it would have to be.

    Uses the best layout that offloads. The time of a path is the step time saved if the path were
    infinitely fast, so hidden transfers do not count. The needed rate is 0 if every rate is fast
    enough.
    """
    job = job.replaced(nodes=nodes)
    chosen, parts = search_every_layout(job)
    point = point_of(chosen, parts, job)
    offloading = [each.only(lambda x: np.asarray(~x.keeps_states)) for each in parts.values()]
    best = recommend(offloading, job.tolerance)
    if best is None:
        without = f", nor does one without offload: {point.reason}"
        if point.fits:
            without = f"; without offload: {point.describe()}"
        verdict = f"No layout that offloads fits on {point.place}{without}."
        return Findings(verdict, [], success=False)
    scenario = parts[best.framework].scenario
    has_disk = scenario.machine.node.local_disk is not None
    rows = [
        {"way": name, "of_each": owner, **_path_columns(scenario, best, rates, share / 100)}
        for name, rates, owner in (_PATHS if has_disk else _PATHS[:-1])
    ]
    return Findings(
        _slowest_path(best, point, rows, share),
        rows,
        notes=[
            f"The layout: {best.layout} [{best.framework}].",
            f"Needed rate: the path alone then takes {share:g} % of the rest of the step.",
            "Not counted: NUMA, pageable copies, how processes are bound.",
        ],
    )


def _path_columns(scenario: Scenario, best: Estimate, names: tuple[str, ...], share: float) -> Row:
    rates = {name: attrgetter(name)(scenario.machine) for name in names}

    def step_s(factor: float) -> float:
        values = {n: min(max(factor * q.value, _SLOWEST), _INFINITE) for n, q in rates.items()}
        overrides = tuple(f"{name}={value!r}" for name, value in values.items())
        faster = replace(scenario, machine=override_fields(scenario.machine, overrides))
        return estimate_layouts(faster, Layouts.stack([best.layout]))[0].step_time_s

    shortest_s, rate = step_s(_INFINITE), rates[names[0]]
    path_s = max(best.step_time_s - shortest_s, 0.0)
    most_s = share * (best.step_time_s - best.step_time_parts_s["offload"])
    slowest = _SLOWEST / rate.value
    factor = _least_factor(lambda factor: step_s(factor) - shortest_s <= most_s, slowest)
    return {
        "time_s": path_s,
        "step_fraction": path_s / best.step_time_s,
        "bytes_per_s": rate.value,
        "needed_bytes_per_s": factor * rate.value,
        "reason": f"{rate.kind}: {rate.source}",
    }


def _least_factor(suffices: Callable[[float], bool], slowest: float) -> float:
    """Find the smallest sufficient rate factor, within 0.1 %; 0 if `slowest` is sufficient."""
    if suffices(slowest):
        return 0.0
    high = 1.0
    while not suffices(high):
        high *= 2
    low = high / 2
    while low > slowest and suffices(low):
        low, high = low / 2, low
    while high > 1.001 * low:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if suffices(middle) else (middle, high)
    return high


def _slowest_path(best: Estimate, point: PlanPoint, rows: list[Row], share: float) -> str:
    """Name the offload time of the step, its slowest path, and the step without offload."""
    sentence = (
        f"With {best.layout.offload} offload {step_time(best)}, "
        f"{format_seconds(best.step_time_parts_s['offload'])} of it for offload"
    )
    slowest, plain = max(rows, key=lambda row: float(row["time_s"])), point.best
    if slowest["time_s"] > 0:
        sentence += (
            f"; the {slowest['way']} takes most: {format_rate(slowest['bytes_per_s'])} per "
            f"{slowest['of_each']}, where {format_rate(slowest['needed_bytes_per_s'])} would "
            f"reduce it to {share:g} %"
        )
    if plain is not None and plain.layout.offload == "none":
        ratio = best.step_time_s / plain.step_time_s
        sentence += f"; without offload {estimate_words(plain)} is {ratio:.2f} times as fast"
    return f"{sentence}."
