"""A trace: valid Trace Event JSON, whose slices are the events."""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import pairwise
from typing import Any

import pytest

import planner
from planner.choose.simulation.step_simulation import Simulation
from planner.describe.layout import Layout
from planner.describe.workload import Workload

LAYOUTS = {
    "megatron-lm": Layout(
        pp=4, tp=4, dp=2, vpp=2, grad_accumulation=8, zero_stage=1, schedule="interleaved-1f1b"
    ),
    "fsdp2": Layout(pp=2, vpp=2, dp=4, grad_accumulation=6, zero_stage=2, schedule="dualpipe-v"),
    "deepspeed": Layout(dp=4, grad_accumulation=3, zero_stage=3, offload="all-cpu"),
}
"""Layouts with every stream among them."""


@pytest.fixture(scope="module", params=LAYOUTS)
def step(request: pytest.FixtureRequest) -> Simulation:
    layout = LAYOUTS[request.param]
    job = Workload(global_batch=layout.global_batch, sequence_length=2048)
    return planner.simulate("llama-3-8b", "polaris", layout, workload=job, framework=request.param)


@pytest.fixture(scope="module")
def records(step: Simulation) -> list[dict[str, Any]]:
    # through text, as a reader sees it
    trace = json.loads(json.dumps(step.to_trace(), allow_nan=False))
    assert set(trace) == {"traceEvents", "displayTimeUnit"}
    found: list[dict[str, Any]] = trace["traceEvents"]
    return found


def test_records_have_what_their_phase_asks_for(records: list[dict[str, Any]]) -> None:
    needed = {
        "X": {"name", "cat", "pid", "tid", "ts", "dur", "args"},
        "M": {"name", "pid", "tid", "args"},
        "C": {"name", "pid", "ts", "args"},
        "s": {"name", "cat", "id", "pid", "tid", "ts"},
        "f": {"name", "cat", "id", "pid", "tid", "ts", "bp"},
    }
    for record in records:
        assert needed[record["ph"]] <= set(record)
        assert record.get("ts", 0) >= 0
        assert record.get("dur", 1) > 0
    times = [record["ts"] for record in records if "ts" in record]
    assert times == sorted(times)


def test_slices_of_a_thread_do_not_overlap(records: list[dict[str, Any]]) -> None:
    threads = defaultdict(list)
    for record in records:
        if record["ph"] == "X":
            threads[record["pid"], record["tid"]].append(record)
    named = {(r["pid"], r["tid"]) for r in records if r["name"] == "thread_name"}
    assert set(threads) <= named
    for slices in threads.values():
        for one, other in pairwise(sorted(slices, key=lambda record: record["ts"])):
            assert one["ts"] + one["dur"] <= other["ts"] + 1e-6, (one, other)


def test_slices_are_the_events_in_microseconds(
    step: Simulation, records: list[dict[str, Any]]
) -> None:
    slices = [r for r in records if r["ph"] == "X" and r["pid"] > 0]
    drawn = [event for event in step.events if event.duration_s > 1e-9]
    assert len(slices) == pytest.approx(len(drawn), abs=2)
    total = sum(record["dur"] for record in slices)
    assert total == pytest.approx(1e6 * sum(e.duration_s for e in drawn), rel=1e-6)
    end = max(record["ts"] + record["dur"] for record in slices)
    assert end == pytest.approx(1e6 * step.makespan_s, abs=2e-3)
    path = [r for r in records if r["ph"] == "X" and r["pid"] == 0]
    assert sum(r["dur"] for r in path) == pytest.approx(1e6 * step.makespan_s, rel=1e-6)


def test_arrows_leave_what_is_sent_and_end_where_it_is_awaited(
    records: list[dict[str, Any]],
) -> None:
    begun = {r["id"]: r for r in records if r["ph"] == "s"}
    ended = {r["id"]: r for r in records if r["ph"] == "f"}
    assert set(begun) == set(ended)
    slices = {(r["pid"], r["tid"], r["ts"]) for r in records if r["ph"] == "X"}
    for number, start in begun.items():
        end = ended[number]
        assert start["pid"] != end["pid"]
        assert start["ts"] <= end["ts"]
        for record in (start, end):
            assert (record["pid"], record["tid"], record["ts"]) in slices


def test_memory_is_a_counter_of_every_stage(
    step: Simulation, records: list[dict[str, Any]]
) -> None:
    for stage, held in enumerate(step.memory):
        counts = [r["args"] for r in records if r["ph"] == "C" and r["pid"] == stage + 1]
        assert max(c["activations"] for c in counts) == max(held.activations_bytes)
        assert {c["states"] for c in counts} == {held.states_bytes}
        assert counts[-1]["activations"] == 0


@pytest.mark.parametrize(("dp", "others"), [(1, ""), (2, " and 1 more")])
def test_a_stage_is_named_by_its_first_rank_and_how_many_others(dp: int, others: str) -> None:
    layout = Layout(dp=dp, pp=2, grad_accumulation=2, schedule="gpipe")
    job = Workload(global_batch=layout.global_batch, sequence_length=1024)
    names = ("gpt2", "polaris", layout)
    trace = planner.simulate(*names, workload=job, framework="fsdp2").to_trace()
    named = {r["args"]["name"] for r in trace["traceEvents"] if r["name"] == "process_name"}
    assert {f"stage {stage}: rank {dp * stage}{others}" for stage in range(2)} <= named
