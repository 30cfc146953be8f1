"""Options that several commands share one by one."""

from __future__ import annotations

from typing import Annotated

import typer

from planner.cli.options.option_styles import (
    FRAMEWORK_HELP,
    FRAMEWORK_METAVAR,
    STYLES,
    complete_framework,
)
from planner.describe.base import field_docs
from planner.describe.job_description import JobDescription
from planner.describe.workload import Workload

__all__ = [
    "AsCsv",
    "AsJson",
    "Files",
    "FrameworkName",
    "MachineName",
    "ModelName",
    "NetworkName",
    "Overrides",
    "Tokens",
]

_DOCS = field_docs(JobDescription)

ModelName = Annotated[str, typer.Argument(help=_DOCS["model"])]
MachineName = Annotated[str, typer.Option("--machine", "-m", help=_DOCS["machine"])]
Overrides = Annotated[list[str] | None, typer.Option("--set", help=_DOCS["set"])]
NetworkName = Annotated[
    str | None, typer.Option("--network", help=_DOCS["network"], **STYLES["network"].settings)
]
Files = Annotated[
    list[str] | None,
    typer.Option("--from", help="Configuration file of a training framework (repeatable)."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
AsCsv = Annotated[bool, typer.Option("--csv", help="Print CSV.")]
FrameworkName = Annotated[
    str | None,
    typer.Option(
        "--framework",
        "-f",
        metavar=FRAMEWORK_METAVAR,
        help=f"{FRAMEWORK_HELP}.",
        autocompletion=complete_framework,
    ),
]
Tokens = Annotated[
    float | None,
    typer.Option(
        "--tokens",
        help=field_docs(Workload)["tokens"],
        **STYLES["tokens"].settings,
    ),
]
