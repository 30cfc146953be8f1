"""What questions choose among their rows, and the reasons they give, against plans one by one."""

from __future__ import annotations

import re

import pytest

import planner
from planner import Workload, ask
from planner.choose.plan import Plan
from planner.choose.preferences import preferences
from planner.cost.parts import part
from planner.units import format_seconds
from tests.ask.jobs import SHORT

RISK = preferences().risk


def rate(plan: Plan) -> float:
    """Tokens per second of what is recommended, where that is safe."""
    one = plan.recommended
    return one.tokens_per_s if one and one.out_of_memory_probability <= RISK else 0.0


@pytest.mark.slow
def test_the_best_batch_is_the_nearest_of_those_that_are_fast_enough() -> None:
    job = Workload(sequence_length=4096, global_batch=100)
    best = {}
    for tolerance in (0.0, 0.5):
        answer = ask.batch("llama-3.2-1b", "aurora", workload=job, tolerance=tolerance)
        rates = {
            size: rate(
                planner.plan(
                    "llama-3.2-1b",
                    "aurora",
                    nodes=1,
                    workload=job.replaced(global_batch=size),
                    tolerance=tolerance,
                    exact=True,
                )
            )
            for size in (row["global_batch"] for row in answer.rows)
        }
        enough = max(rates.values()) / (1 + tolerance)
        fast = [size for size, each in rates.items() if each >= enough]
        best[tolerance] = min(fast, key=lambda size: (abs(size - 100), size))
        assert answer.asked["best"] == best[tolerance]
    assert best[0.0] != best[0.5]


@pytest.mark.slow
def test_one_node_has_its_share_of_the_batch() -> None:
    job = Workload(sequence_length=1024, global_batch=96)
    answer = ask.network("gpt2-xl", "polaris", nodes=3, workload=job)
    [alone] = [row for row in answer.rows if row["what"] == "one node"]
    share = job.replaced(global_batch=32)
    one = planner.plan("gpt2-xl", "polaris", nodes=1, workload=share).recommended
    assert one is not None
    assert alone["layout"] == str(one.layout)
    assert alone["tokens_per_s_per_device"] == pytest.approx(one.tokens_per_s / 4)


@pytest.mark.slow
def test_the_longest_sequence_as_one_would_run_it_is_run_so() -> None:
    job = Workload(sequence_length=4096, global_batch=16)
    answer = ask.sequence("llama-3-8b", "polaris", nodes=2, workload=job)
    found = answer.asked["longest"]
    assert found["sensible"] < found["safe"]
    for name, is_odd in (("sensible", False), ("safe", True)):
        [row] = [row for row in answer.rows if row["sequence_length"] == found[name]]
        assert row["out_of_memory_probability"] <= RISK
        assert ("offload" in row["layout"] or "tp8" in row["layout"]) == is_odd


@pytest.mark.slow
def test_a_change_of_the_batch_is_compared_by_the_token() -> None:
    answer = ask.change("llama-3.2-1b", "polaris", nodes=2, workload=SHORT, frameworks="fsdp2")
    [row] = [row for row in answer.rows if row["change"] == "a batch of 128"]
    now, then = (
        planner.plan(
            "llama-3.2-1b",
            "polaris",
            nodes=2,
            workload=SHORT.replaced(global_batch=batch),
            frameworks="fsdp2",
        ).recommended
        for batch in (64, 128)
    )
    assert now is not None
    assert then is not None
    saved = {
        name: seconds - then.step_time_parts_s[name] / 2
        for name, seconds in now.step_time_parts_s.items()
    }
    # what takes most from a faster step, or adds most to a slower one
    sign = 1 if sum(saved.values()) > 0 else -1
    name = max(saved, key=lambda each: sign * saved[each])
    before, after = now.step_time_parts_s[name], then.step_time_parts_s[name] / 2
    assert row["reason"] == (
        f"{part(name).label} {format_seconds(before)} -> {format_seconds(after)} for as many tokens"
    )


def test_machines_whose_intervals_overlap_are_said_to() -> None:
    said = {}
    for other in ("vsc-5", "dgx-h100"):
        answer = ask.machine("gpt2", "polaris", against=(other,), nodes=2, workload=SHORT)
        best, second = answer.rows
        said[other] = "90 % intervals overlap" in answer.verdict
        assert said[other] == (second["days_low"] < best["days_high"])
    assert set(said.values()) == {True, False}


def test_a_pass_of_a_pipeline_has_a_micro_batch_for_every_stage() -> None:
    job = Workload(sequence_length=2048, global_batch=64)
    answer = ask.largest_batch("llama-2-13b", "polaris", nodes=2, workload=job)
    degrees = {
        axis: int(found[1])
        for axis in ("dp", "pp")
        if (found := re.search(rf"\b{axis}(\d+)", answer.rows[0]["layout"]))
    }
    assert degrees["pp"] > 1
    for row in answer.rows:
        assert row["global_batch"] == row["micro_batch"] * degrees["dp"] * degrees["pp"]
