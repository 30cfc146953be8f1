"""Scalars: named figures in tables (CSV, JSON lines) and event files of loggers."""

import csv
import itertools
import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from planner.errors import UnknownNameError, shorten, shorten_path
from planner.evidence.logs.steps import (
    LOG_FORMATS,
    UNITS,
    LogError,
    RunLog,
    Source,
    Step,
    UnnamedColumnsError,
    durations,
    step_of,
    summary,
    values_of,
)

_CSV = Source("csv", "CSV")
_JSON = Source("jsonl", "JSON lines")
_EVENTS = Source("tensorboard", "TensorBoard")
_MAX_EVENT_BYTES = 500_000_000
_MAX_ROWS = 1_000_000
_NAME = re.compile(r"[\"']?[A-Za-z_][^\[\]{}=]{0,63}$")
_PREFIX = re.compile(r"^(?:train|metrics|perf)[/|. ]+")


class Figure(NamedTuple):
    """A field of `Step`, and the factor from the logged number to it."""

    field: str
    scale: float = 1.0


def _columns() -> Iterator[tuple[str, Figure, list[str]]]:
    """Yield the figures that a column can hold, with their known column names."""
    for name, column in LOG_FORMATS["columns"].items():
        fields = column if isinstance(column, dict) else {"names": column}
        figure = Figure(fields.get("field", name), UNITS[fields.get("unit", "")])
        yield name, figure, fields["names"]


FIGURES = {name: figure for name, figure, _ in _columns()}
"""Figures that a column can hold; `written_at_s` is the time of writing."""
_FIGURE_OF = {label: name for name, _, labels in _columns() for label in labels}


class Row(NamedTuple):
    """Figures that were logged together, by their names in the log."""

    figures: Mapping[str, float]
    written_at_s: float = math.nan
    """Time of writing, by the logger's clock."""


def chosen_columns(assignments: Sequence[str]) -> dict[str, str]:
    """Parse assignments such as `time_s=dt` into columns by figure."""
    columns = {}
    for words in assignments:
        figure, _, column = (part.strip() for part in words.partition("="))
        if not column:
            raise LogError(f"column {shorten(words)!r} must be FIGURE=COLUMN, such as time_s=dt")
        if figure not in FIGURES:
            raise UnknownNameError("figure", figure, FIGURES, f"known are {', '.join(FIGURES)}")
        columns[figure] = column
    return columns


def read_scalars(
    rows: Iterable[Row], source: Source, where: str, columns: Mapping[str, str]
) -> RunLog:
    """Read a run from named figures. Raises LogError if none is a time, a rate or a clock."""
    all_rows = list(rows)
    names = list(dict.fromkeys(name for row in all_rows for name in row.figures))
    named = _named(names, columns, where)
    steps = [_step(row, named) for row in all_rows]
    notes = source.note
    if not (durations(steps) > 0).any():
        steps = _timed(steps, [_clock(row, named) for row in all_rows])
        clock_note = "step times are differences of the times at which steps were written"
        notes = f"{notes}; {clock_note}" if notes else clock_note
    if not (durations(steps) > 0).any():
        listed = ", ".join(sorted(names)[:20]) or "no column of numbers"
        raise UnnamedColumnsError(
            f"{where} holds no time and no rate of steps under a known name; say which column "
            f"does, such as time_s=NAME: it has {listed}",
            names,
        )
    log = summary(replace(source, note=notes), steps, _peaks(steps), where)
    return replace(log, columns=tuple(names))


def _named(names: Sequence[str], columns: Mapping[str, str], where: str) -> dict[str, str]:
    """Return the figure of every column that is read, by column name."""
    plain = {name: _PREFIX.sub("", name.strip().lower()) for name in names}
    named = {name: _FIGURE_OF[plain[name]] for name in names if plain[name] in _FIGURE_OF}
    for figure, column in columns.items():
        if column not in plain:
            listed = f"{where} has {', '.join(names[:20]) or 'none with numbers'}"
            raise UnknownNameError("column", column, names, listed)
        named = {name: kind for name, kind in named.items() if kind != figure}
        named[column] = figure
    return named


def _step(row: Row, named: Mapping[str, str]) -> Step:
    figures: dict[str, float | None] = {}
    for name, value in row.figures.items():
        field, scale = FIGURES.get(named.get(name, ""), Figure(""))
        if field and field != "written_at_s" and math.isfinite(value):
            figures.setdefault(field, value * scale)
    return step_of(figures)


def _clock(row: Row, named: Mapping[str, str]) -> float:
    clocks = (value for name, value in row.figures.items() if named.get(name) == "written_at_s")
    return next(clocks, row.written_at_s)


def _timed(steps: Sequence[Step], clock: Sequence[float]) -> list[Step]:
    """Return steps with the time since the previous one; both need a number and a clock."""
    pairs = zip(steps, clock, strict=True)
    dated = [(step, time) for step, time in pairs if "step" in step and math.isfinite(time)]
    timed = []
    for (before, then), (step, now) in itertools.pairwise(dated):
        count, elapsed = step["step"] - before["step"], now - then
        if count > 0 and elapsed > 0:
            timed.append({**step, "time_s": elapsed / count})
    return timed


def _peaks(steps: Sequence[Step]) -> dict[str, float]:
    peaks = {}
    for name in ("allocated_bytes", "reserved_bytes"):
        values = values_of(steps, name)
        if (values > 0).any():
            peaks[name] = float(np.nanmax(values))
    return peaks


def is_table(head: str) -> bool:
    """True if a text starts like a table: with column names, or with one JSON object per line."""
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
        records = (_object(line) for line in (first, *rows))
        figures = (_figures(record.items()) for record in records if isinstance(record, dict))
        return read_scalars(map(Row, figures), _JSON, where, columns)
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


def _object(line: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _figures(cells: Iterable[tuple[str, Any]]) -> dict[str, float]:
    numbers = ((shorten(str(name)), _number(value)) for name, value in cells)
    return {name: value for name, value in numbers if value is not None}


def _number(cell: Any) -> float | None:
    if isinstance(cell, bool) or not isinstance(cell, str | int | float):
        return None
    try:
        value = float(cell)
    except (ValueError, OverflowError):
        return None
    return value if math.isfinite(value) else None


def event_files(path: Path) -> list[Path]:
    """List TensorBoard's event files at a path: the file itself, or those in a folder, by name."""
    if os.path.isdir(path):
        return sorted(path.rglob("*tfevents*"))
    return [path] if "tfevents" in path.name else []


def read_events(path: Path, columns: Mapping[str, str]) -> RunLog:
    """Read event files with TensorBoard. Raises LogError without it or without scalars."""
    where = shorten_path(path)
    size = sum(file.stat().st_size for file in event_files(path))
    if size > _MAX_EVENT_BYTES:
        raise LogError(
            f"{where} has {size / 1e6:.0f} MB of events; above {_MAX_EVENT_BYTES / 1e6:.0f} MB are "
            "refused: name the event file of one run"
        )
    rows = list(_event_rows(path, where))
    if not rows:
        raise LogError(f"{where} holds no scalars; name the folder that the run logged to")
    return read_scalars(rows, _EVENTS, where, columns)


def _event_rows(path: Path, where: str) -> Iterator[Row]:
    try:
        from tensorboard.backend.event_processing import event_accumulator, tag_types
    except ImportError:
        raise LogError(
            f"{where} holds TensorBoard events, which TensorBoard reads; "
            "pip install 'planner[evidence]'"
        ) from None
    steps: dict[int, dict[str, float]] = {}
    written: dict[int, float] = {}
    for file in event_files(path):
        events = event_accumulator.EventAccumulator(
            str(file), size_guidance={event_accumulator.SCALARS: 0}
        )
        try:
            events.Reload()
        except Exception as error:  # TensorBoard's readers pass on any error of their parsers
            raise LogError(
                f"{shorten_path(file)} is not a readable event file ({shorten(str(error))}); "
                "name one that a run has closed"
            ) from None
        for tag in events.Tags()[tag_types.SCALARS]:
            for event in events.Scalars(tag):
                steps.setdefault(event.step, {"step": float(event.step)})[tag] = event.value
                written.setdefault(event.step, event.wall_time)
    for step in sorted(steps):
        yield Row(steps[step], written[step])
