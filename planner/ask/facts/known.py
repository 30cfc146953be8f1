"""Known: every number of a description, how it came to be known, and what would measure it."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from planner.units import format_places, parse_places

__all__ = ["STATED", "Fact", "facts_of", "measured_by", "scaled"]

_QUANTITY = {"value", "kind", "source"}
_CURVES = ("fraction", "seconds")
_SOURCE_BESIDE = {"wires": "device_bytes_per_s"}
# lists whose numbers have their source in a quantity that stands beside them
STATED = "stated"
"""The kind of a number that its description states and that has no source of its own."""
_NO_FACTS = (
    "num_nodes",
    "devices",
    "nic_of_device",
    "scheduler",
    "file_systems",
    "networks",
    "switches",
    "effort",
    "stalls",
    "code",
    "other_kernels",
)
"""Numbers that count, name or order things, are of other software, or enter no estimate."""


@dataclass(frozen=True, slots=True)
class Fact:
    """A number of a description."""

    path: tuple[str | int, ...]
    value: float
    """Its value; of a curve the largest."""
    kind: str
    """How it came to be known; `stated` where its description says no more."""
    source: str

    @property
    def unsure(self) -> bool:
        """Whether it was read or measured somewhere, and so may be wrong."""
        return self.kind != STATED

    @property
    def name(self) -> str:
        """Its dotted name."""
        return ".".join(map(str, self.path))


def facts_of(fields: Any, path: tuple[str | int, ...] = ()) -> Iterator[Fact]:
    """Every number in the plain data of a description that is not nothing.

    Equal numbers of a list's entries, such as rates of wires, are one fact, and so are all of a
    curve: what was read once is wrong at once.

    >>> latency = {"value": 3e-6, "kind": "assumed", "source": "a guess"}
    >>> [(fact.name, fact.kind) for fact in facts_of({"latency_s": latency, "layers": 32})]
    [('latency_s', 'assumed'), ('layers', 'stated')]
    """
    if isinstance(fields, dict):
        if set(fields) == _QUANTITY:
            if isinstance(fields["value"], (int, float)) and not isinstance(fields["value"], bool):
                yield from _fact(path, fields["value"], fields["kind"], fields["source"])
            return
        for name, value in fields.items():
            if name in _CURVES and "kind" in fields:
                yield from _fact((*path, name), max(value), fields["kind"], fields["source"])
            elif name in _NO_FACTS:
                continue
            elif isinstance(value, (list, tuple)):
                beside = fields.get(_SOURCE_BESIDE.get(name, "")) or {}
                origin = beside.get("kind", STATED), beside.get("source", "")
                yield from _facts_of_list(value, (*path, name), *origin)
            else:
                yield from facts_of(value, (*path, name))
    elif isinstance(fields, (int, float)) and not isinstance(fields, bool):
        yield from _fact(path, fields, STATED, "")


def _facts_of_list(
    entries: Sequence[Any], path: tuple[str | int, ...], kind: str, source: str
) -> Iterator[Fact]:
    """Numbers by name and value of the entries that state them; a plain list has none."""
    places: dict[tuple[str, float], list[int]] = {}
    for place, entry in enumerate(entries):
        for name, value in entry.items() if isinstance(entry, dict) else ():
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                places.setdefault((name, value), []).append(place)
    for (name, value), which in places.items():
        yield from _fact((*path, format_places(which), name), value, kind, source)


def _fact(path: tuple[str | int, ...], value: float, kind: str, source: str) -> Iterator[Fact]:
    if value:
        yield Fact(path, float(value), kind, source)


def scaled(fields: dict[str, Any], fact: Fact, factor: float) -> dict[str, Any]:
    """The plain data with one number times a factor; a whole one is rounded.

    >>> fields = {"layers": 4, "rate": {"value": 10.0, "kind": "assumed", "source": "a guess"}}
    >>> layers, rate = facts_of(fields)
    >>> scaled(fields, layers, 1.25)["layers"], scaled(fields, rate, 1.1)["rate"]["value"]
    (5, 11.0)
    """
    found = copy.deepcopy(fields)
    *way, last = fact.path
    tables: list[Any] = [found]
    for name in way:
        tables = [inner for table in tables for inner in _inside(table, name)]
    for table in tables:
        old = table[last]
        if isinstance(old, dict):
            old["value"] = _times(old["value"], factor)
        elif isinstance(old, (list, tuple)):
            table[last] = [_times(each, factor) for each in old]
        else:
            table[last] = _times(old, factor)
    return found


def _inside(table: Any, name: str | int) -> list[Any]:
    """What a path leads to next: one thing, or several entries of a list."""
    if isinstance(table, (list, tuple)):
        return [table[place] for place in parse_places(str(name), len(table))]
    return [table[name]]


def _times(value: float, factor: float) -> float:
    return round(value * factor) if isinstance(value, int) else value * factor


def measured_by(fact: Fact) -> str:
    """The command that measures a fact; empty where none does.

    >>> measured_by(Fact(("machine", "device", "gemm_efficiency"), 0.9, "assumed", ""))
    'planner validate calibrate'
    """
    path = fact.path
    if path[:1] != ("machine",):
        return "planner compare" if path[:1] == ("framework",) else ""
    place = ".".join(map(str, path[1:]))
    ways = {
        "device.sustained_fraction": "planner calibrate --from-runs",
        "node.fabric": "planner validate collectives, planner calibrate --from-collectives",
        "network": "planner validate collectives, planner calibrate --from-collectives",
        "node.host_link": "planner validate calibrate",
        "node.host_memory_bytes_per_s": "planner validate calibrate",
        "device": "planner validate calibrate",
    }
    return next((way for start, way in ways.items() if place.startswith(start)), "")
