"""Start-up and checkpoints, against formulas asked one by one."""

from __future__ import annotations

from typing import Any

import pytest

import planner
from planner import Workload, ask
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.describe.catalogue import load_framework, load_machine, load_model
from planner.describe.layout import Layout
from planner.describe.training.training_run import Checkpoints, Failures, StartUp
from planner.errors import LayoutError
from planner.training.resilience.checkpoints import checkpoint_of
from planner.training.resilience.failures import mean_time_between_failures_s, training_losses
from planner.training.resilience.start import restart_s, start_up
from planner.units import format_seconds
from tests.ask.jobs import SHORT

JOB = Workload(sequence_length=2048, global_batch=64, tokens=2e9)
MODEL, MACHINE = "llama-2-7b", "polaris"


def recommended(nodes: int, **more: Any) -> tuple[Scenario, Layout]:
    plan = planner.plan(MODEL, MACHINE, nodes=nodes, workload=JOB, **more)
    one = plan.recommended
    assert one is not None
    framework = load_framework(one.framework)
    scenario = Scenario(load_model(MODEL), load_machine(MACHINE), JOB, framework)
    return scenario, one.layout


@pytest.mark.slow
def test_rows_of_checkpoints_are_the_formulas() -> None:
    answer = ask.checkpoints(MODEL, MACHINE, nodes=4, workload=JOB)
    scenario, layout = recommended(4)
    layouts = Layouts.of(layout)
    rows = {row["way"]: row for row in answer.rows}
    ways = {
        "eagle": Checkpoints(file_system="eagle"),
        "eagle, asynchronous": Checkpoints(file_system="eagle", asynchronous=True),
        "local disks, then eagle": Checkpoints(file_system="eagle", storage="local-disk"),
        "eagle, gathered on one rank": Checkpoints(file_system="eagle", full=True),
    }
    assert set(rows) == set(ways)
    for name, how in ways.items():
        row, saved = rows[name], checkpoint_of(scenario, layouts, how)
        assert row["layout"] == str(layout)
        assert row["checkpoint_bytes"] == float(saved.total_bytes)
        assert row["wait_s"] == float(saved.blocking_s)
        assert row["behind_s"] == float(saved.behind_s)
        again = restart_s(scenario, layouts, checkpoints=how)
        mtbf = mean_time_between_failures_s(16)
        plan = planner.plan(MODEL, MACHINE, nodes=4, workload=JOB)
        assert plan.recommended is not None
        work = plan.duration_s(plan.recommended)
        found = training_losses(work, saved.blocking_s, mtbf, again, behind_s=saved.behind_s)
        assert row["useful_share"] == pytest.approx(float(found.fraction))
        assert row["interval_s"] == pytest.approx(float(found.interval_s))
        parts = [row[f"{name}_share"] for name in ("saving", "lost", "restarts", "useful")]
        assert sum(parts) == pytest.approx(1)


@pytest.mark.slow
def test_what_is_stated_of_failures_is_taken() -> None:
    answer = ask.checkpoints(
        MODEL,
        MACHINE,
        nodes=4,
        device_mtbf_hours=1600.0,
        detection_minutes=1.0,
        interval_minutes=20.0,
        workload=JOB,
    )
    row = answer.rows[0]
    assert row["mtbf_s"] == pytest.approx(100 * 3600)
    assert row["interval_s"] == 1200
    scenario, layout = recommended(4)
    stated = Failures(per_device_hour=1 / 1600, detection_s=60)
    again = restart_s(scenario, Layouts.of(layout), failures=stated)
    assert row["restart_s"] == pytest.approx(float(again))


@pytest.mark.slow
def test_checkpoints_over_node_counts() -> None:
    answer = ask.checkpoints(MODEL, MACHINE, nodes=1, most_nodes=4, workload=JOB)
    assert sorted({row["nodes"] for row in answer.rows}) == [1, 2, 4]


def test_a_slice_of_the_file_system_holds_writers_up() -> None:
    asked = {"nodes": 4, "workload": JOB}
    row = ask.checkpoints(MODEL, MACHINE, share=0.1, **asked).rows[0]
    assert row["wait_s"] > ask.checkpoints(MODEL, MACHINE, **asked).rows[0]["wait_s"]
    assert "eagle as a whole" in row["reason"]


def test_notes_say_what_the_rows_say() -> None:
    answer = ask.checkpoints(MODEL, MACHINE, nodes=4, workload=JOB)
    rows, said = {row["way"]: row for row in answer.rows}, " ".join(answer.notes)
    now, later = (rows[way]["wait_s"] for way in ("eagle", "eagle, asynchronous"))
    assert f"wait {format_seconds(later)} instead of {format_seconds(now)}" in said
    whole = rows["eagle, gathered on one rank"]["wait_s"]
    assert f"{whole / now:.3g} times as fast" in said
    interval = max(answer.rows, key=lambda row: row["useful_share"])["interval_s"]
    assert f"loses {format_seconds(interval / 2)} of work" in said


def test_small_checkpoints_are_not_told_to_be_asynchronous() -> None:
    answer = ask.checkpoints("gpt2", MACHINE, workload=SHORT.replaced(lora_rank=8))
    assert not any(note.startswith("Asynchronous") for note in answer.notes)


def test_where_nothing_fits_there_are_no_checkpoints() -> None:
    answer = ask.checkpoints("llama-3.1-405b", "vsc-5", workload=JOB)
    assert not answer.found
    assert "does not fit on" in answer.verdict


def test_machines_without_file_systems_save_too() -> None:
    answer = ask.checkpoints("gpt2", "workstation-1x4090", workload=SHORT)
    assert [row["way"] for row in answer.rows][:2] == ["files", "files, asynchronous"]


@pytest.mark.slow
def test_rows_of_startup_are_the_formulas() -> None:
    answer = ask.startup(
        MODEL, MACHINE, nodes=2, most_nodes=4, loading="sharded", compile_s=30.0, workload=JOB
    )
    assert [row["nodes"] for row in answer.rows] == [2, 4]
    for row in answer.rows:
        scenario, layout = recommended(row["nodes"])
        start = StartUp(loading="sharded", compile_s=30)
        parts = start_up(scenario, Layouts.of(layout), start)
        assert row["start_s"] == pytest.approx(sum(float(part) for part in parts.values()))
        assert row["compile_s"] == 30
        after = row["start_s"] - row["launch_s"] - row["imports_s"]
        assert row["after_imports_s"] == pytest.approx(after)
        assert f"; {format_seconds(row['after_imports_s'])} after imports" in answer.verdict
        assert "groups_s" not in row
        for name, part in parts.items():
            assert row.get(f"{name}_s", 0.0) == pytest.approx(float(part))


def test_more_nodes_than_are_looked_at_are_refused() -> None:
    for question in (ask.startup, ask.checkpoints):
        with pytest.raises(LayoutError, match="nodes = 4 exceeds most_nodes = 2"):
            question("gpt2", MACHINE, nodes=4, most_nodes=2, workload=SHORT)
    assert ask.startup("gpt2", MACHINE, nodes=2, most_nodes=2, workload=SHORT).found
