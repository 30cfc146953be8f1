"""Option groups: the fields of a dataclass or of a description, as one parameter."""

import dataclasses
import functools
import inspect
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any

import typer

from planner.cli.options.option_styles import STYLES, OptionStyle
from planner.describe.base import Description, field_docs
from planner.errors import PlannerError


@dataclasses.dataclass(frozen=True, slots=True)
class FieldsOf:
    """Marks a parameter as a dict of the stated options, one option per field of a description."""

    description: type[Description]
    left_out: tuple[str, ...] = ()
    """Fields that are not options of the command."""
    defaults: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Defaults shown in the help, for fields whose own default does not apply."""
    only: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Names of the options by field, if only these fields are options."""

    def names(self) -> Mapping[str, str]:
        """Names of the options by field, in the order of the command line."""
        fields = self.description.model_fields
        return self.only or {name: name for name in fields if name not in self.left_out}

    def options(self) -> Iterator[inspect.Parameter]:
        """Yield the options as parameters for typer."""
        for field, name in self.names().items():
            style = STYLES.get(name, OptionStyle())
            flags = style.flags or (f"--{name.replace('_', '-')}",)
            kind, settings = self._settings(field, style)
            option = typer.Option(*flags, **settings)
            yield keyword(name, Annotated[kind | None, option], None)

    def _settings(self, name: str, style: OptionStyle) -> tuple[Any, dict[str, Any]]:
        field = self.description.model_fields[name]
        kind, default = _plain_type(field.annotation), field.default
        settings: dict[str, Any] = {"help": field_docs(self.description)[name]}
        is_empty = default is None or default == () or field.is_required()
        shown = "" if is_empty else str(default)
        words = _words_of(field.annotation)
        if words:
            settings |= {"parser": _split_words, "metavar": "LIST"}
            settings["help"] = f"{settings['help'].rstrip('.')}: {', '.join(words)}."
            kind, shown = str, ",".join(default)
        if style.kind is not None:
            kind = style.kind
        settings["show_default"] = self.defaults.get(name, shown or False)
        return kind, {**settings, **style.settings}

    def stated_values(self, values: dict[str, Any]) -> dict[str, Any]:
        """Select the fields that the user stated from the values of all options."""
        return {
            field: STYLES.get(name, OptionStyle()).value(values[name])
            for field, name in self.names().items()
            if values[name] not in (None, [])
        }


def _plain_type(annotation: Any) -> Any:
    """Return a field's option type: a tuple of strings becomes a list, Any becomes str."""
    if isinstance(annotation, types.UnionType):
        annotation = next(each for each in typing.get_args(annotation) if each is not type(None))
    if typing.get_origin(annotation) is tuple and not _words_of(annotation):
        return list[str] if typing.get_args(annotation)[0] in (str, Any) else str
    return str if annotation is Any else annotation


def _words_of(annotation: Any) -> tuple[str, ...]:
    if typing.get_origin(annotation) is not tuple:
        return ()
    return typing.get_args(typing.get_args(annotation)[0])


def _split_words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def keyword(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    """Make a keyword parameter of a command."""
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default
    )


def spread(command: Callable[..., int], left_out: tuple[str, ...] = ()) -> Callable[..., int]:
    """Put the options of a command's groups into its own signature, but those `left_out`."""
    options = [option for option in _options(command) if option.name not in left_out]

    @functools.wraps(command)
    def called(**values: Any) -> int:
        if values.get("as_json") and values.get("as_csv"):
            raise PlannerError("--json and --csv exclude each other; give one of them")
        return int(_call(command, {**dict.fromkeys(left_out), **values}))

    called.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    called.__annotations__ = {option.name: option.annotation for option in options}
    return called


def _parameters(group: Callable[..., Any]) -> Iterator[tuple[inspect.Parameter, FieldsOf | None]]:
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
            yield keyword(parameter.name, parameter.annotation, parameter.default)


def _call(group: Callable[..., Any], values: dict[str, Any]) -> Any:
    arguments = {}
    for parameter, fields in _parameters(group):
        if fields is not None:
            arguments[parameter.name] = fields.stated_values(values)
        elif dataclasses.is_dataclass(parameter.annotation):
            arguments[parameter.name] = _call(parameter.annotation, values)  # type: ignore[arg-type]
        else:
            arguments[parameter.name] = values[parameter.name]
    return group(**arguments)
