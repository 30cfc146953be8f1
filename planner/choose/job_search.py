"""Asking: which frameworks a job is searched with, and what each of them can do."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from planner.choose.legality import check
from planner.choose.nearby_batches import NEAR, Batch, offered
from planner.choose.recommendation import deep, recommended
from planner.choose.search import Candidates, SearchScope, search
from planner.cost.estimate import Estimate
from planner.cost.scenario import Scenario
from planner.cost.scenario.experience import Experience
from planner.describe.catalogue import load_framework, names
from planner.describe.framework.framework import Framework
from planner.describe.machine import Machine
from planner.describe.model.model import Model
from planner.describe.workload import Workload
from planner.errors import LayoutError

__all__ = ["Answered", "answered", "frameworks_for", "left_out", "searched", "unwritten"]


@dataclass(frozen=True, slots=True)
class Answered:
    """A job as it can be answered."""

    workload: Workload
    """The one asked for, or with the nearest batch that has a layout where that one has none."""
    found: dict[str, Candidates]
    """Every layout, by framework."""
    batches: tuple[Batch, ...] = ()
    """What is offered in place of a batch that has no layout."""


def answered(
    model: Model,
    machine: Machine,
    nodes: int,
    workload: Workload,
    chosen: Sequence[str | Framework] = (),
    experience: Experience = Experience(),
    scope: SearchScope = SearchScope(),
) -> Answered:
    """Every layout of a job, by framework; of the nearest batch where the one asked for has none.

    Searched first is what files can be written for, then the same with a near batch, and the rest
    last: what nobody would run, as a pipeline of 25 stages for a few billion parameters, is no
    answer while a few sequences more or less can be shared evenly.
    """
    world, batch = nodes * machine.node.num_devices, workload.global_batch
    found: dict[str, Candidates] = {}
    for stage in _stages(model, machine, workload, chosen):
        asked = {name: replace(scenario, experience=experience) for name, scenario in stage.items()}
        found |= _search_all(asked, world, scope)
        one = recommended(found.values())
        if one is not None and not deep(model, one.layout.pp):
            break
        others = offered(asked, nodes, one) if asked else ()
        near = [
            size
            for offer in others
            if abs((size := offer.global_batch) - batch) <= NEAR * batch
            and (one is None or not deep(model, offer.estimate.layout.pp))
        ]
        if near:
            nearest = workload.replaced(global_batch=min(near, key=lambda size: abs(size - batch)))
            again = {name: replace(scenario, workload=nearest) for name, scenario in asked.items()}
            return Answered(nearest, _search_all(again, world, scope), others)
        if one is not None:
            break
    return Answered(workload, found)


def _search_all(
    asked: dict[str, Scenario], world: int, scope: SearchScope
) -> dict[str, Candidates]:
    """What is found for every framework.

    In any order the answer is the same; those of most axes are often the fastest and spare most
    estimates of others.
    """
    found: dict[str, Candidates] = {}
    for name in sorted(reversed(asked), key=lambda name: -len(asked[name].framework.axes)):
        found[name] = search(asked[name], world, scope=scope)
        top_time_s = min(scope.top_time_s, found[name].top_time_s)
        scope = replace(scope, top_time_s=top_time_s)
    return {name: found[name] for name in asked}


def searched(
    model: Model,
    machine: Machine,
    nodes: int,
    workload: Workload,
    chosen: Sequence[str | Framework] = (),
    experience: Experience = Experience(),
    scope: SearchScope = SearchScope(),
) -> dict[str, Candidates]:
    """Every layout of a job as it is answered, by framework; `scope` as of `search`."""
    return answered(model, machine, nodes, workload, chosen, experience, scope).found


def _stages(
    model: Model, machine: Machine, workload: Workload, chosen: Sequence[str | Framework]
) -> Iterator[dict[str, Scenario]]:
    """What files can be written for, then what else the frameworks can do."""
    asked = {q.framework.name: q for q in _scenarios(model, machine, workload, chosen)}
    yield asked
    yield {
        framework.name: Scenario(model, machine, workload, framework)
        for framework in frameworks_for(chosen, machine, workload, model)
        if (framework.name not in asked or asked[framework.name].framework != framework)
        and (chosen or not framework.instead_of)
    }


def _scenarios(
    model: Model, machine: Machine, workload: Workload, chosen: Sequence[str | Framework]
) -> list[Scenario]:
    """Every framework, as far as its layouts can be written for the job.

    One that is named is searched whole where its own code does not build the model; of the others
    none is searched that can write nothing, nor one that stands in for another that can, or in
    whose place another is.
    """
    asked = {}
    for framework in (
        frameworks_for(chosen, machine, workload, model) if chosen else _running(machine)
    ):
        lacks = framework.code.lacks(model, workload)
        built = framework.code.builds(model, workload) is not None
        if not chosen and lacks:
            continue
        whole = chosen and framework.code.models and not built
        part = framework if whole else framework.written(model, workload)
        asked[framework.name] = Scenario(model, machine, workload, part)
    if chosen:
        return list(asked.values())
    replaced = {q.framework.instead_of for q in asked.values()}
    return [
        scenario
        for name, scenario in asked.items()
        if name not in replaced and scenario.framework.stands_in_for not in asked
    ]


def left_out(
    model: Model,
    machine: Machine,
    workload: Workload,
    chosen: Sequence[str | Framework],
    found: Collection[str],
) -> list[str]:
    """A sentence for every framework whose files cannot be written for a job, searched or not."""
    asked = [
        f for f in frameworks_for(chosen, machine, workload, model) if f.instead_of not in found
    ]
    why = {framework.name: framework.code.lacks(model, workload) for framework in asked}
    return [
        f"{'No files can be written for' if name in found else 'Not searched:'} {name}: {reason}."
        for name, reason in why.items()
        if reason
    ]


def unwritten(scenarios: Mapping[str, Scenario], best: Estimate | None) -> list[str]:
    """A sentence where no files can be written for the recommended layout itself."""
    if best is None:
        return []
    asked = scenarios[best.framework]
    model, workload, framework = asked.model, asked.workload, asked.framework
    if framework.code.lacks(model, workload):
        return []  # said of the framework as a whole
    try:
        check(replace(asked, framework=framework.written(model, workload)), best.layout)
    except LayoutError as error:
        return [
            f"No files can be written for the recommended layout: {error}. `planner emit` names "
            "the fastest one that can be."
        ]
    return []


def frameworks_for(
    chosen: Sequence[str | Framework],
    machine: Machine,
    workload: Workload | None = None,
    model: Model | None = None,
) -> list[Framework]:
    """The chosen frameworks, or those that are searched by default and run on the machine.

    Raises LayoutError where a chosen one does not run there, or a switch is not for the workload
    or its model.
    """
    if chosen:
        frameworks = [f if isinstance(f, Framework) else load_framework(f) for f in chosen]
        for framework in frameworks:
            if why := framework.refuses(machine, workload, model):
                raise LayoutError(why)
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
