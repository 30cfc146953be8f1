"""Option styles: flags and settings of the fields' options, and options shared by commands."""

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
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
from planner.units import parse_power

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


_CODE: Mapping[str, Mapping[str, Any]] = {
    "schedule": {"help": f"Pipeline schedule: {', '.join(SCHEDULES)}."},
    "tokens": {"parser": _parser(parse_tokens)},
    "document_lengths": {"parser": _parser(read_documents)},
    "machine": {"autocompletion": complete_machine},
    "leave_free": {"max": MAX_FREE_PERCENT},
    "frameworks": {"help": f"{FRAMEWORK_HELP} (repeatable).", "autocompletion": complete_framework},
    "node_power": {"parser": _parser(parse_power)},
}
"""Settings that are code, or take their words from it."""
_CONVERSIONS: Mapping[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("set", "frameworks", "measured"), tuple),
    "tolerance": lambda percent: percent / 100,
}


def _style(
    name: str, flags: Sequence[str] = (), text: bool = False, **settings: Any
) -> OptionStyle:
    kind = str if text else None
    settings |= _CODE.get(name, {})
    return OptionStyle(tuple(flags), kind, settings, _CONVERSIONS.get(name))


_TABLES = tomllib.loads(
    resources.files(__package__).joinpath("option_styles.toml").read_text(encoding="utf-8")
)
STYLES = {name: _style(name, **_TABLES.get(name, {})) for name in {**_TABLES, **_CONVERSIONS}}
"""Styles by field name; all other fields have plain options."""


_DOCS = field_docs(JobDescription)

ModelName = Annotated[str, typer.Argument(help=_DOCS["model"], autocompletion=complete_model)]
MachineName = Annotated[
    str, typer.Option("--machine", "-m", help=_DOCS["machine"], autocompletion=complete_machine)
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
