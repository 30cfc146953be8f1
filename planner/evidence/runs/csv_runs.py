"""Tables of measured training runs, as CSV.

Any cell may be empty and any column missing: a default with a note fills it in, or the row is
refused with the reason. One bad row does not affect the others.
"""

from __future__ import annotations

import csv
import io
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from planner.describe.machine import Machine
from planner.errors import CatalogueError, PlannerError, shorten, shorten_path
from planner.evidence.runs.cells import Cells
from planner.evidence.runs.run import RefusedRun, Run, run_of

__all__ = ["is_table_of_runs", "read_runs", "runs_from_text"]

ESSENTIAL = (
    "n_gpus",
    "gpu",
    "model",
    "n_layers",
    "hidden",
    "seq_len",
    "framework",
    "dp",
    "tp",
    "pp",
    "micro_batch",
    "global_batch",
    "step_time_s",
    "tokens_per_s_per_gpu",
    "samples_per_s",
)
"""A table needs at least two of these columns to be one of runs."""

_MAX_FILE_BYTES = 20_000_000


def read_runs(path: str | Path, own_machine: Machine | None = None) -> list[Run | RefusedRun]:
    """Read every row of a CSV of runs; rows may call `own_machine` by its name.

    CatalogueError where the file is no such table at all.
    """
    return runs_from_text(_decoded(Path(path)), shorten_path(path), own_machine)


def runs_from_text(
    text: str, where: str, own_machine: Machine | None = None
) -> list[Run | RefusedRun]:
    """Read every row of the text of a table; `where` names the table in messages."""
    return [_read_row(number, row, own_machine) for number, row in _rows(text, where)]


def is_table_of_runs(first_line: str) -> bool:
    """Whether a file that begins with this line is a table of runs."""
    names = {name.strip().strip('"').lower() for name in re.split("[,;\t]", first_line)}
    return len(names & set(ESSENTIAL)) >= 2


def _decoded(path: Path) -> str:
    where = shorten_path(path)
    try:
        state = path.stat()
        if not stat.S_ISREG(state.st_mode):
            raise CatalogueError(f"cannot read {where}: it is no regular file; name a CSV")
        if state.st_size > _MAX_FILE_BYTES:
            raise CatalogueError(
                f"{where} has {state.st_size / 1e6:.0f} MB; tables above "
                f"{_MAX_FILE_BYTES / 1e6:.0f} MB are refused: split it"
            )
        data = path.read_bytes()
    except OSError as error:
        raise CatalogueError(f"cannot read {where}: {error.strerror}; check the path") from None
    except CatalogueError:
        raise
    except ValueError as error:  # a null byte in the path
        raise CatalogueError(f"cannot read {where}: {error}; check the path") from None
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return data.decode("utf-16", errors="replace")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return data.decode("cp1252", errors="replace")


def _rows(text: str, where: str) -> Iterator[tuple[int, dict[str, str] | str]]:
    """Line number and cells of every row, or the reason why it cannot be read."""
    text = text.replace("\0", "")
    first = text.split("\n", 1)[0]
    delimiter = max(",;\t", key=first.count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    try:
        header = [name.strip().lower() for name in next(reader, [])]
    except csv.Error:
        header = []
    if len(set(header) & set(ESSENTIAL)) < 2:
        raise CatalogueError(
            f"{where} is no table of runs: its first line must name columns such as "
            f"{', '.join(ESSENTIAL[:8])}"
        )
    while True:
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield reader.line_num, str(error)
            continue
        if any(cell.strip() for cell in cells):
            # a short row leaves its last columns empty, a long one has nothing to name them
            yield reader.line_num, dict(zip(header, cells, strict=False))


def _read_row(
    number: int, row: dict[str, str] | str, own_machine: Machine | None
) -> Run | RefusedRun:
    if isinstance(row, str):
        return RefusedRun(f"line {number}", "", f"line {number} is not readable as CSV: {row}")
    cells = Cells(row)
    row_id = shorten(cells.text("row_id") or f"line {number}")
    source = shorten(cells.text("source") or "not stated", 120)
    try:
        return run_of(row_id, source, cells, own_machine)
    except PlannerError as error:
        return RefusedRun(row_id, source, str(error))
