"""Journal: every answer as one line of a file, on the disk before the next is asked for.

It is only ever added to. What a killed sweep left of a line is cut off by the next, and a lock that
the kernel frees with its process keeps two sweeps from writing into one.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from planner.errors import PlannerError, WriteError, shorten, shorten_path
from planner.units import counted

__all__ = ["Journal", "journal_of"]

_HEAD = b'{"journal": "planner sweep", '
"""How the first line begins, and that of every later sweep that adds to the file."""


def journal_of(table: Path) -> Path:
    """Where the answers of a table are kept.

    >>> journal_of(Path("results.parquet")).name
    'results.parquet.journal'
    """
    return table.with_name(f"{table.name}.journal")


class Journal:
    """Answers by the key of their question, on disk or (without a path) in memory alone."""

    def __init__(self, path: Path | None = None) -> None:
        self.answers: dict[str, dict[str, Any]] = {}
        self._path = path
        self._file: IO[bytes] | None = None

    def __enter__(self) -> Self:
        if self._path is not None:
            self._file = self._opened(self._path)
            try:
                self._lock(self._file)
                self._read(self._file)
            except BaseException:
                self._close()
                raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close()

    def _close(self) -> None:
        """Free the lock; what could not be written was said, and is tried once more in vain."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()

    def record(self, answers: Iterable[tuple[str, dict[str, Any]]]) -> None:
        """Keep some answers; they are on the disk when it returns."""
        found = list(answers)
        if self._file is not None:
            lines = (json.dumps([key, cells], separators=(",", ":")) for key, cells in found)
            self._add(self._file, "".join(f"{line}\n" for line in lines).encode())
        self.answers.update(found)

    def _add(self, file: IO[bytes], lines: bytes, whole: int | None = None) -> None:
        """Write lines, after so many bytes that are whole; they are on the disk afterwards."""
        try:
            if whole is not None:
                file.truncate(whole)
            file.write(lines)
            file.flush()
            os.fsync(file.fileno())
        except OSError as error:
            raise WriteError(
                f"cannot write {self._where}: {error.strerror}; free space, and the same call "
                f"goes on after the {counted(len(self.answers), 'answer')} kept so far"
            ) from None

    @property
    def _where(self) -> str:
        return shorten_path(self._path)

    def _opened(self, path: Path) -> IO[bytes]:
        try:
            return path.open("a+b")
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            raise WriteError(f"cannot write {self._where}: {why}; choose another path") from None

    def _lock(self, file: IO[bytes]) -> None:
        try:
            import fcntl
        except ImportError:
            return  # not POSIX: nothing keeps two sweeps apart
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PlannerError(
                f"another sweep is writing {self._where}{_holder(file)}; wait for it, or give "
                "another file"
            ) from None
        except OSError as error:
            raise WriteError(
                f"cannot lock {self._where}: {error.strerror}; choose a path on a file system with "
                "locks"
            ) from None

    def _read(self, file: IO[bytes]) -> None:
        """Take what is there, cut off what is no whole line, and say who writes now."""
        file.seek(0)
        whole = 0
        for number, line in enumerate(file):
            if number == 0 and not _is_head(line):
                raise WriteError(
                    f"{self._where} is no journal of a sweep; move it away, or give another file"
                )
            if not line.endswith(b"\n"):
                break
            whole += len(line)
            known = _parsed(line)
            if isinstance(known, list) and len(known) == 2 and isinstance(known[1], dict):
                self.answers[str(known[0])] = known[1]
        writer = {"process": os.getpid(), "host": socket.gethostname()}
        self._add(file, _HEAD + json.dumps(writer).removeprefix("{").encode() + b"\n", whole)


def _is_head(line: bytes) -> bool:
    """Whether a first line is that of a journal, or the part of it that a kill left."""
    whole = line.endswith(b"\n")
    return line.startswith(_HEAD) or (not whole and _HEAD.startswith(line))


def _parsed(line: bytes) -> Any:
    """A line's content; None where a disk that was full left half of it."""
    try:
        return json.loads(line)
    except ValueError:
        return None


def _holder(file: IO[bytes]) -> str:
    """Who says last that it writes."""
    file.seek(0)
    for line in reversed(file.readlines()):
        known = _parsed(line)
        if isinstance(known, dict) and "process" in known:
            return f" (process {known['process']} on {shorten(str(known.get('host')))})"
    return ""
