"""Tables: conversion of records to pandas, and CSV of the command line."""

from __future__ import annotations

import builtins
import io
from typing import Any

import pytest

import planner
from planner.errors import PlannerError
from planner.tables import Table

pandas = pytest.importorskip("pandas", reason="no pandas")

_JOB = planner.Workload(global_batch=66, sequence_length=1024)
_RUNS = (
    "system,gpu,n_gpus,model,seq_len,framework,dp,tp,zero_stage,micro_batch,global_batch,"
    "step_time_s\n"
    "Polaris,A100,16,Llama-3-8B,8192,Megatron-LM,4,4,1,1,64,60\n"
    "Polaris,A100,16,nobody-knows,8192,Megatron-LM,4,4,1,1,64,60\n"
)


@pytest.fixture(scope="module")
def answer() -> planner.Plan:
    return planner.plan("gpt2", "polaris", nodes=1, workload=_JOB)


def test_a_frame_of_estimates_is_their_csv(answer: planner.Plan) -> None:
    written = pandas.read_csv(io.StringIO(answer.table("ranked").to_csv()), keep_default_na=False)
    found = answer.to_frame()
    assert len(found) == len(answer.ranked) > 1
    # pandas 2 reads a number to its last digit but one
    pandas.testing.assert_frame_equal(found, written, check_dtype=False, rtol=1e-14)


def test_figures_of_a_frame_are_those_of_the_estimate(answer: planner.Plan) -> None:
    best = answer.best
    assert best is not None
    (row,) = best.to_frame().to_dict("records")
    assert row["framework"] == best.framework
    assert {name: row[name] for name in ("dp", "tp", "micro_batch")} == {
        name: getattr(best.layout, name) for name in ("dp", "tp", "micro_batch")
    }
    times = [row[f"time_{part}_s"] for part in best.step_time_parts_s]
    assert sum(times) == pytest.approx(row["step_time_s"], rel=1e-12)
    memory = [row[f"memory_{part}_bytes"] for part in best.memory_bytes if part != "total"]
    assert sum(memory) == pytest.approx(row["memory_total_bytes"], rel=1e-12)
    assert all(not isinstance(value, (list, dict, tuple)) for value in row.values())
    parts = best.to_frame("parts")
    sums = parts.groupby("figure")["value"].sum()
    assert sums["step time"] == pytest.approx(best.step_time_s)
    assert sums["device memory"] == pytest.approx(best.memory_bytes["total"])
    assert sums["host memory"] == pytest.approx(best.host_memory_bytes["total"])


@pytest.mark.parametrize("number", [2**53 + 1, 2**63 - 1, 2**63, 2**64, -(2**63), -(2**63) - 1])
def test_whole_numbers_beside_a_missing_one_stay_what_they_are(number: int) -> None:
    rows: list[dict[str, Any]] = [{"count": number}, {"count": None}, {"count": 1}, {}]
    found = Table(tuple(rows)).to_frame()["count"]
    held = [None if value is None or value is pandas.NA else int(value) for value in found]
    assert held == [number, None, 1, None]
    assert str(found.dtype) == ("Int64" if -(2**63) <= number < 2**63 else "object")
    assert found.isna().sum() == 2


@pytest.mark.parametrize("table", ["ranked", "strategies", "alternatives", "dropped"])
def test_frames_hold_what_records_hold(answer: planner.Plan, table: Any) -> None:
    frame = answer.to_frame(table)
    for name in frame.columns:
        values = [row.get(name) for row in answer.records(table)]
        assert [None if pandas.isna(value) else value for value in frame[name]] == values, name


def test_tables_of_a_plan_say_what_the_plan_says(answer: planner.Plan) -> None:
    strategies = answer.to_frame("strategies").set_index("strategy")
    assert list(strategies.index) == [verdict.name for verdict in answer.strategies]
    for verdict in answer.strategies:
        row = strategies.loc[verdict.name]
        assert (row["fits"], row["why"]) == (verdict.fits, verdict.why)
        if verdict.estimate is not None:
            assert row["step_time_s"] == verdict.estimate.step_time_s
            assert row["dp"] == verdict.estimate.layout.dp
    # a missing degree must not turn the column into floats
    assert str(strategies["dp"].dtype) == "Int64"
    dropped = answer.to_frame("dropped")
    assert dict(zip(dropped["reason"], dropped["count"], strict=True)) == {
        reason.reason: reason.count for reason in answer.dropped
    }


def test_alternatives_are_rows() -> None:
    answer = planner.plan(
        "gpt2",
        "polaris",
        nodes=3,
        workload=planner.Workload(global_batch=512, sequence_length=1024),
    )
    ways = answer.alternatives
    assert len(ways) > 1
    frame = answer.to_frame("alternatives")
    assert list(frame["global_batch"]) == [way.global_batch for way in ways]
    assert list(frame["step_time_s"]) == [way.estimate.step_time_s for way in ways]


def test_runs_that_were_learned_from_are_rows() -> None:
    from planner.evidence.learning import learn_from_text

    learned = learn_from_text(_RUNS, "runs.csv")
    (row,) = learned.to_frame().to_dict("records")
    assert (row["model"], row["machine"], row["measured_step_time_s"]) == (
        "llama-3-8b",
        "polaris",
        60.0,
    )
    assert row["step_time_error"] == pytest.approx(row["step_time_s"] / 60 - 1)
    assert len(learned.to_frame("refused")) == len(learned.refused) == 1


def test_an_unknown_table_is_said(answer: planner.Plan) -> None:
    with pytest.raises(PlannerError, match="use one of ranked, strategies, alternatives, dropped"):
        answer.to_frame("best")  # type: ignore[arg-type]


def test_a_missing_library_is_said_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.partition(".")[0] == "pandas":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(PlannerError, match=r"run pip install pandas$"):
        Table(({"a": 1},)).to_frame()


def test_rows_that_differ_share_their_columns() -> None:
    found = Table(({"a": 1}, {"a": None, "b": 0.5, "c": True}, {"c": None})).to_frame()
    assert list(found.columns) == ["a", "b", "c"]
    assert [str(found[name].dtype) for name in "abc"] == ["Int64", "float64", "boolean"]
    assert Table(()).to_frame().empty
