"""Why not: what speaks against a layout of a job, its source, and the smallest change."""

import itertools
import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from planner.choose.jobs.job_search import search_job
from planner.choose.jobs.job_spec import JobSpec
from planner.choose.legality import broken
from planner.choose.plan import Plan
from planner.choose.preferences import preferences
from planner.choose.search import Candidates, SearchScope
from planner.choose.search.recommendation import recommend
from planner.choose.verdicts.answer_lines import AnswerLine, percent_chance
from planner.choose.verdicts.differences import difference_sentence
from planner.choose.verdicts.fixes import (
    cheapest_change,
    closest_to_fitting,
    layout_changes,
    shortage_sentence,
)
from planner.choose.verdicts.layout_words import TEXTS, LayoutText, layout_words
from planner.choose.verdicts.reasons import PREFERENCES, Contender, causes_against, reason_against
from planner.cost.arrays import Mask
from planner.cost.estimate import Estimate, estimate_layouts
from planner.cost.memory.footprint import footprints
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.describe.catalogue import load_framework
from planner.describe.layout import Layout
from planner.units import counted, format_seconds, joined

Kind = Literal[
    "recommended", "passed over", "slower", "risky", "does not fit", "not legal", "not searched"
]
"""Verdicts on a layout, against the recommended one of its job."""
_SIZES = {"dp", "micro_batch", "grad_accumulation"}
"""Fields whose rules depend on the number of devices."""
_FOLLOWING = ("dp", "dp_shard", "grad_accumulation", "schedule", "vpp", "sequence_parallel")
"""Fields that may follow a change of others."""
_MOST_CHANGES = 3
"""Most fields that a change is tried with."""


@dataclass(frozen=True, slots=True)
class WhyNot:
    """Verdict on a layout: the rule or the part that decides, and the smallest change."""

    kind: Kind
    name: str
    """The layout in words and its framework; a partial layout as it was written."""
    layout: Layout
    framework: str
    reason: str = ""
    """The rule that it breaks, the memory that it lacks, or what puts it behind."""
    source: str = ""
    """Where the rule was read; empty if it is arithmetic."""
    reading: str = ""
    """What was chosen for a partial layout."""
    change: str = ""
    """The cheapest change that lifts the reason, checked: every field that it changes."""
    changed: Estimate | None = None
    """Estimate of the changed layout; None if no layout changes."""
    estimate: Estimate | None = None
    """Estimate of the layout; None if it is not legal."""
    recommended: Estimate | None = None
    """The recommended layout of the same job; None if nothing fits."""

    @property
    def lines(self) -> list[AnswerLine]:
        """The verdict, its source, the cheapest change, and the difference by part."""
        difference, best = "", self.recommended
        if self.estimate is not None and best is not None and self.kind != "recommended":
            names = "the recommended layout", "this layout"
            difference = difference_sentence(best, self.estimate, names)
        reason = f": {self.reason}" if self.reason else ""
        lines = (
            AnswerLine("Why not", f"{self.name} {TEXTS['kinds'][self.kind]}{reason}."),
            AnswerLine("Read as", self.reading),
            AnswerLine("Source", self.source),
            AnswerLine("Cheapest change", self.change),
            AnswerLine("By part", difference),
        )
        return [line for line in lines if line.text]


def why_not(job: JobSpec, plan: Plan, layout_text: LayoutText) -> WhyNot:
    """Say what speaks against a layout, completed as the search would, given its plan."""
    job, best = _reference(job, plan, layout_text)
    scenarios = {each.name: job.scenario(each) for each in job.searched_frameworks()}
    if name := layout_text.framework:
        scenarios = {name: scenarios.get(name) or job.scenario(load_framework(name))}
    pairs = [(scenario, layout_text.layout) for scenario in scenarios.values()]
    if not layout_text.complete and _world(layout_text.fields) in (None, job.num_devices):
        narrowed = job.replaced(frameworks=[s.framework for s in scenarios.values()])
        pairs = _completions(narrowed if name else job, scenarios, layout_text.read) or pairs
        pairs = _listed(job, plan, scenarios, layout_text.read) or pairs
    scenario, layout = min(pairs, key=lambda pair: len(list(broken(pair[0], Layouts.of(pair[1])))))
    answer = judge_layout(job, scenario, layout, best)
    if not layout_text.complete:
        answer = _with_reading(answer, layout_text)
    return _with_change(job, answer, layout_text)


def _with_reading(answer: WhyNot, layout_text: LayoutText) -> WhyNot:
    """Say how a partial layout was read: what is plain, and what the search chose."""
    is_split = layout_text.read != layout_text.fields
    rules = ["axes that are not named are 1, nothing is offloaded"] * is_split
    if answer.kind != "not legal":
        rules = [answer.name, *rules, "the search chose the rest"]
    reading = f"{'; '.join(rules)}." if rules else ""
    return replace(answer, name=layout_text.text, reading=reading)


def _world(fields: Mapping[str, Any]) -> int | None:
    """Ranks of a stated layout; None if the data-parallel degree is open."""
    axes = ("dp", "tp", "pp", "cp")
    return math.prod(fields.get(name, 1) for name in axes) if "dp" in fields else None


def _reference(
    job: JobSpec, plan: Plan, layout_text: LayoutText
) -> tuple[JobSpec, Estimate | None]:
    """The job that a layout belongs to, as planned or as asked, and its recommended layout."""
    as_asked = job, plan.as_asked.estimate if plan.as_asked else None
    if plan.advice is None:
        return as_asked
    planned, world = plan.advice.applied(job), _world(layout_text.fields)
    batch = planned.workload.global_batch
    if layout_text.complete and layout_text.layout.global_batch != batch:
        return as_asked
    return (planned, plan.recommended) if world in (None, planned.num_devices) else as_asked


def _completions(
    job: JobSpec, scenarios: Mapping[str, Scenario], fields: Mapping[str, Any]
) -> list[tuple[Scenario, Layout]]:
    """Complete a partial layout: the best that fits, else the closest, else every usual one."""
    parts = _search(job, fields, most_changes=0)
    if (best := recommend(parts.values(), job.tolerance)) is not None:
        return [(scenarios.get(best.framework) or job.scenario_of(best), best.layout)]
    if closest := closest_to_fitting(parts.values()):
        scenario, footprint = closest
        return [(scenarios.get(scenario.framework.name, scenario), footprint.layouts[0])]
    return [(each, y) for each in scenarios.values() for y in _usual_layouts(job, fields)]


def _listed(
    job: JobSpec, plan: Plan, scenarios: Mapping[str, Scenario], fields: Mapping[str, Any]
) -> list[tuple[Scenario, Layout]]:
    """Find the layout of a classic strategy that the plan of the job lists and the fields state."""
    size = job.num_devices, job.workload.global_batch
    return [
        (scenarios[each.framework], each.layout)
        for each in (verdict.estimate for verdict in plan.strategies)
        if each is not None and each.framework in scenarios and "zero_stage" in fields
        if (each.layout.world, each.layout.global_batch) == size
        if all(getattr(each.layout, name) == value for name, value in fields.items())
    ][:1]


def _usual_layouts(job: JobSpec, fields: Mapping[str, Any]) -> Iterator[Layout]:
    """Complete a layout that the search does not list."""
    ranks = math.prod(fields.get(name, 1) for name in ("tp", "pp", "cp"))
    dp = fields.get("dp", max(job.num_devices // ranks, 1))
    passes = max(job.workload.global_batch // (dp * fields.get("micro_batch", 1)), 1)
    for stage, parallel in itertools.product(range(4), (False, True)):
        options = {"zero_stage": stage, "sequence_parallel": parallel}
        yield LayoutText({"dp": dp, "grad_accumulation": passes, **options, **fields}).layout


def _search(
    job: JobSpec, fields: Mapping[str, Any], most_changes: int, free: Collection[str] = ()
) -> dict[str, Candidates]:
    """Search the layouts that differ in few of the stated fields but the free ones."""
    wanted = Layouts.of(LayoutText(dict(fields)).layout)
    names = [name for name in fields if name not in free]

    def matches(layouts: Layouts) -> Mask:
        # sharding over all replicas follows dp
        shards = {} if fields.get("dp_shard") else {"dp_shard": layouts.dp}
        different = [getattr(layouts, n) != shards.get(n, getattr(wanted, n)) for n in names]
        return np.sum([layouts.dp < 0, *different], axis=0) <= most_changes

    scope = SearchScope(near_factor=1 + job.tolerance, top=1)
    return search_job(job, scope, matches)


def _with_change(job: JobSpec, answer: WhyNot, layout_text: LayoutText) -> WhyNot:
    """Add the cheapest change to a layout that fits safely."""
    if answer.kind == "not legal":
        return _with_legal(job, answer, layout_text)
    if answer.kind not in ("does not fit", "risky") or answer.estimate is None:
        return answer
    new = cheapest_change(answer.estimate, _search(job, {}, most_changes=0))
    old = answer.layout, answer.framework
    return answer if new is None else _changed(answer, new, layout_changes(*old, new))


def _with_legal(job: JobSpec, answer: WhyNot, layout_text: LayoutText) -> WhyNot:
    """Add the best layout that fits safely and changes the fewest of the stated fields."""
    fields = answer.layout.model_dump() if layout_text.complete else layout_text.read
    for most_changes in range(_MOST_CHANGES + 1):
        parts = _search(job, fields, most_changes, free=_FOLLOWING)
        best = recommend(parts.values(), job.tolerance)
        if best is not None and best.out_of_memory_probability <= preferences().risk:
            names = [name for name in fields if not name.startswith("recompute_")]
            old = LayoutText(dict(fields)).layout
            return _changed(answer, best, layout_changes(old, layout_text.framework, best, names))
    return answer


def _changed(answer: WhyNot, new: Estimate, changes: str) -> WhyNot:
    result = f"{layout_words(new.layout)} fits, {format_seconds(new.step_time_s)} a step."
    return replace(answer, change=f"{changes}: {result}", changed=new)


def judge_layout(job: JobSpec, scenario: Scenario, layout: Layout, best: Estimate | None) -> WhyNot:
    """Judge a layout against the recommended one of its job."""
    name = scenario.framework.name
    words = f"{name}, {layout_words(layout)}"
    answer = WhyNot("not legal", words, layout, name, recommended=best)
    is_sized = layout.world == job.num_devices
    for rule in broken(scenario, Layouts.of(layout)):
        if is_sized or not rule.needs & _SIZES:
            reason, framework = rule.message(scenario, layout), scenario.framework
            named = f"{framework.title}: {framework.source}" if framework.name in reason else ""
            return replace(answer, reason=reason, source=rule.source or named)
    if not is_sized:
        place = f"{counted(job.nodes, 'node')} of {job.machine.name}"
        devices = counted(job.num_devices, "device")
        reason = f"dp * tp * pp * cp = {layout.world:,} is not the {devices} of {place}"
        return replace(answer, reason=reason)
    layouts = Layouts.stack([layout])
    estimate = estimate_layouts(scenario, layouts)[0]
    answer = replace(answer, estimate=estimate)
    if not estimate.fits:
        reason = shortage_sentence(estimate, footprints(scenario, layouts))
        return replace(answer, kind="does not fit", reason=reason)
    if best is None:
        return replace(answer, kind="not searched", reason="no layout that is searched fits")
    if Layouts.of(layout) == Layouts.of(best.layout) and best.framework == estimate.framework:
        return replace(answer, kind="recommended")
    return _against_recommended(job, scenario, answer, estimate, best)


def _against_recommended(
    job: JobSpec, scenario: Scenario, answer: WhyNot, estimate: Estimate, best: Estimate
) -> WhyNot:
    """Judge a layout that fits by the rules that put the recommended one before it."""
    policy = preferences().recommendation
    pair = Contender(scenario, estimate), Contender(job.scenario_of(best), best)
    risk = estimate.out_of_memory_probability
    is_risky = risk > max(policy.out_of_memory_risk.value, best.out_of_memory_probability)
    chosen = f"the recommended layout takes {format_seconds(best.step_time_s)}"
    if estimate.step_time_s >= best.step_time_s:
        more = 100 * (estimate.step_time_s / best.step_time_s - 1)
        reason = f"{format_seconds(estimate.step_time_s)} a step, {more:.0f} % more; {chosen}"
        source = policy.out_of_memory_risk.source if is_risky else ""
        if is_risky:
            reason = f"out-of-memory risk {percent_chance(risk)}, and {reason}"
        return replace(answer, kind="risky" if is_risky else "slower", reason=reason, source=source)
    if pair[0].comes_before(pair[1], job.tolerance):
        reason = "the search leaves out what exceeds its preferences, and rare settings"
        return replace(answer, kind="not searched", reason=reason)
    causes = causes_against(*pair)
    names = dict.fromkeys(PREFERENCES[cause] for cause in causes if cause in PREFERENCES)
    source = "; ".join(f"{name}: {getattr(policy, name).source}" for name in names)
    reason = f"{reason_against(*pair)}; {chosen}"
    answer = replace(answer, reason=reason, source=source)
    if is_risky:
        return replace(answer, kind="risky")
    change = next(
        (
            f"if {joined(PREFERENCES.get(c, c) for c in causes[:count])} did not count, it would "
            "come before the recommended layout."
            for count in range(1, len(causes) + 1)
            if pair[0].comes_before(pair[1], job.tolerance, without=causes[:count])
        ),
        "",
    )
    return replace(answer, kind="passed over", change=change)
