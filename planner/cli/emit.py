"""Command line, files: `planner emit`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from planner.cli.exit_codes import FITS, NOTHING_FITS
from planner.cli.options.job_options import JobOptions
from planner.cli.options.option_groups import spread

if TYPE_CHECKING:
    from planner.choose.plan import Plan
    from planner.job import Job

__all__ = ["register"]

_LONGEST = 120
"""Letters of a model in the name of a folder: those of the hub have up to 96, and a revision."""
_LEAST_TOP = 200
"""Layouts to look through for one that can be written, where the asked one cannot."""


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("emit")(spread(emit_command))


def emit_command(
    options: JobOptions,
    rank: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=1000,
            help="Which layout of the plan; 1 is the fastest. Else the recommended one.",
        ),
    ] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Steps; else those of --tokens, or 1000.")
    ] = None,
    queue: Annotated[str, typer.Option(help="Queue; else the shortest that holds the run.")] = "",
    benchmark: Annotated[
        bool,
        typer.Option("--benchmark", help="Also a script that times collectives on these nodes."),
    ] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder; else one named after the job.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite files.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the files only.")] = False,
) -> int:
    """Write the files that run a layout: job script, framework configuration, README."""
    from planner.show import words

    job, _ = options.load()
    answer = job.plan(top=max(rank or 1, _LEAST_TOP))
    if not answer.fits:
        print(
            f"nothing fits: {answer.model} on {job.nodes} nodes of {answer.machine}; "
            "`planner plan` says why and what would help",
            file=sys.stderr,
        )
        return NOTHING_FITS
    if instead := words.other_batch_notice(answer):
        print(instead, file=sys.stderr)
    settings = {"steps": steps, "queue": queue, "benchmark": benchmark}
    files = _files(job, answer, rank, settings)
    if dry_run:
        print("\n".join(f"==> {name} <==\n{text}" for name, text in files.items()))
        return FITS
    from planner.emitters.batch_job import slug
    from planner.emitters.folder import write_folder

    folder = output or Path(f"{slug(job.model.name, _LONGEST)}-{slug(job.machine.name)}")
    write_folder(files, folder, force=force)
    print(f"{folder}: {', '.join(files)}")
    return FITS


def _files(job: Job, answer: Plan, rank: int | None, settings: dict[str, Any]) -> dict[str, str]:
    """The files of a layout; a refusal names the fastest layout that can be written."""
    from planner.errors import EmitError

    def can_be_written(number: int) -> bool:
        try:
            return bool(job.emit(number, answer=answer, **settings))
        except EmitError:
            return False

    try:
        return job.emit(rank, answer=answer, **settings)
    except EmitError as refusal:
        for number in range(1, len(answer.ranked) + 1):
            if can_be_written(number):
                raise EmitError(f"{refusal}; --rank {number} can be written") from None
        raise
