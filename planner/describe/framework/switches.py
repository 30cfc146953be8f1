"""Switches: options of a framework that users turn on by name, such as `fsdp2+compile`."""

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, get_args

from pydantic import BeforeValidator, Field

from planner.describe.base import Description, ZeroStage
from planner.describe.framework.support import non_linearity
from planner.describe.machine import Device, Runtime
from planner.describe.model.model import Model
from planner.describe.workload import (
    OPTIMIZERS,
    PRECISIONS,
    BaseFormat,
    OptimizerName,
    TrainingPrecision,
    Workload,
)
from planner.errors import DescriptionError, PlannerError, UnknownNameError, shorten
from planner.units import either, parse_quantity

_DATE = re.compile(r"\d{4}-\d{2}$")
_PLUS = re.compile(r"\+(?!(?<=[0-9.]e\+)[0-9])(?!(?<==\+)[0-9.])", re.IGNORECASE)
"""A plus between switches, not one of an exponent or a sign."""


def _listed(value: Any) -> Any:
    return (value,) if isinstance(value, str) and value else value or ()


def _dotted(table: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _dotted(value, f"{before}{key}.")
        else:
            yield before + key, value


class Switch(Description):
    """An option of a framework, described by the traits that it changes."""

    does: str = Field(min_length=8)
    """Effect of the switch, in one phrase."""
    source: str = Field(min_length=2)
    """Where the effect was read."""
    changes: dict[str, Any] = Field(default_factory=dict)
    """Traits that it changes, in the tables of the framework."""
    takes: Annotated[tuple[str, ...], BeforeValidator(_listed)] = ()
    """Traits that its value sets, such as `buffers.reduce_bucket_elements`; empty: no value."""
    usual: str = ""
    """A common value."""
    excludes: tuple[str, ...] = ()
    """Switches that it cannot be combined with."""
    needs: tuple[str, ...] = ()
    """Switches that it needs."""
    runtimes: tuple[Runtime, ...] = get_args(Runtime)
    """Device runtimes that support it."""
    devices: tuple[str, ...] = ()
    """Substrings of supported device names; empty: all devices of its runtimes."""
    precisions: tuple[TrainingPrecision, ...] = PRECISIONS
    """Training precisions that support it."""
    optimizers: tuple[OptimizerName, ...] = OPTIMIZERS
    """Optimizers that support it."""
    zero_stages: tuple[ZeroStage, ...] = (0, 1, 2, 3)
    """ZeRO stages that support it."""
    base_formats: tuple[BaseFormat, ...] = get_args(BaseFormat)
    """Formats of a frozen base that support it."""
    feed_forwards: tuple[str, ...] = ()
    """Activations of feed-forwards that support it, such as gated silu; empty: all."""
    of_experts: bool = False
    """Whether it changes how tokens are sent to experts, so that a model needs experts."""
    saves_memory: bool = False
    """Whether a search tries it if nothing fits without it."""
    arguments: tuple[str, ...] | None = None
    """Lines for the framework's files, each in the recipe's words and after a file name (`FILE:
    LINE`) if not for the recipe's first file; `{value}` is its value. Empty: they follow from its
    traits. None: it cannot be written, only estimated."""
    read_as: tuple[str, ...] = ()
    """Other words for it in users' files, such as those of older releases; one suffices."""
    environment: dict[str, str] = Field(default_factory=dict)
    """Environment variables of the job."""

    @property
    def dotted(self) -> dict[str, Any]:
        """Changed traits by dotted name."""
        return dict(_dotted(self.changes))

    def refuses(self, device: Device) -> str:
        """Reason why a device does not support it; empty if it does."""
        suffix = "" if not self.devices else f"; it is for {', '.join(self.devices)}"
        fits = device.is_of(self.devices) and device.runtime in self.runtimes
        return "" if fits else f"does nothing on {device.name}{suffix}"

    def refuses_workload(self, workload: Workload, model: Model | None = None) -> str:
        """Reason why a workload or its model does not support it; empty if it does."""
        for field in ("precision", "optimizer", "base_format"):
            value, allowed = getattr(workload, field), getattr(self, f"{field}s")
            if value not in allowed:
                return f"is for {field} {either(allowed)}, not {value}"
        if model is not None and self.of_experts and model.experts is None:
            return f"is for experts, and {model.name} has none"
        if model is not None and self.feed_forwards:
            activation = non_linearity(model)
            if activation not in self.feed_forwards:
                return f"is for feed-forwards with {either(self.feed_forwards)}, not {activation}"
        return ""

    def word_for(self, name: str, different: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
        """Word that turns it on, if it matches `settings` and explains a `different` one; or ''."""
        changes = self.dotted
        if not all(settings.get(path, value) == value for path, value in changes.items()):
            return ""
        if not self.takes:
            return name if changes.keys() & different.keys() else ""
        values = {different.get(path) for path in self.takes}
        value = values.pop() if len(values) == 1 else None
        return f"{name}={value:.0f}" if isinstance(value, (int, float)) else ""

    def fill_arguments(self, word: str) -> tuple[str, ...]:
        """Lines for the framework's files, with the value of a user's word filled in."""
        name, _, text = word.partition("=")
        value = _value(name, text, self.usual) if self.takes else ""
        return tuple(line.format(value=value) for line in self.arguments or ())


def split_name(text: str) -> tuple[str, tuple[str, ...]]:
    """Split a framework's name or path from its switches; a plus inside a number is kept."""
    path, ending, rest = text.rpartition(".toml")
    name, *switches = _PLUS.split(rest)
    return (path + ending if ending else name), tuple(switches)


def strip_switches(name: str) -> str:
    """Name of a framework without switches and without remarks after a space."""
    return split_name(name)[0].partition(" ")[0]


def merge_tables(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Merge nested tables; values of `changes` win."""
    result = {**base, **changes}
    for key in base.keys() & changes.keys():
        if isinstance(base[key], dict) and isinstance(changes[key], dict):
            result[key] = merge_tables(base[key], changes[key])
    return result


def apply_switches(fields: dict[str, Any], words: tuple[str, ...]) -> dict[str, Any]:
    """Apply switches to the fields and the name of a framework; raises DescriptionError."""
    offered: dict[str, Any] = fields.get("switches", {})
    names = [word.partition("=")[0] for word in words]
    result = dict(fields)
    for word, name in zip(words, names, strict=True):
        if not name:
            raise DescriptionError(
                f"+{shorten(word)} after {fields['name']} names no switch; name one or leave it out"
            )
        if name not in offered:
            raise UnknownNameError(
                "switch", name, sorted(offered), f"`planner show {fields['name']}` lists them"
            )
        switch = offered[name]
        _check_pair(name, switch, names)
        result = merge_tables(result, _changes(word, switch))
    return {**result, "name": "+".join((fields["name"], *words)), "switched": tuple(words)}


def check_path(fields: dict[str, Any], path: str, where: str) -> None:
    """Raise UnknownNameError if a framework has no trait of a dotted name."""
    table: Any = fields
    for part in path.split("."):
        traits = table if isinstance(table, dict) else {}
        if part not in traits:
            raise UnknownNameError("trait", path, traits, f"`takes` of {where}")
        table = traits[part]


def _check_pair(name: str, switch: dict[str, Any], names: list[str]) -> None:
    if names.count(name) > 1:
        raise DescriptionError(f"switch {name!r} is named twice; name it once")
    against = [partner for partner in switch.get("excludes", ()) if partner in names]
    if against:
        raise DescriptionError(
            f"switch {name!r} cannot be combined with {against[0]!r}; leave one of them out"
        )
    lacking = [partner for partner in switch.get("needs", ()) if partner not in names]
    if lacking:
        raise DescriptionError(f"switch {name!r} needs {lacking[0]!r}; write {lacking[0]}+{name}")


def _changes(word: str, switch: dict[str, Any]) -> dict[str, Any]:
    name, equals, text = word.partition("=")
    paths, changes = switch.get("takes", ()), dict(switch.get("changes", {}))
    if bool(paths) != bool(equals):
        example = f"write {name}=VALUE" if paths else f"write {name} alone"
        raise DescriptionError(
            f"switch {shorten(word)!r} {'takes a value' if paths else 'takes no value'}; {example}"
        )
    for path in paths:
        value: Any = _value(name, text, switch.get("usual", ""))
        for part in reversed(path.split(".")):
            value = {part: value}
        changes = merge_tables(changes, value)
    return changes


def _value(name: str, text: str, usual: str) -> int | float | str:
    """Parse the value of a switch; whole numbers become int, dates stay text."""
    if _DATE.match(usual):
        return text
    try:
        value = parse_quantity(text)
    except PlannerError:
        raise DescriptionError(
            f"switch {name}: {shorten(text)!r} is not a number; write {name}=NUMBER, "
            "such as 8 or 5e7"
        ) from None
    return int(value) if value.is_integer() else value
