"""Logs that are tables: CSV, or one JSON object a line."""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from planner.errors import shorten
from planner.evidence.logs.scalars import Row, read_scalars
from planner.evidence.logs.steps import LogError, RunLog, Source

__all__ = ["is_table", "read_table"]

_CSV = Source("csv", "CSV")
_JSON = Source("jsonl", "JSON lines")
_MAX_ROWS = 1_000_000
_NAME = re.compile(r"[\"']?[A-Za-z_][^\[\]{}=]{0,63}$")


def is_table(head: str) -> bool:
    """Whether a text begins as a table: with column names, or with one object a line.

    >>> is_table("epoch,step,loss,step_time\\n0,1,9.1,0.5\\n"), is_table("step 1: loss 9.1\\n")
    (True, False)
    """
    lines = [line for line in head.lstrip("\ufeff").splitlines() if line.strip()][:2]
    if len(lines) < 2:
        return False
    if lines[0].startswith("{"):
        return isinstance(_object(lines[0]), dict)
    delimiter = _delimiter(lines[0])
    names = [name.strip() for name in lines[0].split(delimiter)]
    cells = next(csv.reader([lines[1]], delimiter=delimiter), [])
    return (
        len(names) == len(cells) > 1
        and all(_NAME.match(name) for name in names if name)
        and any(_number(cell) is not None for cell in cells)
    )


def read_table(lines: Iterable[str], where: str, columns: Mapping[str, str]) -> RunLog:
    """Read the rows of a table; see `read_scalars`."""
    rows = iter(line for line in lines if line.strip())
    first = next(rows, "").lstrip("\ufeff")
    if first.startswith("{"):
        return read_scalars(_objects(first, rows), _JSON, where, columns)
    reader = csv.reader(rows, delimiter=_delimiter(first))
    names = [name.strip() for name in next(csv.reader([first], delimiter=_delimiter(first)))]
    return read_scalars(_rows(names, reader, where), _CSV, where, columns)


def _delimiter(line: str) -> str:
    return max(",;\t", key=line.count)


def _rows(names: list[str], reader: Iterator[list[str]], where: str) -> Iterator[Row]:
    try:
        for count, cells in enumerate(reader):
            if count >= _MAX_ROWS:
                raise LogError(f"{where} has over {_MAX_ROWS:,} rows; cut out those of some steps")
            yield Row(_figures(zip(names, cells, strict=False)))
    except csv.Error as error:
        raise LogError(f"{where} is not readable as CSV: {error}; correct that line") from None


def _objects(first: str, rest: Iterator[str]) -> Iterator[Row]:
    for line in (first, *rest):
        if isinstance(record := _object(line), dict):
            yield Row(_figures(record.items()))


def _object(line: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _figures(cells: Iterable[tuple[str, Any]]) -> dict[str, float]:
    numbers = ((shorten(str(name)), _number(value)) for name, value in cells)
    return {name: value for name, value in numbers if value is not None}


def _number(cell: Any) -> float | None:
    """A finite number; None for anything else, such as an empty cell."""
    if isinstance(cell, bool) or not isinstance(cell, str | int | float):
        return None
    try:
        value = float(cell)
    except (ValueError, OverflowError):
        return None
    return value if math.isfinite(value) else None
