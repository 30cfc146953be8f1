"""Sensitivity: how far an answer depends on every number of machine, model and framework."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Unpack

from planner.ask.answer import Answer, Row
from planner.ask.asked import Asked, JobFields, asked_of
from planner.ask.facts.known import STATED, Fact, facts_of, measured_by, scaled
from planner.ask.option import Nodes, Option, checked
from planner.ask.point import between, on_nodes
from planner.choose.legality import broken
from planner.choose.planning import estimate
from planner.cost.estimate import Estimate, estimate_layouts
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.describe.catalogue import load_framework
from planner.describe.framework.framework import Framework
from planner.describe.layout import Layout
from planner.describe.machine import Machine
from planner.describe.model.model import Model
from planner.errors import PlannerError
from planner.units import counted

__all__ = ["sensitivity"]

_KINDS: dict[str, type[Machine] | type[Model] | type[Framework]] = {
    "machine": Machine,
    "model": Model,
    "framework": Framework,
}
_LEAST = 1e-4
# elasticities below are those of nothing that matters


@dataclass(frozen=True, slots=True)
class _Moved:
    """A fact at a smaller and at a larger value, and the layout's estimates there."""

    fact: Fact
    values: tuple[float, float]
    low: Estimate
    high: Estimate

    @property
    def kind(self) -> str:
        """The kind of description that states the fact."""
        return str(self.fact.path[0])

    def elasticity(self, low: float, high: float) -> float:
        """Percent by which a figure grows for one percent of the fact [1].

        Counted: the difference of logarithms between the two values. Left out: curvature.
        Definition.
        """
        return math.log(high / low) / math.log(self.values[1] / self.values[0])

    @property
    def of_step(self) -> float:
        """Of the step time."""
        return self.elasticity(self.low.step_time_s, self.high.step_time_s)

    @property
    def of_memory(self) -> float:
        """Of a device's memory."""
        return self.elasticity(self.low.memory_bytes["total"], self.high.memory_bytes["total"])


@checked
def sensitivity(
    model: str | Model,
    machine: str | Machine,
    *,
    nodes: Nodes = 1,
    by: Annotated[float, Option("Percent by which every number moves.", least=0.1, most=50)] = 10.0,
    replan: Annotated[
        int, Option("Facts, those that matter most, with which the job is planned anew.", least=0)
    ] = 3,
    layout: Layout | None = None,
    framework: str | Framework | None = None,
    **job: Unpack[JobFields],
) -> Answer:
    """What one percent of every fact does to step time and memory of one layout, most first.

    Facts are all numbers of the machine, the model and the framework; all of a curve are one, and
    so are equal ones of a list, such as rates of wires. A machine's, without the word `machine`, is
    what an override takes (`--set`, of a curve a list). The layout is the recommended one or that
    given, and stays; whether the recommendation would be another is said of the facts that matter
    most. What is only assumed says which command measures it.

    >>> import planner
    >>> job = planner.Workload(sequence_length=1024, global_batch=64)
    >>> answer = planner.ask.sensitivity("gpt2", "polaris", workload=job, replan=0)
    >>> bandwidth = next(r for r in answer.rows if r["fact"] == "machine.device.memory_bytes_per_s")
    >>> -1 < bandwidth["step_elasticity"] < 0
    True
    """
    asked = asked_of(model, machine, job)
    scenario, one = _one(asked, nodes, layout, framework)
    own: dict[str, Any] = {"nodes": nodes, "by": by, "replan": replan}
    own["layout"] = one.layout.model_dump(mode="json") if one else None
    own["framework"] = one.framework if one else None
    if scenario is None or one is None:
        point = asked.on(nodes)
        verdict = f"Nothing fits on {on_nodes(point)}: {point.reason}."
        return asked.answer("sensitivity", verdict, [point.row()], found=False, **own)
    moved, fixed = _sorted(scenario, one.layout, by / 100)
    # a search takes the other frameworks as they are, so theirs say nothing of it
    unsure = [each for each in moved if each.fact.unsure and each.kind != "framework"][:replan]
    best = one if layout is None or not unsure else asked.on(nodes).best
    rows = [
        _row(each, one, _replanned(asked, scenario, nodes, each, best) if each in unsure else "")
        for each in moved
    ]
    return asked.answer(
        "sensitivity",
        _verdict(one, rows),
        rows,
        notes=[
            f"The layout stays {one.layout} [{one.framework}]; every number moves by {by:g} %, "
            "whole ones to the nearest that goes.",
            f"{counted(len(rows), 'fact')} change step time or memory; "
            f"{counted(len(fixed), 'number')} cannot be moved alone: {', '.join(fixed) or 'none'}.",
            "Constants of the cost model itself (`planner show constants`) stay as they are.",
        ],
        **own,
    )


def _sorted(scenario: Scenario, layout: Layout, by: float) -> tuple[list[_Moved], list[str]]:
    """Facts that matter, those that matter most first; names of those that cannot be moved."""
    moved, fixed = [], []
    for fact, found in _every(scenario, layout, by):
        if found is None:
            fixed.append(fact.name)
        elif max(abs(found.of_step), abs(found.of_memory)) > _LEAST:
            moved.append(found)
    moved.sort(key=lambda each: (-abs(each.of_step), -abs(each.of_memory), each.fact.name))
    return moved, fixed


def _one(
    asked: Asked, nodes: int, layout: Layout | None, framework: str | Framework | None
) -> tuple[Scenario | None, Estimate | None]:
    """The layout that is asked about and its question; the recommended one where none is given."""
    if layout is None:
        point = asked.on(nodes)
        return point.scenario, point.best
    workload = asked.workload.replaced(global_batch=layout.global_batch, ramp="")
    found = estimate(
        asked.model,
        asked.machine,
        layout,
        workload=workload,
        framework=framework,
        experience=asked.experience,
    )
    software = framework if isinstance(framework, Framework) else load_framework(found.framework)
    return Scenario(asked.model, asked.machine, workload, software, asked.experience), found


def _every(scenario: Scenario, layout: Layout, by: float) -> Iterator[tuple[Fact, _Moved | None]]:
    """Every fact, moved; None where it cannot be."""
    for kind in _KINDS:
        fields = getattr(scenario, kind).model_dump()
        for fact in facts_of(fields):
            named = Fact((kind, *fact.path), fact.value, fact.kind, fact.source)
            yield named, _moved(scenario, layout, fields, fact, named)(by)


def _moved(
    scenario: Scenario, layout: Layout, fields: dict[str, Any], fact: Fact, named: Fact
) -> Callable[[float], _Moved | None]:
    """A fact at two values, one of them its own where the other is beyond its bounds."""

    def at(factor: float) -> Estimate | None:
        try:
            other = _with(scenario, named.path[0], scaled(fields, fact, factor))
        except PlannerError:
            return None
        if any(True for _ in broken(other, layout)):
            return None
        return estimate_layouts(other, Layouts.stack([layout]))[0]

    def moved(by: float) -> _Moved | None:
        step = _step(fact.value, by)
        ends = [(factor, at(factor)) for factor in (1 - step, 1 + step) if factor > 0]
        able = [(factor, one) for factor, one in ends if one is not None]
        own = at(1.0) if len(able) == 1 else None
        able += [] if own is None else [(1.0, own)]
        if len(able) < 2:
            return None
        (less, low), (more, high) = sorted(able, key=lambda pair: pair[0])
        return _Moved(named, (less * fact.value, more * fact.value), low, high)

    return moved


def _step(value: float, by: float) -> float:
    """The part of a number by which it moves: whole ones by a power of two that divides them [1].

    Counted: the multiple of the largest such power of two below the part that is nearest to it.
    Left out: other divisors. Definition.

    >>> _step(4096.0, 0.1), _step(0.5, 0.1)
    (0.125, 0.1)
    """
    if not value.is_integer() or value > 2**40:
        return by
    power = 1
    while int(value) % (2 * power) == 0 and 2 * power <= value * by:
        power *= 2
    return max(round(value * by / power), 1) * power / value


def _with(scenario: Scenario, kind: Any, fields: dict[str, Any]) -> Scenario:
    """The question with one description changed."""
    parts: dict[str, Any] = {name: getattr(scenario, name) for name in _KINDS}
    parts[kind] = _KINDS[kind].described(fields)
    return Scenario(**parts, workload=scenario.workload, experience=scenario.experience)


def _replanned(
    asked: Asked, scenario: Scenario, nodes: int, moved: _Moved, now: Estimate | None
) -> str:
    """What is recommended with a fact at its two values, where that is not what is now."""
    fields = getattr(scenario, moved.kind).model_dump()
    plain = Fact(moved.fact.path[1:], moved.fact.value, moved.fact.kind, moved.fact.source)
    said = []
    for value in moved.values:
        changed = _KINDS[moved.kind].described(scaled(fields, plain, value / moved.fact.value))
        best = asked.at(**{moved.kind: changed}).tried_on(nodes).best
        if best is None:
            said.append("nothing fits")
        elif now is None or (best.layout, best.framework) != (now.layout, now.framework):
            said.append(f"{best.layout} [{best.framework}]")
    return "; ".join(dict.fromkeys(said)) or "the same"


def _row(moved: _Moved, one: Estimate, recommendation: str) -> Row:
    fact = moved.fact
    assumed = fact.kind == "assumed"
    total = one.memory_bytes["total"]
    return {
        "fact": fact.name,
        "value": fact.value,
        "kind": fact.kind,
        "step_elasticity": moved.of_step,
        "memory_elasticity": moved.of_memory,
        "step_change_low": moved.low.step_time_s / one.step_time_s - 1,
        "step_change_high": moved.high.step_time_s / one.step_time_s - 1,
        "memory_change_low": moved.low.memory_bytes["total"] / total - 1,
        "memory_change_high": moved.high.memory_bytes["total"] / total - 1,
        "recommendation": recommendation,
        "measure_next": measured_by(fact) if assumed else "",
        "reason": fact.source or "stated by the description",
    }


def _verdict(one: Estimate, rows: list[Row]) -> str:
    def said(row: Row) -> str:
        return f"{row['fact']} ({row['step_elasticity']:+.2f} % for 1 %)"

    told = [row for row in rows if row["kind"] != STATED]
    first = ", ".join(said(row) for row in told[:3])
    guessed = next((row for row in rows if row["measure_next"]), None)
    others = [row for row in rows if row["recommendation"] not in ("the same", "")]
    text = f"{between(one).capitalize()}; besides the model it depends most on {first}"
    if guessed is not None:
        text += f"; of what is only assumed measure {said(guessed)} next: {guessed['measure_next']}"
    if others:
        text += f"; another layout would be recommended with {others[0]['fact']} moved"
    return f"{text}."
