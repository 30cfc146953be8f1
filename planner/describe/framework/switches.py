"""Switches: what users of a framework turn on, by name.

A switch changes traits of a description. `fsdp2+compile` is fsdp2 with its switch `compile`,
`deepspeed+bucket=5e7` one with the value that the switch takes: wherever a framework is named, its
switches can be.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field

from planner.describe.base import Description
from planner.errors import DescriptionError, UnknownNameError, shorten
from planner.units import parse_quantity

__all__ = ["Switch", "family", "merged", "split_name", "switched"]


class Switch(Description):
    """One thing that a framework's users turn on; what it changes is said in its traits."""

    does: str = Field(min_length=8)
    """What it does, in one phrase."""
    source: str = Field(min_length=2)
    """Where that was read."""
    changes: dict[str, Any] = Field(default_factory=dict)
    """Traits that it changes, in the tables of the description."""
    takes: str = ""
    """The trait that its value is, as `buffers.reduce_bucket_elements`; empty: it takes none."""
    excludes: tuple[str, ...] = ()
    """Switches that it does not go with."""
    saves_memory: bool = False
    """Whether it is tried where nothing fits without it."""
    arguments: tuple[str, ...] | None = None
    """What the framework's files are told, a line each in the recipe's own words; `{value}` stands
    for its value. None: they cannot be told, and it is only estimated."""
    environment: dict[str, str] = Field(default_factory=dict)
    """Variables of the job's environment."""


def split_name(text: str) -> tuple[str, tuple[str, ...]]:
    """The name of a framework, or the path of its file, and the switches behind it.

    >>> split_name("fsdp2+compile+bucket=5e7"), split_name("my+own.toml+compile")
    (('fsdp2', ('compile', 'bucket=5e7')), ('my+own.toml', ('compile',)))
    """
    path, ending, rest = text.rpartition(".toml")
    name, *switches = (path + ending + rest).split("+") if not ending else rest.split("+")
    return (path + ending if ending else name), tuple(switches)


def family(name: str) -> str:
    """The framework's name without switches, and without what a run's notes add in words.

    >>> family("fsdp2+compile"), family("megatron-lm with blocking launches")
    ('fsdp2', 'megatron-lm')
    """
    return split_name(name)[0].partition(" ")[0]


def merged(whole: dict[str, Any], part: dict[str, Any]) -> dict[str, Any]:
    """Tables with what a part of them states otherwise.

    >>> merged({"code": {"a": 1, "b": 2}, "tp": 1}, {"code": {"b": 3}})
    {'code': {'a': 1, 'b': 3}, 'tp': 1}
    """
    found = {**whole, **part}
    for key in whole.keys() & part.keys():
        if isinstance(whole[key], dict) and isinstance(part[key], dict):
            found[key] = merged(whole[key], part[key])
    return found


def switched(fields: dict[str, Any], words: tuple[str, ...]) -> dict[str, Any]:
    """The fields of a framework with some of its switches on, and `+` them in its name.

    Raises UnknownNameError for a switch that it has not, DescriptionError for one that is named
    twice, that does not go with another, or whose value is missing or not asked for.
    """
    offered: dict[str, Any] = fields.get("switches", {})
    names = [word.partition("=")[0] for word in words]
    found = dict(fields)
    for word, name in zip(words, names, strict=True):
        if name not in offered:
            raise UnknownNameError(
                "switch", name, sorted(offered), f"`planner show {fields['name']}` lists them"
            )
        switch = offered[name]
        _check_pair(name, switch, names)
        found = merged(found, _changes(word, switch))
    return {**found, "name": "+".join((fields["name"], *words)), "switched": tuple(words)}


def _check_pair(name: str, switch: dict[str, Any], names: list[str]) -> None:
    if names.count(name) > 1:
        raise DescriptionError(f"switch {name!r} is named twice; name it once")
    against = [other for other in switch.get("excludes", ()) if other in names]
    if against:
        raise DescriptionError(
            f"switch {name!r} does not go with {against[0]!r}; leave one of them out"
        )


def _changes(word: str, switch: dict[str, Any]) -> dict[str, Any]:
    """What a switch changes, with the value that the user gives it."""
    name, equals, text = word.partition("=")
    path, changes = switch.get("takes", ""), dict(switch.get("changes", {}))
    if bool(path) != bool(equals):
        example = f"write {name}=VALUE" if path else f"write {name} alone"
        raise DescriptionError(
            f"switch {shorten(word)!r} {'takes a value' if path else 'takes no value'}; {example}"
        )
    if not path:
        return changes
    value: Any = parse_quantity(text)
    for part in reversed(path.split(".")):
        value = {part: value}
    return merged(changes, value)
