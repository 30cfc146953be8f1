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
from planner.describe.catalogue import load_dataset
from planner.describe.files import read_toml
from planner.describe.job_description import JobDescription, is_job_file
from planner.describe.layout import Layout
from planner.describe.machine import Machine
from planner.describe.model.model import Model
from planner.describe.training.training_run import Staging
from planner.describe.workload import Workload
from planner.errors import DescriptionError, PlannerError
from planner.units import parse_power

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
_WORKLOAD = FieldsOf(
    Workload,
    left_out=("tokens", "samples", "epochs"),
    defaults={**OWN_SEQUENCE, "global_batch": "one pass of every replica"},
)
_LAYOUT = FieldsOf(
    Layout,
    left_out=("grad_accumulation",),
    defaults={"dp": "fills --nodes", "schedule": "1f1b, or interleaved with --vpp"},
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


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrainingOptions:
    """Options of a training beyond its steps: data, evaluation, checkpoints, failures, costs."""

    training: Annotated[
        str | None, Option(metavar="FILE", help="TOML file of all this; options override it.")
    ] = None
    dataset: Annotated[str | None, Option(metavar="NAME", help="Dataset: name or TOML file.")] = (
        None
    )
    staging: Annotated[
        Staging | None,
        Option(help="Where a node stages it: nowhere, on its disk, or in memory."),
    ] = None
    workers: Annotated[int | None, Option(min=0, help="Workers of every rank that read it.")] = None
    evaluate_every: Annotated[
        int | None, Option(metavar="STEPS", min=0, help="Steps per evaluation.")
    ] = None
    evaluation_sequences: Annotated[
        int | None, Option(min=0, help="Sequences (samples) of an evaluation.")
    ] = None
    checkpoint_every: Annotated[
        int | None,
        Option(
            metavar="STEPS", min=0, show_default="least lost time", help="Steps per checkpoint."
        ),
    ] = None
    async_checkpoints: Annotated[
        bool | None,
        Option(
            "--async-checkpoints/--sync-checkpoints",
            help="Whether training continues while checkpoints are written.",
        ),
    ] = None
    failures: Annotated[
        float | None,
        Option(
            metavar="RATE",
            min=0,
            max=1,
            show_default="of Llama 3",
            help="Interruptions of the job per device and hour.",
        ),
    ] = None
    node_power: Annotated[
        str | None, Option(metavar="POWER", help="Power draw of a node, such as 2.5kW.")
    ] = None
    pue: Annotated[
        float | None, Option(min=1, help="Power draw of the centre over that of its nodes.")
    ] = None
    carbon: Annotated[float | None, Option(metavar="G", min=0, help="Grams of CO2e per kWh.")] = (
        None
    )
    price: Annotated[
        float | None, Option(min=0, help="Price of a node-hour, in your currency.")
    ] = None
    price_per_kwh: Annotated[
        float | None, Option(min=0, help="Price of a kWh, in your currency.")
    ] = None

    def fields(self) -> dict[str, Any]:
        """Return the fields of the training from file and options; options override the file."""
        fields = {} if self.training is None else read_toml(Path(self.training))
        if self.dataset is not None:
            fields["dataset"] = load_dataset(self.dataset).model_dump()
        for name, values in self._values_by_table().items():
            set_values = {key: value for key, value in values.items() if value is not None}
            before = fields.get(name, {})
            if set_values and not isinstance(before, Mapping):
                raise DescriptionError(
                    f"{self.training}: {name} = {before!r} is not a table; write [{name}]"
                )
            if set_values:
                fields[name] = {**before, **set_values}
        return fields

    def _values_by_table(self) -> dict[str, dict[str, Any]]:
        watts = None if self.node_power is None else parse_power(self.node_power)
        return {
            "loader": {"staging": self.staging, "workers": self.workers},
            "evaluation": {
                "every_steps": self.evaluate_every,
                "sequences": self.evaluation_sequences,
            },
            "checkpoints": {
                "every_steps": self.checkpoint_every,
                "asynchronous": self.async_checkpoints,
            },
            "failures": {"per_device_hour": self.failures},
            "charges": {
                "node_power_watts": watts,
                "pue": self.pue,
                "carbon_g_per_kwh": self.carbon,
                "price_per_node_hour": self.price,
                "price_per_kwh": self.price_per_kwh,
            },
        }
