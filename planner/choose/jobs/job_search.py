"""Search a job with every framework, and with a nearby batch where its own has no layout."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from planner.choose.jobs.job_spec import JobSpec, running_frameworks
from planner.choose.jobs.nearby_batches import Batch, offered
from planner.choose.legality import check
from planner.choose.preferences import preferences
from planner.choose.recommendation import recommend
from planner.choose.search import Candidates, SearchScope, is_deep_pipeline, search
from planner.cost.estimate import Estimate
from planner.cost.scenario import Scenario
from planner.describe.workload import Workload
from planner.errors import LayoutError

__all__ = ["JobCandidates", "framework_notes", "search_job", "unwritable_layout_notes"]


@dataclass(frozen=True, slots=True)
class JobCandidates:
    """Layouts of a job by framework."""

    workload: Workload
    """The job's own, or with the nearest batch that has a layout where the job's own has none."""
    by_framework: dict[str, Candidates]
    """Every layout, by the framework's name."""
    batches: tuple[Batch, ...] = ()
    """Batches to use in place of one that has no layout."""


def search_job(job: JobSpec, scope: SearchScope = SearchScope()) -> JobCandidates:
    """Search every layout of a job; of the nearest batch where its own has none.

    The search goes in steps: layouts that configuration files can express; the same with a nearby
    batch; the rest. A layout that nobody would run (25 pipeline stages for a few billion
    parameters) is no answer while a slightly different batch divides evenly.
    """
    candidates: dict[str, Candidates] = {}
    for scenarios in _search_steps(job):
        candidates |= _search_all(scenarios, job.num_devices, scope)
        best = recommend(candidates.values())
        if best is not None and not is_deep_pipeline(job.model, best.layout.pp):
            break
        batches = offered(scenarios, job.nodes, best) if scenarios else ()
        nearest = _nearest_batch(job, batches, best)
        if nearest is not None:
            workload = job.workload.replaced(global_batch=nearest)
            nearby = {name: replace(s, workload=workload) for name, s in scenarios.items()}
            return JobCandidates(workload, _search_all(nearby, job.num_devices, scope), batches)
        if best is not None:
            break
    return JobCandidates(job.workload, candidates)


def _nearest_batch(job: JobSpec, batches: tuple[Batch, ...], best: Estimate | None) -> int | None:
    """The closest of some batches that is near enough to stand for the job's own."""
    batch = job.workload.global_batch
    change = preferences().offers.batch_change.value * batch
    sizes = [
        offer.global_batch
        for offer in batches
        if abs(offer.global_batch - batch) <= change
        and (best is None or not is_deep_pipeline(job.model, offer.estimate.layout.pp))
    ]
    return min(sizes, key=lambda size: abs(size - batch)) if sizes else None


def _search_all(
    scenarios: dict[str, Scenario], world: int, scope: SearchScope
) -> dict[str, Candidates]:
    """Search every framework.

    The order does not change the answer. Frameworks with the most axes go first: they are often
    the fastest, and their best time prunes the others.
    """
    candidates: dict[str, Candidates] = {}
    for name in sorted(reversed(scenarios), key=lambda name: -len(scenarios[name].framework.axes)):
        candidates[name] = search(scenarios[name], world, scope=scope)
        scope = replace(scope, top_time_s=min(scope.top_time_s, candidates[name].top_time_s))
    return {name: candidates[name] for name in scenarios}


def _search_steps(job: JobSpec) -> Iterator[dict[str, Scenario]]:
    """Scenarios that configuration files can express, then what else the frameworks can do."""
    written = _writable_scenarios(job)
    yield written
    yield {
        framework.name: replace(job.scenario(framework), experience=job.experience)
        for framework in job.searched_frameworks()
        if (framework.name not in written or written[framework.name].framework != framework)
        and (job.frameworks or not framework.instead_of)
    }


def _writable_scenarios(job: JobSpec) -> dict[str, Scenario]:
    """Every framework, limited to layouts that its configuration files can express.

    A framework that the user chose is searched in full where its own code does not build the
    model. By default a framework is left out if it can write nothing, or if another one that can
    takes its place.
    """
    model, workload = job.model, job.workload
    scenarios = {}
    for framework in (
        job.searched_frameworks() if job.frameworks else running_frameworks(job.machine)
    ):
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
    """One sentence for every framework whose configuration cannot express the job."""
    frameworks = [each for each in job.searched_frameworks() if each.instead_of not in searched]
    reasons = {each.name: each.code.lacks(job.model, job.workload) for each in frameworks}
    return [
        f"{'No files can be written for' if name in searched else 'Not searched:'} "
        f"{name}: {reason}."
        for name, reason in reasons.items()
        if reason
    ]


def unwritable_layout_notes(scenarios: Mapping[str, Scenario], best: Estimate | None) -> list[str]:
    """One sentence where no configuration can express the recommended layout itself."""
    if best is None:
        return []
    scenario = scenarios[best.framework]
    model, workload, framework = scenario.model, scenario.workload, scenario.framework
    if framework.code.lacks(model, workload):
        return []  # `framework_notes` has said so of the whole framework
    try:
        check(
            replace(scenario, framework=framework.limit_to_files(model, workload)),
            best.layout,
        )
    except LayoutError as error:
        return [
            f"No files can be written for the recommended layout: {error}. `planner emit` names "
            "the fastest one that can be."
        ]
    return []
