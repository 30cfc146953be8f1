"""Reports of measured collectives: rows that are refused are named, the first ten of them."""

from __future__ import annotations

import pytest

from planner.evidence.nccl_tests import score
from planner.show.reports.collective_report import score_text


@pytest.mark.parametrize("count", [0, 1, 10, 11, 13])
def test_ten_refused_rows_are_named_and_the_others_counted(count: int) -> None:
    lines = score_text(score([]), [f"row {n}" for n in range(count)]).splitlines()
    assert lines[:10] == [f"refused: row {n}" for n in range(min(count, 10))]
    more = {11: ["refused: 1 further row"], 13: ["refused: 3 further rows"]}
    assert lines[10:] == more.get(count, [])
