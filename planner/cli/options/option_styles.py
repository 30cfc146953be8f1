"""Option styles: flags and settings of the fields' options, and options shared by commands."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import typer

from planner.describe.base import field_docs
from planner.describe.catalogue import load_framework, names
from planner.describe.framework.switches import split_name
from planner.describe.job_description import JobDescription
from planner.describe.layout import SCHEDULES
from planner.describe.machine.variants import MAX_FREE_PERCENT
from planner.describe.workload import Workload, parse_tokens, read_documents
from planner.errors import PlannerError

FRAMEWORK_HELP = (
    "Framework or TOML file, with switches: fsdp2+compile, deepspeed+bucket=5e7; "
    "`planner frameworks` lists all"
)


@dataclass(frozen=True, slots=True)
class OptionStyle:
    """Flags, type and settings of a field's option, where they differ from the plain ones."""

    flags: tuple[str, ...] = ()
    """Flags; empty: `--name-of-the-field`."""
    kind: Any = None
    """Type; None: the field's type."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    convert: Callable[[Any], Any] | None = None
    """Converts the option's value to the field's; None: they are equal."""

    def value(self, option_value: Any) -> Any:
        """Convert the option's value to the field's value."""
        return option_value if self.convert is None else self.convert(option_value)


def complete_framework(incomplete: str) -> list[str]:
    """List the frameworks that start with a text, or a framework's switches after a plus."""
    before, plus, _ = incomplete.rpartition("+")
    candidates: list[str] = list(names("framework"))
    if plus:
        try:
            switches = load_framework(split_name(before)[0]).switches
        except PlannerError:
            return []
        candidates = [
            f"{before}+{name}{'=' * bool(switch.takes)}" for name, switch in switches.items()
        ]
    return [name for name in candidates if name.startswith(incomplete)]


def complete_model(incomplete: str) -> list[str]:
    """List the models of the catalogue that start with a text."""
    return [name for name in names("model") if name.startswith(incomplete)]


def complete_machine(incomplete: str) -> list[str]:
    """List the machines of the catalogue that start with a text."""
    return [name for name in names("machine") if name.startswith(incomplete)]


def _parser(parse: Callable[[str], Any]) -> Callable[[Any], Any]:
    def parsed(text: Any) -> Any:
        try:
            return parse(str(text))
        except PlannerError as error:
            raise typer.BadParameter(str(error)) from None

    return parsed


STYLES = {
    "sequence_length": OptionStyle(("--seq-length", "--sequence-length")),
    "global_batch": OptionStyle(("--global-batch", "--global-batch-size")),
    "dp": OptionStyle(("--dp", "--data-parallel-size")),
    "tp": OptionStyle(("--tp", "--tensor-parallel-size")),
    "sequence_parallel": OptionStyle(("--sequence-parallel", "--sp")),
    "pp": OptionStyle(("--pp", "--pipeline-parallel-size")),
    "cp": OptionStyle(("--cp", "--context-parallel-size")),
    "ep": OptionStyle(("--ep", "--expert-parallel-size")),
    "zero_stage": OptionStyle(
        ("--zero", "--zero-stage"), kind=str, settings={"metavar": "STAGE", "show_default": "0"}
    ),
    "schedule": OptionStyle(
        kind=str,
        settings={"metavar": "NAME", "help": f"Pipeline schedule: {', '.join(SCHEDULES)}."},
    ),
    "micro_batch": OptionStyle(("--micro-batch", "--micro-batch-size")),
    "tokens": OptionStyle(settings={"parser": _parser(parse_tokens), "metavar": "NUMBER"}),
    "document_lengths": OptionStyle(
        kind=str,
        settings={"parser": _parser(read_documents), "metavar": "MEAN|FILE", "show_default": False},
    ),
    "machine": OptionStyle(("--machine", "-m"), settings={"autocompletion": complete_machine}),
    "nodes": OptionStyle(("--nodes", "-n")),
    "set": OptionStyle(("--set",), convert=tuple),
    "network": OptionStyle(settings={"metavar": "NAME", "show_default": "the framework's own"}),
    "leave_free": OptionStyle(settings={"metavar": "PERCENT", "min": 0, "max": MAX_FREE_PERCENT}),
    "devices": OptionStyle(settings={"min": 1}),
    "frameworks": OptionStyle(
        ("--framework", "-f"),
        settings={
            "metavar": "NAME[+SWITCH...]",
            "help": f"{FRAMEWORK_HELP} (repeatable).",
            "autocompletion": complete_framework,
        },
        convert=tuple,
    ),
    "tolerance": OptionStyle(
        settings={
            "metavar": "PERCENT",
            "show_default": "5",
            "min": 0,
            "max": 100,
            "help": "By how much the recommended layout may be slower than the fastest, if it is "
            "simpler.",
        },
        convert=lambda percent: percent / 100,
    ),
    "measured": OptionStyle(
        settings={
            "metavar": "FILE",
            "help": "Measured runs that correct the estimates: a CSV of runs, LOG=JOB.json, or the "
            "output of `planner compare --json` (repeatable).",
        },
        convert=tuple,
    ),
}
"""Styles by field name; all other fields have plain options."""


_DOCS = field_docs(JobDescription)

ModelName = Annotated[str, typer.Argument(help=_DOCS["model"], autocompletion=complete_model)]
MachineName = Annotated[
    str,
    typer.Option("--machine", "-m", help=_DOCS["machine"], autocompletion=complete_machine),
]
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
        *STYLES["frameworks"].flags,
        **{**STYLES["frameworks"].settings, "help": f"{FRAMEWORK_HELP}."},
    ),
]
Tokens = Annotated[
    float | None,
    typer.Option("--tokens", help=field_docs(Workload)["tokens"], **STYLES["tokens"].settings),
]
