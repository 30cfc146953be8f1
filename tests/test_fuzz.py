"""Fuzz: malformed input ends in an answer or in one sentence; cases of `benchmarks/fuzz.py`."""

from __future__ import annotations

import importlib
import random
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("streamlit")

from planner.errors import PlannerError

ROOT = Path(__file__).parent.parent
KINDS = (
    *("layouts", "keywords", "jobs", "models", "machines", "frameworks", "datasets", "configs"),
    *("deepspeed", "accelerate", "torchtitan", "megatron", "other-configurations", "scripts"),
    *("logs", "tables", "profiles", "runs", "calibrations", "collectives", "links", "comparisons"),
    *("sweeps", "addresses", "commands", "questions", "plans", "answers", "settings"),
    "preferences",
)
CASES = 20

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="limits of a process are POSIX's")


@pytest.fixture
def fuzz(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Import the module `fuzz` from benchmarks."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("fuzz")


def test_every_reader_is_tried(fuzz: Any) -> None:
    assert set(KINDS) == set(fuzz.READERS) == set(fuzz.ABOUT)


@pytest.mark.slow
@pytest.mark.parametrize("reader", KINDS)
def test_unchanged_inputs_are_accepted(fuzz: Any, reader: str) -> None:
    assert fuzz.READERS[reader].bases()
    assert fuzz.refused_bases(reader) == []


@pytest.mark.slow
@pytest.mark.parametrize("reader", KINDS)
def test_odd_input_is_answered_or_refused(fuzz: Any, reader: str) -> None:
    results = list(fuzz.run_cases(reader, range(CASES)))
    assert [result.number for result in results] == list(range(CASES))
    assert [result for result in results if result.outcome in fuzz.WRONG] == []
    assert "answer" in {result.outcome for result in results}


def test_what_is_wrong_is_seen(fuzz: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Detects tracebacks, figures that are not finite, refusals without a remedy, and hangs."""
    finite = importlib.import_module("fuzzing.checks").check_finite

    def broken(rng: random.Random, folder: Path) -> None:
        how = rng.randrange(5)
        if how == 0:
            raise KeyError("x")
        if how == 1:
            finite({"a": [float("nan")]})
        if how == 2:
            raise PlannerError("this is wrong")
        if how == 3:
            while True:
                pass
        raise PlannerError("two\nlines; mend it")

    monkeypatch.setitem(fuzz.READERS, "broken", SimpleNamespace(case=broken))
    monkeypatch.setattr(fuzz, "SECONDS", 0.1)
    # a refusal escapes its line breaks
    ends = {0: "traceback", 1: "odd", 2: "odd", 3: "hang", 4: "refusal"}
    for how, outcome in ends.items():
        number = next(n for n in range(99) if random.Random(f"broken:{n}").randrange(5) == how)
        [result] = fuzz.run_cases("broken", range(number, number + 1))
        assert result.outcome == outcome


def test_parts_that_do_not_add_up_are_seen(fuzz: Any) -> None:
    import dataclasses

    import planner

    checks = importlib.import_module("fuzzing.checks")
    workload = planner.Workload(sequence_length=1024, global_batch=4)
    right = planner.estimate("gpt2", "polaris", planner.Layout(dp=4), workload=workload)
    checks.check_estimate(right)
    low, high = right.interval_step_time_s
    for wrong in (
        {"step_time_s": right.step_time_s * 1.01},
        {"memory_bytes": {**right.memory_bytes, "weights": -1.0}},
        {"interval_step_time_s": (right.step_time_s * 1.01, high)},
        {"interval_step_time_s": (low, float("inf"))},
    ):
        with pytest.raises(checks.Odd):
            checks.check_estimate(dataclasses.replace(right, **wrong))
