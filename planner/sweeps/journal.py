"""Journal: the answers of a sweep, as an SQLite database next to its table.

SQLite's rollback journal undoes an unfinished transaction of a killed process. Its exclusive
lock, which the kernel frees when the process ends, keeps two sweeps from sharing one journal.
"""

import contextlib
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from planner.errors import PlannerError, WriteError, shorten_path
from planner.units import counted

_APPLICATION = 0x706C616F
"""SQLite's `application_id` of a journal: "plan" and one more, as answers are compressed."""
_SETTINGS = (
    "PRAGMA locking_mode = EXCLUSIVE",
    # unlike a write-ahead log it needs no memory shared between hosts
    "PRAGMA journal_mode = DELETE",
    "PRAGMA synchronous = FULL",
    "BEGIN EXCLUSIVE",
)
_SCHEMA = (
    "CREATE TABLE answers (key TEXT PRIMARY KEY, cells BLOB NOT NULL)",
    f"PRAGMA application_id = {_APPLICATION}",
)


def journal_of(table: Path) -> Path:
    """Name the journal of a table."""
    return table.with_name(f"{table.name}.journal")


class Journal:
    """Compressed answers by question key, on disk, or in memory only if there is no path."""

    def __init__(self, path: Path | None = None) -> None:
        self.answers: dict[str, bytes] = {}
        self._path = path
        self._database: sqlite3.Connection | None = None

    def __enter__(self) -> Self:
        if self._path is not None:
            try:
                self._path.touch()
            except (OSError, ValueError) as error:
                why = getattr(error, "strerror", None) or error
                where = shorten_path(self._path)
                raise WriteError(f"cannot write {where}: {why}; choose another path") from None
            with contextlib.ExitStack() as stack:
                database = sqlite3.connect(self._path, timeout=1.0, isolation_level=None)
                stack.callback(database.close)
                self._open(database, self._path)
                stack.pop_all()
            self._database = database
        return self

    def __exit__(self, *error: object) -> None:
        if self._database is not None:
            self._database.close()

    def record(self, rows: Sequence[tuple[str, bytes]]) -> None:
        """Add keys with their answers, and commit them to disk before returning."""
        if self._database is not None and self._path is not None:
            try:
                self._database.execute("BEGIN")
                self._database.executemany("INSERT OR REPLACE INTO answers VALUES (?, ?)", rows)
                self._database.execute("COMMIT")
            except sqlite3.Error as error:
                raise _full_disk(self._path, error, len(self.answers)) from None
            except KeyboardInterrupt:  # if raised after the commit, keep the answers
                if not self._database.in_transaction:
                    self.answers.update(rows)
                raise
        self.answers.update(rows)

    def _open(self, database: sqlite3.Connection, path: Path) -> None:
        """Lock the journal, and read its answers."""
        try:
            for setting in _SETTINGS:
                database.execute(setting)
            if database.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,):
                for statement in _SCHEMA:
                    database.execute(statement)
            if database.execute("PRAGMA application_id").fetchone() != (_APPLICATION,):
                raise _foreign_file(path)
            database.execute("COMMIT")
            rows = database.execute("SELECT key, cells FROM answers ORDER BY rowid")
            self.answers.update(rows)
        except sqlite3.DatabaseError as error:
            raise _refusal(path, error) from None


def _refusal(path: Path, error: sqlite3.DatabaseError) -> PlannerError:
    code, where = getattr(error, "sqlite_errorcode", 0), shorten_path(path)
    if code & 0xFF in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
        return _foreign_file(path)
    if code & 0xFF == sqlite3.SQLITE_BUSY:
        return PlannerError(f"another sweep is writing {where}; wait for it, or give another file")
    if code in (sqlite3.SQLITE_IOERR_LOCK, sqlite3.SQLITE_IOERR_RDLOCK):
        return WriteError(
            f"cannot lock {where}: {error}; choose a path on a file system with locks"
        )
    return _full_disk(path, error, 0)


def _full_disk(path: Path, error: sqlite3.Error, answers: int) -> WriteError:
    return WriteError(
        f"cannot write {shorten_path(path)}: {error}; free space and repeat the call to resume "
        f"after the {counted(answers, 'answer')} kept so far"
    )


def _foreign_file(path: Path) -> WriteError:
    return WriteError(
        f"{shorten_path(path)} is not a journal of a sweep by this version; move it away, or give "
        "another file"
    )
