"""Job options: the options of a job, of one layout of it, and of its training."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from planner.cli.options.option_groups import FieldsOf
from planner.cli.options.option_styles import Files, FrameworkName, ModelName
from planner.cli.settings import value_of
from planner.describe.base import Description
from planner.describe.catalogue import load_dataset
from planner.describe.files import read_toml
from planner.describe.job_description import JobDescription, is_job_file
from planner.describe.layout import Layout
from planner.describe.machine import Machine
from planner.describe.model.model import Model
from planner.describe.training.training_run import (
    Charges,
    Checkpoints,
    Evaluation,
    Failures,
    Loader,
)
from planner.describe.workload import Workload
from planner.errors import DescriptionError, PlannerError, shorten

if TYPE_CHECKING:
    from planner.choose.user_layouts import CompletedLayout
    from planner.cost.scenario.experience import Experience
    from planner.describe.configurations.configuration import Configuration
    from planner.evidence.learning import Learned
    from planner.job import Job

OWN_SEQUENCE = {"sequence_length": "the model's own, at most 4096"}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """Options of a job: a model or job file, and the fields of the job."""

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
        """Return the job description that the options state; `fields` override it."""
        return describe_job(self.model, {**self.fields, "workload": self.workload, **fields})

    def load(self, **fields: Any) -> tuple[Job, Learned | None]:
        """Load the job, and learn from its measured runs; None without measured runs."""
        from planner.job import Job

        description = self.description(**fields)
        learned = learned_from(description)
        return Job.described(description, experience=experience_of(learned)), learned


def describe_job(model: str, fields: dict[str, Any]) -> JobDescription:
    """Describe a job by fields, for a model or on top of a job file."""
    if is_job_file(model):
        return JobDescription.read(model, fields)
    defaults = {name: value_of(name) for name in ("machine", "frameworks")}
    fields = {**{name: value for name, value in defaults.items() if value}, **fields}
    if "machine" not in fields:
        raise PlannerError(
            "Missing option '--machine' / '-m'; name the machine, or give a job's TOML file that "
            "names model and machine (`planner config` shows how to set a default)"
        )
    return JobDescription.described({"model": model, **fields}, where="job")


def learned_from(description: JobDescription) -> Learned | None:
    """Learn from the measured runs of a job; None if it names none."""
    if not description.measured:
        return None
    from planner.evidence.learning import learn_from

    # the runs were measured on whole nodes with all their memory
    machine, model = description.load_whole_machine(), description.load_model()
    return learn_from(*description.measured, machine=machine, model=model)


def experience_of(learned: Learned | None) -> Experience:
    """Return the learned corrections of estimates; empty ones without measured runs."""
    from planner.cost.scenario.experience import Experience

    return Experience() if learned is None else learned.experience


def machine_of(
    name: str, overrides: Sequence[str] | None = None, network: str | None = None
) -> Machine:
    """Load a machine by name, with overrides and network from a command's options."""
    fields = {"machine": name, "set": tuple(overrides or ()), "network": network or ""}
    return JobDescription.described({"model": "", **fields}, where="machine").load_machine()


def read_files(files: Sequence[str] | None) -> Configuration | None:
    """Read the configuration files of `--from`; None without any."""
    if not files:
        return None
    from planner.describe.configurations.reading import read_configuration

    return read_configuration(*files)


_JOB = FieldsOf(
    JobDescription,
    left_out=("model", "frameworks", "tolerance", "workload", "training"),
    defaults={"nodes": "as the layout needs"},
)
WORKLOAD_FIELDS = FieldsOf(
    Workload,
    left_out=("tokens", "samples", "epochs"),
    defaults={**OWN_SEQUENCE, "global_batch": "one pass of every replica"},
)
LAYOUT_FIELDS = FieldsOf(
    Layout,
    left_out=("grad_accumulation",),
    defaults={"dp": "fills --nodes", "schedule": "1f1b, or interleaved with --vpp"},
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LayoutOptions:
    """One layout of a job, stated by options or read from configuration files."""

    model: ModelName
    fields: Annotated[dict[str, Any], _JOB]
    layout: Annotated[dict[str, Any], LAYOUT_FIELDS]
    workload: Annotated[dict[str, Any], WORKLOAD_FIELDS]
    framework: FrameworkName = None
    files: Files = None

    def description(self) -> JobDescription:
        """Return the job description that the options state."""
        return describe_job(self.model, {**self.fields, "workload": self.workload})

    def completed(self) -> tuple[Model, Machine, CompletedLayout]:
        """Return the model, the machine, and the layout that options and files state together."""
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
            tuned=True,
        )
        return model, machine, layout

    def learned(self) -> Learned | None:
        """Learn from the measured runs; None without measured runs."""
        return learned_from(self.description())


def _fields_of(description: type[Description], **names: str) -> FieldsOf:
    return FieldsOf(description, only=names)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrainingOptions:
    """Options of a training beyond its steps: data, evaluation, checkpoints, failures, costs."""

    training: Annotated[
        str | None, Option(metavar="FILE", help="TOML file of all this; options override it.")
    ] = None
    dataset: Annotated[str | None, Option(metavar="NAME", help="Dataset: name or TOML file.")] = (
        None
    )
    loader: Annotated[dict[str, Any], _fields_of(Loader, staging="staging", workers="workers")]
    evaluation: Annotated[
        dict[str, Any],
        _fields_of(Evaluation, every_steps="evaluate_every", sequences="evaluation_sequences"),
    ]
    checkpoints: Annotated[
        dict[str, Any],
        _fields_of(Checkpoints, every_steps="checkpoint_every", asynchronous="async_checkpoints"),
    ]
    failures: Annotated[dict[str, Any], _fields_of(Failures, per_device_hour="failures")]
    charges: Annotated[
        dict[str, Any],
        _fields_of(
            Charges,
            node_power_watts="node_power",
            pue="pue",
            carbon_g_per_kwh="carbon",
            price_per_node_hour="price",
            price_per_kwh="price_per_kwh",
        ),
    ]

    def fields(self) -> dict[str, Any]:
        """Return the fields of the training from file and options; options override the file."""
        fields = {} if self.training is None else read_toml(Path(self.training))
        if self.dataset is not None:
            fields["dataset"] = load_dataset(self.dataset).model_dump()
        for name in ("loader", "evaluation", "checkpoints", "failures", "charges"):
            values, before = getattr(self, name), fields.get(name, {})
            if values and not isinstance(before, Mapping):
                raise DescriptionError(
                    f"{self.training}: {name} = {before!r} is not a table; write [{name}]"
                )
            if values:
                fields[name] = {**before, **values}
        return fields

    def check_length(self, tokens: float | None) -> None:
        """Refuse fields of a training that has no length: nothing would follow from them."""
        if not tokens and (fields := self.fields()):
            name, value = next(iter(fields.items()))
            raise DescriptionError(
                f"{name} = {shorten(repr(value))} is of a whole training, whose length is not "
                "stated; add --tokens"
            )
