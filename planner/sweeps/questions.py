"""Questions: what a sweep asks, each with all that an answer depends on, and a key of just that.

A description travels as its content: a worker on another machine needs no file of the user's.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from planner.describe.base import Description
from planner.describe.catalogue import load_framework, load_machine, load_model
from planner.describe.framework.framework import Framework
from planner.describe.machine import Machine
from planner.describe.machine.variants import override_fields, reserve_memory, take_devices
from planner.describe.model.model import Model
from planner.describe.workload import Workload
from planner.sweeps.columns import cell
from planner.sweeps.fingerprint import canonical, digest, fingerprint
from planner.sweeps.stated import Kind, Stated, combinations

__all__ = ["NAMED", "Asked", "Questions", "Task", "questions", "tasks"]

NAMED = ("sequence_length", "global_batch", "precision", "optimizer")
"""Fields of a workload that every table has as columns."""
D = TypeVar("D", bound=Description)

_TOGETHER: dict[Kind, int] = {"plan": 4, "estimate": 50, "trace": 8}
"""Questions of a task: a second or some of work, so that handing them out costs little, and little
is lost where a sweep is killed."""
_FEWEST_TASKS: dict[Kind, int] = {"plan": 32, "estimate": 32, "trace": 4}
"""So many where there are enough questions: no worker waits long for the last one. Each task of
traces imports torch."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One question. Descriptions are named by digests of their content."""

    key: str
    model: str
    machine: str
    frameworks: tuple[str, ...]
    """None: those that the planner searches unasked."""
    nodes: int | None
    workload: dict[str, Any]
    layout: dict[str, Any]
    stage: int
    said: dict[str, Any]
    """Its columns in the table."""


@dataclass(frozen=True, slots=True)
class Questions:
    """All questions of a sweep, in the order in which they are stated, none written twice."""

    kind: Kind
    asked: tuple[Asked, ...]
    num_stated: int
    described: dict[str, str]
    """Content of models, machines and frameworks as JSON, by digest."""


@dataclass(frozen=True, slots=True)
class Task:
    """Questions that one worker answers in a row, with the descriptions that they need."""

    kind: Kind
    fingerprint: str
    asked: tuple[Asked, ...]
    described: dict[str, str]


def questions(parts: Sequence[Stated]) -> Questions:
    """The questions of a sweep; PlannerError where a name is unknown or a file cannot be read.

    >>> from planner.sweeps.stated import stated
    >>> found = questions(stated({"models": "gpt2", "machines": "polaris", "nodes": [1, 2, 1]}))
    >>> len(found.asked), found.num_stated, found.asked[1].said["nodes"]
    (2, 3, 2)
    """
    described: dict[str, str] = {}
    found: dict[tuple[str, str], Asked] = {}
    for part in parts:
        for question in _questions(part, described):
            # two what-ifs may be the same question, and are two rows
            found.setdefault((question.key, canonical(question.said)), question)
    stated = sum(part.num_questions for part in parts)
    return Questions(parts[0].kind, tuple(found.values()), stated, described)


def _questions(part: Stated, described: dict[str, str]) -> Iterator[Asked]:
    def kept(description: D) -> tuple[str, D]:
        text = canonical(description.model_dump(mode="json"))
        described[digest(text)] = text
        return digest(text), description

    models = [kept(m if isinstance(m, Model) else load_model(m)) for m in part.models]
    places = [
        (kept(_machine(*what)), what[1:])
        for what in itertools.product(part.machines, part.sets, part.leave_free, part.devices)
    ]
    searched = [
        [kept(f if isinstance(f, Framework) else load_framework(f)) for f in together]
        for together in part.frameworks
    ]
    jobs, layouts = combinations(part.workload), combinations(part.layout)
    for model, (place, changed), nodes, frameworks, job, layout, stage in itertools.product(
        models, places, part.nodes, searched, jobs, layouts, part.stages
    ):
        nodes = 1 if nodes is None and part.kind == "plan" else nodes
        content: dict[str, Any] = {
            "model": model[0],
            "machine": place[0],
            "frameworks": tuple(name for name, _ in frameworks),
            "nodes": nodes,
            "workload": job,
            "layout": layout,
            "stage": stage,
        }
        key = digest(canonical({**content, "kind": part.kind, "code": fingerprint()}))
        said = {
            **_said_of_machine(place[1], *changed),
            "model": model[1].name,
            "nodes": nodes,
            "asked_frameworks": " ".join(each.name for _, each in frameworks),
            **_said_of_job(model[1], job, part.kind),
            "asked_layout": " ".join(f"{k}={cell(v)}" for k, v in layout.items()),
            "stage": stage,
        }
        yield Asked(key, **content, said=said)


def _machine(
    given: str | Machine, overrides: tuple[str, ...], free: float, devices: int | None
) -> Machine:
    """A machine by name or as it is described, with what is changed of it."""
    if isinstance(given, str):
        return load_machine(given, overrides, free, devices)
    machine = reserve_memory(override_fields(given, overrides) if overrides else given, free)
    return machine if devices is None else take_devices(machine, devices)


def _said_of_machine(
    machine: Machine, overrides: tuple[str, ...], free: float, devices: int | None
) -> dict[str, Any]:
    return {
        "machine": machine.name,
        "set": " ".join(overrides),
        "leave_free_percent": free,
        "devices": devices,
    }


def _said_of_job(model: Model, job: dict[str, Any], kind: Kind) -> dict[str, Any]:
    """Columns of a workload: what is stated, and of the rest what one looks for first."""
    usual = {name: Workload.model_fields[name].default for name in NAMED}
    usual["sequence_length"] = model.default_sequence_length
    if kind != "plan":
        usual["global_batch"] = None  # the layout's own
    return {**usual, **{name: cell(value) for name, value in job.items()}}


def tasks(found: Questions, asked: Sequence[Asked]) -> list[Task]:
    """Some of the questions as tasks, those of one machine and model in a row."""
    places = {name: number for number, name in enumerate(found.described)}
    ordered = sorted(asked, key=lambda q: (places[q.machine], places[q.model], q.frameworks))
    size = max(min(_TOGETHER[found.kind], -(-len(asked) // _FEWEST_TASKS[found.kind])), 1)
    made = []
    for start in range(0, len(ordered), size):
        part = tuple(ordered[start : start + size])
        needed = {name for q in part for name in (q.model, q.machine, *q.frameworks)}
        content = {name: found.described[name] for name in sorted(needed)}
        made.append(Task(found.kind, fingerprint(), part, content))
    return made
