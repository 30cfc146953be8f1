"""Blind scores: no fit before a row's line, and no line that changes."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import ModuleType

import pytest

from planner.evidence.runs.run import Run
from tests import ROOT

LEDGER = "benchmarks/blind.csv"


@pytest.fixture
def blind(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module that scores rows blind."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import blind

    return blind


def _runs(blind: ModuleType) -> list[Run]:
    runs = [run for path in blind.tables() for run in blind.published_runs(path)]
    return [run for run in runs if isinstance(run, Run)]


def _git(*arguments: str) -> str:
    command = ["git", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def test_a_published_row_is_scored_before_a_fit_may_see_it(blind: ModuleType) -> None:
    from known import fitted

    scored = {line.row for line in blind.read_ledger()}
    assert [run.row_id for run in _runs(blind) if fitted(run) and run.row_id not in scored] == []


def test_every_table_of_the_repository_has_its_first_line(blind: ModuleType) -> None:
    runs, lines = _runs(blind), blind.read_ledger()
    assert {run.row_id for run in runs if run.step_time_s} <= {line.row for line in lines}
    assert len({run.row_id for run in runs}) == len(runs)
    # the last line of a row has what its table says, to the five digits of the ledger
    last = {line.row: line for line in lines}
    for run in runs:
        assert last[run.row_id].measured_s == pytest.approx(run.step_time_s, rel=1e-4)
    for line in lines:
        assert line.low_s < line.estimated_s < line.high_s
        assert line.reliability in ("high", "medium", "low")


def test_no_row_is_without_a_source_a_date_and_its_software(blind: ModuleType) -> None:
    import csv

    for path in blind.tables():
        with path.open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                for column in ("source", "source_ref", "date", "added", "software"):
                    assert row[column], (path.name, row["row_id"], column)


def test_lines_are_added_to_the_end_alone(blind: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "ledger.csv"
    first, second = blind.read_ledger()[:2]
    blind.append([first], path)
    before = path.read_bytes()
    blind.append([second], path)
    assert path.read_bytes().startswith(before)
    assert blind.read_ledger(path) == [first, second]


def test_no_commit_changed_a_line_of_the_ledger() -> None:
    try:
        commits = _git("log", "--format=%h", "--", LEDGER).split()
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this is no clone with its history")
    ledger = (ROOT / LEDGER).read_text(encoding="utf-8")
    for commit in commits:
        assert ledger.startswith(_git("show", f"{commit}:{LEDGER}")), commit


def test_the_page_is_that_of_the_ledger(blind: ModuleType) -> None:
    assert blind.PAGE.read_text(encoding="utf-8") == blind.page(blind.read_ledger())


def test_figures_of_a_group_leave_out_rows_marked_low(blind: ModuleType) -> None:
    base = blind.Line("d", "v", "r", "s", "2024", "high", "dp1", 1.0, 1.2, 0.9, 1.5)
    low = base._replace(row="q", reliability="low", estimated_s=9.0)
    # errors of +20 and -10 %: 15 % on average; the second is outside its interval
    other = base._replace(row="p", measured_s=2.0, estimated_s=1.8)
    text = blind.cells("s", [base, other, low])
    assert text == "s | 2024 | 3, 1 low | 15.0 % | 15.0 % | +3.9 % | 50 % | +20.0 %"
    assert blind.cells("s", [low]).endswith("| 1, 1 low | - | - | - | - | -")


def test_remarks_speak_of_rows_and_scorings_that_exist(blind: ModuleType) -> None:
    from known import remarks

    lines = blind.read_ledger()
    assert {item.version for item in remarks().scorings} <= {line.version for line in lines}
    for item in remarks().reasons:
        rows = {line.row for line in lines if line.source.startswith(item.source)}
        assert rows, item.source
        assert set(item.rows) <= rows, item.source
