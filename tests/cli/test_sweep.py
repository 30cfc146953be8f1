"""`planner sweep`: what a person sees of a sweep."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

from planner.cli import FITS, WRONG_USE, main
from tests.sweeps.samples import FEW, written

Captured = pytest.CaptureFixture[str]


def run(capsys: Captured, *arguments: str | Path) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stopped:
        main(["sweep", *map(str, arguments), "--backend", "sequential"])
    out, err = capsys.readouterr()
    assert isinstance(stopped.value.code, int)
    return stopped.value.code, out, err


def test_a_dry_run_counts_and_asks_nothing(capsys: Captured, tmp_path: Path) -> None:
    asked = written(tmp_path, {**FEW, "nodes": [1, 4, 4]})
    code, out, err = run(capsys, asked, "--dry-run", "--into", tmp_path / "results.csv")
    assert (code, err) == (FITS, "")
    assert out.startswith("8 questions: an estimate each. The first:\n  model = llama-3-8b\n")
    assert out.endswith("4 questions stated more than once, and asked once.\n")
    assert list(tmp_path.iterdir()) == [asked]


def test_without_a_table_rows_are_printed(capsys: Captured, tmp_path: Path) -> None:
    code, out, err = run(capsys, written(tmp_path, FEW))
    rows = list(csv.DictReader(io.StringIO(out)))
    assert (code, len(rows)) == (FITS, 8)
    assert {row["model"] for row in rows} == {"llama-3-8b"}
    assert err.splitlines()[-1].startswith("planner: 8 of 8 questions answered in ")


def test_a_table_is_summed_up(capsys: Captured, tmp_path: Path) -> None:
    table = tmp_path / "results.csv"
    asked = written(tmp_path, {**FEW, "nodes": [1, 600]})
    code, out, _ = run(capsys, asked, "--into", table, "--limit", "5")
    assert code == FITS
    assert "5 asked now, 0 answered before; 3 wait for the next call" in out
    code, out, err = run(capsys, asked, "--into", table)
    rows = list(csv.DictReader(io.StringIO(table.read_text())))
    fitting = sum(row["fits"] == "True" for row in rows)
    assert f"8 rows, {fitting} fit, 4 refused (column error); 3 asked now, 5 answered" in out
    reason = "nodes = 600 exceeds the 560 nodes of polaris"
    assert f"refused most often (4): {reason}" in out
    assert err.startswith("planner: 5 of 8 questions were answered before\n")


def test_a_wrong_file_is_one_sentence(capsys: Captured, tmp_path: Path) -> None:
    for name, words in (("absent.toml", "No such file"), ("", "is a directory")):
        code, out, err = run(capsys, tmp_path / name, "--into", tmp_path / "results.csv")
        assert (code, out) == (WRONG_USE, "")
        assert words in err
        assert err.count("\n") == 1
