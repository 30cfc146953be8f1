"""Collectives on real ranks: results are checked, times fitted."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.describe.catalogue import load_machine
from planner.evidence.nccl_tests import read_measured
from planner.validate.ranks.rank import RankError

pytestmark = pytest.mark.filterwarnings("ignore")
pytest.importorskip("torch", exc_type=ImportError)


@pytest.mark.alone
def test_collectives_are_checked_and_fitted(tmp_path: Path) -> None:
    from planner.validate.measure.collective_times import (
        OPERATIONS,
        collectives_csv,
        collectives_text,
        measure_collectives,
    )

    result = measure_collectives(2, sizes=(4096, 262144), limit_s=300)
    assert result is not None
    assert {row["name"] for row in result["rows"]} == set(OPERATIONS)
    assert all(row["time_s"] > 0 for row in result["rows"])
    assert "bus GB/s" in collectives_text(result)
    # what is measured is read back, on this one host
    (tmp_path / "own.csv").write_text(collectives_csv(result))
    rows, refused = read_measured(tmp_path / "own.csv", load_machine("polaris"))
    assert not refused
    assert {row.nodes for row in rows} == {1}
    assert {row.operation for row in rows} >= {"all_reduce", "all_gather", "reduce_scatter"}
    with pytest.raises(RankError, match="2 or more ranks"):
        measure_collectives(1)
