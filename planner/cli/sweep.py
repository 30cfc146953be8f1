"""Command line: `planner sweep`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from planner.errors import FITS, INTERRUPTED, shorten_path
from planner.units import counted

if TYPE_CHECKING:
    from planner.sweeps import SweepResult
    from planner.sweeps.progress import Progress


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("sweep")(sweep_command)


def sweep_command(
    sweep: Annotated[Path, typer.Argument(help="Questions: a TOML or JSON file.")],
    into: Annotated[
        Path | None,
        typer.Option("--into", "-o", help="Table to write, .parquet or .csv; else CSV is printed."),
    ] = None,
    backend: Annotated[
        str,
        typer.Option(
            "--backend",
            metavar="NAME",
            help="loky (cores of this machine), sequential, threading, or dask.",
        ),
    ] = "loky",
    jobs: Annotated[
        int, typer.Option("--jobs", "-j", help="Processes.", show_default="all cores")
    ] = -1,
    address: Annotated[
        str | None, typer.Option("--address", help="Dask scheduler, tcp://host:8786 or its file.")
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(min=0, help="Questions to answer now; the others wait for the next call."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only count the questions, and show the first.")
    ] = False,
) -> int:
    """Answer thousands of questions on cores or a cluster: models, machines, nodes, what-ifs.

    With --into, a journal next to the table keeps the answers: the same command continues where an
    earlier one stopped. A refused question becomes a row with the reason.
    """
    if dry_run:
        return _show_first(sweep)
    progress: Progress | None = None
    try:
        import planner.sweeps as sweeps
        from planner.sweeps.progress import Progress

        progress = Progress(shown=True)
        where: dict[str, Any] = {"into": into, "backend": backend, "jobs": jobs, "address": address}
        result = sweeps.sweep(sweep, **where, limit=limit, progress=progress)
    except KeyboardInterrupt:
        return _report_interrupt(progress, into)
    if into is None:
        from planner.tables import csv_text

        print(csv_text(result.columns, result.rows), end="")
    else:
        print(_summary(result, into, progress))
    return FITS


def _show_first(path: Path) -> int:
    from planner.sweeps import dry_run

    questions, first = dry_run(path)
    number = counted(len(questions.questions), "question")
    noun = {"plan": "a plan", "estimate": "an estimate"}[questions.kind]
    print(f"{number}: {noun} each. The first:")
    for name, value in first.items():
        print(f"  {name} = {value}")
    if (repeated := questions.num_stated - len(questions.questions)) > 0:
        print(f"{counted(repeated, 'question')} stated more than once, and asked once.")
    return FITS


def _summary(result: SweepResult, into: Path, progress: Progress) -> str:
    waiting = progress.total - progress.done
    fitting = f"{result.num_fitting:,} fit, " if "fits" in result.columns else ""
    summary = (
        f"{shorten_path(into)}: {counted(len(result.rows), 'row')}, {fitting}"
        f"{result.num_refused:,} refused (column error); {result.num_asked:,} asked now, "
        f"{progress.num_known:,} answered before"
    )
    if waiting:
        summary += f"; {waiting:,} wait for the next call"
    for reason, times in result.refusals.most_common(1):
        summary += f"\nrefused most often ({times:,}): {reason}"
    return summary


def _report_interrupt(progress: Progress | None, into: Path | None) -> int:
    message = "no question was answered yet"
    if progress is not None and progress.total:
        fate = "and not kept; name a table with --into to keep them"
        if into:
            fate = "are kept, and the same command continues from there"
        message = f"{progress.done:,} of {counted(progress.total, 'question')} answered {fate}"
    print(f"planner: interrupted: {message}", file=sys.stderr, flush=True)
    return INTERRUPTED
