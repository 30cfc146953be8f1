"""Runner: answer the open questions of a sweep, and write its table."""

import os
from collections import Counter, deque
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from planner.errors import DescriptionError, shorten_path
from planner.sweeps.answer_cells import Answer, cells_of
from planner.sweeps.backends import answer_tasks, check_backend
from planner.sweeps.columns import Columns, check_table, columns, write_table
from planner.sweeps.definition import SweepPart, define_sweep, read_sweep
from planner.sweeps.journal import Journal, journal_of
from planner.sweeps.progress import Progress
from planner.sweeps.questions import NAMED, Question, QuestionList, list_questions, make_tasks
from planner.tables import Record, Table, Tabular

SweptTable = Literal["rows"]
"""Name of the only table of a result."""


class SweptRows(Sequence[Record]):
    """Rows of a table, unpacked when they are read: a million take about half a gigabyte."""

    def __init__(self, sweep: QuestionList, answers: Mapping[str, bytes], names: Columns) -> None:
        self._kind = sweep.kind
        self._questions = [each for each in sweep.questions if each.key in answers]
        self._answers, self._names = answers, tuple(names)

    def __len__(self) -> int:
        return len(self._questions)

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return tuple(map(self._row, self._questions[place]))
        return self._row(self._questions[place])

    def __eq__(self, rows: object) -> bool:
        return isinstance(rows, Sequence) and tuple(self) == tuple(rows)

    def filled(self) -> Iterator[Record]:
        """Yield the rows without their empty cells."""
        return map(self._filled, self._questions)

    def _filled(self, question: Question) -> Record:
        answer = cells_of(self._kind, self._answers[question.key])
        return {**question.cells, "key": question.key, **answer}

    def _row(self, question: Question) -> Record:
        row = self._filled(question)
        return {name: row.get(name) for name in self._names}


@dataclass(frozen=True, slots=True)
class SweepResult(Tabular[SweptTable]):
    """The answers of a sweep; `to_frame()` is its table."""

    columns: tuple[str, ...] = field(repr=False)
    rows: SweptRows = field(repr=False)
    """Answers so far, in the order of the questions; an empty cell is None."""
    num_questions: int
    """Distinct questions of the sweep."""
    num_asked: int
    """Questions that this call answered; others were answered earlier or are still open."""
    num_fitting: int
    """Number of questions whose job fits."""
    refusals: Counter[str] = field(repr=False)
    """Number of refused questions by reason, as the column `error` has it."""

    def tables(self) -> dict[str, Table]:
        """Return the rows as a table."""
        return {"rows": Table(tuple(self.rows))}

    @property
    def num_refused(self) -> int:
        """Number of refused questions."""
        return self.refusals.total()


def sweep(
    file: str | Path | None = None,
    *,
    into: str | Path | None = None,
    backend: str = "loky",
    jobs: int = -1,
    address: str | None = None,
    limit: int | None = None,
    progress: bool | Progress = False,
    **fields: Any,
) -> SweepResult:
    """Answer thousands of questions, on cores or a cluster, and write the answers as one table.

    State the sweep in a file, or by the same fields: `models`, `machines`, `sets`, `leave_free`,
    `devices`, `nodes`, `frameworks`, `workload`, `layout`, `rows` and `kind` (plan, estimate). Each
    combination of the lists is a question. `into` is a .parquet or .csv
    file; a journal next to it keeps the answers, so that the same call resumes a stopped sweep.
    `backend` is loky, sequential, threading or dask; `address` is Dask's scheduler.
    A refused question is a row whose column `error` gives the reason.
    """
    if limit is not None and limit < 0:
        raise DescriptionError(f"limit = {limit} must be 0 or more")
    questions = _list_questions(file, fields)
    check_backend(backend, jobs, address)
    table = None if into is None else Path(os.path.expanduser(into))
    if table is not None:
        check_table(table, journal_of(table))
    progress = progress if isinstance(progress, Progress) else Progress(progress)
    names = _columns(questions)
    with Journal(table and journal_of(table)) as journal, progress:
        by_key = {question.key: question for question in questions.questions}
        open_questions = [q for key, q in by_key.items() if key not in journal.answers]
        progress.start(len(by_key), len(by_key) - len(open_questions))
        tasks = make_tasks(questions, open_questions[:limit])
        try:
            _record(answer_tasks(tasks, backend, jobs, address), journal, progress)
        finally:  # an interrupt may have come between an answer and its count
            progress.done = sum(key in journal.answers for key in by_key)
        rows, kinds = SweptRows(questions, journal.answers, names), Counter[str | bool]()
        if table is None:
            deque(_counted(rows.filled(), kinds), maxlen=0)
        else:
            write_table(table, names, _counted(rows.filled(), kinds))
    num_asked, num_fitting = sum(len(task.questions) for task in tasks), kinds.pop(True, 0)
    refusals = Counter({str(reason): count for reason, count in kinds.items() if reason})
    return SweepResult(tuple(names), rows, len(by_key), num_asked, num_fitting, refusals)


def _counted(rows: Iterable[Record], kinds: Counter[str | bool]) -> Iterator[Record]:
    """Yield rows, and count whether each fits, or why it is refused."""
    for row in rows:
        kinds[row.get("error") or bool(row.get("fits"))] += 1
        yield row


def _record(answers: Generator[list[Answer]], journal: Journal, progress: Progress) -> None:
    with closing(answers):
        for task_answers in answers:
            journal.record([(key, cells) for key, cells, _ in task_answers])
            progress.advance(len(task_answers), sum(refused for *_, refused in task_answers))


def dry_run(file: str | Path | None = None, **fields: Any) -> tuple[QuestionList, Record]:
    """List the questions of a sweep and the cells of the first, without answering any."""
    questions = _list_questions(file, fields)
    first = questions.questions[0].cells
    return questions, {name: first[name] for name in _columns(questions) if first.get(name)}


def _list_questions(file: str | Path | None, fields: Mapping[str, Any]) -> QuestionList:
    if file is not None and fields:
        raise DescriptionError(
            f"{next(iter(fields))} is stated in addition to the file {shorten_path(file)}; state "
            "all in one of them"
        )
    parts: Sequence[SweepPart] = define_sweep(fields) if file is None else read_sweep(file)
    return list_questions(parts)


def _columns(sweep: QuestionList) -> Columns:
    stated_fields = {name for question in sweep.questions for name in question.workload}
    return columns(sweep.kind, {*NAMED, *stated_fields})
