"""The journal: nothing that was recorded is lost or asked again, wherever a sweep was killed."""

from __future__ import annotations

import re
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

import planner
from planner.errors import PlannerError, WriteError
from planner.sweeps import columns as tables
from planner.sweeps.journal import Journal, _refusal, journal_of
from tests.sweeps.samples import FEW, done, written

HOLD = (
    "import sys; from pathlib import Path; from planner.sweeps.journal import Journal\n"
    "with Journal(Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()"
)

DYING = (
    "import signal, sys; from pathlib import Path; from planner.sweeps.journal import Journal\n"
    "with Journal(Path(sys.argv[1])) as journal:\n"
    "    signal.setitimer(signal.ITIMER_REAL, float(sys.argv[3]))\n"
    "    for number in range(10**9):\n"
    "        key = f'{sys.argv[2]}-{number}'\n"
    "        journal.record([(key, key.encode() * 500)])\n"
    "        print(key, flush=True)\n"
)


def swept(table: Path, limit: int | None = None) -> planner.Swept:
    return planner.sweep(**FEW, into=table, backend="sequential", limit=limit)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_part_now_and_the_rest_later_is_the_whole(tmp_path: Path, kind: str) -> None:
    whole, parts = tmp_path / f"whole.{kind}", tmp_path / f"parts.{kind}"
    assert swept(whole).num_asked == 8
    assert [swept(parts, 3).num_asked for _ in range(4)] == [3, 3, 2, 0]
    assert parts.read_bytes() == whole.read_bytes()
    # more questions are added to those that are answered
    more = planner.sweep(**{**FEW, "nodes": [1, 2, 4]}, into=parts, backend="sequential")
    assert (more.num_questions, more.num_asked) == (12, 4)
    assert [row["nodes"] for row in more.rows] == [1] * 4 + [2] * 4 + [4] * 4


@pytest.mark.slow
def test_a_journal_that_was_killed_anywhere_goes_on(tmp_path: Path) -> None:
    """Processes die in the midst of writing, as by kill -9; what they acknowledged is there."""
    path = tmp_path / "results.csv.journal"
    acknowledged = set()
    for attempt in range(8):
        run = [sys.executable, "-c", DYING, str(path), str(attempt), str(0.001 + 0.005 * attempt)]
        died = subprocess.run(run, capture_output=True, text=True, timeout=120, check=False)
        assert died.returncode == -signal.SIGALRM, died.stderr
        acknowledged |= set(died.stdout.split("\n")[:-1])
        with Journal(path) as journal:
            assert acknowledged <= set(journal.answers)
            assert all(a == key.encode() * 500 for key, a in journal.answers.items())
    assert acknowledged


def test_a_file_that_is_no_journal_is_refused(tmp_path: Path) -> None:
    table = tmp_path / "results.csv"
    journal_of(table).write_text('{"journal": "planner sweep", "process": 1, "host": "login"}\n')
    with pytest.raises(
        WriteError, match=r"is not a journal of a sweep by this version; move it away"
    ):
        swept(table)


def test_answers_of_other_questions_do_not_disturb(tmp_path: Path) -> None:
    table = tmp_path / "results.csv"
    planner.sweep(**{**FEW, "nodes": 2}, into=table, backend="sequential")
    found = swept(table)
    assert (found.num_asked, {row["nodes"] for row in found.rows}) == (8, {1, 4})


@pytest.mark.slow
def test_two_sweeps_at_once_are_refused_and_a_dead_one_is_not(tmp_path: Path) -> None:
    table = tmp_path / "results.csv"
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(journal_of(table))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        second = done(written(tmp_path, FEW), "--into", table, "--backend", "sequential")
        assert (second.returncode, second.stdout) == (2, "")
        assert second.stderr.startswith("planner: another sweep is writing ")
        assert second.stderr.count("\n") == 1
        assert not table.exists()
    finally:
        holder.kill()
        holder.wait()
        for pipe in (holder.stdin, holder.stdout):
            assert pipe is not None
            pipe.close()
    assert swept(table).num_asked == 8


def test_a_file_that_is_no_journal_is_left_alone(tmp_path: Path) -> None:
    table = tmp_path / "results.csv"
    with sqlite3.connect(tmp_path / "other") as other:
        other.execute("CREATE TABLE notes (text TEXT)")
    other.close()
    database = (tmp_path / "other").read_bytes()
    for content in (
        b"my notes\n",
        b"my notes",
        b"{}\n",
        b"\x00\xff" * 9,
        b'{"journal": 3}\n',
        database,
    ):
        journal_of(table).write_bytes(content)
        with pytest.raises(
            WriteError, match="is not a journal of a sweep by this version; move it away"
        ):
            swept(table)
        assert journal_of(table).read_bytes() == content


def test_a_table_of_another_program_is_left_alone(tmp_path: Path) -> None:
    table = tmp_path / "results.csv"
    table.write_text("a,b\n")
    with pytest.raises(WriteError, match="no journal of a sweep is next to it"):
        swept(table)
    assert table.read_text() == "a,b\n"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("results.xlsx", "name a .parquet or .csv file"),
        ("results", "name a .parquet or .csv file"),
        ("absent/results.csv", "No such file or directory"),
        ("folder.csv", "exists, and no journal"),
    ],
)
def test_a_table_that_cannot_be_written_is_refused_first(
    tmp_path: Path, name: str, words: str
) -> None:
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(WriteError, match=words):
        swept(tmp_path / name)


def test_parquet_without_pyarrow_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(PlannerError, match=r"needs pyarrow; install it with .*\[sweep\]"):
        swept(tmp_path / "results.parquet")


FULL = (
    "import resource, sys; from planner.cli import main\n"
    "size = int(sys.argv[1]); resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))\n"
    "main(sys.argv[2:])"
)


@pytest.mark.slow
@pytest.mark.parametrize("size", [0, 80, 5000, 9000, 11000])
def test_a_disk_that_is_full_is_one_sentence_and_the_call_goes_on(
    tmp_path: Path, size: int
) -> None:
    """Wherever the file ends: before its first page, within it, or within an answer."""
    table, sweep = tmp_path / "results.csv", written(tmp_path, FEW)
    words = ["sweep", sweep, "--into", table, "--backend", "sequential"]
    run = [sys.executable, "-c", FULL, str(size), *map(str, words)]
    full = subprocess.run(run, capture_output=True, text=True, timeout=120, check=False)
    assert full.returncode == 2
    assert re.search(
        r"^planner: cannot write .+; free space and repeat the call", full.stderr, re.MULTILINE
    )
    assert "Traceback" not in full.stderr
    assert not table.exists()
    with Journal(journal_of(table)) as journal:
        num_kept = len(journal.answers)
    assert swept(table).num_asked == 8 - num_kept
    whole = tmp_path / "whole.csv"
    swept(whole)
    assert table.read_bytes() == whole.read_bytes()


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (sqlite3.SQLITE_BUSY, "another sweep is writing a.journal; wait for it"),
        (sqlite3.SQLITE_NOTADB, "a.journal is not a journal of a sweep"),
        (sqlite3.SQLITE_CORRUPT, "a.journal is not a journal of a sweep"),
        (sqlite3.SQLITE_IOERR_LOCK, "cannot lock a.journal: odd; choose a path"),
        (sqlite3.SQLITE_FULL, "cannot write a.journal: odd; free space"),
    ],
)
def test_every_fault_of_a_journal_has_its_remedy(code: int, words: str) -> None:
    error = sqlite3.OperationalError("odd")
    error.sqlite_errorcode = code
    assert str(_refusal(Path("a.journal"), error)).startswith(words)


def test_a_journal_in_memory_keeps_what_it_is_told() -> None:
    with Journal() as journal:
        journal.record([("a", b"{}")])
        assert journal.answers == {"a": b"{}"}


def test_tables_are_read_by_pandas_as_they_were_written(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    found = swept(tmp_path / "results.parquet")
    read = pandas.read_parquet(tmp_path / "results.parquet")
    assert list(read.columns) == list(found.columns)
    for name in ("step_time_s", "fits", "dp", "layout", "key"):
        assert list(read[name]) == [row[name] for row in found.rows]
    assert (read["fits"].dtype, read["dp"].dtype) == (bool, "int64")
    swept(tmp_path / "results.csv")
    plain = pandas.read_csv(tmp_path / "results.csv")
    # pandas 2 reads a number to its last digit but one
    times_s = pytest.approx([row["step_time_s"] for row in found.rows], rel=1e-14)
    assert list(plain["step_time_s"]) == times_s
    # a row that is refused is no obstacle to a filter
    planner.sweep(**{**FEW, "nodes": [4, 9999]}, into=tmp_path / "results.parquet",
                  backend="sequential")  # fmt: skip
    some = pandas.read_parquet(tmp_path / "results.parquet")
    assert set(some[some["fits"]]["nodes"]) == {4}
    assert some["error"].notna().sum() == 4
