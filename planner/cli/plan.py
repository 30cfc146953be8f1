"""Command line: `planner plan`."""

from __future__ import annotations

from typing import Annotated

import typer

from planner.cli.exit_codes import FITS, NOTHING_FITS
from planner.cli.options.job_options import JobOptions
from planner.cli.options.option_groups import spread
from planner.cli.options.shared_options import AsCsv, AsJson
from planner.cli.options.training_options import TrainingOptions

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("plan")(spread(plan_command))


def plan_command(
    options: JobOptions,
    training: TrainingOptions,
    top: Annotated[int, typer.Option(min=1, max=1000, help="Ranked layouts to keep.")] = 20,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
) -> int:
    """Search every layout: which strategy fits, how much memory, how long a step."""
    from planner.show.evidence.lessons import LearnedAnswer
    from planner.show.plan_report import show_plan
    from planner.show.terminal import console

    job, learned = options.load(training=training.fields())
    answer = job.plan(top)
    answered = job.replaced(workload=answer.workload)
    lessons = LearnedAnswer(
        learned, [(answered.scenario_of(candidate), candidate) for candidate in answer.listed]
    )
    if as_json:
        print(lessons.to_json(answer.as_dict()))
    elif as_csv:
        print(answer.table().to_csv(), end="")
    else:
        show_plan(answer, console(), lessons.lines())
    return FITS if answer.fits else NOTHING_FITS
