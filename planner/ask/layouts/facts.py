"""Facts: every number of a description, how it is known, and the command that measures it."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from planner.units import format_places, parse_places

__all__ = ["GIVEN_BY_USER", "Fact", "facts_of", "measuring_command", "scaled"]

_QUANTITY = {"value", "kind", "source"}
_CURVES = ("fraction", "seconds")
_SOURCE_OF_LIST = {"wires": "device_bytes_per_s"}
"""The quantity that has the source of a list's numbers."""
GIVEN_BY_USER = "stated"
"""The kind of a number that its description states without a source of its own."""
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
"""Numbers that count, name or order things, belong to other software, or enter no estimate."""
_COMMANDS = {
    "device.sustained_fraction": "planner calibrate --from-runs",
    "node.fabric": "planner validate collectives, planner calibrate --from-collectives",
    "network": "planner validate collectives, planner calibrate --from-collectives",
    "node.host_link": "planner validate calibrate",
    "node.host_memory_bytes_per_s": "planner validate calibrate",
    "device": "planner validate calibrate",
}
"""Commands that measure facts of a machine, by the start of their names."""


@dataclass(frozen=True, slots=True)
class Fact:
    """A number of a description."""

    path: tuple[str | int, ...]
    value: float
    """Its value; the largest of a curve."""
    kind: str
    """How it is known; `stated` where the description says no more."""
    source: str

    @property
    def unsure(self) -> bool:
        """True if it was read or measured somewhere, and so may be wrong."""
        return self.kind != GIVEN_BY_USER

    @property
    def name(self) -> str:
        """Its dotted name."""
        return ".".join(map(str, self.path))


def facts_of(fields: Any, path: tuple[str | int, ...] = ()) -> Iterator[Fact]:
    """List every number other than 0 in the plain data of a description.

    A curve is one fact. Equal numbers in a list's entries, such as rates of wires, are one fact:
    they come from one source.

    >>> latency = {"value": 3e-6, "kind": "assumed", "source": "a guess"}
    >>> [(fact.name, fact.kind) for fact in facts_of({"latency_s": latency, "layers": 32})]
    [('latency_s', 'assumed'), ('layers', 'stated')]
    """
    if isinstance(fields, dict):
        if set(fields) == _QUANTITY:
            yield from _fact(path, fields["value"], fields["kind"], fields["source"])
            return
        for name, value in fields.items():
            if name in _CURVES and "kind" in fields:
                yield from _fact((*path, name), max(value), fields["kind"], fields["source"])
            elif name in _NO_FACTS:
                continue
            elif isinstance(value, (list, tuple)):
                quantity = fields.get(_SOURCE_OF_LIST.get(name, "")) or {}
                origin = quantity.get("kind", GIVEN_BY_USER), quantity.get("source", "")
                yield from _facts_of_list(value, (*path, name), *origin)
            else:
                yield from facts_of(value, (*path, name))
    else:
        yield from _fact(path, fields, GIVEN_BY_USER, "")


def _facts_of_list(
    entries: Sequence[Any], path: tuple[str | int, ...], kind: str, source: str
) -> Iterator[Fact]:
    """One fact for each name and value among the entries' numbers; plain lists have none."""
    places: dict[tuple[str, float], list[int]] = {}
    for place, entry in enumerate(entries):
        for name, value in entry.items() if isinstance(entry, dict) else ():
            if _is_number(value):
                places.setdefault((name, value), []).append(place)
    for (name, value), where in places.items():
        yield from _fact((*path, format_places(where), name), value, kind, source)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _fact(path: tuple[str | int, ...], value: Any, kind: str, source: str) -> Iterator[Fact]:
    if _is_number(value) and value:
        yield Fact(path, float(value), kind, source)


def scaled(fields: dict[str, Any], fact: Fact, factor: float) -> dict[str, Any]:
    """Copy plain data with one fact times a factor; integers are rounded.

    >>> fields = {"layers": 4, "rate": {"value": 10.0, "kind": "assumed", "source": "a guess"}}
    >>> layers, rate = facts_of(fields)
    >>> scaled(fields, layers, 1.25)["layers"], scaled(fields, rate, 1.1)["rate"]["value"]
    (5, 11.0)
    """
    copied = copy.deepcopy(fields)
    *way, last = fact.path
    tables: list[Any] = [copied]
    for name in way:
        tables = [inner for table in tables for inner in _inner_tables(table, name)]
    for table in tables:
        value = table[last]
        if isinstance(value, dict):
            value["value"] = _times(value["value"], factor)
        elif isinstance(value, (list, tuple)):
            table[last] = [_times(each, factor) for each in value]
        else:
            table[last] = _times(value, factor)
    return copied


def _inner_tables(table: Any, name: str | int) -> list[Any]:
    """The tables that one step of a path leads to; several where it names entries of a list."""
    if isinstance(table, (list, tuple)):
        return [table[place] for place in parse_places(str(name), len(table))]
    return [table[name]]


def _times(value: float, factor: float) -> float:
    return round(value * factor) if isinstance(value, int) else value * factor


def measuring_command(fact: Fact) -> str:
    """The command that measures a fact; empty where none does.

    >>> measuring_command(Fact(("machine", "device", "gemm_efficiency"), 0.9, "assumed", ""))
    'planner validate calibrate'
    """
    description, *path = fact.path
    if description != "machine":
        return "planner compare" if description == "framework" else ""
    name = ".".join(map(str, path))
    return next((way for start, way in _COMMANDS.items() if name.startswith(start)), "")
