"""Configuration: the job that one or several files describe, and the fields left open."""

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from planner.describe.catalogue import load_framework
from planner.describe.framework.framework import Framework
from planner.describe.framework.switches import Switch
from planner.errors import CatalogueError
from planner.tables import NotebookView

WIDTH_SQUARED = "width squared"
"""Placeholder value of a change: the square of the model's hidden size."""

Changes: TypeAlias = Mapping[str, float | bool | str]
"""Values by dotted field of a framework; `states` fields apply to the training precision."""


@dataclass(frozen=True, slots=True)
class Configuration(NotebookView):
    """Layout and workload fields, framework and model that the files of a job state."""

    files: tuple[str, ...]
    kinds: tuple[str, ...]
    """Kind of each file, such as `Megatron's arguments`."""
    framework: str = ""
    """Framework that the files configure; empty: not stated."""
    usual_framework: str = ""
    """Framework to assume if no file names one."""
    hosts: tuple[str, ...] = ()
    """Frameworks whose configuration files this framework reads too."""
    layout: Mapping[str, Any] = field(default_factory=dict)
    workload: Mapping[str, Any] = field(default_factory=dict)
    usual: Mapping[str, Any] = field(default_factory=dict)
    """The software's defaults for layout and workload fields that no file states."""
    world: int = 0
    """Ranks that the files start; 0: not stated."""
    steps: int = 0
    """Optimizer steps of the run; 0: not stated."""
    replicas: int = 0
    """Sharding groups, each with a full copy of the training states; 0: not stated."""
    shards_per_node: bool = False
    """Whether each node is its own sharding group."""
    model: str = ""
    """Name of a catalogue model; empty: not stated."""
    shape: Mapping[str, int] = field(default_factory=dict)
    """Model sizes that the files state, by field of a model description."""
    changes: Changes = field(default_factory=dict)
    """Framework traits that the files override."""
    switches: tuple[str, ...] = ()
    """Framework switches that the files turn on."""
    left_to: Mapping[str, str] = field(default_factory=dict)
    """Fields that another file must state, with that file's name."""
    unclear: Mapping[str, str] = field(default_factory=dict)
    """Fields whose value the files state in words that are not known, with these words."""
    notes: tuple[str, ...] = ()
    """Notes on settings that were approximated, not counted or not read."""

    @property
    def name(self) -> str:
        """File names as a phrase."""
        return " and ".join(self.files)


_TABLES = ("layout", "workload", "shape", "changes")
_SINGLE = ("world", "steps", "replicas", "model")


def joined(parts: Sequence[Configuration]) -> Configuration:
    """Merge the files of one job; raises CatalogueError if they contradict each other."""
    merged = functools.reduce(_both, parts)
    keys = {*merged.layout, *merged.workload}
    left_to = {name: owner for name, owner in merged.left_to.items() if name not in keys}
    unclear = {name: words for name, words in merged.unclear.items() if name not in keys}
    keys |= unclear.keys()
    usual = {name: value for name, value in merged.usual.items() if name not in keys}
    return replace(merged, left_to=left_to, unclear=unclear, usual=usual)


def _both(first: Configuration, second: Configuration) -> Configuration:
    fields: dict[str, Any] = {}
    for name in _TABLES:
        first_table, second_table = getattr(first, name), getattr(second, name)
        for key in first_table.keys() & second_table.keys():
            _agree(first, second, key, first_table[key], second_table[key])
        fields[name] = {**first_table, **second_table}
    for name in _SINGLE:
        first_value, second_value = getattr(first, name), getattr(second, name)
        if first_value and second_value:
            _agree(first, second, name, first_value, second_value)
        fields[name] = first_value or second_value
    return Configuration(
        files=first.files + second.files,
        kinds=first.kinds + second.kinds,
        framework=_framework(first, second),
        usual_framework=first.usual_framework or second.usual_framework,
        hosts=first.hosts + second.hosts,
        switches=_switches(first, second),
        shards_per_node=first.shards_per_node or second.shards_per_node,
        usual={**second.usual, **first.usual},
        left_to={**first.left_to, **second.left_to},
        unclear={**first.unclear, **second.unclear},
        notes=first.notes + second.notes,
        **fields,
    )


def _agree(
    first: Configuration, second: Configuration, key: str, first_value: Any, second_value: Any
) -> None:
    if first_value != second_value:
        raise CatalogueError(
            f"{key} = {first_value} in {first.name} but {second_value} in {second.name}; "
            "give files of one job"
        )


def _framework(first: Configuration, second: Configuration) -> str:
    """Choose the framework of two files; one framework may read the other's files (`hosts`)."""
    if not first.framework or not second.framework or second.framework in first.hosts:
        return first.framework or second.framework
    if first.framework in second.hosts:
        return second.framework
    _agree(first, second, "framework", first.framework, second.framework)
    return first.framework


def _switches(first: Configuration, second: Configuration) -> tuple[str, ...]:
    all_switches: list[str] = []
    framework = _framework(first, second)
    for part in (first, second):
        hosted = part.framework not in ("", framework)
        words = part.switches
        all_switches += _without_own(words, part.framework, framework) if hosted else words
    return tuple(dict.fromkeys(all_switches))


def _without_own(words: Iterable[str], hosted: str, host: str) -> Iterator[str]:
    """Yield a framework's switches except those whose traits its host framework already has."""
    offered, host_framework = load_framework(hosted).switches, load_framework(host)
    for word in words:
        switch = offered.get(word)  # None for a switch with a value, which is kept
        has_own = word in host_framework.switches
        if switch is None or has_own or not _has_switch(host_framework, switch):
            yield word


def _has_switch(framework: Framework, switch: Switch) -> bool:
    """True if a framework already has all traits of a switch; lists of choices do not count."""
    numbers = {path: value for path, value in switch.dotted.items() if not isinstance(value, list)}
    return bool(numbers) and all(_trait(framework, path) == numbers[path] for path in numbers)


def _trait(framework: Framework, path: str) -> Any:
    value: Any = framework
    for part in path.split("."):
        value = getattr(value, part, None)
    return value
