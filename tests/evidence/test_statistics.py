"""The figures of a group of scored runs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from planner.evidence import scores
from planner.evidence.backtest import Backtest, score
from planner.evidence.runs.run_files import read_runs
from planner.evidence.scores import Score, rank_correlation, regret
from planner.show.measured_runs import main
from tests.evidence.tables import row, write


def test_without_scipy_rank_correlations_are_left_out_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    times = {1: 10.0, 2: 4.0, 4: 5.0, 8: 6.0}
    rows = [row(row_id=f"mb{mb}", micro_batch=mb, step_time_s=s) for mb, s in times.items()]
    path = write(tmp_path / "job.csv", rows)
    main(path, json_output=True)
    with_scipy = json.loads(capsys.readouterr().out)
    monkeypatch.setattr(scores, "find_spec", lambda name: None)
    assert main(path, json_output=True) == 0
    said = capsys.readouterr()
    without = json.loads(said.out)
    assert "pip install 'parallelism-planner[evidence]'" in said.err
    assert -1 <= with_scipy["groups"][0]["rank_correlation"] <= 1
    for name in ("rank_correlation", "job_rank_correlation"):
        assert without["groups"][0].pop(name) is None
        del with_scipy["groups"][0][name]
    assert without == with_scipy
    console = Console(record=True, width=200, quiet=False)
    main(path, console=console)
    assert "scipy is not installed" in " ".join(console.export_text().split())


def test_rank_correlation_against_known_values() -> None:
    # Kendall, Rank Correlation Methods: 1 - 6 sum d^2 / (n (n^2 - 1)) without ties
    assert rank_correlation([1, 2, 3, 4, 5], [5, 6, 7, 8, 7]) == pytest.approx(0.8207826817)
    assert rank_correlation(
        [106, 100, 86, 101, 99, 103, 97, 113, 112, 110], [7, 27, 2, 50, 28, 29, 20, 12, 6, 17]
    ) == pytest.approx(-29 / 165)
    assert rank_correlation([1, 2, 3], [9, 5, 1]) == pytest.approx(-1)
    assert rank_correlation([1, 1, 1], [1, 2, 3]) is None
    assert rank_correlation([1, 2], [1, 2]) is None


def _job(tmp_path: Path) -> list[Score]:
    times = {1: 10.0, 2: 4.0, 4: 5.0}
    rows = [
        row(row_id=f"mb{mb}", micro_batch=mb, step_time_s=seconds) for mb, seconds in times.items()
    ]
    return list(score(read_runs(write(tmp_path / "job.csv", rows))).scores)


def _ranked(items: list[Score], order: list[float]) -> list[Score]:
    return [
        replace(item, estimate=replace(item.estimate, step_time_s=guess, fits=True))
        for item, guess in zip(items, order, strict=True)
    ]


def test_regret_is_the_measured_loss_of_our_pick(tmp_path: Path) -> None:
    items = _job(tmp_path)
    assert regret(_ranked(items, [3.0, 1.0, 2.0])) == (pytest.approx(0.0), False)
    assert regret(_ranked(items, [3.0, 2.0, 1.0])) == (pytest.approx(0.25), False)
    assert regret(_ranked(items, [1.0, 2.0, 3.0])) == (pytest.approx(1.5), False)
    assert regret(items[:1])[0] is None


def test_a_pick_that_did_not_run_is_counted(tmp_path: Path) -> None:
    items = _ranked(_job(tmp_path), [1.0, 2.0, 3.0])
    dead = replace(items[0], run=replace(items[0].run, step_time_s=None, fits=False))
    assert regret([dead, *items[1:]]) == (pytest.approx(0.0), True)


def test_fit_figures(tmp_path: Path) -> None:
    rows = [row(row_id="ran"), row(row_id="oom", oom="yes", step_time_s="", micro_batch=16)]
    items = score(read_runs(write(tmp_path / "f.csv", rows))).scores
    forced = tuple(replace(item, fits=item.run.row_id == "ran") for item in items)
    [group] = Backtest(forced).groups()
    assert (group.fit_recall, group.oom_precision, group.oom_recall) == (1.0, 1.0, 1.0)
    assert group.num_times == 1


def test_rates_are_tokens_a_second_and_device() -> None:
    def scored(tokens: int, world: int, measured_s: float, estimated_s: float) -> Any:
        workload, layout = SimpleNamespace(tokens_per_step=tokens), SimpleNamespace(world=world)
        run = SimpleNamespace(workload=workload, layout=layout, step_time_s=measured_s)
        return SimpleNamespace(run=run, estimate=SimpleNamespace(step_time_s=estimated_s))

    rates = scores._rates([scored(8000, 4, 2.0, 1.0), scored(3000, 1, 5.0, 6.0)])
    # measured, then estimated, of both
    assert rates.tolist() == [[1000.0, 600.0], [2000.0, 500.0]]
