"""Command line, options: what several commands ask for, typed once.

A command may take a group of options as one parameter: a dataclass, or the fields of a
description. `spread` puts the group's options into the command's own signature, which is what
typer reads.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from planner.cost.scenario.experience import Experience
from planner.describe.base import Description, field_docs
from planner.describe.catalogue import MOST_FREE, load_framework, load_machine, load_model, names
from planner.describe.framework.switches import split_name
from planner.describe.machine import Machine
from planner.describe.model.model import Model
from planner.describe.workload import Workload, parse_tokens, read_documents
from planner.errors import LayoutError, PlannerError

if TYPE_CHECKING:
    from planner.describe.configurations.configuration import Configuration
    from planner.describe.framework.framework import Framework
    from planner.evidence.learning import Learned

__all__ = [
    "FITS",
    "INTERRUPTED",
    "NOTHING_FITS",
    "OWN_SEQUENCE",
    "REFUSED_ROWS",
    "WRONG_USE",
    "AsCsv",
    "AsJson",
    "FieldsOf",
    "Files",
    "FrameworkName",
    "Job",
    "LeaveFree",
    "MachineName",
    "Measured",
    "ModelName",
    "NetworkName",
    "Overrides",
    "Tokens",
    "Tolerance",
    "experience_of",
    "learned_from",
    "read_files",
    "share_of",
    "spread",
    "workload_of",
]

from planner.cli.exit_codes import FITS, INTERRUPTED, NOTHING_FITS, REFUSED_ROWS, WRONG_USE

ModelName = Annotated[
    str,
    typer.Argument(
        help="Model: its name, a TOML file, a config.json, its name on the Hugging Face hub "
        "(org/name, org/name@revision), or FILE.py:FUNCTION, a torch module of your own: that file "
        "is run."
    ),
]
MachineName = Annotated[str, typer.Option("--machine", "-m", help="Machine name or TOML file.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", help="Override of the profile: device.memory_bytes=80GB (repeatable)."),
]
NetworkName = Annotated[
    str | None,
    typer.Option(
        "--network",
        metavar="NAME",
        show_default="the framework's own",
        help="Network of the machine, where software makes several of its wires; `planner show "
        "MACHINE` lists them.",
    ),
]
LeaveFree = Annotated[
    float,
    typer.Option(
        "--leave-free",
        min=0,
        max=MOST_FREE,
        metavar="PERCENT",
        help="Percent of every device's memory that the layout must not need.",
    ),
]
Devices = Annotated[
    int | None,
    typer.Option("--devices", min=1, help="Devices of one node, where the job has a part of it."),
]
Tolerance = Annotated[
    float | None,
    typer.Option(
        "--tolerance",
        min=0,
        max=100,
        metavar="PERCENT",
        show_default="5",
        help="By how much the recommended layout may be slower than the fastest, if it is simpler.",
    ),
]
Files = Annotated[
    list[str] | None,
    typer.Option("--from", help="Configuration file of a training framework (repeatable)."),
]
Measured = Annotated[
    list[str] | None,
    typer.Option(
        "--measured",
        metavar="FILE",
        help="Measured runs that correct the estimates: a CSV of runs, LOG=JOB.json, or what "
        "`planner compare --json` printed (repeatable).",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
AsCsv = Annotated[bool, typer.Option("--csv", help="Print CSV.")]

_FRAMEWORK = "NAME[+SWITCH...]"
_FRAMEWORK_HELP = (
    "Framework or TOML file, and what is switched on: fsdp2+compile, deepspeed+bucket=5e7; "
    "`planner frameworks` lists all"
)


def _completed(incomplete: str) -> list[str]:
    """Names that begin as what was typed: frameworks, or their switches behind a plus.

    >>> _completed("deepspeed+no"), _completed("fsdp2+compile+as")
    (['deepspeed+no-overlap'], ['fsdp2+compile+async-tp'])
    """
    before, plus, _ = incomplete.rpartition("+")
    known: list[str] = list(names("framework"))
    if plus:
        try:
            switches = load_framework(split_name(before)[0]).switches
        except PlannerError:
            return []
        known = [f"{before}+{name}{'=' * bool(one.takes)}" for name, one in switches.items()]
    return [name for name in known if name.startswith(incomplete)]


FrameworkName = Annotated[
    str | None,
    typer.Option(
        "--framework",
        "-f",
        metavar=_FRAMEWORK,
        help=f"{_FRAMEWORK_HELP}.",
        autocompletion=_completed,
    ),
]

_FLAGS = {
    "sequence_length": ("--seq-length", "--sequence-length"),
    "global_batch": ("--global-batch", "--global-batch-size"),
    "dp": ("--dp", "--data-parallel-size"),
    "tp": ("--tp", "--tensor-parallel-size"),
    "sequence_parallel": ("--sequence-parallel", "--sp"),
    "pp": ("--pp", "--pipeline-parallel-size"),
    "cp": ("--cp", "--context-parallel-size"),
    "ep": ("--ep", "--expert-parallel-size"),
    "zero_stage": ("--zero", "--zero-stage"),
    "micro_batch": ("--micro-batch", "--micro-batch-size"),
}
"""Flags of fields that are not called like the field: the names that frameworks use too."""


# --- options from the fields of a description -------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class FieldsOf:
    """Marks a parameter: one option per field of a description; it gets the given ones as a dict.

    Types and help are those of the fields; what is not given has the field's default.
    """

    description: type[Description]
    left_out: tuple[str, ...] = ()
    """Fields that are no option of the command."""
    otherwise: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """What is taken where the user gives none, for fields where that is not the field's default."""

    def names(self) -> list[str]:
        """Fields that are options, in the order of the description."""
        return [name for name in self.description.model_fields if name not in self.left_out]

    def options(self) -> Iterator[inspect.Parameter]:
        """The options as parameters that typer reads."""
        for name in self.names():
            settings: dict[str, Any] = {"help": field_docs(self.description)[name]}
            field = self.description.model_fields[name]
            kind: Any = field.annotation
            default = field.default
            usual = "" if default is None else str(default)
            choices = _choices(kind)
            if choices:
                settings |= {"parser": _words, "metavar": "LIST"}
                settings["help"] = f"{settings['help'].rstrip('.')}: {', '.join(choices)}."
                kind, usual = str, ",".join(default)
            elif name in _PARSED:
                parse, metavar = _PARSED[name]
                settings |= {"parser": parse, "metavar": metavar}
                kind, usual = (str, "") if name == "document_lengths" else (kind, usual)
            settings["show_default"] = self.otherwise.get(name, usual or False)
            flags = _FLAGS.get(name, (f"--{name.replace('_', '-')}",))
            option = typer.Option(*flags, **settings)
            yield _keyword(name, Annotated[kind | None, option], None)

    def given(self, values: dict[str, Any]) -> dict[str, Any]:
        """The fields among the values of all options."""
        return {name: values[name] for name in self.names() if values[name] is not None}


def _choices(kind: Any) -> tuple[str, ...]:
    """What the words of a tuple may be; empty where the field is none.

    >>> _choices(tuple[typing.Literal["embedding", "head"], ...]), _choices(int)
    (('embedding', 'head'), ())
    """
    return typing.get_args(typing.get_args(kind)[0]) if typing.get_origin(kind) is tuple else ()


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _said(parse: Callable[[str], Any]) -> Callable[[Any], Any]:
    """A parser of typer's, whose complaint is the planner's."""

    def parsed(text: Any) -> Any:
        try:
            return parse(str(text))
        except PlannerError as error:
            raise typer.BadParameter(str(error)) from None

    return parsed


_PARSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "tokens": (_said(parse_tokens), "NUMBER"),
    "document_lengths": (_said(read_documents), "MEAN|FILE"),
}
"""Fields that are written otherwise than they are kept: who reads them, and what is written."""

Tokens = Annotated[
    float | None,
    typer.Option(
        "--tokens",
        parser=_PARSED["tokens"][0],
        metavar="NUMBER",
        help=field_docs(Workload)["tokens"],
    ),
]


def _keyword(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default
    )


# --- groups of options ------------------------------------------------------------------------


def spread(command: Callable[..., int]) -> Callable[..., int]:
    """The command with the options of its groups in its own signature."""
    options = list(_options(command))

    @functools.wraps(command)
    def called(**values: Any) -> int:
        if values.get("as_json") and values.get("as_csv"):
            raise PlannerError("--json and --csv both say how to print; give one of them")
        return int(_call(command, values))

    called.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    called.__annotations__ = {option.name: option.annotation for option in options}
    return called


def _parameters(group: Callable[..., Any]) -> Iterator[tuple[inspect.Parameter, FieldsOf | None]]:
    """Parameters of a command or a dataclass, with the mark of those that are fields."""
    for parameter in inspect.signature(group, eval_str=True).parameters.values():
        marks = getattr(parameter.annotation, "__metadata__", ())
        yield parameter, next((mark for mark in marks if isinstance(mark, FieldsOf)), None)


def _options(group: Callable[..., Any]) -> Iterator[inspect.Parameter]:
    for parameter, fields in _parameters(group):
        if fields is not None:
            yield from fields.options()
        elif dataclasses.is_dataclass(parameter.annotation):
            yield from _options(parameter.annotation)  # type: ignore[arg-type]
        else:
            yield _keyword(parameter.name, parameter.annotation, parameter.default)


def _call(group: Callable[..., Any], values: dict[str, Any]) -> Any:
    """Call a command, or build a dataclass, from the values of all options."""
    given = {}
    for parameter, fields in _parameters(group):
        if fields is not None:
            given[parameter.name] = fields.given(values)
        elif dataclasses.is_dataclass(parameter.annotation):
            given[parameter.name] = _call(parameter.annotation, values)  # type: ignore[arg-type]
        else:
            given[parameter.name] = values[parameter.name]
    return group(**given)


def share_of(percent: float | None) -> float | None:
    """A share from percent."""
    return None if percent is None else percent / 100


def read_files(files: Sequence[str] | None) -> Configuration | None:
    """What `--from` names; None where it names nothing."""
    if not files:
        return None
    from planner.describe.configurations.reading import read_configuration

    return read_configuration(*files)


def learned_from(files: list[str] | None, machine: Machine, model: Model) -> Learned | None:
    """What `--measured` names teaches; None where it names nothing."""
    if not files:
        return None
    from planner.evidence.learning import learn_from

    return learn_from(*files, machine=machine, model=model)


def experience_of(learned: Learned | None) -> Experience:
    """What estimates know of measured runs."""
    return Experience() if learned is None else learned.experience


# --- the job of `plan` and `emit` -------------------------------------------------------------

OWN_SEQUENCE = {"sequence_length": "the model's own, at most 4096"}


def workload_of(model: Model, fields: dict[str, Any]) -> Workload:
    """The workload of a command's options; the sequence defaults to the model's own."""
    fields = {"sequence_length": model.default_sequence_length, **fields}
    return Workload.described(fields, where="workload")


def machine_of(
    name: str,
    overrides: list[str] | None,
    leave_free: float,
    devices: int | None,
    nodes: int | None,
    network: str | None = None,
) -> Machine:
    """The machine of a command's options, or a part of one of its nodes."""
    if devices is not None and (nodes or 1) > 1:
        raise LayoutError(
            f"--devices {devices} is a part of one node, but --nodes says {nodes}; leave one out"
        )
    chosen = () if network is None else (f"network={network}",)
    return load_machine(name, (*chosen, *(overrides or ())), leave_free, devices)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A model on some nodes of a machine, and how it is trained."""

    model: ModelName
    machine: MachineName
    nodes: Annotated[int, typer.Option("--nodes", "-n", help="Nodes.")] = 1
    workload: Annotated[dict[str, Any], FieldsOf(Workload, otherwise=OWN_SEQUENCE)]
    framework: Annotated[
        list[str] | None,
        typer.Option(
            "--framework",
            "-f",
            metavar=_FRAMEWORK,
            help=f"{_FRAMEWORK_HELP} (repeatable).",
            autocompletion=_completed,
        ),
    ] = None
    network: NetworkName = None
    overrides: Overrides = None
    leave_free: LeaveFree = 0.0
    devices: Devices = None
    measured: Measured = None

    def described(self) -> tuple[Model, Machine, Workload, list[Framework]]:
        """What the options name."""
        model = load_model(self.model)
        machine = machine_of(
            self.machine,
            self.overrides,
            self.leave_free,
            self.devices,
            self.nodes,
            self.network,
        )
        frameworks = [load_framework(name) for name in self.framework or ()]
        return model, machine, workload_of(model, self.workload), frameworks

    def learned(self) -> Learned | None:
        """What the measured runs teach that are named; None where none is."""
        machine = machine_of(self.machine, self.overrides, 0.0, None, None, self.network)
        return learned_from(self.measured, machine, load_model(self.model))
