"""Sweeping: `sweep` asks all questions of a sweep that have no answer yet, and writes the table."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from planner.errors import DescriptionError, shorten_path
from planner.sweeps.answering import Answer
from planner.sweeps.backends import answered, check_backend
from planner.sweeps.columns import Columns, columns
from planner.sweeps.journal import Journal, journal_of
from planner.sweeps.progress import Progress
from planner.sweeps.questions import NAMED, Asked, Questions, questions, tasks
from planner.sweeps.stated import Stated, read_stated, stated
from planner.sweeps.table import check_table, write_table
from planner.tables import Record, Table, Tabular

__all__ = ["Swept", "dry_run", "sweep"]

SweptTable = Literal["rows"]
"""Its one table."""


@dataclass(frozen=True, slots=True)
class Swept(Tabular[SweptTable]):
    """What a sweep found; `to_frame()` is its table."""

    columns: tuple[str, ...] = field(repr=False)
    """Names of what every row has."""
    rows: tuple[Record, ...] = field(repr=False)
    """Answers so far, in the order of the questions; a cell that is not there is None."""
    num_questions: int
    """Different questions of the sweep."""
    num_asked: int
    """Those that this call asked; the others were answered before, or wait."""

    def tables(self) -> dict[str, Table]:
        """Return the rows as a table."""
        return {"rows": Table(self.rows)}

    @property
    def num_refused(self) -> int:
        """Questions that have no answer but the reason why."""
        return sum(row["error"] is not None for row in self.rows)

    @property
    def num_fitting(self) -> int:
        """Questions whose answer is that it fits."""
        return sum(bool(row.get("fits")) for row in self.rows)


def sweep(
    file: str | Path | None = None,
    *,
    into: str | Path | None = None,
    backend: str = "loky",
    jobs: int = -1,
    address: str | None = None,
    limit: int | None = None,
    progress: bool | Progress = False,
    **asked: Any,
) -> Swept:
    """Ask thousands of questions, on cores or a cluster, and write their answers as one table.

    They are those of a file, or `models`, `machines`, `sets`, `leave_free`, `devices`, `nodes`,
    `frameworks`, `workload`, `layout`, `stages`, `rows` and `kind` (plan, estimate, trace) as a
    file has them: every combination of the lists. Names, paths and descriptions are taken. `into`
    is a .parquet or .csv file, beside which a journal keeps what was answered: the same call goes
    on where another was stopped. `backend` is loky, sequential, dask or ray (or another of
    joblib's), `address` that of a cluster. Raises PlannerError for what cannot be read; a question
    that is refused is a row whose column `error` says why.

    >>> found = sweep(models="llama-3-8b", machines="polaris", kind="estimate",
    ...               layout={"dp": 4, "tp": [1, 4], "zero_stage": 3}, backend="sequential")
    >>> [(row["layout"], row["fits"]) for row in found.rows]
    [('dp4 zero3 mb1x1', False), ('dp4 tp4 zero3 mb1x1', True)]
    """
    if limit is not None and limit < 0:
        raise DescriptionError(f"limit = {limit} asks nothing; give 0 or more")
    found = _questions(file, asked)
    check_backend(backend, jobs, address)
    table = _table(into)
    shown = progress if isinstance(progress, Progress) else Progress(progress)
    names = _columns(found)
    with Journal(table and journal_of(table)) as journal, shown:
        different = {question.key: question for question in found.asked}
        todo = [asked for key, asked in different.items() if key not in journal.answers]
        shown.start(len(different), len(different) - len(todo))
        made = tasks(found, todo[:limit])
        try:
            _ask(answered(made, backend, jobs, address), journal, shown)
        finally:  # a stop may have come between an answer and its count
            shown.done = sum(key in journal.answers for key in different)
        rows = tuple(_rows(found.asked, journal.answers, names))
        if table is not None:
            write_table(table, names, rows)
    return Swept(tuple(names), rows, len(different), sum(len(task.asked) for task in made))


def _table(into: str | Path | None) -> Path | None:
    """Where the table goes, and may."""
    if into is None:
        return None
    table = Path(into).expanduser()
    check_table(table, journal_of(table))
    return table


def _ask(answers: Generator[list[Answer]], journal: Journal, shown: Progress) -> None:
    """Keep answers as they come."""
    with closing(answers):
        for some in answers:
            journal.record(some)
            shown.advance(len(some), sum("error" in cells for _, cells in some))


def dry_run(file: str | Path | None = None, **asked: Any) -> tuple[Questions, Record]:
    """The questions of a sweep, none of which is asked, and the columns of the first."""
    found = _questions(file, asked)
    first = found.asked[0].said
    return found, {name: first[name] for name in _columns(found) if first.get(name)}


def _questions(file: str | Path | None, asked: Mapping[str, Any]) -> Questions:
    if file is not None and asked:
        raise DescriptionError(
            f"{next(iter(asked))} is stated beside the file {shorten_path(file)}; state all in one "
            "of them"
        )
    parts: Sequence[Stated] = stated(asked) if file is None else read_stated(file)
    return questions(parts)


def _columns(found: Questions) -> Columns:
    """Columns of the table; workloads have those of the fields that any question states."""
    return columns(found.kind, {*NAMED, *(name for q in found.asked for name in q.workload)})


def _rows(asked: Sequence[Asked], answers: Mapping[str, Record], names: Columns) -> list[Record]:
    rows = []
    for question in asked:
        if (cells := answers.get(question.key)) is not None:
            row = {**question.said, "key": question.key, **cells}
            rows.append({name: row.get(name) for name in names})
    return rows
