"""Quiet: when times count."""

from __future__ import annotations

import pytest

from planner.validate.measure.quiet import Disturbance, Load


@pytest.mark.parametrize(
    ("load", "disturbance", "words"),
    [
        (Load(0.99, 0.0, 2, 2), None, ""),
        (Load(0.99, None, 2, 2), None, ""),
        (Load(0.5, 0.0, 2, 2), Disturbance.SHARED, "cpu/wall is 0.500"),
        (Load(0.99, 1.2, 2, 2), Disturbance.NEIGHBOURS, "other processes used 1.2 of 2 cores"),
        (Load(0.5, 0.0, 4, 2), Disturbance.CROWDED, "4 ranks share 2 cores"),
    ],
)
def test_times_count_only_on_quiet_cores(
    load: Load, disturbance: Disturbance | None, words: str
) -> None:
    assert load.disturbance is disturbance
    assert words in load.why_not
    assert load.scored is not bool(words)
