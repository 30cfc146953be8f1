"""Configuration: what one or several files say of a job, and what they leave open."""

from __future__ import annotations

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
"""The value of a change that follows from the model: the square of its width."""

Changes: TypeAlias = Mapping[str, float | bool | str]
"""Fields of a framework's description, dotted, to what the file sets them to. `states` are those
of the precision that is trained in."""


@dataclass(frozen=True, slots=True)
class Configuration(NotebookView):
    """Statements of files on a job: fields of its layout and its workload, and its framework."""

    files: tuple[str, ...]
    """Names of the files."""
    kinds: tuple[str, ...]
    """What each of them is."""
    framework: str = ""
    """The framework that they configure; empty where they do not say."""
    usual_framework: str = ""
    """The framework where no other file names one."""
    hosts: tuple[str, ...] = ()
    """Frameworks whose files belong to this one's as well."""
    layout: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the layout that they state."""
    workload: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the workload that they state."""
    usual: Mapping[str, Any] = field(default_factory=dict)
    """Fields of both that hold where no other file states them: the software's own defaults."""
    world: int = 0
    """Ranks that they start; 0 where they do not say."""
    replicas: int = 0
    """Groups that each hold all training states (hybrid sharding); 0 where they do not say."""
    group_ranks: int = 0
    """Ranks of such a group, those of context parallelism included; 0 where they do not say."""
    shards_per_node: bool = False
    """Whether each node is such a group."""
    model: str = ""
    """Name of the model, where they state one of the catalogue."""
    shape: Mapping[str, int] = field(default_factory=dict)
    """Sizes of the model that they state, by the names of a model's fields."""
    changes: Changes = field(default_factory=dict)
    """What they set otherwise than the framework's description."""
    switches: tuple[str, ...] = ()
    """Switches of the framework that they turn on."""
    left_to: Mapping[str, str] = field(default_factory=dict)
    """Fields that a file leaves to another, with the other's name."""
    notes: tuple[str, ...] = ()
    """What was read as what, what is not counted, what was not read."""

    @property
    def name(self) -> str:
        """The files, for a sentence."""
        return " and ".join(self.files)


_TABLES = ("layout", "workload", "shape", "changes")
_SINGLE = ("world", "replicas", "group_ranks", "model")


def joined(parts: Sequence[Configuration]) -> Configuration:
    """Several files of one job as one; raises CatalogueError where they contradict each other."""
    merged = functools.reduce(_both, parts)
    keys = {*merged.layout, *merged.workload}
    left_to = {name: owner for name, owner in merged.left_to.items() if name not in keys}
    usual = {name: value for name, value in merged.usual.items() if name not in keys}
    layout = {**merged.layout, **_group(merged)}
    return replace(merged, left_to=left_to, usual=usual, layout=layout)


def _group(configuration: Configuration) -> dict[str, int]:
    """The replicas of a sharding group, of which the ranks are stated."""
    cp = max(int(configuration.layout.get("cp", 1)), 1)
    replicas, rest = divmod(configuration.group_ranks, cp)
    if rest:
        raise CatalogueError(
            f"a sharding group of {configuration.group_ranks} ranks in {configuration.name} holds "
            f"no whole number of replicas with cp = {cp}; use a multiple of it"
        )
    return {"dp_shard": replicas} if replicas else {}


def _both(first: Configuration, second: Configuration) -> Configuration:
    fields: dict[str, Any] = {}
    for name in _TABLES:
        ours, theirs = getattr(first, name), getattr(second, name)
        for key in ours.keys() & theirs.keys():
            _agree(first, second, key, ours[key], theirs[key])
        fields[name] = {**ours, **theirs}
    for name in _SINGLE:
        ours, theirs = getattr(first, name), getattr(second, name)
        if ours and theirs:
            _agree(first, second, name, ours, theirs)
        fields[name] = ours or theirs
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
    """The framework of both; one may take the files of the other along."""
    if not first.framework or not second.framework or second.framework in first.hosts:
        return first.framework or second.framework
    if first.framework in second.hosts:
        return second.framework
    _agree(first, second, "framework", first.framework, second.framework)
    return first.framework


def _switches(first: Configuration, second: Configuration) -> tuple[str, ...]:
    """Switches of both, without those that the framework of the other's files has anyway."""
    all_switches: list[str] = []
    framework = _framework(first, second)
    for part in (first, second):
        hosted = part.framework not in ("", framework)
        words = part.switches
        all_switches += _without_own(words, part.framework, framework) if hosted else words
    return tuple(dict.fromkeys(all_switches))


def _without_own(words: Iterable[str], hosted: str, host: str) -> Iterator[str]:
    """Switches of a framework without those whose changes the host of its files has anyway."""
    offered, host_framework = load_framework(hosted).switches, load_framework(host)
    for word in words:
        switch = offered.get(word)  # those that take a value are changes by themselves
        has_own = word in host_framework.switches
        if switch is None or has_own or not _has_switch(host_framework, switch):
            yield word


def _has_switch(framework: Framework, switch: Switch) -> bool:
    """True where all traits of a switch are a framework's own; lists of choices are no traits."""
    numbers = {path: value for path, value in switch.dotted.items() if not isinstance(value, list)}
    return bool(numbers) and all(_trait(framework, path) == numbers[path] for path in numbers)


def _trait(framework: Framework, path: str) -> Any:
    value: Any = framework
    for part in path.split("."):
        value = getattr(value, part, None)
    return value
