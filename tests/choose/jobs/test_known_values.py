"""Known values of functions of `planner.choose.jobs`."""

from __future__ import annotations

from planner.choose.jobs.neighbours import uneven


def test_uneven() -> None:
    assert (uneven(60, 1024), uneven(56, 1024), uneven(64, 1024)) == (15, 7, 1)
