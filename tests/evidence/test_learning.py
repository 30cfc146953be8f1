"""Learning: what a user's own runs say of further estimates, and what is said of them."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import planner
from planner.choose.planning import plan
from planner.cli.program import app
from planner.cost.estimate import Estimate, estimate_layouts
from planner.cost.memory.footprint import stage_memory
from planner.cost.scenario import Scenario
from planner.cost.scenario.experience import Experience
from planner.cost.shards.layouts import Layouts
from planner.describe.catalogue import load_framework, load_machine, load_model
from planner.describe.layout import Layout
from planner.describe.workload import Workload
from planner.errors import PlannerError
from planner.evidence.learning import (
    MOST_RUNS,
    Learned,
    change_by_experience,
    learn_from,
    learn_from_text,
    most_informative,
)
from planner.evidence.runs.run import Run
from planner.evidence.runs.run_files import read_measured
from planner.show.measured_runs import corrected, lessons, lessons_dict
from tests.descriptions import searched

COLUMNS = (
    "row_id,system,gpu,n_gpus,model,seq_len,framework,dp,tp,zero_stage,micro_batch,global_batch,"
    "step_time_s,peak_memory_gib,memory_kind,precision,recompute,sequence_parallel,flash_attention\n"
)
JOB = Layout(dp=4, tp=4, zero_stage=1, sequence_parallel=True, grad_accumulation=16)
QUESTION = Scenario(
    load_model("llama-3-8b"),
    load_machine("polaris"),
    Workload(global_batch=64, sequence_length=4096),
    load_framework("megatron-lm"),
)
ALONE = estimate_layouts(QUESTION, Layouts.of(JOB))[0]


def csv_row(name: str, step: float | str, system: str = "Polaris", **cells: Any) -> str:
    said = {"dp": 4, "tp": 4, "mb": 1, "memory": "", "kind": "", "gpu": "A100", **cells}
    return (
        f"{name},{system},{said['gpu']},16,Llama-3-8B,4096,Megatron-LM,{said['dp']},{said['tp']},1,"
        f"{said['mb']},64,{step},{said['memory']},{said['kind']},bf16,none,yes,yes\n"
    )


def learned(*rows: str) -> Learned:
    return learn_from_text(COLUMNS + "".join(rows), "runs.csv")


def after(*rows: str, layout: Layout = JOB) -> Estimate:
    known = replace(QUESTION, experience=learned(*rows).experience)
    return estimate_layouts(known, Layouts.of(layout))[0]


def width(one: Estimate) -> float:
    return one.interval_step_time_s[1] / one.interval_step_time_s[0]


SLOW = 1.15 * ALONE.step_time_s


def test_nothing_measured_changes_nothing() -> None:
    assert learn_from().experience == Experience()
    found = planner.estimate(
        QUESTION.model,
        QUESTION.machine,
        JOB,
        workload=QUESTION.workload,
        framework=QUESTION.framework,
        experience=planner.learn().experience,
    )
    assert found == ALONE


def test_a_run_said_again_moves_the_estimate_towards_it_and_never_past_it() -> None:
    steps = [ALONE.step_time_s]
    steps += [after(*(csv_row(f"r{i}", SLOW) for i in range(n))).step_time_s for n in (1, 2, 5, 20)]
    assert steps == sorted(steps)
    assert steps[0] < steps[1]
    assert steps[-1] < SLOW
    assert steps[-1] == pytest.approx(SLOW, rel=0.04)


def test_times_and_peaks_are_counted_apart() -> None:
    assert (learned(csv_row("a", 5.0)).num_timed, learned(csv_row("a", 5.0)).num_weighed) == (1, 0)
    peaks = learned(*(csv_row(name, "", memory=20, kind="nvidia-smi") for name in "ab"))
    assert (peaks.num_timed, peaks.num_weighed) == (0, 2)


def test_runs_that_agree_shrink_the_interval() -> None:
    widths = [width(ALONE)]
    widths += [width(after(*(csv_row(f"r{i}", SLOW) for i in range(n)))) for n in (1, 3, 10)]
    # repeats of a surprise make an odd site likelier: they widen the interval a little again
    assert widths[0] > 1.05 * widths[3]
    assert widths[1:] == pytest.approx([widths[1]] * 3, rel=0.02)
    found = after(csv_row("r", SLOW))
    low, high = found.interval_step_time_s
    assert low < found.step_time_s < high
    assert sum(found.step_time_parts_s.values()) == pytest.approx(found.step_time_s)


def test_a_run_of_another_machine_says_less() -> None:
    here = after(csv_row("r", SLOW)).step_time_s
    elsewhere = load_machine("jean-zay-a100")
    scenario = replace(QUESTION, machine=elsewhere)
    slow = 1.15 * estimate_layouts(scenario, Layouts.of(JOB))[0].step_time_s
    there = after(csv_row("r", slow, "Jean Zay")).step_time_s
    assert ALONE.step_time_s < there < here


def test_an_absurd_run_among_good_ones_is_odd_and_hardly_counts() -> None:
    good = [csv_row(f"r{i}", 1.02 * ALONE.step_time_s) for i in range(3)]
    found = learned(*good, csv_row("absurd", 6 * ALONE.step_time_s))
    assert found.odd_runs["absurd"] > 0.9
    assert max(chance for row, chance in found.odd_runs.items() if row != "absurd") < 0.1
    without, with_it = after(*good), after(*good, csv_row("absurd", 6 * ALONE.step_time_s))
    assert with_it.step_time_s == pytest.approx(without.step_time_s, rel=0.05)
    said = lessons(
        found, change_by_experience(replace(QUESTION, experience=found.experience), with_it)
    )
    assert any(line.startswith("Run absurd deviates from the others") for line in said)
    assert not any("description of machine" in line for line in said)


def test_a_site_far_off_is_called_odd() -> None:
    found = learned(*(csv_row(f"r{i}", 3 * ALONE.step_time_s) for i in range(3)))
    assert found.odd_site > 0.9
    known = replace(QUESTION, experience=found.experience)
    one = estimate_layouts(known, Layouts.of(JOB))[0]
    assert any(
        "check the description of machine" in s
        for s in lessons(found, change_by_experience(known, one))
    )


def test_memory_moves_with_measured_memory_on_every_stage() -> None:
    more = 1.1 * ALONE.memory_bytes["total"] / 2**30
    known = replace(
        QUESTION, experience=learned(csv_row("r", "", memory=more, kind="nvidia-smi")).experience
    )
    found = estimate_layouts(known, Layouts.of(JOB))[0]
    assert found.step_time_s == ALONE.step_time_s
    assert 1 < found.memory_bytes["total"] / ALONE.memory_bytes["total"] < 1.1
    (stage,) = stage_memory(known, JOB)
    assert sum(stage.values()) == pytest.approx(found.memory_bytes["total"])
    change = change_by_experience(known, found)
    assert change.step_time is None
    assert change.memory is not None
    assert change.memory.factor == pytest.approx(
        found.memory_bytes["total"] / ALONE.memory_bytes["total"]
    )


@pytest.mark.slow
def test_the_ranking_follows_what_was_measured() -> None:
    # a table of runs has no column for recompute of some layers
    plain = load_framework("megatron-lm").replaced(recompute_by=(), recompute_modules=())
    frameworks = [plain]
    job = (QUESTION.model, QUESTION.machine)
    before = plan(*job, nodes=4, workload=QUESTION.workload, frameworks=frameworks)
    best = before.best
    assert best is not None
    assert best.layout.pp > 1
    # the fastest was tried, and layouts without a pipeline did better than it
    unpiped = next(e for e in before.ranked if e.layout.pp == 1)
    tried = [(best, 1.3), (unpiped, 0.9)] * 3
    slow = [
        f"r{i},Polaris,A100,16,Llama-3-8B,4096,Megatron-LM,{one.layout.dp},{one.layout.tp},"
        f"{one.layout.pp},{one.layout.vpp},{one.layout.zero_stage},{one.layout.micro_batch},64,"
        f"{factor * one.step_time_s},,,bf16,{one.layout.recompute},yes,yes\n"
        for i, (one, factor) in enumerate(tried)
    ]
    columns = COLUMNS.replace("tp,zero", "tp,pp,vpp,zero")
    found = learn_from_text(columns + "".join(slow), "runs.csv")
    now = plan(
        *job,
        nodes=4,
        workload=QUESTION.workload,
        frameworks=frameworks,
        experience=found.experience,
    )
    assert now.best is not None
    assert now.best.layout != best.layout
    assert [e.step_time_s for e in now.ranked] == sorted(e.step_time_s for e in now.ranked)


def test_every_search_knows_what_was_measured() -> None:
    known = learned(csv_row("r", SLOW)).experience
    small = Workload(global_batch=16, sequence_length=1024)
    parts = searched(load_model("gpt2"), QUESTION.machine, 1, small, ("ddp",), known)
    assert all(part.scenario.experience is known for part in parts.values())


def test_what_tells_most_is_the_layout_nearest_to_the_others() -> None:
    others = [Layout(dp=16, zero_stage=1), Layout(dp=8, tp=2, zero_stage=1), JOB]
    far = Layout(pp=16, micro_batch=4, schedule="1f1b", grad_accumulation=16)
    layouts = [
        layout.replaced(grad_accumulation=64 // (layout.dp * layout.micro_batch))
        for layout in (*others, far)
    ]
    found = estimate_layouts(QUESTION, Layouts.stack(layouts))
    asked = [(QUESTION, found[i]) for i in range(len(layouts))]
    next_one = most_informative(asked)
    assert next_one is not None
    assert next_one.layout == layouts[1]
    assert most_informative(asked[:2]) is None
    # once it is measured often, another one tells more
    often = learned(*(csv_row(f"r{i}", SLOW, dp=8, tp=2) for i in range(20))).experience
    known = [(replace(QUESTION, experience=often), one) for _, one in asked]
    next_one = most_informative(known)
    assert next_one is not None
    assert next_one.layout != layouts[1]


def test_a_row_may_call_the_machine_of_the_question_by_its_name(tmp_path: Path) -> None:
    mine = QUESTION.machine.replaced(name="my-site")
    runs = tmp_path / "runs.csv"
    runs.write_text(COLUMNS + csv_row("r", SLOW, "my-site", gpu="own"))
    (run,) = read_measured(runs, mine)
    assert isinstance(run, Run)
    assert run.machine is mine
    with pytest.raises(PlannerError, match="is not a device of the catalogue"):
        learn_from(runs)


def test_many_runs_are_thinned_evenly() -> None:
    found = learned(*(csv_row(f"r{i}", SLOW) for i in range(2 * MOST_RUNS)))
    assert len(found.scores) == 2 * MOST_RUNS
    assert found.num_timed == MOST_RUNS
    assert "r0" in found.odd_runs
    assert f"r{2 * MOST_RUNS - 1}" in found.odd_runs


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("absent.csv", None, "No such file or directory; check the path"),
        ("empty.csv", COLUMNS, "holds no run with a step time.*docs/howto/own-runs.md"),
        (
            "bad.csv",
            COLUMNS + csv_row("r", 3.0, "Nowhere", gpu="abacus"),
            "not a device of the catalogue",
        ),
        ("prose.log", "nothing here\n", "^[^ ]*prose.log holds no step line of a known format"),
        ("nothing.csv", "", "^[^ ]*nothing.csv is empty; give the log of a run .* steps$"),
        ("broken.json", '{"step_time_s": 3', "broken.json"),
    ],
)
def test_what_teaches_nothing_is_refused(
    tmp_path: Path, name: str, text: str | None, words: str
) -> None:
    path = tmp_path / name
    if text is not None:
        path.write_text(text)
    with pytest.raises(PlannerError, match=words):
        learn_from(path, machine=QUESTION.machine, model=QUESTION.model)


def test_a_log_whose_job_is_not_known_says_how_to_state_it(tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    path.write_text("step=1 loss=2 dt=0.5\n" * 12)
    with pytest.raises(PlannerError, match=r"^run.log: .*state its job: .*run.log=JOB.json"):
        learn_from(path, machine=QUESTION.machine)


def test_lessons_are_plain_data() -> None:
    found = learned(csv_row("a", SLOW), csv_row("b", SLOW, "Nowhere", gpu="abacus"))
    known = replace(QUESTION, experience=found.experience)
    one = estimate_layouts(known, Layouts.of(JOB))[0]
    data = json.loads(json.dumps(lessons_dict(found, change_by_experience(known, one))))
    assert data["num_step_times"] == 1
    assert data["memory"] is None
    assert data["step_time"]["factor"] == pytest.approx(one.step_time_s / ALONE.step_time_s)
    low, high = data["step_time"]["interval_after"]
    assert one.interval_step_time_s == pytest.approx(
        (low * one.step_time_s, high * one.step_time_s)
    )
    assert [row["row"] for row in data["refused"]] == ["b"]
    assert corrected(found) == "corrected by 1 measured run"


def test_a_pipe_is_no_measured_run(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "runs.csv")
    with pytest.raises(PlannerError, match="is not a regular file; name a file"):
        read_measured(tmp_path / "runs.csv")


def test_a_backtest_with_own_runs_scores_the_others(tmp_path: Path) -> None:
    table, own = tmp_path / "runs.csv", tmp_path / "own.csv"
    slow = [csv_row(str(place), 1.15 * ALONE.step_time_s) for place in range(4)]
    table.write_text(COLUMNS + "".join(slow), encoding="utf-8")
    own.write_text(COLUMNS + "".join(slow[:2]), encoding="utf-8")
    runner = CliRunner()
    before = json.loads(runner.invoke(app, ["backtest", str(table), "--json"]).stdout)
    words = ["backtest", str(table), "--measured", str(own), "--json"]
    after = json.loads(runner.invoke(app, words).stdout)
    assert [row["row_id"] for row in after["rows"]] == ["2", "3"]  # learned from the others
    (first,), (then,) = before["groups"], after["groups"]
    assert then["mape"] < first["mape"]
    said = runner.invoke(app, words[:-1]).stdout
    assert "corrected by 2 measured runs, which are not scored" in said


def test_a_run_of_an_older_month_uses_its_kernels() -> None:
    old, new = (
        read_table_row("system,gpu,date\n", f"DGX H100,H100,{date}\n") for date in ("2023-10", "")
    )
    assert (old.framework.software_date, new.framework.software_date) == ("2023-10", "")
    layouts = Layouts.of(old.layout)
    times = [estimate_layouts(run.scenario, layouts)[0].step_time_s for run in (old, new)]
    assert times[0] > 1.02 * times[1]  # FlashAttention-2 before cuDNN's kernel


def read_table_row(columns: str, cells: str) -> Run:
    """A run of Llama 3 8B with 8,192 tokens on 8 devices, with further columns."""
    job = "n_gpus,model,seq_len,framework,dp,tp,zero_stage,micro_batch,global_batch,step_time_s,"
    text = f"{job}{columns}8,Llama-3-8B,8192,Megatron-LM,8,1,1,1,128,10,{cells}"
    (score,) = learn_from_text(text, "runs.csv").scores
    return score.run
