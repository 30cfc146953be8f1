"""Command line: the options that describe one layout of one job, shared by commands about it."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated, Any

import typer

from planner.cli.options import (
    OWN_SEQUENCE,
    Devices,
    FieldsOf,
    Files,
    FrameworkName,
    LeaveFree,
    MachineName,
    Measured,
    ModelName,
    NetworkName,
    Overrides,
    learned_from,
    machine_of,
    read_files,
)
from planner.describe.catalogue import load_model
from planner.describe.layout import Layout
from planner.describe.machine import Machine
from planner.describe.model.model import Model
from planner.describe.workload import Workload

if TYPE_CHECKING:
    from planner.choose.user_layouts.completion import CompletedLayout
    from planner.evidence.learning import Learned

__all__ = ["OneLayout"]

_WORKLOAD = FieldsOf(
    Workload,
    left_out=("tokens", "samples", "epochs"),
    otherwise={**OWN_SEQUENCE, "global_batch": "one pass of every replica"},
)
_LAYOUT = FieldsOf(
    Layout,
    left_out=("grad_accumulation",),
    otherwise={"dp": "what --nodes hold", "schedule": "1f1b, or interleaved with --vpp"},
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OneLayout:
    """One layout of a model on some nodes of a machine, stated or read from files."""

    model: ModelName
    machine: MachineName
    nodes: Annotated[
        int | None, typer.Option("--nodes", "-n", help="Nodes; dp follows from them if not given.")
    ] = None
    layout: Annotated[dict[str, Any], _LAYOUT]
    workload: Annotated[dict[str, Any], _WORKLOAD]
    framework: FrameworkName = None
    files: Files = None
    network: NetworkName = None
    overrides: Overrides = None
    leave_free: LeaveFree = 0.0
    devices: Devices = None
    measured: Measured = None

    def completed(self) -> tuple[Model, Machine, CompletedLayout]:
        """What the options name, and the job that they and files state together."""
        from planner.choose.user_layouts.completion import complete_layout

        model = load_model(self.model)
        machine = machine_of(
            self.machine, self.overrides, self.leave_free, self.devices, self.nodes, self.network
        )
        job = complete_layout(
            model,
            machine,
            read_files(self.files),
            nodes=1 if self.devices and self.nodes is None else self.nodes,
            layout=self.layout,
            workload=self.workload,
            framework=self.framework,
        )
        return model, machine, job

    def learned(self, model: Model) -> Learned | None:
        """What the measured runs teach that are named; None where none is."""
        whole = machine_of(self.machine, self.overrides, 0.0, None, None, self.network)
        return learned_from(self.measured, whole, model)
