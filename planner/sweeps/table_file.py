"""Table files: rows as Parquet or CSV, written atomically; the same rows give the same bytes."""

from __future__ import annotations

import importlib.util
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from planner.describe.files import write_atomically
from planner.errors import PlannerError, WriteError, shorten_path
from planner.sweeps.columns import Columns
from planner.tables import Record, csv_text

__all__ = ["check_table", "write_table"]

_SUFFIXES = (".parquet", ".csv")

Rows = Sequence[Record]


def check_table(path: Path, journal: Path) -> None:
    """Raise PlannerError unless a table can be written here, before anything is asked."""
    where = shorten_path(path)
    if path.suffix not in _SUFFIXES:
        raise WriteError(f"{where} is no table format; name a file .parquet or .csv")
    if path.suffix == ".parquet" and importlib.util.find_spec("pyarrow") is None:
        raise PlannerError(
            "Parquet needs pyarrow; install it with `pip install 'parallelism-planner[sweep]'`, or "
            "name a file .csv"
        )
    if path.is_dir():
        raise WriteError(f"{where} is a directory; name a file in it")
    if path.exists() and not journal.exists():
        raise WriteError(
            f"{where} exists, and no journal of a sweep stands beside it; move it away, or give "
            "another file"
        )


def write_table(path: Path, columns: Columns, rows: Rows) -> None:
    """Replace a table; a reader or a crash never sees half of it."""
    if path.suffix == ".csv":
        write_atomically(path, csv_text(columns, rows))
    else:
        _write_parquet(path, columns, rows)


def _write_parquet(path: Path, columns: Columns, rows: Rows) -> None:
    import pyarrow
    from pyarrow import parquet

    types = {
        str: pyarrow.string(),
        bool: pyarrow.bool_(),
        int: pyarrow.int64(),
        float: pyarrow.float64(),
    }
    arrays = {
        name: pyarrow.array([row.get(name) for row in rows], types[kind])
        for name, kind in columns.items()
    }
    draft = None
    try:
        handle, draft = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        os.close(handle)
        parquet.write_table(pyarrow.table(arrays), draft, compression="zstd")
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(draft, 0o666 & ~mask)  # as any other file, not private
        os.replace(draft, path)
    except OSError as error:
        if draft is not None and os.path.exists(draft):
            os.unlink(draft)
        raise WriteError(
            f"cannot write {shorten_path(path)}: {error.strerror or error}; free space or choose "
            "another path. What was there before is unchanged"
        ) from None
