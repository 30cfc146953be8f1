"""The residuals that are shipped: whole, and the same totals as the report of this version."""

from __future__ import annotations

import re

import pytest

from benchmarks.residual_table import read_table
from planner.cost.scenario.prior import MEMORY_CLASSES, memory_classes
from planner.evidence.residuals import residuals, summary
from tests import ROOT


def test_totals_are_those_of_the_report() -> None:
    report = (ROOT / "docs" / "reference" / "accuracy.md").read_text(encoding="utf-8")
    said = re.search(r"no fit has seen: (\d+), MAPE ([\d.]+) %, median ([\d.]+) %", report)
    assert said is not None
    found = summary([row for row in residuals() if not row.seen])
    assert found is not None
    assert found.num_runs == int(said[1])
    # the report's last digit, and the four digits of a ratio
    assert 100 * found.mape == pytest.approx(float(said[2]), abs=0.1)
    assert 100 * found.median == pytest.approx(float(said[3]), abs=0.1)


def test_rows_are_ratios_with_traits() -> None:
    rows = read_table()
    assert len({(row.source, row.row) for row in rows}) == len(rows)
    for row in rows:
        assert len(row.traits) == 1
        assert row.traits.shares.sum() == pytest.approx(1, abs=2e-3)
        assert row.step_time or row.memory
        assert all(0.01 < ratio < 100 for ratio in (row.step_time, row.memory) if ratio)
        assert bool(row.memory) is bool(row.memory_kind)


def test_memory_intervals_stand_on_rows_of_whole_devices() -> None:
    measured = [row for row in read_table() if row.memory_kind in ("reserved", "device")]
    unseen = [row for row in measured if not row.guessed]
    assert set(memory_classes()) == {*MEMORY_CLASSES, "unknown blocks"}
    for found in memory_classes().values():
        assert found.low < 1 < found.high
        assert found.num_runs <= len(unseen)
    assert sum(found.num_runs for found in memory_classes().values()) <= len(unseen)
