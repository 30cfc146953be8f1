"""Columns: the columns of a sweep's table, and its Parquet or CSV file."""

import importlib.util
import io
import itertools
import os
import typing
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import UnionType
from typing import Any

from planner.cost.parts import DEVICE_PARTS, HOST_PARTS, TIME_PARTS
from planner.describe.base import Description
from planner.describe.files import write_atomically
from planner.describe.layout import Layout
from planner.describe.workload import Workload
from planner.errors import PlannerError, WriteError, shorten_path
from planner.sweeps.definition import Kind
from planner.tables import Record, csv_text

Columns = dict[str, type]
"""Types of columns by name: text, booleans, whole or real numbers."""
_BATCH_ROWS = 32_768
"""Rows that are unpacked at once, and row groups of a Parquet file."""


def _types(kind: type[Description], names: Iterable[str] | None = None) -> Columns:
    fields = kind.model_fields
    return {name: _type(fields[name].annotation) for name in (fields if names is None else names)}


def _type(annotation: Any) -> type:
    if typing.get_origin(annotation) in (UnionType, typing.Union):
        return _type(next(a for a in typing.get_args(annotation) if a is not type(None)))
    return annotation if annotation in (bool, int, float) else str


_LAYOUT: Columns = {"layout": str, "framework": str, **_types(Layout)}
_FIGURES: Columns = {
    **dict.fromkeys(("fits", "tight"), bool),
    "out_of_memory_probability": float,
    **dict.fromkeys(("step_time_s", "step_time_low_s", "step_time_high_s"), float),
    **dict.fromkeys(("memory_total_bytes", "memory_low_bytes", "memory_high_bytes"), float),
    **dict.fromkeys(("host_total_bytes", "mfu", "tokens_per_s"), float),
    "network": str,
}
_PARTS: Columns = {
    **{f"time_{name}_s": float for name in TIME_PARTS},
    **{f"memory_{name}_bytes": float for name in DEVICE_PARTS},
    **{f"host_{name}_bytes": float for name in HOST_PARTS},
}
FASTEST = (*_LAYOUT, *_FIGURES)
"""Columns of a plan's fastest layout, with the prefix `fastest_`."""
_COST: Columns = {"duration_s": float, "node_hours": float}

_ANSWERS: dict[Kind, Columns] = {
    "plan": {
        "num_devices": int,
        "num_candidates": int,
        "answered_nodes": int,
        "answered_batch": int,
        "answered_sequence": int,
        "advice": str,
        "useful_tokens_per_s": float,
        "enough_nodes": int,
        **_COST,
        **_LAYOUT,
        **_FIGURES,
        **{f"fastest_{name}": {**_LAYOUT, **_FIGURES}[name] for name in FASTEST},
        **_PARTS,
    },
    "estimate": {"num_devices": int, **_COST, **_LAYOUT, **_FIGURES, **_PARTS},
}

ANSWER_CELLS: dict[Kind, tuple[str, ...]] = {
    kind: (*answer, "global_batch", "why", "error") for kind, answer in _ANSWERS.items()
}
"""Cells of an answer by kind, in the order in which a journal keeps their values."""


def columns(kind: Kind, workload_fields: Iterable[str]) -> Columns:
    """List the columns of a table: question, answer, why nothing fits, why there is no answer."""
    chosen = set(workload_fields)
    question: Columns = {
        "model": str,
        "machine": str,
        "set": str,
        "leave_free_percent": float,
        "devices": int,
        "nodes": int,
        "asked_frameworks": str,
        **_types(Workload, [name for name in Workload.model_fields if name in chosen]),
    }
    question |= {"exact": bool} if kind == "plan" else {"asked_layout": str}
    return {**question, **_ANSWERS[kind], "key": str, "why": str, "error": str}


def cell(value: Any) -> Any:
    """Write the value of a field as a cell."""
    return "+".join(map(str, value)) if isinstance(value, list) else value


def check_table(path: Path, journal: Path) -> None:
    """Raise PlannerError if a table cannot be written to this path; checked before any answer."""
    where = shorten_path(path)
    if path.suffix not in (".parquet", ".csv"):
        raise WriteError(f"{where} is not a table format; name a .parquet or .csv file")
    if path.suffix == ".parquet" and importlib.util.find_spec("pyarrow") is None:
        raise PlannerError(
            "Parquet needs pyarrow; install it with `pip install 'parallelism-planner[sweep]'`, or "
            "name a .csv file"
        )
    if os.path.exists(path) and not journal.exists():
        raise WriteError(
            f"{where} exists, and no journal of a sweep is next to it; move it away, or give "
            "another file"
        )


def write_table(path: Path, columns: Columns, rows: Iterable[Record]) -> None:
    """Replace a table atomically; equal rows give equal bytes."""
    write_atomically(path, (_csv if path.suffix == ".csv" else _parquet)(columns, rows))


def _batches(rows: Iterable[Record]) -> Iterator[list[Record]]:
    """Divide rows into batches; the first may be empty."""
    rest = iter(rows)
    yield list(itertools.islice(rest, _BATCH_ROWS))
    while batch := list(itertools.islice(rest, _BATCH_ROWS)):
        yield batch


def _csv(columns: Columns, rows: Iterable[Record]) -> Iterator[bytes]:
    for number, batch in enumerate(_batches(rows)):
        text = csv_text(columns, batch)
        yield (text.partition("\n")[2] if number else text).encode()


def _parquet(columns: Columns, rows: Iterable[Record]) -> Iterator[bytes]:
    import pyarrow
    from pyarrow import parquet

    types = {str: "string", bool: "bool", int: "int64", float: "float64"}
    schema = pyarrow.schema([(name, types[kind]) for name, kind in columns.items()])
    row, table = pyarrow.struct(list(schema)), io.BytesIO()
    with parquet.ParquetWriter(table, schema, compression="zstd") as writer:
        for batch in _batches(rows):
            writer.write_batch(pyarrow.RecordBatch.from_struct_array(pyarrow.array(batch, row)))
    yield table.getvalue()
