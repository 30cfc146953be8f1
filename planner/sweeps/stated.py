"""Stated: a sweep as a file or a call writes it, lists of which every combination is a question.

What cannot be read refuses the whole sweep, before anything is asked. What can be read but not be
answered, such as more nodes than a machine has, is a row of the table with the reason.
"""

from __future__ import annotations

import functools
import itertools
import math
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, field_validator

from planner.describe.base import Description, explain, shown
from planner.describe.files import parse_json, parse_toml, read_text
from planner.describe.framework.framework import Framework
from planner.describe.layout import Layout
from planner.describe.machine import Machine
from planner.describe.model.model import Model
from planner.describe.workload import Workload
from planner.errors import CatalogueError, DescriptionError, UnknownNameError, shorten, shorten_path

__all__ = ["Kind", "Stated", "combinations", "read_stated", "stated"]

Kind = Literal["plan", "estimate", "trace"]
"""plan: search every layout of a job; estimate: one stated layout; trace: one rank of a stated
layout, traced with torch beside its estimate."""

MOST = 1_000_000
"""Questions of one sweep."""
_LARGEST_FILE = 50_000_000
_TABLES: dict[str, type[Description]] = {"workload": Workload, "layout": Layout}
_WHOLE = {"models": Model, "machines": Machine, "frameworks": Framework}
"""What may be given as a description instead of by name."""


class Stated(Description):
    """Lists of which every combination is a question."""

    kind: Kind = "plan"
    """What is asked of each: a plan, an estimate or a trace."""
    models: tuple[Any, ...] = Field(min_length=1)
    """Names or paths."""
    machines: tuple[Any, ...] = Field(min_length=1)
    """Names or paths."""
    sets: tuple[tuple[str, ...], ...] = ((),)
    """What-ifs: overrides of the machine, each such as device.memory_bytes=80GB, or a list of them
    together; an empty list is the machine as it is described."""
    leave_free: tuple[float, ...] = (0.0,)
    """Percent of every device's memory that a layout must not need."""
    devices: tuple[int | None, ...] = (None,)
    """Devices of one node, where the job has a part of it."""
    nodes: tuple[int | None, ...] = (None,)
    """Nodes; 1 for a plan that states none, and what dp says for a layout."""
    frameworks: tuple[tuple[Any, ...], ...] = ((),)
    """Names with switches, each alone, or a list of those that are searched together; an empty
    list is what the planner takes unasked."""
    workload: tuple[dict[str, Any], ...] = ({},)
    """Fields of a workload, each one value or a list of them."""
    layout: tuple[dict[str, Any], ...] = ({},)
    """Fields of a layout, for an estimate or a trace."""
    stages: tuple[int, ...] = (0,)
    """Pipeline stages that are traced."""

    @field_validator("models", "machines", "frameworks")
    @classmethod
    def _named(cls, values: tuple[Any, ...], info: Any) -> tuple[Any, ...]:
        kind = _WHOLE[info.field_name]
        for value in itertools.chain(*values) if info.field_name == "frameworks" else values:
            if not isinstance(value, str | kind):
                raise ValueError(
                    f"{shown(value)} is no name; write the name or the path of a "
                    f"{info.field_name.removesuffix('s')}"
                )
        return values

    @property
    def num_questions(self) -> int:
        """Combinations."""
        lists = (self.models, self.machines, self.sets, self.leave_free, self.devices, self.nodes)
        tables = [
            sum(math.prod(map(len, table.values())) for table in tables)
            for tables in (self.workload, self.layout)
        ]
        return math.prod([*map(len, lists), len(self.frameworks), len(self.stages), *tables])


def combinations(tables: Sequence[Mapping[str, Sequence[Any]]]) -> list[dict[str, Any]]:
    """Every combination of the values of each table.

    >>> combinations([{"tp": [1, 2], "pp": [1]}, {"tp": [4]}])
    [{'tp': 1, 'pp': 1}, {'tp': 2, 'pp': 1}, {'tp': 4}]
    """
    return [
        dict(zip(table, values, strict=True))
        for table in tables
        for values in itertools.product(*table.values())
    ]


def read_stated(path: str | Path) -> tuple[Stated, ...]:
    """What a TOML or JSON file states; CatalogueError or DescriptionError where it is no sweep."""
    path = Path(path).expanduser()
    text = read_text(path, _LARGEST_FILE, "state lists, whose combinations are asked, not rows")
    fields = (parse_json if path.suffix == ".json" else parse_toml)(text, str(path))
    if not isinstance(fields, dict):
        raise CatalogueError(f"{shorten_path(path)} is no table; write the fields of a sweep")
    return stated(fields, shorten(path.name))


def stated(fields: Mapping[str, Any], where: str = "sweep") -> tuple[Stated, ...]:
    """A sweep from plain data: one part, or one for each of its `rows`.

    A row has the form of the whole, whose fields hold where it states none.

    >>> one, two = stated({"models": "gpt2", "machines": "polaris",
    ...                    "rows": [{"nodes": 1}, {"nodes": [2, 4]}]})
    >>> one.nodes, two.num_questions
    ((1,), 2)
    """
    common = {name: value for name, value in fields.items() if name != "rows"}
    rows = fields.get("rows", [{}])
    if not isinstance(rows, list | tuple) or not all(isinstance(row, Mapping) for row in rows):
        raise DescriptionError(f"{where}: rows are tables; write [[rows]] above the fields of each")
    if "rows" in fields and not rows:
        raise DescriptionError(f"{where}: rows = [] asks nothing; leave it out")
    found = []
    for number, row in enumerate(rows, 1):
        here = f"{where}, row {number}" if "rows" in fields else where
        if "kind" in row:
            raise DescriptionError(f"{here}: kind is said once for a whole sweep; move it up")
        part = Stated.described(_lists({**common, **_beside(common, row)}, here), here)
        _check_kind(part, here)
        found.append(part)
    asked = sum(one.num_questions for one in found)
    if asked > MOST:
        raise DescriptionError(
            f"{where} states {shown(asked)} questions, and at most {MOST:,} are taken; shorten its "
            "lists"
        )
    return tuple(found)


def _check_kind(part: Stated, where: str) -> None:
    """Refuse fields that other kinds of questions have."""
    if part.kind == "plan" and part.layout != ({},):
        raise DescriptionError(
            f"{where}: a plan searches all layouts; leave layout out, or say kind = 'estimate'"
        )
    if part.kind != "trace" and part.stages != (0,):
        raise DescriptionError(
            f"{where}: stages are of traces; leave them out, or say kind = 'trace'"
        )


def _beside(common: Mapping[str, Any], row: Mapping[str, Any]) -> dict[str, Any]:
    """A row, whose tables say what the common ones leave open."""
    merged = dict(row)
    for name in _TABLES:
        if isinstance(row.get(name), Mapping) and isinstance(common.get(name), Mapping):
            merged[name] = {**common[name], **row[name]}
    return merged


# --- one value for a list of one --------------------------------------------------------------


def _lists(fields: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Fields with a list wherever one value may stand for it."""
    found: dict[str, Any] = {}
    for name, value in fields.items():
        if name not in Stated.model_fields:
            listing = f"in {where}; docs/sweeps.md has all"
            raise UnknownNameError("field", str(name), Stated.model_fields, listing)
        if name == "kind":
            found[name] = value
            continue
        values = list(value) if isinstance(value, list | tuple | range) else [value]
        if not values:
            raise DescriptionError(f"{where}: {name} = [] asks nothing; give one or leave it out")
        if name in ("sets", "frameworks"):
            values = [tuple(v) if isinstance(v, list | tuple) else (v,) for v in values]
        elif name in _TABLES:
            values = [_table(_TABLES[name], v, f"{where}, {name}") for v in values]
        elif name == "leave_free":
            values = [float(v) if type(v) is int else v for v in values]
        found[name] = values
    return found


def _table(kind: type[Description], given: Any, where: str) -> dict[str, list[Any]]:
    """The values of every field of a workload or a layout."""
    if isinstance(given, kind):
        return {name: [value] for name, value in given.model_dump(mode="json").items()}
    if not isinstance(given, Mapping):
        raise DescriptionError(f"{where} = {shown(given)} is no table; write fields and values")
    found = {}
    for name, value in given.items():
        found[name] = _values(kind, str(name), value)
        if not found[name]:
            raise DescriptionError(f"{where}: {name} = [] asks nothing; give one or leave it out")
        for one in found[name]:
            _check(kind, str(name), one, where)
    return found


def _values(kind: type[Description], name: str, value: Any) -> list[Any]:
    """The values of a field; one that is a list itself has several in a list of lists.

    >>> _values(Workload, "frozen", ["head"]), _values(Workload, "frozen", [[], ["head"]])
    ([['head']], [[], ['head']])
    """
    if not isinstance(value, list | tuple | range):
        return [value]
    if name in _list_fields(kind) and not any(isinstance(v, list | tuple) for v in value):
        return [list(value)]
    return [list(v) if isinstance(v, tuple) else v for v in value]


@functools.cache
def _list_fields(kind: type[Description]) -> frozenset[str]:
    fields = kind.model_fields.items()
    return frozenset(n for n, f in fields if typing.get_origin(f.annotation) is tuple)


def _check(kind: type[Description], name: str, value: Any, where: str) -> None:
    """Refuse a field or a value that no combination could have."""
    try:
        kind.model_validate({name: value})
    except ValidationError as error:
        # a rule between several fields names none: it may hold beside the others
        if error.errors(include_url=False)[0]["loc"]:
            raise DescriptionError(explain(error, where)) from None
