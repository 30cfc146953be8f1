"""Reports: refused rows of measured collectives, and what is odd about measured runs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from planner.evidence.nccl_tests import score
from planner.show.measured_runs import lessons
from planner.show.reports.collective_report import score_text


@pytest.mark.parametrize("count", [0, 1, 10, 11, 13])
def test_ten_refused_rows_are_named_and_the_others_counted(count: int) -> None:
    lines = score_text(score([]), [f"row {n}" for n in range(count)]).splitlines()
    assert lines[:10] == [f"refused: row {n}" for n in range(min(count, 10))]
    more = {11: ["refused: 1 further row"], 13: ["refused: 3 further rows"]}
    assert lines[10:] == more.get(count, [])


@pytest.mark.parametrize(("odd", "is_said"), [(0.5, False), (0.51, True)])
def test_an_odd_site_is_told_with_three_assumptions(odd: float, is_said: bool) -> None:
    runs = [SimpleNamespace(assumed=words) for words in (["a", "b"], ["b", "c"], ["d"])]
    learned: Any = SimpleNamespace(
        odd_runs={"one": 0.4, "two": 0.8},
        odd_site=odd,
        scores=[SimpleNamespace(run=run) for run in runs],
        refused=[],
    )
    nothing: Any = SimpleNamespace(step_time=None, memory=None)
    run, *site = lessons(learned, nothing)
    assert run.startswith("Run two deviates from the others (80 % probability)")
    assert [line.endswith("and what was assumed (a; b; c).") for line in site] == [True] * is_said
