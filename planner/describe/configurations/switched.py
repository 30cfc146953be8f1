"""Switched: which switches of a framework a file turns on, by the words that it would be told."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from planner.describe.catalogue import load_framework
from planner.describe.configurations.table import Table
from planner.describe.framework.framework import Framework
from planner.describe.framework.switches import Switch
from planner.units import parse_quantity

__all__ = ["switches_in", "without_own"]

_VALUE = "{value}"


def switches_in(name: str, settings: Table) -> Iterator[str]:
    """Switches of a framework whose words all stand in a file, with their values.

    >>> given = Table({"tp-comm-overlap": True, "cuda-graph-impl": "none"}, "job.sh")
    >>> list(switches_in("megatron-lm", given))
    ['tp-comm-overlap']
    """
    for switch_name, switch in load_framework(name).switches.items():
        if not switch.arguments and not switch.read_as:
            continue
        for words in (switch.arguments or (), *((line,) for line in switch.read_as)):
            values = [_value(line, settings) for line in words]
            if values and None not in values:
                yield _named(switch_name, switch, values)
                break


def without_own(words: Iterable[str], hosted: str, host: str) -> Iterator[str]:
    """Switches of a framework without those whose changes another one, which takes its files, has
    anyway.

    >>> list(without_own(["fp32-gradients", "bf16-states"], "deepspeed", "megatron-deepspeed"))
    ['bf16-states']
    """
    offered, host_framework = load_framework(hosted).switches, load_framework(host)
    for word in words:
        switch = offered.get(word)  # those that take a value are changes by themselves
        if (
            switch is None
            or word in host_framework.switches
            or not _has_switch(host_framework, switch)
        ):
            yield word


def _has_switch(framework: Framework, switch: Switch) -> bool:
    """Whether all traits of a switch are a framework's own; what may be chosen is no trait."""
    numbers = {path: value for path, value in switch.dotted.items() if not isinstance(value, list)}
    return bool(numbers) and all(_trait(framework, path) == numbers[path] for path in numbers)


def _trait(framework: Framework, path: str) -> Any:
    value: Any = framework
    for part in path.split("."):
        value = getattr(value, part, None)
    return value


def _named(name: str, switch: Switch, values: list[str | None]) -> str:
    first_value = next((value for value in values if value), "")
    return f"{name}={first_value}" if switch.takes and first_value else name


def _value(line: str, settings: Table) -> str | None:
    """What stands for `{value}` in a file that says a line; None where it does not say it."""
    place, colon, rest = line.partition(": ")
    path, wanted = _parsed(rest if colon and "." in place else line)
    table = settings
    for part in path[:-1]:
        inner = table.get(part) if part in table else None
        if not isinstance(inner, Mapping):
            return None
        table = table.table(part)
    if path[-1] not in table:
        return None
    value = table.get(path[-1])
    if wanted == _VALUE:
        return _number(value)
    return "" if _plain(value) == _plain(wanted) else None


def _parsed(line: str) -> tuple[list[str], Any]:
    """Where a line stands in a file, and what it says there."""
    if line.startswith("--"):
        option, _, value = line.removeprefix("--").replace("=", " ", 1).partition(" ")
        return [option], value or True
    table: Any = tomllib.loads(line.replace(_VALUE, f'"{_VALUE}"'))
    path = []
    while isinstance(table, dict):
        key, table = next(iter(table.items()))
        path.append(key)
    return path, table


def _plain(value: Any) -> str:
    return str(value).lower()


def _number(value: Any) -> str | None:
    """A number as a switch names it."""
    try:
        return f"{parse_quantity(str(value)):.0f}"
    except ValueError:
        return None
