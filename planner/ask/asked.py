"""Asked: a job about which something is asked, and its answer on a number of nodes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypedDict

from planner.ask.answer import Answer, Row
from planner.ask.point import Point, no_point, point_of
from planner.choose.job import JobSpec, frameworks_for
from planner.choose.job_checks import (
    check_nodes,
    check_ramp,
    check_routing,
    check_sequence,
    check_tolerance,
    check_workload,
)
from planner.choose.job_search import JobCandidates, search_job
from planner.choose.preferences import preferences
from planner.choose.recommendation import recommend
from planner.choose.search import SearchScope
from planner.cost.scenario import Scenario
from planner.cost.scenario.experience import Experience
from planner.describe.base import Description
from planner.describe.catalogue import load_framework, load_machine, load_model, names
from planner.describe.framework.framework import Framework
from planner.describe.machine import Machine
from planner.describe.model.model import Model
from planner.describe.workload import Workload
from planner.errors import LayoutError, PlannerError

__all__ = ["Asked", "JobFields", "Points", "asked_of", "described"]


class JobFields(TypedDict, total=False):
    """What every question takes besides model and machine, as `planner.plan` does."""

    workload: Workload | None
    frameworks: str | Framework | Sequence[str | Framework]
    tolerance: float | None
    experience: Experience


@dataclass(frozen=True, slots=True)
class Asked:
    """A model on a machine, for a workload, with some frameworks."""

    model: Model
    machine: Machine
    workload: Workload
    frameworks: tuple[str | Framework, ...] = ()
    tolerance: float = field(default_factory=lambda: preferences().tolerance)
    experience: Experience = field(default=Experience(), compare=False)

    def at(self, **changes: Any) -> Asked:
        """The same with something else in it."""
        return replace(self, **changes)

    def on(self, nodes: int) -> Point:
        """What is recommended for the job on some nodes, or why nothing is.

        Raises LayoutError where the machine has not so many.
        """
        return self.point(nodes, self.searched(nodes))

    def point(self, nodes: int, done: JobCandidates) -> Point:
        """What is recommended of a search that is done."""
        return point_of(nodes, done, recommend(done.by_framework.values(), self.tolerance))

    def searched(self, nodes: int, *, whole: bool = False) -> JobCandidates:
        """Layouts of the job on some nodes: those that may be recommended, or all.

        Raises LayoutError where the machine has not so many.
        """
        check_nodes(self.machine, nodes)
        scope = (
            SearchScope(exhaustive_up_to=sys.maxsize)
            if whole
            else SearchScope(near_factor=1 + self.tolerance, top=1)
        )
        job = JobSpec(
            self.model,
            self.machine,
            nodes=nodes,
            workload=self.workload,
            frameworks=self.frameworks,
            tolerance=self.tolerance,
            experience=self.experience,
        )
        return search_job(job, scope)

    def tried_on(self, nodes: int) -> Point:
        """The same, where what cannot be asked there is a reason and no error."""
        try:
            return self.on(nodes)
        except PlannerError as error:
            return no_point(nodes, self.machine, self.workload, error.plain)

    def answer(
        self,
        scenario: str,
        verdict: str,
        rows: Sequence[Row],
        *,
        found: bool = True,
        notes: Sequence[str] = (),
        **own: Any,
    ) -> Answer:
        """An answer about this job; `own` is what the question asks besides."""
        known = {
            name: 0 if part is None else len(part)
            for name, part in (
                ("step_time", self.experience.step_time),
                ("memory", self.experience.memory),
            )
        }
        asked = {
            "model": described("model", self.model),
            "machine": described("machine", self.machine),
            "workload": self.workload.model_dump(mode="json"),
            "frameworks": [
                one if isinstance(one, str) else described("framework", one)
                for one in self.frameworks
            ],
            "tolerance": self.tolerance,
            "measured_runs": known,
            **own,
        }
        plain = json.loads(json.dumps(asked))
        return Answer(scenario, plain, found, verdict, tuple(rows), tuple(notes))

    def needs_tokens(self, why: str) -> None:
        """Raise LayoutError where it is not said how long the training is."""
        if not self.workload.all_tokens:
            raise LayoutError(
                f"tokens = 0: {why} follows from how much is trained on; set tokens (such as "
                "300B), or samples and epochs"
            )

    @property
    def per_node(self) -> int:
        """Devices of a node."""
        return self.machine.node.num_devices


_LOADERS: dict[str, Callable[[str], Description]] = {
    "model": load_model,
    "machine": load_machine,
    "framework": load_framework,
}


def described(kind: str, one: Description) -> Any:
    """A description by its name where that suffices to find it again, else whole."""
    name = getattr(one, "name", "")
    plain = name.partition("+")[0] if kind == "framework" else name
    if plain in names(kind) and _LOADERS[kind](name) == one:
        return name
    return one.model_dump(mode="json")


def asked_of(model: str | Model, machine: str | Machine, job: JobFields) -> Asked:
    """The job that names or descriptions name, checked."""
    check_workload(job.get("workload"))
    frameworks = job.get("frameworks", ())
    frameworks = (frameworks,) if isinstance(frameworks, (str, Framework)) else frameworks
    tolerance = job.get("tolerance")
    found = Asked(
        model if isinstance(model, Model) else load_model(model),
        machine if isinstance(machine, Machine) else load_machine(machine),
        job.get("workload") or Workload(),
        tuple(frameworks),
        preferences().tolerance if tolerance is None else tolerance,
        job.get("experience", Experience()),
    )
    _check(found)
    return found


def _check(asked: Asked) -> None:
    """Raise PlannerError for a job that makes no sense on any number of nodes."""
    check_ramp(asked.workload)
    check_tolerance(asked.tolerance)
    asked.machine.peak(asked.workload.base_precision)
    job = asked.frameworks, asked.machine, asked.workload, asked.model
    for framework in frameworks_for(*job):
        scenario = Scenario(asked.model, asked.machine, asked.workload, framework)
        check_sequence(scenario.model, scenario.workload)
        check_routing(scenario.model, scenario.workload)


@dataclass(frozen=True, slots=True)
class Points:
    """Points of a job that are looked at one after the other, each worked out once."""

    asked: Asked
    known: dict[int, Point] = field(default_factory=dict)

    def __call__(self, nodes: int) -> Point:
        """The point on some nodes."""
        if nodes not in self.known:
            self.known[nodes] = self.asked.tried_on(nodes)
        return self.known[nodes]

    @property
    def rows(self) -> list[Row]:
        """All that were looked at, by their nodes."""
        return [point.row() for _, point in sorted(self.known.items())]

    @property
    def fitting(self) -> list[Point]:
        """Those where something fits, by their nodes."""
        return [point for _, point in sorted(self.known.items()) if point.fits]
