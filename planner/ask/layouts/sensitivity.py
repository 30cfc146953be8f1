"""Sensitivity: how far an answer depends on every number of machine, model and framework."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Any, Unpack

from planner.ask.answer import Row
from planner.ask.layouts.facts import GIVEN_BY_USER, Fact, facts_of, measuring_command, scaled
from planner.ask.option import Nodes, Option
from planner.ask.plan_point import plan_or_reason, plan_point
from planner.ask.question import Findings, JobFields, nothing_fits, question
from planner.ask.sentences import step_time
from planner.choose.jobs.job_spec import JobSpec
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

_DESCRIPTIONS: dict[str, type[Machine] | type[Model] | type[Framework]] = {
    "machine": Machine,
    "model": Model,
    "framework": Framework,
}
_NEGLIGIBLE = 1e-4
"""Elasticity below which a fact does not matter."""


@dataclass(frozen=True, slots=True)
class _MovedFact:
    """A fact times two factors, and the layout's estimates there."""

    fact: Fact
    factors: tuple[float, float]
    low: Estimate
    high: Estimate

    @property
    def description(self) -> str:
        """`machine`, `model` or `framework`."""
        return str(self.fact.path[0])

    def _elasticity(self, low: float, high: float) -> float:
        """Percent by which a figure grows for one percent of the fact [1]."""
        return math.log(high / low) / math.log(self.factors[1] / self.factors[0])

    @property
    def of_step(self) -> float:
        """Elasticity of the step time."""
        return self._elasticity(self.low.step_time_s, self.high.step_time_s)

    @property
    def of_memory(self) -> float:
        """Elasticity of a device's memory."""
        return self._elasticity(self.low.memory_bytes["total"], self.high.memory_bytes["total"])


@question
def sensitivity(
    job: JobSpec,
    *,
    nodes: Nodes = 1,
    by: Annotated[float, Option("Percent by which every number moves.", least=0.1, most=50)] = 10.0,
    replan: Annotated[
        int, Option("Number of the most important facts to plan the job anew with.", least=0)
    ] = 3,
    layout: Layout | None = None,
    framework: str | Framework | None = None,
    **_: Unpack[JobFields],
) -> Findings:
    """Show how step time and memory depend on every number of machine, model and framework.

    Elasticity is the percent by which a figure changes for 1 % of a fact. A curve is one fact; so
    are equal numbers of a list, such as rates of wires. A fact of the machine, without the word
    `machine`, is a name for `--set`. The layout is the recommended one or the one given, and stays.
    The job is planned anew with the facts that matter most. Assumed facts name the command that
    measures them.
    """
    job = job.replaced(nodes=nodes)
    scenario, best = _scenario_and_estimate(job, layout, framework)
    if scenario is None or best is None:
        return nothing_fits(plan_point(job), layout=None, framework=None)
    moved, fixed = _moved_facts(scenario, best.layout, by / 100)
    # the other frameworks of a search stay as they are, so framework facts are not planned anew
    unsure = [each for each in moved if each.fact.unsure and each.description != "framework"]
    recommended = best if layout is None or not unsure[:replan] else plan_point(job).best
    rows = [_row(each, best) for each in moved]
    for each, row in zip(moved, rows, strict=True):
        if each in unsure[:replan]:
            row["recommendation"] = _replanned(job, scenario, each, recommended)
    return Findings(
        _verdict(best, rows),
        rows,
        notes=[
            f"The layout stays {best.layout} [{best.framework}]; every number moves by {by:g} %, "
            "integers to the nearest value that is legal.",
            f"{counted(len(rows), 'fact')} change step time or memory; "
            f"{counted(len(fixed), 'number')} cannot be moved alone: {', '.join(fixed) or 'none'}.",
            "Constants of the cost model itself (`planner show constants`) stay as they are.",
        ],
        values={"layout": best.layout.model_dump(mode="json"), "framework": best.framework},
    )


def _scenario_and_estimate(
    job: JobSpec, layout: Layout | None, framework: str | Framework | None
) -> tuple[Scenario | None, Estimate | None]:
    """The layout given, or the recommended one, with its scenario."""
    if layout is None:
        point = plan_point(job)
        return point.scenario, point.best
    workload = job.workload.replaced(global_batch=layout.global_batch, ramp="")
    layout_estimate = estimate(
        job.model,
        job.machine,
        layout,
        workload=workload,
        framework=framework,
        experience=job.experience,
    )
    if not isinstance(framework, Framework):
        framework = load_framework(layout_estimate.framework)
    return job.replaced(workload=workload).scenario(framework), layout_estimate


def _moved_facts(
    scenario: Scenario, layout: Layout, by: float
) -> tuple[list[_MovedFact], list[str]]:
    """Facts that matter, most important first; names of those that cannot be moved."""
    moved, fixed = [], []
    for fact in _facts(scenario):
        moved_fact = _move(scenario, layout, fact, by)
        if moved_fact is None:
            fixed.append(fact.name)
        elif max(abs(moved_fact.of_step), abs(moved_fact.of_memory)) > _NEGLIGIBLE:
            moved.append(moved_fact)
    moved.sort(key=lambda each: (-abs(each.of_step), -abs(each.of_memory), each.fact.name))
    return moved, fixed


def _facts(scenario: Scenario) -> Iterator[Fact]:
    for name in _DESCRIPTIONS:
        for fact in facts_of(getattr(scenario, name).model_dump()):
            yield replace(fact, path=(name, *fact.path))


def _move(scenario: Scenario, layout: Layout, fact: Fact, by: float) -> _MovedFact | None:
    """Estimate a layout with a smaller and a larger fact, or its own value where one is illegal."""

    def estimate_at(factor: float) -> Estimate | None:
        try:
            moved = replace(scenario, **_scaled_description(scenario, fact, factor))
        except PlannerError:
            return None
        if any(True for _ in broken(moved, layout)):
            return None
        return estimate_layouts(moved, Layouts.stack([layout]))[0]

    step = _step(fact.value, by)
    estimates = {factor: estimate_at(factor) for factor in (1 - step, 1 + step) if factor > 0}
    legal = {factor: each for factor, each in estimates.items() if each is not None}
    if len(legal) == 1 and (unmoved := estimate_at(1.0)) is not None:
        legal[1.0] = unmoved
    if len(legal) < 2:
        return None
    low, high = sorted(legal)
    return _MovedFact(fact, (low, high), legal[low], legal[high])


def _scaled_description(scenario: Scenario, fact: Fact, factor: float) -> dict[str, Any]:
    """The description with one fact times a factor, by its name."""
    name, *path = fact.path
    fields = getattr(scenario, str(name)).model_dump()
    inner = replace(fact, path=tuple(path))
    return {str(name): _DESCRIPTIONS[str(name)].described(scaled(fields, inner, factor))}


def _step(value: float, by: float) -> float:
    """The part by which a number moves: for integers, a multiple of a power of two that divides it.

    >>> _step(4096.0, 0.1), _step(0.5, 0.1)
    (0.125, 0.1)
    """
    if not value.is_integer() or value > 2**40:
        return by
    power = 1
    while int(value) % (2 * power) == 0 and 2 * power <= value * by:
        power *= 2
    return max(round(value * by / power), 1) * power / value


def _replanned(
    job: JobSpec, scenario: Scenario, moved: _MovedFact, recommended: Estimate | None
) -> str:
    """The recommended layouts with a fact at its two values, where they differ from today's."""
    layouts = []
    for factor in moved.factors:
        best = plan_or_reason(job, **_scaled_description(scenario, moved.fact, factor)).best
        if best is None:
            layouts.append("nothing fits")
        elif recommended is None or (best.layout, best.framework) != (
            recommended.layout,
            recommended.framework,
        ):
            layouts.append(f"{best.layout} [{best.framework}]")
    return "; ".join(dict.fromkeys(layouts)) or "the same"


def _row(moved: _MovedFact, best: Estimate) -> Row:
    fact, memory = moved.fact, best.memory_bytes["total"]
    return {
        "fact": fact.name,
        "value": fact.value,
        "kind": fact.kind,
        "step_elasticity": moved.of_step,
        "memory_elasticity": moved.of_memory,
        "step_change_low": moved.low.step_time_s / best.step_time_s - 1,
        "step_change_high": moved.high.step_time_s / best.step_time_s - 1,
        "memory_change_low": moved.low.memory_bytes["total"] / memory - 1,
        "memory_change_high": moved.high.memory_bytes["total"] / memory - 1,
        "recommendation": "",
        "measure_next": measuring_command(fact) if fact.kind == "assumed" else "",
        "reason": fact.source or "stated by the description",
    }


def _verdict(best: Estimate, rows: list[Row]) -> str:
    def with_elasticity(row: Row) -> str:
        return f"{row['fact']} ({row['step_elasticity']:+.2f} % for 1 %)"

    unsure = [row for row in rows if row["kind"] != GIVEN_BY_USER]
    largest = ", ".join(with_elasticity(row) for row in unsure[:3])
    sentence = f"The layout takes {step_time(best)}. It depends most on {largest}"
    assumed = next((row for row in rows if row["measure_next"]), None)
    if assumed is not None:
        sentence += (
            f". Of assumed numbers measure {with_elasticity(assumed)} first: "
            f"{assumed['measure_next']}"
        )
    changed = [row for row in rows if row["recommendation"] not in ("the same", "")]
    if changed:
        sentence += f". Another layout is recommended when {changed[0]['fact']} moves"
    return f"{sentence}."
