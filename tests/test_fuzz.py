"""Fuzz: malformed input ends in an answer or in one sentence; cases of `benchmarks/fuzz.py`."""

from __future__ import annotations

import importlib
import random
import sys
from pathlib import Path
from typing import Any

import pytest

from planner.errors import PlannerError

ROOT = Path(__file__).parent.parent
KINDS = (
    *("layouts", "catalogue", "configs", "runs", "nccl-tests", "logs", "commands"),
    *("profiles", "sweeps", "configurations"),
)
CASES = 40

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="limits of a process are POSIX's")


@pytest.fixture
def fuzz(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Import the module `fuzz` from benchmarks."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("fuzz")


def test_every_kind_is_tried(fuzz: Any) -> None:
    assert set(KINDS) == set(fuzz.KINDS)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_odd_input_is_answered_or_refused(fuzz: Any, kind: str) -> None:
    results = list(fuzz.run_cases(kind, range(CASES)))
    assert [result.number for result in results] == list(range(CASES))
    assert [result for result in results if result.outcome in fuzz.WRONG] == []
    assert "answer" in {result.outcome for result in results}


def test_what_is_wrong_is_seen(fuzz: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Detects tracebacks, figures that are not finite, messages of several lines, and hangs."""

    def broken(rng: random.Random, folder: Path) -> None:
        how = rng.randrange(5)
        if how == 0:
            raise KeyError("x")
        if how == 1:
            fuzz.KINDS["finite"](float("nan"))
        if how == 2:
            raise PlannerError("two\nlines")
        if how == 3:
            while True:
                pass
        raise PlannerError("one sentence")

    monkeypatch.setitem(fuzz.KINDS, "broken", broken)
    finite = importlib.import_module("fuzz_inputs").check_finite
    monkeypatch.setitem(fuzz.KINDS, "finite", lambda value: finite({"a": [value]}))
    monkeypatch.setattr(fuzz, "SECONDS", 0.1)
    ends = {"traceback": 0, "odd": 1, "hang": 3, "refusal": 4}
    for outcome, how in ends.items():
        number = next(n for n in range(99) if random.Random(f"broken:{n}").randrange(5) == how)
        [result] = fuzz.run_cases("broken", range(number, number + 1))
        assert result.outcome == outcome
    # a refusal escapes its line breaks
    number = next(n for n in range(99) if random.Random(f"broken:{n}").randrange(5) == 2)
    assert fuzz.run_case("broken", number, tmp_path).outcome == "refusal"
