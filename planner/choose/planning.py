"""Planning: `plan` searches, `estimate` evaluates one layout.

Both take names, paths or descriptions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from planner.choose.job_checks import check_nodes, check_ramp, check_tolerance, check_workload
from planner.choose.job_search import answered, frameworks_for, left_out, unwritten
from planner.choose.legality import broken, check
from planner.choose.nearby_batches import offered
from planner.choose.plan import Dropped, Plan
from planner.choose.recommendation import TOLERANCE, ideas, recommended, stall_notes
from planner.choose.search import SearchScope
from planner.choose.verdicts.plan_notes import learning_rate_note, notes
from planner.choose.verdicts.strategy_verdicts import judge
from planner.choose.verdicts.switch_notes import switch_notes
from planner.cost.estimate import Estimate, estimate_layouts
from planner.cost.scenario import Scenario
from planner.cost.scenario.experience import Experience
from planner.cost.shards.layouts import Layouts
from planner.describe.catalogue import load_framework, load_machine, load_model
from planner.describe.framework.framework import Framework
from planner.describe.layout import Layout
from planner.describe.machine import Machine
from planner.describe.model.model import Model
from planner.describe.training.training import Training
from planner.describe.workload import Workload
from planner.errors import LayoutError
from planner.training.answer import WholeTraining
from planner.training.whole import whole_training as whole_training_of

__all__ = ["estimate", "plan", "scenario_for", "whole_training"]

_TOP = 20


def plan(
    model: str | Model,
    machine: str | Machine,
    *,
    nodes: int,
    workload: Workload | None = None,
    frameworks: str | Framework | Sequence[str | Framework] = (),
    top: int = _TOP,
    tolerance: float | None = None,
    experience: Experience = Experience(),
    training: Training | None = None,
) -> Plan:
    """Search every legal layout of a job: which to run, which is fastest, what does not fit.

    `model` and `machine` are names (a model's also on the Hugging Face hub), paths or descriptions;
    `nodes` of it are used, `workload` says what is trained, `frameworks` which are searched (the
    usual ones unless named), `top` how many layouts are ranked. Recommended is the simplest
    layout within `tolerance` (0.05 where None) of the fastest that is safe in memory. A batch that
    no layout shares is answered with the nearest one within a quarter. `experience` is what
    measured runs teach, as `planner.learn("runs.csv").experience`: times, memory, ranking follow.
    `training` is what a training does besides its steps, and what it is charged: where the workload
    says how long it is, `answer.training` has its days, parts and node-hours.
    Raises PlannerError subclasses for input that makes no sense; that nothing fits is a result.

    >>> answer = plan("gpt2", "polaris", nodes=1, workload=Workload(global_batch=64,
    ...               sequence_length=1024))
    >>> answer.fits, answer.best.layout.world
    (True, 4)
    """
    described, place = _model(model), _machine(machine)
    check_workload(workload)
    workload = workload or Workload(sequence_length=_usual_length(described))
    frameworks = (frameworks,) if isinstance(frameworks, (str, Framework)) else frameworks
    check_nodes(place, nodes)
    check_ramp(workload)
    near = TOLERANCE if tolerance is None else tolerance
    check_tolerance(near)
    place.peak(workload.base_precision)
    asked = workload.global_batch
    scope = SearchScope(near_factor=1 + near, top=top)
    answer = answered(described, place, nodes, workload, frameworks, experience, scope)
    found, workload = answer.found, answer.workload
    scenarios = {name: part.scenario for name, part in found.items()}
    best = recommended(found.values(), near)
    ranked = tuple(ideas(found.values(), top))
    verdicts = judge(found, scenarios, nodes, bool(frameworks), near)
    batches = answer.batches or offered(scenarios, nodes, best)
    dropped: Counter[str] = Counter()
    for part in found.values():
        dropped.update(part.dropped)
    return Plan(
        model=described.name,
        num_params=described.num_params,
        machine=place.name,
        nodes=nodes,
        num_devices=nodes * place.node.num_devices,
        workload=workload,
        num_candidates=sum(part.num_decided for part in found.values()),
        num_estimated=sum(len(part.footprints) for part in found.values()),
        ranked=ranked,
        recommended=best,
        strategies=tuple(verdicts),
        dropped=tuple(Dropped(*item) for item in sorted(dropped.items(), key=lambda i: (-i[1], i))),
        notes=(
            *notes(tuple(scenarios.values()), nodes, best, verdicts),
            *switch_notes(found, best),
            *stall_notes(scenarios, filter(None, (best, *ranked[:1]))),
            learning_rate_note(workload.global_batch, unit=workload.batch_unit),
            *left_out(described, place, workload, frameworks, found),
            *unwritten(scenarios, best),
        ),
        batches=batches,
        asked_batch=asked,
        queued=bool(place.scheduler.queues),
        queues=tuple(q for q in place.scheduler.queues if q.min_nodes <= nodes <= q.max_nodes),
        training=None
        if best is None
        else whole_training_of(scenarios[best.framework], best, nodes, training),
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
    """Memory and step time of one layout.

    Without a workload the global batch is the layout's own. Without a framework the first one
    that allows the layout is taken. `experience` corrects the estimate, as in `plan`. Raises
    LayoutError where none does, with the legal values.

    >>> estimate("llama-3-8b", "polaris", Layout(dp=4, tp=4, zero_stage=1)).layout.world
    16
    """
    scenario = scenario_for(model, machine, layout, workload, framework, experience)
    return estimate_layouts(scenario, Layouts.stack([layout]))[0]


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
    """How long the whole training takes on one layout, why, and what it takes.

    `workload` says how long it is (tokens, or samples and epochs), `training` what it does besides
    its steps and what it is charged; the rest is as in `estimate`. Raises LayoutError where the
    workload does not say how long it is.

    >>> job = Workload(global_batch=64, sequence_length=1024, tokens=1e10)
    >>> found = whole_training("gpt2", "polaris", Layout(dp=4, micro_batch=16), workload=job)
    >>> found.steps, found.time.expected == sum(one.time_s.expected for one in found.parts)
    (152588, True)
    """
    scenario = scenario_for(model, machine, layout, workload, framework, experience)
    one = estimate_layouts(scenario, Layouts.stack([layout]))[0]
    nodes = -(-layout.world // scenario.machine.node.num_devices)
    found = whole_training_of(scenario, one, nodes, training)
    if found is None:
        raise LayoutError(
            f"tokens = {workload.tokens:g}: how long the training is, is not said; set tokens, or "
            "samples and epochs, of the workload"
        )
    return found


def scenario_for(
    model: str | Model,
    machine: str | Machine,
    layout: Layout,
    workload: Workload | None,
    framework: str | Framework | None,
    experience: Experience,
) -> Scenario:
    """What is asked of one layout, which its framework allows; arguments as of `estimate`."""
    described, place = _model(model), _machine(machine)
    check_workload(workload)
    length = _usual_length(described)
    workload = workload or Workload(global_batch=layout.global_batch, sequence_length=length)
    place.peak(workload.base_precision)
    check_nodes(place, -(-layout.world // place.node.num_devices))
    scenario = _scenario_for(described, place, workload, layout, framework)
    return replace(scenario, experience=experience)


def _scenario_for(
    model: Model,
    machine: Machine,
    workload: Workload,
    layout: Layout,
    framework: str | Framework | None,
) -> Scenario:
    if framework is not None:
        chosen = framework if isinstance(framework, Framework) else load_framework(framework)
        scenario = Scenario(model, machine, workload, chosen)
        check(scenario, layout)
        return scenario
    asked = [Scenario(model, machine, workload, each) for each in frameworks_for((), machine)]
    refusals: list[LayoutError] = []
    for scenario in asked:
        try:
            check(scenario, layout)
        except LayoutError as error:
            refusals.append(error)
        else:
            return scenario
    raise min(zip(asked, refusals, strict=True), key=lambda pair: _distance(pair[0], layout))[1]


def _distance(scenario: Scenario, layout: Layout) -> tuple[int, bool, int, int]:
    """How far a framework is from a layout: the rules that are broken, and of as many the one that
    offers the most, which says most about the layout itself."""
    framework, rules = scenario.framework, len(list(broken(scenario, layout)))
    return rules, bool(framework.instead_of), -len(framework.axes), -len(framework.recompute)


def _usual_length(model: Model) -> int:
    """Tokens per sequence where no workload is stated: a sample that is none has one."""
    usual: int = Workload.model_fields["sequence_length"].default
    return model.default_sequence_length if model.counts_samples else usual


def _model(model: str | Model) -> Model:
    return model if isinstance(model, Model) else load_model(model)


def _machine(machine: str | Machine) -> Machine:
    return machine if isinstance(machine, Machine) else load_machine(machine)
