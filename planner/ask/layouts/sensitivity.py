"""Sensitivity: how much an answer depends on each number of machine, model and framework."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Unpack

from planner.ask.answer import Row
from planner.ask.plan_point import PlanPoint, plan_or_reason, plan_point, step_time
from planner.ask.question import Findings, JobFields, nothing_fits, question
from planner.choose.jobs.job_spec import JobSpec
from planner.choose.legality import broken
from planner.choose.planning import job_of_layout, scenario_for
from planner.cost.estimate import Estimate, estimate_layouts
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.describe.framework.framework import Framework
from planner.describe.layout import Layout
from planner.describe.machine import Machine
from planner.describe.model.model import Model
from planner.errors import PlannerError
from planner.units import counted, format_places, parse_places

_DESCRIPTIONS: dict[str, type[Machine] | type[Model] | type[Framework]] = {
    "machine": Machine,
    "model": Model,
    "framework": Framework,
}
_NEGLIGIBLE = 1e-4
"""Facts with a smaller elasticity are not listed."""
_QUANTITY = ("value", "kind", "source")
_ENDS = (0, "low"), (1, "high")
_CURVES = ("fraction", "seconds")
_SOURCE_OF_LIST = {"wires": "device_bytes_per_s"}
"""Field that states the source of a list's numbers, by list."""
_NO_SOURCE = "stated"
"""Kind of a number that a description states without a source."""
_NO_FACTS = {
    *("num_nodes", "devices", "nic_of_device", "scheduler", "file_systems", "networks"),
    *("switches", "effort", "stalls", "code", "other_kernels"),
}
"""Fields to skip: they count, name or order things, or do not affect these estimates."""
_COLLECTIVES, _ONE_NODE = "collectives on the machine", "the rates of one node"
_MEASUREMENTS = {
    "device.sustained_fraction": "the step of your own runs",
    "node.fabric": _COLLECTIVES,
    "network": _COLLECTIVES,
    "node.host_link": _ONE_NODE,
    "node.host_memory_bytes_per_s": _ONE_NODE,
    "device": _ONE_NODE,
}
"""What to measure for a machine's facts, by the start of the fact's name."""


@dataclass(frozen=True, slots=True)
class Fact:
    """A number of a description, for example a rate or a curve."""

    path: tuple[str | int, ...]
    value: float
    """The value; for a curve, its largest value."""
    kind: str
    """Kind of number, for example `measured`; `stated` if the description gives no source."""
    source: str

    @property
    def unsure(self) -> bool:
        """True if the number has a source, and so may be wrong."""
        return self.kind != _NO_SOURCE

    @property
    def name(self) -> str:
        """Dotted name of the fact."""
        return ".".join(map(str, self.path))


def facts_of(fields: Any, path: tuple[str | int, ...] = ()) -> Iterator[Fact]:
    """List every nonzero number in plain data; a curve, or equal numbers of a list, is one fact."""
    if not isinstance(fields, dict):
        yield from _fact(path, fields, _NO_SOURCE, "")
        return
    if set(_QUANTITY) <= set(fields):
        yield from _fact(path, **{name: fields[name] for name in _QUANTITY})
        return
    for name, value in fields.items():
        inner = (*path, name)
        if name in _CURVES and "kind" in fields:
            yield from _fact(inner, max(value), fields["kind"], fields["source"])
        elif name not in _NO_FACTS and _is_list(value):
            origin = fields.get(_SOURCE_OF_LIST.get(name, "")) or {}
            kind, source = origin.get("kind", _NO_SOURCE), origin.get("source", "")
            yield from _facts_of_list(value, inner, kind, source)
        elif name not in _NO_FACTS:
            yield from facts_of(value, inner)


def _facts_of_list(
    entries: Sequence[Any], path: tuple[str | int, ...], kind: str, source: str
) -> Iterator[Fact]:
    """Yield one fact per field name and value among the entries; lists of numbers have none."""
    places: dict[tuple[str, float], list[int]] = {}
    for place, entry in enumerate(entries):
        for name, value in entry.items() if isinstance(entry, dict) else ():
            if _is_number(value):
                places.setdefault((name, value), []).append(place)
    for (name, value), where in places.items():
        yield from _fact((*path, format_places(where), name), value, kind, source)


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple))


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _fact(path: tuple[str | int, ...], value: Any, kind: str, source: str) -> Iterator[Fact]:
    if _is_number(value) and value:
        yield Fact(path, float(value), kind, source)


def scaled(fields: dict[str, Any], fact: Fact, factor: float) -> dict[str, Any]:
    """Copy plain data with one fact multiplied by a factor; integers are rounded."""

    def times(value: float) -> float:
        return round(value * factor) if isinstance(value, int) else value * factor

    copied = copy.deepcopy(fields)
    *way, last = fact.path
    tables: list[Any] = [copied]
    for name in way:
        # one path element may name several entries of a list
        tables = [
            table[place]
            for table in tables
            for place in (parse_places(str(name), len(table)) if _is_list(table) else [name])
        ]
    for table in tables:
        value = table[last]
        if isinstance(value, dict):
            value["value"] = times(value["value"])
        else:
            table[last] = [*map(times, value)] if _is_list(value) else times(value)
    return copied


def measurement_of(fact: Fact) -> str:
    """Return what to measure for a fact; empty if nothing is known."""
    description, _, name = fact.name.partition(".")
    if description != "machine":
        return "the step of your own runs" if description == "framework" else ""
    return next((way for start, way in _MEASUREMENTS.items() if name.startswith(start)), "")


class _MovedFact(NamedTuple):
    fact: Fact
    factors: tuple[float, float]
    row: Row


@question
def sensitivity(
    job: JobSpec,
    *,
    nodes: int = 1,
    by: float = 10.0,
    replan: int = 3,
    layout: Layout | None = None,
    framework: str | Framework | None = None,
    **_: Unpack[JobFields],
) -> Findings:
    """Show how step time and memory depend on every number of machine, model and framework.

    Elasticity is the percent change of a figure when a fact changes by 1 %. A curve is one fact; so
    are equal numbers of a list, for example rates of wires. A machine fact without its prefix
    `machine.` is the name under which it can be changed. The layout is the
    recommended one unless another is stated, and is held fixed. The job is planned again with the
    facts that matter most. Assumed facts name what to measure.
    """
    job = job.replaced(nodes=nodes)
    point = _point_of_layout(job, layout, framework) if layout else plan_point(job)
    if not point.fits:
        return nothing_fits(point, layout=None, framework=None)
    scenario, best = point.recommended()
    moved, fixed = _moved_facts(scenario, best, by / 100)
    # a search keeps its other frameworks unchanged, so framework facts are not planned again
    unsure = [each for each in moved if each.fact.unsure and each.fact.path[0] != "framework"]
    recommended = plan_point(job).best if layout and unsure[:replan] else best
    for each in unsure[:replan]:
        each.row["recommendation"] = _replanned(job, scenario, each, recommended)
    rows = [each.row for each in moved]
    return Findings(
        _largest_elasticities(best, rows),
        rows,
        notes=[
            f"The layout stays {best.layout} [{best.framework}]; every number moves by {by:g} %, "
            "integers to the nearest value that is legal.",
            f"{counted(len(rows), 'fact')} change step time or memory; "
            f"{counted(len(fixed), 'number')} cannot be moved alone: {', '.join(fixed) or 'none'}.",
            "Constants of the cost model itself stay as they are.",
        ],
        values={"layout": best.layout.model_dump(mode="json"), "framework": best.framework},
    )


def _point_of_layout(job: JobSpec, layout: Layout, framework: str | Framework | None) -> PlanPoint:
    workload = job.workload.replaced(global_batch=layout.global_batch, ramp="")
    job = job_of_layout(job.model, job.machine, layout, workload, framework, job.experience)
    scenario = scenario_for(job, layout)
    best = estimate_layouts(scenario, Layouts.stack([layout]))[0]
    return PlanPoint(job.nodes, job.machine, workload, "", best, scenario)


def _moved_facts(
    scenario: Scenario, best: Estimate, by: float
) -> tuple[list[_MovedFact], list[str]]:
    """Return the facts that matter, most important first, and names of those that cannot move."""

    def importance(row: Row) -> tuple[float, float]:
        return abs(row["step_elasticity"]), abs(row["memory_elasticity"])

    moved, fixed = [], []
    for name in _DESCRIPTIONS:
        for fact in facts_of(getattr(scenario, name).model_dump(), (name,)):
            moved_fact = _move(scenario, best, fact, by)
            if moved_fact is None:
                fixed.append(fact.name)
            elif max(importance(moved_fact.row)) > _NEGLIGIBLE:
                moved.append(moved_fact)
    moved.sort(key=lambda each: each.fact.name)
    moved.sort(key=lambda each: importance(each.row), reverse=True)
    return moved, fixed


def _move(scenario: Scenario, best: Estimate, fact: Fact, by: float) -> _MovedFact | None:
    """Estimate with the fact lowered and raised; its own value replaces an illegal one."""

    def estimate_at(factor: float) -> Estimate | None:
        try:
            moved = replace(scenario, **_scaled_description(scenario, fact, factor))
        except PlannerError:
            return None
        if any(True for _ in broken(moved, best.layout)):
            return None
        return estimate_layouts(moved, Layouts.stack([best.layout]))[0]

    step = _step(fact.value, by)
    estimates = {factor: estimate_at(factor) for factor in (1 - step, 1 + step) if factor > 0}
    legal = {factor: each for factor, each in estimates.items() if each is not None}
    if len(legal) == 1 and (unmoved := estimate_at(1.0)) is not None:
        legal[1.0] = unmoved
    if len(legal) < 2:
        return None
    low, high = sorted(legal)
    return _MovedFact(fact, (low, high), _row(fact, (low, high), (legal[low], legal[high]), best))


def _scaled_description(scenario: Scenario, fact: Fact, factor: float) -> dict[str, Any]:
    name = str(fact.path[0])
    fields, inner = getattr(scenario, name).model_dump(), replace(fact, path=fact.path[1:])
    return {name: _DESCRIPTIONS[name].described(scaled(fields, inner, factor))}


def _step(value: float, by: float) -> float:
    """Relative step of a number: integers move by a multiple of a power of two dividing them."""
    if not value.is_integer() or value > 2**40:
        return by
    power = 1
    while int(value) % (2 * power) == 0 and 2 * power <= value * by:
        power *= 2
    return max(round(value * by / power), 1) * power / value


def _replanned(
    job: JobSpec, scenario: Scenario, moved: _MovedFact, recommended: Estimate | None
) -> str:
    """Name the layouts recommended at a fact's two values if they differ from today's."""
    today = recommended and (recommended.layout, recommended.framework)
    layouts = []
    for factor in moved.factors:
        best = plan_or_reason(job, **_scaled_description(scenario, moved.fact, factor)).best
        if best is None:
            layouts.append("nothing fits")
        elif (best.layout, best.framework) != today:
            layouts.append(f"{best.layout} [{best.framework}]")
    return "; ".join(dict.fromkeys(layouts)) or "the same"


def _row(
    fact: Fact, factors: tuple[float, float], ends: tuple[Estimate, Estimate], best: Estimate
) -> Row:
    figures = {
        "step": [each.step_time_s for each in (*ends, best)],
        "memory": [each.memory_bytes["total"] for each in (*ends, best)],
    }
    growth = math.log(factors[1] / factors[0])
    return {
        "fact": fact.name,
        "value": fact.value,
        "kind": fact.kind,
        **{f"{n}_elasticity": math.log(v[1] / v[0]) / growth for n, v in figures.items()},
        **{f"{n}_change_{end}": v[k] / v[2] - 1 for n, v in figures.items() for k, end in _ENDS},
        "recommendation": "",
        "measure_next": measurement_of(fact) if fact.kind == "assumed" else "",
        "reason": fact.source or "stated by the description",
    }


def _largest_elasticities(best: Estimate, rows: list[Row]) -> str:
    def with_elasticity(row: Row) -> str:
        return f"{row['fact']} ({row['step_elasticity']:+.2f} % for 1 %)"

    unsure = [row for row in rows if row["kind"] != _NO_SOURCE]
    sentences = [
        f"The layout takes {step_time(best)}",
        f"It depends most on {', '.join(map(with_elasticity, unsure[:3]))}",
    ]
    if assumed := next((row for row in rows if row["measure_next"]), None):
        number = with_elasticity(assumed)
        sentences.append(
            f"Measure {number} first: it has the largest effect of the assumed numbers; "
            f"measure {assumed['measure_next']}"
        )
    if changed := next((r for r in rows if r["recommendation"] not in ("the same", "")), None):
        sentences.append(f"Another layout is recommended when {changed['fact']} moves")
    return ". ".join(sentences) + "."
