"""The options that make a job, and those that state one layout of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

from planner.cli.options.option_groups import FieldsOf
from planner.cli.options.option_styles import Files, FrameworkName, ModelName
from planner.cost.scenario.experience import Experience
from planner.describe.job_description import JobDescription, is_job_file
from planner.describe.layout import Layout
from planner.describe.machine import Machine
from planner.describe.model.model import Model
from planner.describe.workload import Workload
from planner.errors import PlannerError

if TYPE_CHECKING:
    from planner.describe.configurations.configuration import Configuration
    from planner.evidence.learning import Learned
    from planner.job import Job

if TYPE_CHECKING:
    from planner.choose.user_layouts import CompletedLayout
    from planner.evidence.learning import Learned

__all__ = [
    "OWN_SEQUENCE",
    "JobOptions",
    "LayoutOptions",
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


_JOB = FieldsOf(
    JobDescription,
    left_out=("model", "frameworks", "tolerance", "workload", "training"),
    defaults={"nodes": "what the layout takes"},
)
_WORKLOAD = FieldsOf(
    Workload,
    left_out=("tokens", "samples", "epochs"),
    defaults={**OWN_SEQUENCE, "global_batch": "one pass of every replica"},
)
_LAYOUT = FieldsOf(
    Layout,
    left_out=("grad_accumulation",),
    defaults={"dp": "what --nodes hold", "schedule": "1f1b, or interleaved with --vpp"},
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LayoutOptions:
    """One layout of a job, stated by options or read from configuration files."""

    model: ModelName
    fields: Annotated[dict[str, Any], _JOB]
    layout: Annotated[dict[str, Any], _LAYOUT]
    workload: Annotated[dict[str, Any], _WORKLOAD]
    framework: FrameworkName = None
    files: Files = None

    def description(self) -> JobDescription:
        """The job that the options state."""
        return describe_job(self.model, {**self.fields, "workload": self.workload})

    def completed(self) -> tuple[Model, Machine, CompletedLayout]:
        """The model, the machine, and the layout that options and files state together."""
        from planner.choose.user_layouts import complete_layout

        job = self.description()
        model, machine = job.load_model(), job.load_machine()
        stated_nodes = job.nodes if "nodes" in job.model_fields_set else None
        frameworks = job.load_frameworks()
        layout = complete_layout(
            model,
            machine,
            read_files(self.files),
            nodes=1 if job.devices and stated_nodes is None else stated_nodes,
            layout=self.layout,
            workload=job.workload,
            framework=self.framework or (frameworks[0] if len(frameworks) == 1 else None),
        )
        return model, machine, layout

    def learned(self) -> Learned | None:
        """The lessons of the measured runs; None where there are none."""
        return learned_from(self.description())
