"""Job: a model to train on nodes of a machine, with methods to plan it and ask about it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import tomlkit

from planner.ask import QUESTIONS
from planner.ask.answer import Answer
from planner.choose.jobs.job_spec import JobSpec
from planner.choose.jobs.probe import Probe, choose_probe
from planner.choose.plan import Plan
from planner.choose.planning import TOP, estimate_job, plan_job, scenario_for, train_job
from planner.choose.simulation.step_simulation import Simulation, simulate_scenario
from planner.cost.estimate import Estimate
from planner.describe.base import Description
from planner.describe.catalogue import catalogue_name
from planner.describe.files import parse_toml
from planner.describe.job_description import JobDescription
from planner.describe.layout import Layout
from planner.emitters import emit
from planner.errors import DescriptionError
from planner.evidence.learning import learn_from
from planner.training.whole_training import WholeTraining


@dataclass(frozen=True, slots=True, init=False)
class Job(JobSpec):
    """A training job: one model on a number of nodes. Plan it, estimate its layouts, ask about it.

    Names, paths and descriptions are loaded and checked at once. Raises PlannerError if invalid.

    >>> job = Job("gpt2", "polaris", nodes=1, workload=Workload(global_batch=64,
    ...           sequence_length=1024), frameworks="ddp")
    >>> job.plan().recommended.layout.dp, job.estimate(Layout(dp=4, micro_batch=16)).fits
    (4, True)
    >>> Job.from_toml(job.to_toml()) == job
    True
    """

    def _learn(self) -> None:
        if self.measured and not self.experience.is_known:
            learned = learn_from(*self.measured, machine=self.machine, model=self.model)
            object.__setattr__(self, "experience", learned.experience)

    def plan(self, top: int = TOP) -> Plan:
        """Search every legal layout, rank `top` of them and recommend one."""
        return plan_job(self, top)

    def estimate(self, layout: Layout) -> Estimate:
        """Estimate memory and step time of one layout."""
        return estimate_job(self, layout)

    def simulate(self, layout: Layout) -> Simulation:
        """Simulate one step of a layout event by event."""
        return simulate_scenario(scenario_for(self, layout), layout)

    def train(self, layout: Layout) -> WholeTraining:
        """Estimate duration, energy and cost of the whole training on one layout."""
        return train_job(self, layout)

    def emit(
        self, rank: int | None = None, *, answer: Plan | None = None, **settings: Any
    ) -> dict[str, str]:
        """Return the files that run the recommended or `rank`-th layout: text by file name."""
        answer = answer or self.plan()
        named = {framework.name: framework for framework in self.frameworks}
        framework = named.get(answer.ranked_at(rank).framework)
        job = self if answer.advice is None else answer.advice.applied(self)
        descriptions = {"model": job.model, "machine": job.machine, "framework": framework}
        return emit(answer, rank, **{**descriptions, **settings})

    def probe(self, rank: int | None = None, *, answer: Plan | None = None) -> Probe:
        """Choose small runs that narrow the interval of the recommended or `rank`-th layout."""
        answer = answer or self.plan()
        job = self if answer.advice is None else answer.advice.applied(self)
        return choose_probe(job, answer.ranked_at(rank))

    @property
    def ask(self) -> JobQuestions:
        """The questions of `planner.ask` about this job, such as `job.ask.nodes()`."""
        return JobQuestions(self)

    # --- files ------------------------------------------------------------------------------------

    @classmethod
    def described(cls, description: JobDescription, **values: Any) -> Self:
        """Load and check a job from its description; `values` override what it loads."""
        if description.measured and "experience" not in values:
            # the runs were measured on whole nodes with all their memory
            machine, model = description.load_whole_machine(), description.load_model()
            learned = learn_from(*description.measured, machine=machine, model=model)
            values = {**values, "experience": learned.experience}
        loaded = {"measured": description.measured, **values}
        return super(Job, cls).described(description, **loaded)

    @classmethod
    def read(cls, path: str | Path, changes: Mapping[str, Any] | None = None) -> Self:
        """Read a job from a TOML file; `changes` override its fields."""
        return cls.described(JobDescription.read(path, changes))

    @classmethod
    def from_toml(cls, text: str) -> Self:
        """Read a job from TOML text. Raises PlannerError if the text does not describe a job."""
        return cls.described(JobDescription.described(parse_toml(text, "job"), where="job"))

    def to_toml(self) -> str:
        """Write the job as TOML text; DescriptionError for `experience` without `measured`."""
        if self.experience.is_known and not self.measured:
            raise DescriptionError(
                "experience is in no file: a job in TOML names its measured runs; make the job "
                "with measured='runs.csv'"
            )
        fields = {
            "model": _named("model", self.model),
            "machine": _named("machine", self.machine),
            "nodes": self.nodes,
            "frameworks": [_named("framework", each) for each in self.frameworks],
            "tolerance": self.tolerance,
            "measured": list(self.measured),
            "workload": {
                "sequence_length": self.workload.sequence_length,  # else the model's default
                **_stated_fields(self.workload),
            },
            "training": _stated_fields(self.training),
        }
        # tables go last: in TOML, a key after a table belongs to that table
        set_fields = {name: value for name, value in fields.items() if value not in ([], {})}
        ordered = sorted(set_fields.items(), key=lambda item: isinstance(item[1], dict))
        return tomlkit.dumps(dict(ordered))


class JobQuestions:
    """The questions of `planner.ask` about one job, as methods that take only their options."""

    def __init__(self, job: Job) -> None:
        """Bind the questions to a job."""
        self._job = job

    def __getattr__(self, name: str) -> Callable[..., Answer]:
        """Return the question of that name as a function of its options."""
        question = QUESTIONS.get(name.replace("_", "-"))
        if question is None:
            raise AttributeError(f"no question {name!r}; planner.ask has {', '.join(QUESTIONS)}")
        return functools.partial(question.of_job, self._job)

    def __dir__(self) -> list[str]:
        """List the names of the questions."""
        return [name.replace("-", "_") for name in QUESTIONS]


def _named(kind: str, description: Description) -> Any:
    """Return the name of an unchanged catalogue entry, else the non-default fields."""
    return catalogue_name(kind, description) or _stated_fields(description)


def _stated_fields(description: Description) -> dict[str, Any]:
    """Return the fields that differ from their defaults, as plain data."""
    changed = {
        name
        for name, field in type(description).model_fields.items()
        if getattr(description, name) != field.get_default(call_default_factory=True)
    }
    return description.model_dump(mode="json", include=changed, exclude_none=True)
