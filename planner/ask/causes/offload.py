"""Offload: where the time of offload goes, and the rates that would hide it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any, Unpack

import numpy as np

from planner.ask.answer import Answer, Row
from planner.ask.asked import JobFields, asked_of
from planner.ask.option import Nodes, Option, checked
from planner.ask.point import between, on_nodes
from planner.choose.recommendation import recommend
from planner.choose.search import Candidates
from planner.cost.estimate import Estimate, estimate_layouts
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.describe.base import Quantity
from planner.describe.machine import Machine
from planner.describe.machine.variants import override_fields
from planner.describe.model.model import Model
from planner.units import format_rate, format_seconds

__all__ = ["offload"]

_SLOWEST, _ENDLESS = 1e6, 1e18
# the slowest and the fastest rate that a description may state [B/s]


@dataclass(frozen=True, slots=True)
class _Way:
    """A way that offloaded bytes take, and the facts that say how fast it is."""

    name: str
    paths: tuple[str, ...]
    per: str


_WAYS = (
    _Way("link between host and device", ("node.host_link_bytes_per_s",), "device"),
    _Way("memory of the host (optimizer on the CPU)", ("node.host_memory_bytes_per_s",), "node"),
    _Way(
        "local disk",
        ("node.local_disk.read_bytes_per_s", "node.local_disk.write_bytes_per_s"),
        "node",
    ),
)


@checked
def offload(
    model: str | Model,
    machine: str | Machine,
    *,
    nodes: Nodes = 1,
    share: Annotated[
        float, Option("Percent of the step that a way may take.", least=0.1, most=100)
    ] = 10.0,
    **job: Unpack[JobFields],
) -> Answer:
    """What each way of offloaded bytes takes of the step, and how fast it would have to be.

    The layout is the one that one would run of those that offload. A way's seconds are what the
    step is shorter by where it is endlessly fast, so what others hide does not count. The rate
    needed is 0 where none is too slow.

    >>> import planner
    >>> job = planner.Workload(sequence_length=1024, global_batch=64)
    >>> answer = planner.ask.offload("gpt2-xl", "polaris", workload=job)
    >>> answer.rows[0]["bytes_per_s"]               # PCIe of a Polaris node
    25000000000.0
    """
    asked = asked_of(model, machine, job)
    done = asked.searched(nodes, whole=True)
    parts = [
        part.only(lambda x: np.asarray(~x.keeps_states)) for part in done.by_framework.values()
    ]
    best, point = recommend(parts, asked.tolerance), asked.point(nodes, done)
    own: dict[str, Any] = {"nodes": nodes, "share": share}
    if best is None:
        verdict = f"No layout that offloads fits on {on_nodes(point)}"
        plain = (
            f": without, {point.spoken()}." if point.best else f", nor one without: {point.reason}."
        )
        return asked.answer("offload", verdict + plain, [], found=False, **own)
    scenario = _scenario(done.by_framework, best)
    rows = [row for way in _WAYS if (row := _row(scenario, best, way, share / 100))]
    return asked.answer(
        "offload",
        _verdict(best, point.best, rows, share),
        rows,
        notes=[
            f"The layout: {best.layout} [{best.framework}].",
            f"Needed is the rate at which a way alone takes {share:g} % of the rest of the step.",
            "Not counted: NUMA, pageable copies, how the processes are bound.",
        ],
        **own,
    )


def _scenario(found: dict[str, Candidates], best: Estimate) -> Scenario:
    return found[best.framework].scenario


def _row(scenario: Scenario, best: Estimate, way: _Way, share: float) -> Row | None:
    """The record of a way; None where the machine has not it."""
    if "local_disk" in way.paths[0] and scenario.machine.node.local_disk is None:
        return None
    facts = [_fact(scenario.machine, path) for path in way.paths]

    def step_s(factor: float) -> float:
        rates = (min(max(factor * fact.value, _SLOWEST), _ENDLESS) for fact in facts)
        changes = tuple(f"{p}={rate!r}" for p, rate in zip(way.paths, rates, strict=True))
        other = replace(scenario, machine=override_fields(scenario.machine, changes))
        return estimate_layouts(other, Layouts.stack([best.layout]))[0].step_time_s

    least = step_s(_ENDLESS)
    seconds = max(best.step_time_s - least, 0.0)
    rest = best.step_time_s - best.step_time_parts_s["offload"]
    rate = facts[0].value
    needed = _least_factor(lambda factor: step_s(factor) - least <= share * rest, _SLOWEST / rate)
    return {
        "way": way.name,
        "of_each": way.per,
        "time_s": seconds,
        "step_fraction": seconds / best.step_time_s,
        "bytes_per_s": rate,
        "needed_bytes_per_s": needed * rate,
        "reason": f"{facts[0].kind}: {facts[0].source}",
    }


def _fact(machine: Machine, path: str) -> Quantity:
    found: Any = machine
    for name in path.split("."):
        found = getattr(found, name)
    assert isinstance(found, Quantity)
    return found


def _least_factor(holds: Callable[[float], bool], slowest: float) -> float:
    """The least factor of a rate for which something holds, to a thousandth [1].

    Counted: that it holds for all larger ones. Left out: factors up to the slowest, where it is 0.
    Definition.

    >>> round(_least_factor(lambda factor: factor >= 3.0, 1e-6), 2), _least_factor(bool, 1e-6)
    (3.0, 0.0)
    """
    if holds(slowest):
        return 0.0
    high = 1.0
    while not holds(high):
        high *= 2
    low = high / 2
    while low > slowest and holds(low):
        low, high = low / 2, low
    while high > 1.001 * low:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def _verdict(best: Estimate, plain: Estimate | None, rows: list[Row], share: float) -> str:
    taken = best.step_time_parts_s["offload"]
    said = (
        f"With {best.layout.offload} offload {between(best)}, {format_seconds(taken)} of it for "
        f"offload"
    )
    most = max(rows, key=lambda row: float(row["time_s"]))
    if most["time_s"] > 0:
        said += (
            f"; most is the {most['way']}: {format_rate(most['bytes_per_s'])} per "
            f"{most['of_each']}, where "
            f"{format_rate(most['needed_bytes_per_s'])} would make it {share:g} %"
        )
    if plain is not None and plain.layout.offload == "none":
        ratio = best.step_time_s / plain.step_time_s
        said += f"; without offload {plain.layout} [{plain.framework}] is {ratio:.2f} times as fast"
    return f"{said}."
