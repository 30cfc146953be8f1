"""Quiet: when times count."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from planner.validate.measure import quiet
from planner.validate.measure.quiet import Load, repeat
from planner.validate.ranks.rank import RankError


@pytest.mark.parametrize(
    ("load", "words"),
    [
        (Load(0.99, 0.0, 2, 2), ""),
        (Load(0.99, None, 2, 2), ""),
        (Load(0.5, 0.0, 2, 2), "cpu/wall is 0.500"),
        (Load(0.99, 1.2, 2, 2), "other processes used 1.2 of 2 cores"),
        (Load(0.5, 0.0, 4, 2), "4 ranks share 2 cores"),
    ],
)
def test_times_count_only_on_quiet_cores(load: Load, words: str) -> None:
    assert words in load.why_not
    assert load.as_dict()["scored"] is not bool(words)
    assert load.crowded == ("ranks share" in words)


def test_a_call_is_repeated_until_its_fast_rounds_agree() -> None:
    # a busy core: two of three rounds wait for others
    rng = np.random.default_rng(1)
    seen: list[float] = []

    def rounds() -> list[float]:
        own = 1e-3 * (1 + 0.03 * rng.random(14))
        waits = 1e-2 * rng.exponential(size=14) * (rng.random(14) < 2 / 3)
        seen.extend(own + waits)
        return list(own + waits)

    measured = repeat(rounds)
    assert 1e-3 < measured.checked().time_s < 1.03e-3 < float(np.median(seen)) / 2


def test_a_call_whose_fastest_times_differ_is_refused() -> None:
    times = (9.0**k for k in range(10_000))
    measured = repeat(lambda: [next(times) for _ in range(3)])
    with pytest.raises(RankError, match=r"differ by .* %, more than 50 %.* idle cores"):
        measured.checked()


def test_busy_seconds_are_those_of_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """User, nice, system, interrupts and stolen time; neither idle nor waiting for disks."""
    ticks = os.sysconf("SC_CLK_TCK")
    line = "cpu  100 20 30 5000 600 7 8 9 0 0\ncpu0 1 2 3\n"
    monkeypatch.setattr(Path, "read_text", lambda *_: line)
    assert quiet._busy_s() == pytest.approx((100 + 20 + 30 + 7 + 8 + 9) / ticks)
    monkeypatch.setattr(Path, "read_text", lambda *_: "no numbers")
    assert quiet._busy_s() is None
