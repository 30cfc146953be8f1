"""The options that state one layout of a job, of `estimate` and `simulate`."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated, Any

from planner.cli.options.job_options import (
    OWN_SEQUENCE,
    describe_job,
    learned_from,
    read_files,
)
from planner.cli.options.option_groups import FieldsOf
from planner.cli.options.shared_options import Files, FrameworkName, ModelName
from planner.describe.job_description import JobDescription
from planner.describe.layout import Layout
from planner.describe.machine import Machine
from planner.describe.model.model import Model
from planner.describe.workload import Workload

if TYPE_CHECKING:
    from planner.choose.user_layouts import CompletedLayout
    from planner.evidence.learning import Learned

__all__ = ["LayoutOptions"]

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
