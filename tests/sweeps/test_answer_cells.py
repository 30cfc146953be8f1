"""Rows say what the planner says to the same question; what it refuses is a row, too."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import planner
from planner.describe.layout import Layout
from planner.describe.workload import Workload
from planner.errors import PlannerError
from planner.sweeps import answer_cells as answers
from planner.sweeps.columns import columns
from planner.sweeps.definition import define_sweep
from planner.sweeps.questions import NAMED, list_questions, make_tasks
from planner.units import format_bytes
from tests.sweeps.samples import FEW

SHORT = {"sequence_length": 1024, "global_batch": 64}
PLANS = {
    "models": ["gpt2", "llama-3-8b"],
    "machines": ["polaris"],
    "sets": [[], ["device.memory_bytes=80GB"]],
    "nodes": [1, 2],
    "frameworks": ["ddp", ["ddp", "fsdp2"]],
    "workload": {**SHORT, "tokens": 1e9},
}


def swept(**asked: Any) -> planner.Swept:
    return planner.sweep(backend="sequential", **asked)


def of_types(found: planner.Swept, kind: Any, stated: set[str]) -> Iterator[str]:
    """Cells that are not of the type of their column."""
    types = columns(kind, {*NAMED, *stated})
    assert tuple(types) == found.columns
    for row in found.rows:
        assert tuple(row) == found.columns
        yield from (name for name, value in row.items() if type(value) not in
                    (types[name], type(None)))  # fmt: skip


def test_estimates_are_those_of_the_planner() -> None:
    found = swept(**FEW)
    assert len(found.rows) == 8
    assert not list(of_types(found, "estimate", set()))
    for row in found.rows:
        layout = Layout(
            dp=row["nodes"] * 4 // row["tp"],
            tp=row["tp"],
            zero_stage=row["zero_stage"],
            grad_accumulation=64 // (row["nodes"] * 4 // row["tp"]),
        )
        job = Workload(sequence_length=4096, global_batch=64)
        one = planner.estimate("llama-3-8b", "polaris", layout, workload=job)
        assert one.record().items() <= row.items()
        assert row["layout"] == str(layout)
        assert row["num_devices"] == layout.world
        # of a thousand steps, as no tokens are asked
        assert row["node_hours"] == pytest.approx(row["nodes"] * one.step_time_s / 3.6)


@pytest.mark.slow
def test_plans_are_those_of_the_planner() -> None:
    found = swept(**PLANS)
    assert len(found.rows) == 16
    assert not list(of_types(found, "plan", {"tokens"}))
    job = Workload(**SHORT, tokens=1e9)
    assert {row["fits"] for row in found.rows} == {True, False}
    for row in found.rows:
        machine = planner.load_machine("polaris", tuple(row["set"].split()))
        names = row["asked_frameworks"].split()
        one = planner.plan(
            row["model"], machine, nodes=row["nodes"], workload=job, frameworks=names
        )
        assert (row["fits"], row["num_candidates"]) == (one.fits, one.num_candidates)
        assert (row["enough_nodes"], row["error"]) == (one.enough_nodes, None)
        if one.recommended is None or one.best is None:
            assert (row["layout"], row["fastest_layout"], row["node_hours"]) == (None, None, None)
            continue
        assert one.recommended.record().items() <= row.items()
        fastest = one.best.record()
        for name in ("framework", "dp", "step_time_s", "mfu", "memory_total_bytes"):
            assert row[f"fastest_{name}"] == fastest[name]
        assert row["node_hours"] == one.node_hours(one.recommended)


@pytest.mark.slow
def test_a_plan_of_the_nearest_batch_says_so() -> None:
    job = {"sequence_length": 4096, "global_batch": 509}
    [row] = swept(models="llama-3-8b", machines="polaris", nodes=8, workload=job).rows
    answer = planner.plan("llama-3-8b", "polaris", nodes=8, workload=Workload(**job))
    assert (row["global_batch"], row["answered_batch"]) == (509, answer.workload.global_batch)


def test_what_cannot_be_answered_is_a_row_with_the_reason() -> None:
    found = swept(
        models=["gpt2", "llama-3-8b", "resnet-50"],
        machines="polaris",
        nodes=[1, 9999],
        kind="estimate",
        workload={"sequence_length": 2048, "global_batch": 64},
        layout={"tp": [1, 3], "zero_stage": 3},
    )
    assert found.num_questions == found.num_asked == len(found.rows) == 12
    reasons = {(row["model"], row["nodes"], row["asked_layout"].split()[0]): row["error"]
               for row in found.rows}  # fmt: skip
    assert "exceeds the 1024 learned positions" in reasons["gpt2", 1, "tp=1"]
    assert reasons["llama-3-8b", 1, "tp=1"] is None
    assert "does not divide the 4 devices" in reasons["llama-3-8b", 1, "tp=3"]
    assert "exceeds the 560 nodes of polaris" in reasons["llama-3-8b", 9999, "tp=1"]
    assert "trains on samples, not sequences" in reasons["resnet-50", 1, "tp=1"]
    assert all(row["fits"] is False for row in found.rows if row["error"])
    assert found.num_refused == sum(reason is not None for reason in reasons.values())
    assert all("\n" not in reason for reason in reasons.values() if reason)


@pytest.mark.slow
def test_a_plan_that_does_not_fit_says_what_is_in_the_way() -> None:
    found = swept(
        models="llama-3-8b",
        machines=["aurora", "polaris"],
        frameworks=[[], "ddp"],
        nodes=1,
        rows=[{"machines": "aurora", "nodes": 700, "workload": {"global_batch": 96}}, {}],
        workload={"sequence_length": 4096},
        exact=True,
    )
    assert not list(of_types(found, "plan", set()))
    illegal, alone, fits, short = (
        next(row for row in found.rows if [row[c] for c in ("nodes", "asked_frameworks")] == where
             and (row["machine"] == machine))
        for where, machine in (
            ([700, ""], "aurora"), ([700, "ddp"], "aurora"),
            ([1, ""], "polaris"), ([1, "ddp"], "polaris"),
        )
    )  # fmt: skip
    assert (illegal["fits"], illegal["num_candidates"], illegal["error"]) == (False, 0, None)
    for row in (illegal, alone):
        assert "global batch 96 is less than dp = 8400" in row["why"]
    job = Workload(sequence_length=4096, global_batch=96)
    answer = planner.plan("llama-3-8b", "aurora", nodes=700, workload=job, exact=True)
    assert answer.why == illegal["why"]
    # not to the letter, fewer nodes do the job
    [row] = swept(
        models="llama-3-8b",
        machines="aurora",
        nodes=700,
        workload={"global_batch": 96, "sequence_length": 4096},
    ).rows
    assert row["fits"]
    assert row["answered_nodes"] < 100
    assert row["advice"].startswith(f"Use {row['answered_nodes']} of the 700 nodes")
    assert (fits["fits"], fits["why"]) == (True, None)
    assert (short["fits"], short["error"]) == (False, None)
    assert short["num_candidates"] > 0
    assert short["why"].startswith("closest is DDP, dp4 zero0")
    assert "more than the device has" in short["why"]


def test_a_layout_that_does_not_fit_says_how_much_is_too_much() -> None:
    for row in swept(**FEW).rows:
        if row["fits"]:
            assert row["why"] is None
        else:
            assert row["error"] is None
            room = planner.load_machine("polaris").device.memory_bytes.value
            over = format_bytes(row["memory_total_bytes"] - room)
            assert row["why"] == f"{over} too much per device on stage 0"


@pytest.mark.parametrize("kind", ["plan", "estimate"])
def test_no_nodes_are_refused_and_are_not_one(kind: str) -> None:
    """A row that says 0 nodes would else hold the answer for one."""
    job = {"sequence_length": 1024, "global_batch": 64}
    rows = swept(models="gpt2", machines="polaris", kind=kind, nodes=[0, 1], workload=job).rows
    assert [row["nodes"] for row in rows] == [0, 1]
    assert "nodes = 0 must be at least 1" in rows[0]["error"]
    assert (rows[0]["fits"], rows[1]["fits"]) == (False, True)


def test_fields_that_contradict_each_other_are_rows() -> None:
    found = swept(models="llama-3-8b", machines="polaris", kind="estimate", layout={"dp": 4},
                  workload={"lora_rank": [0, 8], "base_format": ["computed", "nf4"]})  # fmt: skip
    refused = {(r["lora_rank"], r["base_format"]) for r in found.rows if r["error"]}
    assert refused == {(0, "nf4")}


def test_a_layout_of_two_frameworks_is_refused() -> None:
    found = swept(**FEW, frameworks=[["ddp", "fsdp2"]])
    assert {row["error"] for row in found.rows} == {
        "a layout needs one framework, not 2; give each alone"
    }


def test_a_fault_is_a_row_and_the_others_are_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = answers.estimate_jobs

    def faulty(jobs: Any) -> Any:
        if any(layout.tp == 4 for _, layout in jobs):
            raise ZeroDivisionError("division by zero")
        return asked(jobs)

    monkeypatch.setattr(answers, "estimate_jobs", faulty)
    found = swept(**FEW)
    assert [row["error"] is not None for row in found.rows] == [
        "tp=4" in row["asked_layout"] for row in found.rows
    ]
    assert "a fault of the planner (ZeroDivisionError: division by zero)" in (
        next(row["error"] for row in found.rows if row["error"])
    )


def test_what_a_worker_lacks_is_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr(answers, "estimate_jobs", full)
    table = tmp_path / "results.csv"
    with pytest.raises(PlannerError, match=r"the backend sequential failed \(MemoryError\)"):
        swept(**FEW, into=table)
    monkeypatch.undo()
    assert swept(**FEW, into=table).num_asked == 8


VARIED: dict[str, Any] = {
    "kind": "estimate",
    "models": ["gpt2", "mixtral-8x7b"],
    "machines": ["polaris"],
    "sets": [[], ["device.memory_bytes=80GB"]],
    "workload": {"sequence_length": 1024},
    "rows": [
        # the batch follows from the layout; ramps are checked job by job
        {"layout": {"dp": [4, 8], "grad_accumulation": [1, 3], "zero_stage": [0, 2, 3]}},
        {"workload": {"ramp": "1B:8", "tokens": 2e9}, "layout": {"dp": 8, "micro_batch": [1, 2]}},
        # the micro-batch is open; 24 is not a multiple of 16
        {"nodes": [2, 4], "workload": {"global_batch": [24, 64]}, "layout": {"zero_stage": [1, 3]}},
        {"frameworks": ["megatron-lm", ["ddp", "fsdp2"]], "nodes": [2, 999],
         "layout": {"tp": [2, 3], "pp": [1, 2], "ep": [1, 2], "grad_accumulation": 4}},
    ],
}  # fmt: skip
"""Layouts of several frameworks, stated and open batches, and questions that are refused."""


@pytest.mark.slow
def test_questions_of_a_task_are_answered_as_each_alone() -> None:
    found = list_questions(define_sweep(VARIED))
    tasks = make_tasks(found, found.questions)
    every = dataclasses.replace(
        tasks[0], questions=found.questions, descriptions=found.descriptions
    )
    together = {key: answer for key, *answer in answers.answer_task(every)}
    singly = {
        key: answer
        for task in tasks
        for question in task.questions
        for key, *answer in answers.answer_task(dataclasses.replace(task, questions=(question,)))
    }
    assert together == singly
    alone = {key: answers.cells_of(found.kind, cells) for key, (cells, _) in singly.items()}
    assert len(alone) == len(found.questions) > 100
    refused = [cells["error"] for cells in alone.values() if "error" in cells]
    assert len(refused) == sum(is_refused for _, is_refused in singly.values())
    assert 10 < len(refused) < len(alone) - 40
    assert len({cells.get("framework") for cells in alone.values()}) >= 4


def test_a_worker_of_other_code_answers_nothing() -> None:
    found = list_questions(define_sweep(FEW))
    task = dataclasses.replace(make_tasks(found, found.questions)[0], fingerprint="0" * 32)
    with pytest.raises(PlannerError, match="runs a different planner version; install"):
        answers.answer_task(task)


def test_a_task_travels_as_data() -> None:
    """A worker has neither the asker's files nor its objects: what it gets is text."""
    found = list_questions(define_sweep(FEW))
    task = make_tasks(found, found.questions)[0]
    plain = json.loads(json.dumps(dataclasses.asdict(task)))
    asked = [
        answers.Question(**{**q, "frameworks": tuple(q["frameworks"])})
        for q in plain.pop("questions")
    ]
    assert answers.answer_task(
        answers.Task(**plain, questions=tuple(asked))
    ) == answers.answer_task(task)


def test_rows_are_equal_to_other_sequences_of_the_same_rows() -> None:
    found = swept(**{**FEW, "nodes": 1})
    rows = [*found.rows]
    assert found.rows == rows
    assert found.rows == tuple(rows)
    assert found.rows != rows[1:]
    assert found.rows != 4
    assert found.rows[1:3] == tuple(rows[1:3])
