"""Plan a job; estimate one of its layouts or its whole training."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from planner.choose.jobs import job_search
from planner.choose.jobs.alternatives import network_choice, search_headline, wasted_nodes_note
from planner.choose.jobs.job_spec import JobSpec
from planner.choose.legality import broken, legal_refined
from planner.choose.legality.check import check_count, refusals_of
from planner.choose.plan import Dropped, Plan, Verdict
from planner.choose.search import Candidates, SearchScope, recommendation
from planner.choose.verdicts.fixes import switch_notes
from planner.choose.verdicts.plan_notes import learning_rate_note, plan_notes, preference_notes
from planner.choose.verdicts.reasons import reasons_against
from planner.choose.verdicts.strategy_verdicts import judge_strategies
from planner.cost.estimate import Estimate, estimate_layouts
from planner.cost.scenario import Scenario
from planner.cost.scenario.experience import Experience
from planner.cost.shards.layouts import Layouts
from planner.describe.catalogue import load_machine
from planner.describe.framework.framework import Framework
from planner.describe.layout import Layout
from planner.describe.machine import Machine
from planner.describe.model.model import Model
from planner.describe.training.training_run import Training
from planner.describe.workload import Workload
from planner.errors import LayoutError, shorten
from planner.training.campaign import whole_training as whole_training_of
from planner.training.whole_training import WholeTraining

TOP = 20
"""Default number of ranked layouts in a plan."""


def plan(
    model: str | Model,
    machine: str | Machine,
    *,
    nodes: int,
    workload: Workload | None = None,
    frameworks: str | Framework | Sequence[str | Framework] = (),
    top: int = TOP,
    tolerance: float | None = None,
    experience: Experience = Experience(),
    training: Training | None = None,
    exact: bool = False,
) -> Plan:
    """Search every legal layout of a job, rank those that fit and recommend the best answer."""
    job = JobSpec(
        model,
        machine,
        nodes=nodes,
        workload=workload,
        frameworks=frameworks,
        tolerance=tolerance,
        experience=experience,
        training=training,
        exact=exact,
    )
    return plan_job(job, top)


def plan_job(job: JobSpec, top: int = TOP) -> Plan:
    """Search every legal layout of a job and rank the best."""
    return plan_with_candidates(job, top)[0]


def plan_with_candidates(job: JobSpec, top: int = TOP) -> tuple[Plan, list[Candidates]]:
    """Plan a job; also return the candidates that its plan was chosen from."""
    check_count("top", top)
    scope = SearchScope(near_factor=1 + job.tolerance, top=top)
    job, candidates, alternatives = search_headline(job, scope)
    scenarios = {name: part.scenario for name, part in candidates.items()}
    best = recommendation.recommend(candidates.values(), job.tolerance)
    ranked = recommendation.with_recommended(
        recommendation.rank_layouts(candidates.values(), top), best
    )
    verdicts = judge_strategies(job, candidates)
    queues = job.machine.scheduler.queues
    plan = Plan(
        model=job.model.name,
        num_params=job.model.num_params,
        machine=job.machine.name,
        nodes=job.nodes,
        num_devices=job.num_devices,
        device_memory_bytes=job.machine.device.memory_bytes.value,
        workload=job.workload,
        num_candidates=sum(part.num_decided for part in candidates.values()),
        num_estimated=sum(len(part.footprints) for part in candidates.values()),
        ranked=ranked,
        recommended=best,
        strategies=tuple(verdicts),
        dropped=_dropped(candidates),
        notes=_notes(job, scenarios, candidates, best, verdicts, ranked),
        alternatives=alternatives,
        reasons=reasons_against(scenarios, ranked, best),
        files_note=job_search.faster_without_files(job, best),
        scale_note=wasted_nodes_note(job, best),
        network_note=network_choice(scenarios[best.framework], best) if best else "",
        queued=bool(queues),
        queues=tuple(q for q in queues if q.min_nodes <= job.nodes <= q.max_nodes),
        training=None
        if best is None
        else whole_training_of(scenarios[best.framework], best, job.nodes, job.training),
    )
    return plan, list(candidates.values())


def _dropped(candidates: job_search.JobCandidates) -> tuple[Dropped, ...]:
    counts: Counter[str] = Counter()
    for part in candidates.values():
        counts.update(part.dropped)
    return tuple(Dropped(*item) for item in sorted(counts.items(), key=lambda i: (-i[1], i)))


def _notes(
    job: JobSpec,
    scenarios: Mapping[str, Scenario],
    candidates: job_search.JobCandidates,
    best: Estimate | None,
    verdicts: Sequence[Verdict],
    ranked: Sequence[Estimate],
) -> tuple[str, ...]:
    return (
        *plan_notes(tuple(scenarios.values()), job.nodes, best, verdicts),
        *switch_notes(candidates, best),
        *recommendation.stall_notes(scenarios, filter(None, (best, *ranked[:1]))),
        learning_rate_note(job.workload),
        *job_search.framework_notes(job, candidates),
        *preference_notes(),
        *job_search.unwritable_layout_notes(scenarios, best),
    )


def estimate(
    model: str | Model,
    machine: str | Machine,
    layout: Layout,
    *,
    workload: Workload | None = None,
    framework: str | Framework | None = None,
    experience: Experience = Experience(),
) -> Estimate:
    """Estimate memory and step time of one layout."""
    job = job_of_layout(model, machine, layout, workload, framework, experience)
    return estimate_job(job, layout)


def estimate_job(job: JobSpec, layout: Layout) -> Estimate:
    """Estimate one layout of a job under the first of its frameworks that allows it."""
    return estimate_layouts(scenario_for(job, layout), Layouts.stack([layout]))[0]


def estimate_jobs(jobs: Sequence[tuple[JobSpec, Layout]]) -> list[Estimate | LayoutError]:
    """Estimate layouts as `estimate_job` does, together where only nodes and batch differ."""
    groups: dict[tuple[Any, ...], list[int]] = {}
    for number, (job, layout) in enumerate(jobs):
        fills_nodes = job.nodes == -(-layout.world // job.machine.node.num_devices)
        # a ramp is checked against the batch of each job
        if fills_nodes and not job.workload.ramp and not job.experience.is_known:
            workload = job.workload
            if fills_batch := layout.global_batch == workload.global_batch:
                workload = workload.model_copy(update={"global_batch": 1})
            key = (id(job.model), id(job.machine), job.frameworks, workload, fills_batch)
            groups.setdefault(key, []).append(number)
    results: dict[int, Estimate | LayoutError] = {}
    for (*_, fills_batch), numbers in groups.items():
        results |= _estimate_group({number: jobs[number] for number in numbers}, fills_batch)
    for number, (job, layout) in enumerate(jobs):
        if number not in results:
            try:
                results[number] = estimate_job(job, layout)
            except LayoutError as error:
                results[number] = error
    return [results[number] for number in range(len(jobs))]


def _estimate_group(
    jobs: Mapping[int, tuple[JobSpec, Layout]], fills_batch: bool
) -> dict[int, Estimate | LayoutError]:
    """Estimates or refusals of layouts in jobs that differ in nodes, and in a batch they fill."""
    (first, _), rows = next(iter(jobs.values())), np.array(list(jobs))
    layouts = Layouts.stack(layout for _, layout in jobs.values())
    results: dict[int, Estimate | LayoutError] = {}
    scenarios = [first.scenario(framework) for framework in first.searched_frameworks()]
    for scenario in scenarios if fills_batch else ():
        if not scenario.framework.refuses(scenario.machine, scenario.workload, scenario.model):
            is_legal = legal_refined(scenario, layouts)
            part = estimate_layouts(scenario, layouts.take(is_legal))
            tokens = [jobs[row][0].workload.tokens_per_step for row in rows[is_legal].tolist()]
            listed = part.of_scenario(scenario, np.array(tokens)).rows(range(len(tokens)))
            results |= zip(rows[is_legal].tolist(), listed, strict=True)
            layouts, rows = layouts.take(~is_legal), rows[~is_legal]
    refusals = refusals_of(scenarios, layouts, fills_batch) if len(rows) else ()
    return results | dict(zip(rows.tolist(), refusals, strict=True))


def whole_training(
    model: str | Model,
    machine: str | Machine,
    layout: Layout,
    *,
    workload: Workload,
    training: Training | None = None,
    framework: str | Framework | None = None,
    experience: Experience = Experience(),
) -> WholeTraining:
    """Estimate the duration, energy and cost of a whole training on one layout."""
    job = job_of_layout(model, machine, layout, workload, framework, experience)
    return train_job(job.replaced(training=training), layout)


def train_job(job: JobSpec, layout: Layout) -> WholeTraining:
    """Estimate the whole training of a job on one layout."""
    scenario = scenario_for(job, layout)
    estimated = estimate_layouts(scenario, Layouts.stack([layout]))[0]
    answer = whole_training_of(scenario, estimated, job.nodes, job.training)
    if answer is None:
        raise LayoutError(
            f"tokens = {job.workload.tokens:g}: the workload states no length of the training; set "
            "tokens, or samples and epochs"
        )
    return answer


def job_of_layout(
    model: str | Model,
    machine: str | Machine,
    layout: Layout,
    workload: Workload | None,
    framework: str | Framework | None,
    experience: Experience,
) -> JobSpec:
    """Make the job of a layout, with the nodes and, by default, the global batch of the layout."""
    if not isinstance(layout, Layout):
        raise LayoutError(
            f"layout = {shorten(repr(layout))} is not a layout; write for example Layout(dp=4)"
        )
    place = machine if isinstance(machine, Machine) else load_machine(machine)
    job = JobSpec(
        model,
        place,
        nodes=-(-layout.world // place.node.num_devices),
        workload=workload,
        frameworks=() if framework is None else framework,
        experience=experience,
    )
    if workload is None:
        return job.replaced(workload=job.workload.replaced(global_batch=layout.global_batch))
    return job


def scenario_for(job: JobSpec, layout: Layout) -> Scenario:
    """Scenario under the first framework that allows a layout. Raises LayoutError if none does."""
    per_node = job.machine.node.num_devices
    needed = -(-layout.world // per_node)
    if needed != job.nodes:
        raise LayoutError(
            f"the layout has {layout.world} ranks, which take {needed} nodes of {per_node} "
            f"devices, but nodes = {job.nodes}; use nodes = {needed} or a layout of "
            f"{job.num_devices} ranks"
        )
    row, scenarios = Layouts.stack([layout]), []
    for scenario in map(job.scenario, job.searched_frameworks()):
        scenarios.append(scenario)
        reason = scenario.framework.refuses(scenario.machine, scenario.workload, scenario.model)
        if not reason and next(broken(scenario, row), None) is None:
            return scenario
    raise refusals_of(scenarios, row)[0]
