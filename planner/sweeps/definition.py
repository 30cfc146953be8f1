"""Definition: the lists of a sweep, from a file or a call; each combination is a question."""

import functools
import itertools
import math
import os
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, field_validator

from planner.describe.base import Description, explain, quote
from planner.describe.files import parse_json, parse_toml, read_text
from planner.describe.framework.framework import Framework
from planner.describe.layout import Layout
from planner.describe.machine import Machine
from planner.describe.model.model import Model
from planner.describe.workload import Workload
from planner.errors import CatalogueError, DescriptionError, UnknownNameError, shorten, shorten_path

Kind = Literal["plan", "estimate"]
"""plan: search every layout of a job; estimate: one stated layout."""

MAX_QUESTIONS = 1_000_000
"""Most questions of one sweep."""
_LARGEST_FILE = 50_000_000
_TABLES: dict[str, type[Description]] = {"workload": Workload, "layout": Layout}
_DESCRIPTIONS = {"models": Model, "machines": Machine, "frameworks": Framework}
"""Fields that take descriptions as well as names."""


class SweepPart(Description):
    """Lists of values; each combination is a question."""

    kind: Kind = "plan"
    """Kind of answer: plan or estimate."""
    models: tuple[Any, ...] = Field(min_length=1)
    """Names or paths of models."""
    machines: tuple[Any, ...] = Field(min_length=1)
    """Names or paths of machines."""
    sets: tuple[tuple[str, ...], ...] = ((),)
    """What-if overrides of the machine, such as device.memory_bytes=80GB: each alone, or a list
    applied together; an empty list is the unchanged machine."""
    leave_free: tuple[float, ...] = (0.0,)
    """Percent of every device's memory to leave free."""
    devices: tuple[int | None, ...] = (None,)
    """Devices of one node, if the job uses part of it."""
    nodes: tuple[int | None, ...] = (None,)
    """Nodes; default: 1 for a plan, as many as dp needs for a layout."""
    frameworks: tuple[tuple[Any, ...], ...] = ((),)
    """Names of frameworks with switches: each alone, or a list searched together; an empty list
    is the planner's default set."""
    workload: tuple[dict[str, Any], ...] = ({},)
    """Workload fields, each one value or a list."""
    layout: tuple[dict[str, Any], ...] = ({},)
    """Layout fields, each one value or a list, for an estimate."""
    exact: tuple[bool, ...] = (False,)
    """Whether a plan keeps to its nodes, batch and sequence, and changes none for throughput."""

    @field_validator("models", "machines", "frameworks")
    @classmethod
    def _named(cls, values: tuple[Any, ...], info: Any) -> tuple[Any, ...]:
        kind = _DESCRIPTIONS[info.field_name]
        for value in itertools.chain(*values) if info.field_name == "frameworks" else values:
            if not isinstance(value, str | kind):
                raise ValueError(
                    f"{quote(value)} is not a name; write the name or the path of a "
                    f"{info.field_name.removesuffix('s')}"
                )
        return values

    @property
    def num_questions(self) -> int:
        """Number of combinations."""
        tables = [
            sum(math.prod(map(len, table.values())) for table in tables)
            for tables in (self.workload, self.layout)
        ]
        lists = set(type(self).model_fields) - {"kind", *_TABLES}
        return math.prod([*(len(getattr(self, name)) for name in lists), *tables])


def combinations(tables: Sequence[Mapping[str, Sequence[Any]]]) -> list[dict[str, Any]]:
    """Combine the values of each table."""
    return [
        dict(zip(table, values, strict=True))
        for table in tables
        for values in itertools.product(*table.values())
    ]


def read_sweep(path: str | Path) -> tuple[SweepPart, ...]:
    """Read a sweep from TOML or JSON; raises CatalogueError or DescriptionError if invalid."""
    path = Path(os.path.expanduser(path))
    text = read_text(path, _LARGEST_FILE, "write lists, which are combined, instead of rows")
    fields = (parse_json if path.suffix == ".json" else parse_toml)(text, str(path))
    if not isinstance(fields, dict):
        raise CatalogueError(f"{shorten_path(path)} is not a table; write the fields of a sweep")
    return define_sweep(fields, shorten(path.name))


def define_sweep(fields: Mapping[str, Any], where: str = "sweep") -> tuple[SweepPart, ...]:
    """Read a sweep from plain data: one part, or one per row, which overrides common fields."""
    common = {name: value for name, value in fields.items() if name != "rows"}
    rows = fields.get("rows", [{}])
    if not isinstance(rows, list | tuple) or not all(isinstance(row, Mapping) for row in rows):
        raise DescriptionError(
            f"{where}: rows must be tables; write [[rows]] above the fields of each"
        )
    if "rows" in fields and not rows:
        raise DescriptionError(f"{where}: rows = [] is empty; leave it out")
    parts = []
    for number, row in enumerate(rows, 1):
        place = f"{where}, row {number}" if "rows" in fields else where
        if "kind" in row:
            raise DescriptionError(
                f"{place}: kind applies to the whole sweep; move it to the top level"
            )
        part = SweepPart.described(_lists({**common, **_merged(common, row)}, place), place)
        _check_kind(part, place)
        parts.append(part)
    num_questions = sum(part.num_questions for part in parts)
    if num_questions > MAX_QUESTIONS:
        raise DescriptionError(
            f"{where} has {quote(num_questions)} questions, more than the limit of "
            f"{MAX_QUESTIONS:,}; shorten its lists"
        )
    return tuple(parts)


def _check_kind(part: SweepPart, where: str) -> None:
    if part.kind == "plan" and part.layout != ({},):
        raise DescriptionError(
            f"{where}: a plan searches all layouts; leave layout out, or set kind = 'estimate'"
        )
    if part.kind != "plan" and part.exact != (False,):
        raise DescriptionError(
            f"{where}: only plans may change a job; leave exact out, or set kind = 'plan'"
        )


def _merged(common: Mapping[str, Any], row: Mapping[str, Any]) -> dict[str, Any]:
    """Fill the tables of a row with the common fields that it leaves open."""
    merged = dict(row)
    for name in _TABLES:
        if isinstance(row.get(name), Mapping) and isinstance(common.get(name), Mapping):
            merged[name] = {**common[name], **row[name]}
    return merged


def _lists(fields: Mapping[str, Any], where: str) -> dict[str, Any]:
    for name in fields:
        if name not in SweepPart.model_fields:
            listing = f"in {where}; docs/howto/sweeps.md has all"
            raise UnknownNameError("field", str(name), SweepPart.model_fields, listing)
    return {
        name: value if name == "kind" else _field_values(name, value, where)
        for name, value in fields.items()
    }


def _field_values(name: str, value: Any, where: str) -> list[Any]:
    values = list(value) if isinstance(value, list | tuple | range) else [value]
    if not values:
        raise DescriptionError(f"{where}: {name} = [] is empty; give a value or leave it out")
    if name in ("sets", "frameworks"):
        return [tuple(v) if isinstance(v, list | tuple) else (v,) for v in values]
    if name in _TABLES:
        return [_table(_TABLES[name], v, f"{where}, {name}") for v in values]
    if name == "leave_free":
        return [float(v) if type(v) is int else v for v in values]
    return values


def _table(kind: type[Description], table: Any, where: str) -> dict[str, list[Any]]:
    if isinstance(table, kind):
        return {name: [value] for name, value in table.model_dump(mode="json").items()}
    if not isinstance(table, Mapping):
        raise DescriptionError(f"{where} = {quote(table)} is not a table; write fields and values")
    lists = {str(name): _values(kind, str(name), value) for name, value in table.items()}
    for name, values in lists.items():
        if not values:
            raise DescriptionError(f"{where}: {name} = [] is empty; give a value or leave it out")
        for value in values:
            _check(kind, name, value, where)
    return lists


def _values(kind: type[Description], name: str, value: Any) -> list[Any]:
    """List the values of a table's field; a list field takes several as a list of lists."""
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
    try:
        kind.model_validate({name: value})
    except ValidationError as error:
        # an error without a location concerns several fields: others may resolve it
        if error.errors(include_url=False)[0]["loc"]:
            raise DescriptionError(explain(error, where)) from None
