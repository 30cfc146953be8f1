"""Asking: which frameworks a job is searched with, and what each of them can do."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from planner.choose.batches import offered
from planner.choose.search import Found, search
from planner.describe.catalogue import load_framework, names
from planner.describe.framework import Framework
from planner.describe.machine import Machine
from planner.describe.model.model import Model
from planner.describe.question import Question
from planner.describe.workload import Workload
from planner.errors import LayoutError

__all__ = ["frameworks_for", "left_out", "searched"]

_FEW = 0.05
"""By which part of itself a batch may change and the job be much the same."""


def searched(
    model: Model,
    machine: Machine,
    nodes: int,
    workload: Workload,
    chosen: Sequence[str | Framework] = (),
) -> dict[str, Found]:
    """Every layout of a job, by framework.

    Searched first is what files can be written for; where none of it fits, the rest too: an answer
    without files is better than none, but not than the same job with a few sequences more or less.
    """
    world = nodes * machine.node.num_devices
    asked = {q.framework.name: q for q in _questions(model, machine, workload, chosen)}
    found = {name: search(question, world) for name, question in asked.items()}
    if any(len(part.estimates) for part in found.values()) or _near(asked, nodes, workload):
        return found
    for framework in frameworks_for(chosen, machine):
        name = framework.name
        if not chosen and framework.instead_of:
            # what it stands for is searched whole
            continue
        if name not in asked or asked[name].framework != framework:
            found[name] = search(Question(model, machine, workload, framework), world)
    return found


def _near(asked: dict[str, Question], nodes: int, workload: Workload) -> bool:
    """Whether what can be written fits with a few sequences more or less."""
    batch = workload.global_batch
    others = offered(asked, nodes, None) if asked else ()
    return any(abs(other.global_batch - batch) <= _FEW * batch for other in others)


def _questions(
    model: Model, machine: Machine, workload: Workload, chosen: Sequence[str | Framework]
) -> list[Question]:
    """Every framework, as far as its layouts can be written for the job.

    One that is named is searched whole where its own code does not build the model; of the others
    none is searched that can write nothing, nor one that stands in for another that can, or in
    whose place another is.
    """
    asked = {}
    for framework in frameworks_for(chosen, machine) if chosen else _running(machine):
        lacks = framework.code.lacks(model, workload)
        built = framework.code.builds(model, workload) is not None
        if not chosen and lacks:
            continue
        whole = chosen and framework.code.models and not built
        part = framework if whole else framework.written(model, workload)
        asked[framework.name] = Question(model, machine, workload, part)
    if chosen:
        return list(asked.values())
    replaced = {q.framework.instead_of for q in asked.values()}
    return [
        question
        for name, question in asked.items()
        if name not in replaced and question.framework.stands_in_for not in asked
    ]


def left_out(
    model: Model,
    machine: Machine,
    workload: Workload,
    chosen: Sequence[str | Framework],
    found: Collection[str],
) -> list[str]:
    """A sentence for every framework whose files cannot be written for a job, searched or not."""
    asked = [f for f in frameworks_for(chosen, machine) if f.instead_of not in found]
    why = {framework.name: framework.code.lacks(model, workload) for framework in asked}
    return [
        f"{'No files can be written for' if name in found else 'Not searched:'} {name}: {reason}."
        for name, reason in why.items()
        if reason
    ]


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
    running = _running(machine)
    here = {framework.name for framework in running}
    return [framework for framework in running if framework.stands_in_for not in here]


def _running(machine: Machine) -> list[Framework]:
    """Frameworks that are searched by default and run on the machine."""
    described = [load_framework(name) for name in names("framework")]
    runtime = machine.device.runtime
    return [
        framework
        for framework in described
        if framework.searched
        and runtime in framework.runtimes
        and framework.requires.met_by(machine)
    ]
