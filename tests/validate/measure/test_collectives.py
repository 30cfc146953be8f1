"""Collectives on real ranks: results are checked, times fitted."""

from __future__ import annotations

import pytest

from planner.validate.ranks.rank import RankError

pytestmark = pytest.mark.filterwarnings("ignore")
pytest.importorskip("torch", exc_type=ImportError)


@pytest.mark.alone
def test_collectives_are_checked_and_fitted() -> None:
    from planner.validate.measure.collectives import (
        OPERATIONS,
        collectives_text,
        measure_collectives,
    )

    result = measure_collectives(2, sizes=(4096, 262144))
    assert result is not None
    assert {row["name"] for row in result["rows"]} == set(OPERATIONS)
    assert all(row["time_s"] > 0 for row in result["rows"])
    assert all(fit["mape"] >= 0 for fit in result["fits"])
    assert "bus GB/s" in collectives_text(result)
    with pytest.raises(RankError, match="2 or more ranks"):
        measure_collectives(1)
