"""Command line: `planner check`, of a job script before it waits in the queue."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from planner.cli.options.help_panels import PanelCommand
from planner.cli.options.job_options import LAYOUT_FIELDS, WORKLOAD_FIELDS, machine_of
from planner.cli.options.option_groups import spread
from planner.cli.options.option_styles import AsJson, FrameworkName
from planner.errors import FITS, NOTHING_FITS, UnstatedError


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("check", cls=PanelCommand)(spread(check_command))


def check_command(
    script: Annotated[
        Path, typer.Argument(metavar="JOB.sh|FOLDER", help="Job script, or a folder with one.")
    ],
    layout: Annotated[dict[str, Any], LAYOUT_FIELDS],
    workload: Annotated[dict[str, Any], WORKLOAD_FIELDS],
    model: Annotated[
        str,
        typer.Option("--model", help="Model, if the files name none; config.json with --trace."),
    ] = "",
    machine: Annotated[
        str, typer.Option("--machine", "-m", help="Machine; default: found by queue and modules.")
    ] = "",
    nodes: Annotated[int | None, typer.Option("--nodes", "-n", min=1, help="Nodes.")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Steps of the run.")] = None,
    framework: FrameworkName = None,
    trace: Annotated[
        bool,
        typer.Option(
            "--trace",
            help="Run one rank of the folder's own framework and model on tensors without data.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> int:
    """Check a job script before it waits in the queue: memory, wall time, ranks, network.

    Exit 0: it fits, 1: it will not, or its trace is over 5 % off the plan, 2: it leaves out what an
    estimate needs.
    """
    from planner.describe.configurations import batch_script, batch_site
    from planner.show.first_screen import print_answer
    from planner.show.reports.job_check import check_job
    from planner.show.terminal import console

    if trace:
        return _trace(script, model, as_json)
    job = batch_script.read_batch_script(script)
    job = replace(job, nodes=nodes or job.nodes)
    place = machine_of(machine) if machine else batch_site.machine_of_script(job)
    files = batch_script.configuration_of(job, whole_folder=script.is_dir())
    model = model or batch_site.model_of(files.model, files.shape, files.name)
    if not (framework or files.framework or files.usual_framework):
        raise UnstatedError(
            f"no file of {job.path.name} names a framework; give --framework and --micro-batch, or "
            "name its configuration file in the script"
        )
    overrides = {"framework": framework, "layout": layout, "workload": workload}
    answer = check_job(job, files, place, model, steps=steps, **overrides)
    if as_json:
        print(json.dumps(answer.as_dict(), indent=1, allow_nan=False))
    else:
        print_answer(answer.lines, console())
    return FITS if answer.fits else NOTHING_FITS


def _trace(folder: Path, config: str, as_json: bool) -> int:
    """Trace one rank of an emitted folder beside its plan; `config`: config.json of the model."""
    from planner.validate.folder.folder import check_folder

    answer = check_folder(folder, Path(config) if config else None)
    print(json.dumps(answer.as_dict(), indent=1) if as_json else answer)
    return FITS if answer.agrees else NOTHING_FITS
