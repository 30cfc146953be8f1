"""Search a job with every framework."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from planner.choose.jobs.job_spec import JobSpec, running_frameworks
from planner.choose.preferences import preferences
from planner.choose.search import Candidates, SearchScope, is_deep_pipeline, search_together
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
    return search_jobs([job], scope, within)[0]


def search_jobs(
    jobs: Sequence[JobSpec], scope: SearchScope = SearchScope(), within: Within | None = None
) -> list[JobCandidates]:
    """Search jobs like `search_job`; those that differ in nodes and batch alone share arrays."""
    candidates: list[JobCandidates] = [{} for _ in jobs]
    rows, steps = list(range(len(jobs))), [_search_steps(job) for job in jobs]
    while rows:
        scenarios = [next(steps[row], {}) for row in rows]
        worlds = [jobs[row].num_devices for row in rows]
        for row, parts in zip(rows, _search_all(scenarios, worlds, scope, within), strict=True):
            candidates[row] |= parts
        rows = [row for row, step in zip(rows, scenarios, strict=True) if step]
        rows = [row for row in rows if _is_open(jobs[row], candidates[row])]
    return candidates


def _is_open(job: JobSpec, candidates: JobCandidates) -> bool:
    """Whether the layouts found so far leave a job without a recommendation of usual depth."""
    best = recommend(candidates.values(), job.tolerance)
    return best is None or bool(is_deep_pipeline(job.model, best.layout.pp))


def _search_all(
    jobs: Sequence[dict[str, Scenario]],
    worlds: Sequence[int],
    scope: SearchScope,
    within: Within | None = None,
) -> list[JobCandidates]:
    """Search every framework of jobs, those with the most axes first."""
    scenarios = {name: scenario for job in jobs for name, scenario in job.items()}
    candidates: list[JobCandidates] = [{} for _ in jobs]
    scopes = [scope] * len(jobs)
    for name in sorted(reversed(scenarios), key=lambda name: -len(scenarios[name].framework.axes)):
        for rows in _alike({row: job[name] for row, job in enumerate(jobs) if name in job}):
            alike = [(jobs[row][name], worlds[row], scopes[row]) for row in rows]
            parts = search_together(alike, within)
            for row, part in zip(rows, parts, strict=True):
                candidates[row][name] = part
                top_time_s = min(scopes[row].top_time_s, part.top_time_s)
                scopes[row] = replace(scopes[row], top_time_s=top_time_s)
    return [{name: each[name] for name in job} for job, each in zip(jobs, candidates, strict=True)]


def _alike(scenarios: Mapping[int, Scenario]) -> list[list[int]]:
    """Group scenarios that differ in their batch alone."""
    groups: list[tuple[Scenario, list[int]]] = []
    for row, each in scenarios.items():
        batch = each.workload.global_batch
        for first, rows in groups:
            workload = first.workload.model_copy(update={"global_batch": batch})
            is_alike = replace(first, workload=workload) == each
            if is_alike and first.experience is each.experience:
                rows.append(row)
                break
        else:
            groups.append((each, [row]))
    return [rows for _, rows in groups]


def _search_steps(job: JobSpec) -> Iterator[dict[str, Scenario]]:
    """Yield scenarios limited to what configuration files can express, then those without limit:
    of frameworks whose code can train the job, and then of all others."""
    written = _writable_scenarios(job)
    yield written
    unlimited = {
        framework.name: replace(job.scenario(framework), experience=job.experience)
        for framework in job.searched_frameworks()
        if (framework.name not in written or written[framework.name].framework != framework)
        and (job.frameworks or not framework.instead_of)
    }
    lacking = {
        name: scenario
        for name, scenario in unlimited.items()
        if scenario.framework.code.lacks(job.model, job.workload)
    }
    able = {name: each for name, each in unlimited.items() if name not in lacking}
    yield from filter(None, (able, lacking))


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
    """Name the notably faster layout of a framework that cannot build the model; empty if none."""
    # frameworks that build transformers do not train convolutional networks
    if best is None or job.frameworks or job.workload.adapted or job.model.convolutional:
        return ""
    model, workload = job.model, job.workload
    frameworks = {
        framework.name: framework
        for framework in running_frameworks(job.machine)
        if not framework.instead_of and framework.code.lacks(model, workload)
        if framework.code.unsupported_model(model, workload.sequence_length)
    }
    scenarios = {name: job.scenario(framework) for name, framework in frameworks.items()}
    scope = SearchScope(near_factor=1 + job.tolerance, recommended_only=True)
    (result,) = _search_all([scenarios], [job.num_devices], scope)
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
