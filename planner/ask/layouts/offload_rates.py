"""Offload rates: what each path of offloaded bytes costs, and the rate that would hide it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any, NamedTuple, Unpack

import numpy as np

from planner.ask.answer import Row
from planner.ask.option import Nodes, Option
from planner.ask.plan_point import PlanPoint, point_of, search_every_layout
from planner.ask.question import Findings, JobFields, question
from planner.ask.sentences import step_time
from planner.choose.jobs.job_spec import JobSpec
from planner.choose.recommendation import recommend
from planner.cost.estimate import Estimate, estimate_layouts
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.describe.base import Quantity
from planner.describe.machine.variants import override_fields
from planner.units import format_rate, format_seconds

__all__ = ["offload"]

_SLOWEST, _INFINITE = 1e6, 1e18
# the lowest and highest rate that a description may state [B/s]


class _Path(NamedTuple):
    """A path of offloaded bytes: its name, the machine's rates that limit it, and their owner."""

    name: str
    rates: tuple[str, ...]
    owner: str


_PATHS = (
    _Path("link between host and device", ("node.host_link_bytes_per_s",), "device"),
    _Path("memory of the host (optimizer on the CPU)", ("node.host_memory_bytes_per_s",), "node"),
    _Path(
        "local disk",
        ("node.local_disk.read_bytes_per_s", "node.local_disk.write_bytes_per_s"),
        "node",
    ),
)


@question
def offload(
    job: JobSpec,
    *,
    nodes: Nodes = 1,
    share: Annotated[
        float, Option("Percent of the step that a path may take.", least=0.1, most=100)
    ] = 10.0,
    **_: Unpack[JobFields],
) -> Findings:
    """Show what each path of offloaded bytes adds to the step, and how fast it would have to be.

    Of the best layout that offloads. The time of a path is what the step would be shorter if the
    path were infinitely fast, so transfers hidden by others do not count. The rate needed is 0
    where every rate suffices.
    """
    job = job.replaced(nodes=nodes)
    candidates = search_every_layout(job)
    point = point_of(job, candidates)
    offloading = [
        each.only(lambda x: np.asarray(~x.keeps_states))
        for each in candidates.by_framework.values()
    ]
    best = recommend(offloading, job.tolerance)
    if best is None:
        without = (
            f"without, {point.describe()}" if point.fits else f"nor one without: {point.reason}"
        )
        separator = ": " if point.fits else ", "
        verdict = f"No layout that offloads fits on {point.place}{separator}{without}."
        return Findings(verdict, [], success=False)
    scenario = candidates.by_framework[best.framework].scenario
    has_disk = scenario.machine.node.local_disk is not None
    paths = [path for path in _PATHS if has_disk or path.name != "local disk"]
    rows = [_row(scenario, best, path, share / 100) for path in paths]
    return Findings(
        _verdict(best, point, rows, share),
        rows,
        notes=[
            f"The layout: {best.layout} [{best.framework}].",
            f"Needed is the rate at which a path alone takes {share:g} % of the rest of the step.",
            "Not counted: NUMA, pageable copies, how processes are bound.",
        ],
    )


def _row(scenario: Scenario, best: Estimate, path: _Path, share: float) -> Row:
    rates = {name: _quantity(scenario.machine, name) for name in path.rates}

    def step_s(factor: float) -> float:
        values = {
            name: min(max(factor * q.value, _SLOWEST), _INFINITE) for name, q in rates.items()
        }
        overrides = tuple(f"{name}={value!r}" for name, value in values.items())
        faster = replace(scenario, machine=override_fields(scenario.machine, overrides))
        return estimate_layouts(faster, Layouts.stack([best.layout]))[0].step_time_s

    shortest_s = step_s(_INFINITE)
    path_s = max(best.step_time_s - shortest_s, 0.0)
    other_s = best.step_time_s - best.step_time_parts_s["offload"]
    rate = next(iter(rates.values()))
    factor = _least_factor(
        lambda factor: step_s(factor) - shortest_s <= share * other_s, _SLOWEST / rate.value
    )
    return {
        "way": path.name,
        "of_each": path.owner,
        "time_s": path_s,
        "step_fraction": path_s / best.step_time_s,
        "bytes_per_s": rate.value,
        "needed_bytes_per_s": factor * rate.value,
        "reason": f"{rate.kind}: {rate.source}",
    }


def _quantity(machine: Any, path: str) -> Quantity:
    for name in path.split("."):
        machine = getattr(machine, name)
    assert isinstance(machine, Quantity)
    return machine


def _least_factor(suffices: Callable[[float], bool], slowest: float) -> float:
    """Find the least factor of a rate that suffices, to a thousandth; 0 if the slowest does.

    >>> round(_least_factor(lambda factor: factor >= 3.0, 1e-6), 2), _least_factor(bool, 1e-6)
    (3.0, 0.0)
    """
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


def _verdict(best: Estimate, point: PlanPoint, rows: list[Row], share: float) -> str:
    sentence = (
        f"With {best.layout.offload} offload {step_time(best)}, "
        f"{format_seconds(best.step_time_parts_s['offload'])} of it for offload"
    )
    slowest = max(rows, key=lambda row: float(row["time_s"]))
    if slowest["time_s"] > 0:
        sentence += (
            f"; the {slowest['way']} takes most: {format_rate(slowest['bytes_per_s'])} per "
            f"{slowest['of_each']}, where {format_rate(slowest['needed_bytes_per_s'])} would "
            f"reduce it to {share:g} %"
        )
    plain = point.best
    if plain is not None and plain.layout.offload == "none":
        ratio = best.step_time_s / plain.step_time_s
        sentence += (
            f"; without offload {plain.layout} [{plain.framework}] is {ratio:.2f} times as fast"
        )
    return f"{sentence}."
