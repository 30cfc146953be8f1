"""Planning: `plan` searches, `estimate` evaluates one layout.

Both take names, paths or descriptions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from planner.choose.job import check_nodes
from planner.choose.legality import check
from planner.choose.plan import Dropped, Plan
from planner.choose.recommending import recommended
from planner.choose.search import Found, order, search
from planner.choose.verdicts.advice import learning_rate_note, notes
from planner.choose.verdicts.batches import batch_note, offered
from planner.choose.verdicts.judging import judge
from planner.cost.estimate import Estimate, estimate_layouts
from planner.cost.shards.layouts import Layouts
from planner.describe.catalogue import load_framework, load_machine, load_model, names
from planner.describe.framework import Framework
from planner.describe.layout import Layout
from planner.describe.machine import Machine
from planner.describe.model.model import Model
from planner.describe.question import Question
from planner.describe.workload import Workload
from planner.errors import LayoutError

__all__ = ["estimate", "frameworks_for", "left_out", "plan", "questions_for"]

_TOP = 20


def plan(
    model: str | Model,
    machine: str | Machine,
    *,
    nodes: int,
    workload: Workload | None = None,
    frameworks: Sequence[str | Framework] = (),
    top: int = _TOP,
) -> Plan:
    """Search every legal layout of a job and say which is fastest, what fits and what does not.

    `model` and `machine` are catalogue names, paths or descriptions. Raises PlannerError
    subclasses for input that makes no sense; that nothing fits is a result.

    >>> answer = plan("gpt2", "polaris", nodes=1, workload=Workload(global_batch=64,
    ...               sequence_length=1024))
    >>> answer.fits, answer.best.layout.world
    (True, 4)
    """
    described, place = _model(model), _machine(machine)
    workload = workload or Workload()
    check_nodes(place, nodes)
    place.peak(workload.base_precision)
    asked = questions_for(described, place, workload, frameworks)
    questions = {question.framework.name: question for question in asked}
    world = nodes * place.node.num_devices
    found = {name: search(question, world) for name, question in questions.items()}
    ranked = _ranked(found, top)
    best, verdicts = recommended(found.values()), judge(found, questions, nodes, bool(frameworks))
    batches = offered(questions, nodes, best)
    dropped: Counter[str] = Counter()
    for part in found.values():
        dropped.update(part.dropped)
    return Plan(
        model=described.name,
        num_params=described.num_params,
        machine=place.name,
        nodes=nodes,
        num_devices=world,
        workload=workload,
        num_candidates=sum(len(part.footprints) for part in found.values()),
        ranked=tuple(ranked),
        recommended=best,
        strategies=tuple(verdicts),
        dropped=tuple(Dropped(*item) for item in sorted(dropped.items(), key=lambda i: (-i[1], i))),
        notes=(
            *batch_note(batches, workload.global_batch),
            *notes(asked, nodes, best, verdicts),
            learning_rate_note(workload.global_batch),
            *left_out(described, place, workload, frameworks),
        ),
        batches=batches,
        queues=tuple(q for q in place.scheduler.queues if q.min_nodes <= nodes <= q.max_nodes),
    )


def _ranked(found: dict[str, Found], top: int) -> list[Estimate]:
    """The fastest of all frameworks; ties go to the framework searched first."""
    best = []
    for position, part in enumerate(found.values()):
        for index in order(part.estimates, top):
            best.append((position, part.estimates[int(index)]))
    best.sort(key=lambda pair: (round(pair[1].step_time_s, 9), pair[0]))
    return [estimate for _, estimate in best[:top]]


def estimate(
    model: str | Model,
    machine: str | Machine,
    layout: Layout,
    *,
    workload: Workload | None = None,
    framework: str | Framework | None = None,
) -> Estimate:
    """Memory and step time of one layout.

    Without a workload the global batch is the layout's own. Without a framework the first one
    that allows the layout is taken. Raises LayoutError where none does, with the legal values.

    >>> estimate("llama-3-8b", "polaris", Layout(dp=4, tp=4, zero_stage=1)).layout.world
    16
    """
    described, place = _model(model), _machine(machine)
    workload = workload or Workload(global_batch=layout.global_batch)
    place.peak(workload.base_precision)
    check_nodes(place, -(-layout.world // place.node.num_devices))
    question = _question_for(described, place, workload, layout, framework)
    return estimate_layouts(question, Layouts.stack([layout]))[0]


def _question_for(
    model: Model,
    machine: Machine,
    workload: Workload,
    layout: Layout,
    framework: str | Framework | None,
) -> Question:
    if framework is not None:
        chosen = framework if isinstance(framework, Framework) else load_framework(framework)
        question = Question(model, machine, workload, chosen)
        check(question, layout)
        return question
    refusals: list[LayoutError] = []
    options = frameworks_for((), machine)
    for candidate in options:
        question = Question(model, machine, workload, candidate)
        try:
            check(question, layout)
        except LayoutError as error:
            refusals.append(error)
        else:
            return question
    # the framework that offers the most says most about the layout itself
    richest = max(
        range(len(options)), key=lambda i: (len(options[i].axes), len(options[i].recompute))
    )
    raise refusals[richest]


def questions_for(
    model: Model, machine: Machine, workload: Workload, chosen: Sequence[str | Framework] = ()
) -> list[Question]:
    """What is searched: every framework, as far as its layouts can be written for the job.

    One that is named is searched whole where its own code does not build the model; of the others
    none is searched that can write nothing.
    """
    searched = []
    for framework in frameworks_for(chosen, machine):
        lacks = framework.code.lacks(model, workload)
        built = framework.code.builds(model, workload) is not None
        if not chosen and lacks:
            continue
        whole = chosen and framework.code.models and not built
        part = framework if whole else framework.written(model, workload)
        searched.append(Question(model, machine, workload, part))
    # nothing can be written: the estimates still say what the job takes
    whole = frameworks_for(chosen, machine)
    return searched or [Question(model, machine, workload, framework) for framework in whole]


def left_out(
    model: Model, machine: Machine, workload: Workload, chosen: Sequence[str | Framework] = ()
) -> list[str]:
    """A sentence for every framework whose files cannot be written for the job."""
    why = {f: f.code.lacks(model, workload) for f in frameworks_for(chosen, machine)}
    done = "No files can be written for" if chosen else "Not searched:"
    return [f"{done} {framework.name}: {reason}." for framework, reason in why.items() if reason]


def _model(model: str | Model) -> Model:
    return model if isinstance(model, Model) else load_model(model)


def _machine(machine: str | Machine) -> Machine:
    return machine if isinstance(machine, Machine) else load_machine(machine)


def frameworks_for(chosen: Sequence[str | Framework], machine: Machine) -> list[Framework]:
    """The chosen frameworks, or those that are searched by default and run on the machine."""
    runtime = machine.device.runtime
    if chosen:
        frameworks = [f if isinstance(f, Framework) else load_framework(f) for f in chosen]
        for framework in frameworks:
            if runtime not in framework.runtimes:
                raise LayoutError(
                    f"{framework.name} does not run on {runtime} devices ({machine.name}); use "
                    "another framework"
                )
        return frameworks
    described = [load_framework(name) for name in names("framework")]
    running = [f for f in described if f.searched and runtime in f.runtimes]
    here = {framework.name for framework in running}
    return [framework for framework in running if framework.stands_in_for not in here]
