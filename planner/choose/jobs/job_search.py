"""Search a job with every framework."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace

from planner.choose.jobs.job_spec import JobSpec, running_frameworks
from planner.choose.preferences import preferences
from planner.choose.search import Candidates, SearchScope, is_deep_pipeline, search
from planner.choose.search.expected_time import why_no_files
from planner.choose.search.recommendation import recommend
from planner.cost.arrays import Mask
from planner.cost.estimate import Estimate
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.units import format_seconds

Within = Callable[[Layouts], Mask]
"""A condition on the layouts that are searched."""


JobCandidates = dict[str, Candidates]
"""Candidates of a job by framework."""


def search_job(
    job: JobSpec, scope: SearchScope = SearchScope(), within: Within | None = None
) -> JobCandidates:
    """Search every layout of a job, first those that configuration files can express."""
    candidates: JobCandidates = {}
    for scenarios in _search_steps(job):
        candidates |= search_scenarios(scenarios, job.num_devices, scope, within)
        best = recommend(candidates.values(), job.tolerance)
        if best is not None and not is_deep_pipeline(job.model, best.layout.pp):
            break
    return candidates


def search_scenarios(
    scenarios: dict[str, Scenario],
    world: int,
    scope: SearchScope = SearchScope(),
    within: Within | None = None,
) -> JobCandidates:
    """Search every framework, those with the most axes first."""
    candidates: JobCandidates = {}
    for name in sorted(reversed(scenarios), key=lambda name: -len(scenarios[name].framework.axes)):
        candidates[name] = search(scenarios[name], world, within, scope)
        scope = replace(scope, top_time_s=min(scope.top_time_s, candidates[name].top_time_s))
    return {name: candidates[name] for name in scenarios}


def _search_steps(job: JobSpec) -> Iterator[dict[str, Scenario]]:
    """Yield scenarios limited to what configuration files can express, then those without limit."""
    written = _writable_scenarios(job)
    yield written
    yield {
        framework.name: replace(job.scenario(framework), experience=job.experience)
        for framework in job.searched_frameworks()
        if (framework.name not in written or written[framework.name].framework != framework)
        and (job.frameworks or not framework.instead_of)
    }


def _writable_scenarios(job: JobSpec) -> dict[str, Scenario]:
    """Scenario of every framework, limited to layouts that its files can express."""
    model, workload = job.model, job.workload
    scenarios = {}
    frameworks = job.searched_frameworks() if job.frameworks else running_frameworks(job.machine)
    for framework in frameworks:
        if not job.frameworks and framework.code.lacks(model, workload):
            continue
        builds = framework.code.builds(model, workload) is not None
        unlimited = job.frameworks and framework.code.models and not builds
        part = framework if unlimited else framework.limit_to_files(model, workload)
        scenarios[framework.name] = job.scenario(part)
    if job.frameworks:
        return scenarios
    replaced = {scenario.framework.instead_of for scenario in scenarios.values()}
    return {
        name: scenario
        for name, scenario in scenarios.items()
        if name not in replaced and scenario.framework.stands_in_for not in scenarios
    }


def framework_notes(job: JobSpec, searched: Collection[str]) -> list[str]:
    """Name each framework whose configuration files cannot express the job, and the reason."""
    frameworks = [each for each in job.searched_frameworks() if each.instead_of not in searched]
    reasons = {each.name: each.code.lacks(job.model, job.workload) for each in frameworks}
    return [
        f"{'No files can be written for' if name in searched else 'Not searched:'} "
        f"{name}: {reason}."
        for name, reason in reasons.items()
        if reason
    ]


def faster_without_files(job: JobSpec, best: Estimate | None) -> str:
    """Name the layout of a framework whose code does not build the model that would be notably
    faster than the recommended one; empty if there is none, or if the job names its frameworks."""
    if best is None or job.frameworks or job.workload.adapted:
        return ""
    model, workload = job.model, job.workload
    frameworks = {
        framework.name: framework
        for framework in running_frameworks(job.machine)
        if not framework.instead_of and framework.code.lacks(model, workload)
        if framework.code.unsupported_model(model, workload.sequence_length)
    }
    scenarios = {name: job.scenario(framework) for name, framework in frameworks.items()}
    result = search_scenarios(scenarios, job.num_devices, SearchScope(top=1))
    fastest = recommend(result.values(), job.tolerance, without=("files",))
    gain = preferences().offers.switch_gain.value
    if fastest is None or fastest.step_time_s * gain > best.step_time_s:
        return ""
    reason = frameworks[fastest.framework].code.lacks(model, workload)
    less = 100 * (1 - fastest.step_time_s / best.step_time_s)
    step_time = format_seconds(fastest.step_time_s)
    return (
        f"{fastest.framework} would take {step_time} ({less:.0f} % less), but no files can be "
        f"written for it: {reason}."
    )


def unwritable_layout_notes(scenarios: Mapping[str, Scenario], best: Estimate | None) -> list[str]:
    """Explain why configuration files cannot express the recommended layout; empty if they can."""
    if best is None:
        return []
    scenario = scenarios[best.framework]
    if scenario.framework.code.lacks(scenario.model, scenario.workload):
        return []  # `framework_notes` reports the whole framework
    reason = why_no_files(scenario, best.layout)
    if not reason:
        return []
    return [f"No files can be written for the recommended layout: {reason}."]
