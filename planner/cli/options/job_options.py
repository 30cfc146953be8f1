"""The options that make a job, of `plan`, `emit` and every question."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

from planner.cli.options.option_groups import FieldsOf
from planner.cli.options.shared_options import ModelName
from planner.cost.scenario.experience import Experience
from planner.describe.job_description import JobDescription, is_job_file
from planner.describe.machine import Machine
from planner.describe.workload import Workload
from planner.errors import PlannerError

if TYPE_CHECKING:
    from planner.describe.configurations.configuration import Configuration
    from planner.evidence.learning import Learned
    from planner.job import Job

__all__ = [
    "OWN_SEQUENCE",
    "JobOptions",
    "describe_job",
    "experience_of",
    "learned_from",
    "load_job",
    "machine_of",
    "read_files",
]

OWN_SEQUENCE = {"sequence_length": "the model's own, at most 4096"}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """A model, or a job's file, and the fields of the job."""

    model: ModelName
    fields: Annotated[
        dict[str, Any], FieldsOf(JobDescription, left_out=("model", "workload", "training"))
    ]
    workload: Annotated[dict[str, Any], FieldsOf(Workload, defaults=OWN_SEQUENCE)]

    @property
    def states_nodes(self) -> bool:
        """True if the options or the job's file state the nodes."""
        return "nodes" in self.description().model_fields_set

    def description(self, **fields: Any) -> JobDescription:
        """The job that the options state; `fields` are further ones, and count before them."""
        return describe_job(self.model, {**self.fields, "workload": self.workload, **fields})

    def load(self, **fields: Any) -> tuple[Job, Learned | None]:
        """The job, and the lessons of its measured runs; None where there are none."""
        return load_job(self.description(**fields))


def describe_job(model: str, fields: dict[str, Any]) -> JobDescription:
    """The job that fields state, of a model or on top of a job's file."""
    if is_job_file(model):
        return JobDescription.read(model, fields)
    if "machine" not in fields:
        raise PlannerError(
            "Missing option '--machine' / '-m'; name the machine, or give a job's TOML file that "
            "names model and machine"
        )
    return JobDescription.described({"model": model, **fields}, where="job")


def load_job(description: JobDescription) -> tuple[Job, Learned | None]:
    """Load and check a job, and learn from its measured runs."""
    from planner.job import Job

    learned = learned_from(description)
    return Job.described(description, experience=experience_of(learned)), learned


def learned_from(description: JobDescription) -> Learned | None:
    """Learn from the measured runs of a job; None where it names none."""
    if not description.measured:
        return None
    from planner.evidence.learning import learn_from

    # runs were measured on whole nodes with all their memory
    machine, model = description.load_whole_machine(), description.load_model()
    return learn_from(*description.measured, machine=machine, model=model)


def experience_of(learned: Learned | None) -> Experience:
    """The corrections that lessons bring to estimates."""
    return Experience() if learned is None else learned.experience


def machine_of(
    name: str, overrides: Sequence[str] | None = None, network: str | None = None
) -> Machine:
    """A machine by name, with the overrides and the network of a command's options."""
    fields = {"machine": name, "set": tuple(overrides or ()), "network": network or ""}
    return JobDescription.described({"model": "", **fields}, where="machine").load_machine()


def read_files(files: Sequence[str] | None) -> Configuration | None:
    """Read the configuration files of `--from`; None where it names none."""
    if not files:
        return None
    from planner.describe.configurations.reading import read_configuration

    return read_configuration(*files)
