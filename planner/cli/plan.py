"""Command line: `planner plan` and `estimate`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from planner.cli.options import (
    FITS,
    NOTHING_FITS,
    OWN_SEQUENCE,
    AsCsv,
    AsJson,
    FieldsOf,
    Job,
    MachineName,
    ModelName,
    Overrides,
    spread,
    workload_of,
)
from planner.describe.catalogue import load_framework, load_machine, load_model
from planner.describe.layout import Layout, Schedule
from planner.describe.workload import Workload

if TYPE_CHECKING:
    from planner.describe.machine import Machine
    from planner.describe.model.model import Model

__all__ = ["register"]

_ESTIMATED_WORKLOAD = FieldsOf(
    Workload,
    left_out=("tokens",),
    otherwise={**OWN_SEQUENCE, "global_batch": "one pass of every replica"},
)
_LAYOUT = FieldsOf(
    Layout,
    left_out=("grad_accumulation",),
    otherwise={"dp": "what --nodes hold", "schedule": "1f1b, or interleaved with --vpp"},
)


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.command("plan")(spread(plan_command))
    app.command("estimate")(spread(estimate_command))


def plan_command(
    job: Job,
    top: Annotated[int, typer.Option(min=1, max=1000, help="Ranked layouts to keep.")] = 20,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
) -> int:
    """Search every layout: which strategy fits, how much memory, how long a step."""
    from planner.choose.planning import plan

    model, machine, workload, frameworks = job.described()
    answer = plan(
        model, machine, nodes=job.nodes, workload=workload, frameworks=frameworks, top=top
    )
    if as_json:
        print(answer.to_json())
    elif as_csv:
        from planner.show.report import estimate_csv

        print(estimate_csv(answer.ranked), end="")
    else:
        from planner.show.report import console, show_plan

        show_plan(answer, console())
    return FITS if answer.fits else NOTHING_FITS


def estimate_command(
    *,
    model: ModelName,
    machine: MachineName,
    nodes: Annotated[
        int | None, typer.Option("--nodes", "-n", help="Nodes; dp follows from them if not given.")
    ] = None,
    layout: Annotated[dict[str, Any], _LAYOUT],
    workload: Annotated[dict[str, Any], _ESTIMATED_WORKLOAD],
    framework: Annotated[str | None, typer.Option("--framework", "-f", help="Framework.")] = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
) -> int:
    """Estimate one layout: memory by part and stage, step time by part."""
    described, place = load_model(model), load_machine(machine, tuple(overrides or ()))
    chosen = _layout(layout, place, nodes, workload.get("global_batch"))
    job = workload_of(described, {"global_batch": chosen.global_batch, **workload})
    return _print_estimate(described, place, chosen, job, framework, as_json, as_csv)


def _layout(
    fields: dict[str, Any], machine: Machine, nodes: int | None, global_batch: int | None
) -> Layout:
    """The layout of the options; degrees, passes and schedule that are not given follow."""
    from planner.choose.job import check_division

    pp, micro_batch = fields["pp"], fields["micro_batch"]
    dp = check_division(machine, nodes, fields.get("dp"), fields["tp"] * pp * fields["cp"])
    passes = 1
    if global_batch is not None and dp and micro_batch:
        passes = max(global_batch // (dp * micro_batch), 1)
    schedule: Schedule = "1f1b" if fields["vpp"] == 1 else "interleaved-1f1b"
    usual = {"schedule": "none" if pp == 1 else schedule, "grad_accumulation": passes}
    return Layout.described({**usual, **fields, "dp": dp})


def _print_estimate(
    model: Model,
    machine: Machine,
    layout: Layout,
    workload: Workload,
    framework: str | None,
    as_json: bool,
    as_csv: bool,
) -> int:
    from planner.choose.plan import estimate_dict
    from planner.choose.planning import estimate
    from planner.cost.estimate import stage_memory
    from planner.describe.question import Question

    answer = estimate(model, machine, layout, workload=workload, framework=framework)
    question = Question(model, machine, workload, load_framework(framework or answer.framework))
    if as_json:
        stages = stage_memory(question, layout)
        print(json.dumps({**estimate_dict(answer), "stages": stages}, indent=1, allow_nan=False))
    elif as_csv:
        from planner.show.report import estimate_csv

        print(estimate_csv([answer]), end="")
    else:
        from planner.show.report import console, show_estimate

        show_estimate(answer, machine, stage_memory(question, layout), console())
    return FITS if answer.fits else NOTHING_FITS
