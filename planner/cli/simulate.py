"""Command line: `planner simulate`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from planner.cli.jobs.one_layout import OneLayout
from planner.cli.options import FITS, NOTHING_FITS, AsJson, experience_of, spread
from planner.errors import PlannerError

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("simulate")(spread(simulate_command))


def simulate_command(
    given: OneLayout,
    trace: Annotated[
        Path | None,
        typer.Option(
            "--trace",
            metavar="FILE.json",
            help="Write the step as a trace: open it at ui.perfetto.dev or in chrome://tracing.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Play one step of a layout event by event: what waits for what, and what to widen.

    The layout is stated as for `planner estimate`, and the same seconds are played.
    """
    from planner.choose.simulation.step_simulation import simulate

    model, machine, job = given.completed()
    found = simulate(
        model,
        machine,
        job.layout,
        workload=job.workload,
        framework=job.framework,
        experience=experience_of(given.learned(model)),
    )
    if trace is not None:
        _write(trace, json.dumps(found.to_trace(), allow_nan=False))
    if as_json:
        print(json.dumps(found.to_dict(), indent=1, allow_nan=False))
    else:
        from planner.show.report import console
        from planner.show.simulation import show_simulation

        show_simulation(found, machine, console())
        if trace is not None:
            print(f"\nThe trace is in {trace}: open it at ui.perfetto.dev or in chrome://tracing.")
    return FITS if found.estimate.fits else NOTHING_FITS


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise PlannerError(
            f"cannot write the trace to {path}: {error.strerror}; give a file in a folder that "
            "you may write to"
        ) from None
