"""Compare: a log against its estimate, from what the file, the command line and the log state."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from planner.describe.catalogue import load_machine, load_model
from planner.errors import PlannerError
from planner.evidence.logs.comparison import (
    _timers,
    compare,
    compare_log,
    comparison_dict,
    comparison_text,
)
from planner.evidence.logs.log_job import read_job
from planner.evidence.runs.run import Run
from planner.evidence.runs.run_files import read_measured, run_compared
from tests.evidence.logs.texts import read_log_text

HEAD = """\
[2024-07-17][INFO] - [0/4] Using device='cuda' with backend='DDP' + 'nccl' for training.
[2024-07-17][INFO] - Tokens per iteration: 262,144
[2024-07-17][INFO] - Model size: num_params=85003776
"""


def _wordplay(dt: float = 0.285, count: int = 12) -> str:
    return HEAD + "".join(
        f"step={i}0 loss=1.5 dt={dt} tps={262144 / dt} tps_per_gpu={65536 / dt} mfu=45.9\n"
        for i in range(1, count + 1)
    )


@pytest.fixture
def log_path(tmp_path: Path) -> Path:
    path = tmp_path / "run.log"
    path.write_text(_wordplay())
    return path


def test_wordplay_needs_nothing_but_machine_and_ranks(log_path: Path, tmp_path: Path) -> None:
    layout = tmp_path / "layout.json"
    layout.write_text('{"dp": 4}')
    result = compare_log(log_path, "polaris", layout)
    assert result.job.scenario.model.name == "wordplay-85m-char"
    assert result.job.layout.micro_batch == 64
    assert result.step_time_s == pytest.approx(0.285)
    assert result.ratio == pytest.approx(0.285 / result.estimate.step_time_s)
    figures = {figure.name: figure for figure in result.figures}
    assert figures["tokens_per_s_per_device"].measured == pytest.approx(230e3, rel=1e-3)
    assert figures["mfu"].measured == pytest.approx(0.459, abs=0.005)
    low, high = result.interval_s
    assert result.inside is (low <= 0.285 <= high)


def test_a_log_without_a_framework_asks_for_it() -> None:
    log = read_log_text("step,time_s\n" + "".join(f"{i},0.5\n" for i in range(6)))
    job = {"dp": 4, "micro_batch": 2}
    with pytest.raises(PlannerError, match="no framework is named; name one"):
        read_job(log, "polaris", job, model="gpt2", sequence_length=1024)
    named = read_job(log, "polaris", job, model="gpt2", sequence_length=1024, framework="ddp")
    assert named.scenario.framework.name == "ddp"


def test_same_answer_from_estimate_json(log_path: Path) -> None:
    bare = compare_log(log_path, "polaris", {"dp": 4, "micro_batch": 64})
    full = compare_log(
        log_path,
        "polaris",
        {
            "layout": {"dp": 4, "micro_batch": 64},
            "model": "wordplay-85m-char",
            "workload": {"sequence_length": 1024, "global_batch": 256},
            "framework": "ddp",
            "step_time_s": 0.3,
        },
    )
    assert bare.estimate == full.estimate
    assert not full.job.assumptions
    assert len(bare.job.assumptions) == 3


def test_rates_give_step_times_where_none_is_printed() -> None:
    lines = "".join(
        f"step: {i}  loss: 7.1  memory: 47.84GiB(50.37%)  tps: 5,000  tflops: 240.00  mfu: 49.8%\n"
        for i in range(1, 12)
    )
    log = read_log_text(lines)
    job = read_job(
        log,
        "dgx-h100",
        {"dp": 8, "zero_stage": 3, "micro_batch": 2},
        model="llama-3-8b",
        sequence_length=8192,
    )
    result = compare(log, job)
    assert result.step_time_s == pytest.approx(2 * 8192 / 5000)
    names = [figure.name for figure in result.figures]
    assert "reserved_bytes" in names
    assert "flop_per_s_per_device" in names


def test_phases_are_compared_where_the_log_states_them() -> None:
    text = "".join(
        f"epoch=0/micro_step={i}/global_step={i}, RunningAvgSamplesPerSec=25.0, "
        "CurrSamplesPerSec=25.7, MemAllocated=4.32GB, MaxMemAllocated=20.0GB\n"
        "time (ms) | fwd: 250.0 | bwd: 700.0 | bwd_inner: 600.0 | bwd_allreduce: 1.0 | step: 50.0\n"
        for i in range(1, 9)
    )
    log = read_log_text(text)
    job = read_job(
        log,
        "polaris",
        {"dp": 4, "zero_stage": 2, "micro_batch": 4},
        model="gpt2",
        sequence_length=1024,
    )
    result = compare(log, job)
    figures = {figure.name: figure for figure in result.figures}
    assert figures["backward_s"].measured == pytest.approx(0.7)
    assert figures["allocated_bytes"].measured == 20 * 2**30
    assert result.step_time_s == pytest.approx(16 / 25.7)


def test_a_disagreement_between_log_and_layout_is_said() -> None:
    log = read_log_text(_wordplay())
    job = read_job(log, "polaris", {"dp": 8, "micro_batch": 4, "grad_accumulation": 2})
    assert any("8 ranks but the log states 4" in text for text in job.assumptions)
    assert any("256" in text and "64 sequences" in text for text in job.assumptions)


def test_text_and_json(log_path: Path) -> None:
    result = compare_log(log_path, load_machine("polaris"), {"dp": 4})
    text = comparison_text(result)
    assert "285 ms" in text
    assert "230 k" in text
    data = json.loads(json.dumps(comparison_dict(result), allow_nan=False))
    assert data["num_warmup"] == 1
    assert data["ratio"] == pytest.approx(result.ratio)


@pytest.mark.parametrize(
    ("layout", "words"),
    [
        ('{"dp": 4', "not valid JSON"),
        ("[1, 2]", "must hold an object"),
        ('{"layout": 3}', "must be an object"),
        ('{"dp": -4}', "dp = -4"),
        ('{"dq": 4}', "'dq' is not known"),
        ('{"tp": 3}', "cannot be split"),
        ('{"layout": {"dp": 4}, "model": "no-such"}', "unknown model"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_refused_layout_files(log_path: Path, tmp_path: Path, layout: str, words: str) -> None:
    path = tmp_path / "layout.json"
    path.write_text(layout)
    with pytest.raises(PlannerError, match=words):
        compare_log(log_path, "polaris", path)


def test_an_unknown_model_must_be_named() -> None:
    log = read_log_text("\n".join(f"step={i} loss=1 dt=0.5 tps=10" for i in range(9)))
    with pytest.raises(PlannerError, match="name the model"):
        read_job(log, "polaris", {"dp": 4})


def test_the_command_prints_the_comparison(
    log_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from planner.cli import main

    with pytest.raises(SystemExit) as stopped:
        main(["compare", str(log_path), "-m", "polaris", "--model", "wordplay-85m-char", "--json"])
    assert stopped.value.code == 0
    assert json.loads(capsys.readouterr().out)["step_time_s"] == pytest.approx(0.285)


def test_what_the_command_prints_is_read_back_as_a_run(log_path: Path, tmp_path: Path) -> None:
    result = compare_log(log_path, "polaris", {"dp": 4})
    assert "planner" not in comparison_text(result)
    printed = tmp_path / "run.json"
    printed.write_text(json.dumps(comparison_dict(result), indent=1))
    job = tmp_path / "job.json"
    job.write_text('{"dp": 4}')
    (run,) = read_measured(printed)
    assert isinstance(run, Run)
    assert (run.step_time_s, run.layout) == (result.step_time_s, result.job.layout)
    scenario = result.job.scenario
    assert (run.model, run.machine) == (scenario.model, scenario.machine)
    assert (run.workload, run.framework) == (scenario.workload, scenario.framework)
    # the log itself says the same
    (same,) = read_measured(f"{log_path}={job}", load_machine("polaris"))
    assert isinstance(same, Run)
    assert (same.step_time_s, same.layout) == (run.step_time_s, run.layout)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"machine": "atlantis"}, "unknown machine 'atlantis'"),
        ({"step_time_s": -1}, "step_time_s = -1"),
        ({"layout": {"dp": 0}}, "dp"),
        ({"figures": [{"name": "mfu"}]}, "not a result of `planner compare`"),
        ({"doubts": [[[]]]}, "not a result of `planner compare`"),
        ({"doubts": 5}, "not a result of `planner compare`"),
    ],
)
def test_a_changed_comparison_is_refused_in_a_sentence(
    log_path: Path, change: dict[str, Any], words: str
) -> None:
    printed = comparison_dict(compare_log(log_path, "polaris", {"dp": 4}))
    with pytest.raises(PlannerError, match=words):
        run_compared({**printed, **change}, "run.json")


def test_a_step_above_the_peak_is_doubted(
    log_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A wrong layout gave an MFU of 4,252 %."""
    from planner.cli import main

    log_path.write_text(_wordplay(0.003))
    result = compare_log(log_path, "polaris", {"dp": 4})
    assert "times the peak of 4 devices" in result.doubts[0]
    with pytest.raises(SystemExit) as stopped:
        main(["compare", str(log_path), "-m", "polaris", "--json"])
    assert stopped.value.code == 3
    assert json.loads(capsys.readouterr().out)["doubts"] == list(result.doubts)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ('{"layout": {"dp": 4}, "workload": {"global_batch": "x"}}', "global_batch"),
        ('{"layout": {"dp": 4}, "workload": {"global_batch": 0}}', "global_batch"),
        ('{"layout": {"dp": 4, "micro_batch": 0}}', "micro_batch"),
        ('{"layout": {"dp": 4}, "workload": {"sequence_length": 0}}', "sequence_length"),
        ('{"layout": {"dp": 4}, "workload": {"sequence_length": "x"}}', "sequence_length"),
        ('{"layout": {"dp": 4}, "workload": [1]}', "workload"),
        ('{"layout": {"dp": 4}, "model": [1]}', "model"),
        ('{"layout": {"dp": 4}, "model": 7}', "model"),
        ('{"layout": {"dp": 4}, "framework": {"name": "ddp"}}', "framework"),
        ('{"dp": ' + "9" * 5000 + "}", "thousands of digits"),
        ('{"best": [1]}', "best"),
        ('{"best": {"layout": 3}}', "must be an object"),
    ],
)
def test_odd_jobs_are_refused_in_one_sentence(
    log_path: Path, tmp_path: Path, data: str, words: str
) -> None:
    path = tmp_path / "job.json"
    path.write_text(data)
    with pytest.raises(PlannerError, match=words):
        compare_log(log_path, "polaris", path)


def test_timers_share_out_every_part_but_idle_time(log_path: Path) -> None:
    """Host time and gathered parameters were in no phase."""
    text = "".join(
        f"global_step={i}, CurrSamplesPerSec=25.7\n"
        "time (ms) | fwd: 250.0 | bwd: 700.0 | bwd_allreduce: 1.0 | step: 50.0\n"
        for i in range(1, 9)
    )
    log = read_log_text(text)
    layout = {"dp": 4, "zero_stage": 3, "micro_batch": 4}
    result = compare(log, read_job(log, "polaris", layout, model="gpt2", sequence_length=1024))
    timers = [f for f in result.figures if f.name in ("forward_s", "backward_s", "optimizer_s")]
    parts = result.estimate.step_time_parts_s
    assert parts["host_overhead"] > 0 or parts["parameter_gathering"] > 0
    assert sum(f.estimated for f in timers) == pytest.approx(result.estimate.step_time_s)


def test_timers_share_out_what_passes_have_in_common() -> None:
    parts = {
        "forward": 10.0,
        "backward": 25.0,
        "recompute": 5.0,
        "gradient_reduction": 3.0,
        "tensor_parallel": 2.0,
        "context_parallel": 4.0,
        "expert_parallel": 6.0,
        "host_overhead": 8.0,
        "parameter_gathering": 12.0,
        "optimizer": 1.0,
        "parameter_update_gathering": 0.5,
        "offload": 0.25,
    }
    # a quarter of the computing is forward: 5 of the 20 in common; 6 of the 12 sent
    assert _timers(parts) == {
        "forward_s": 10 + 6 + 5,
        "backward_s": 30 + 6 + 15 + 3,
        "optimizer_s": 1.75,
    }


@pytest.mark.parametrize(
    ("times", "passes"), [(1.0, ()), (2.05, (2,)), (3.9, (4,)), (9.45, (9, 8))]
)
def test_a_whole_multiple_of_the_estimate_is_explained_by_passes(
    log_path: Path, times: float, passes: tuple[int, ...]
) -> None:
    estimate = compare_log(log_path, "polaris", {"dp": 4}).estimate
    log = read_log_text(_wordplay(times * estimate.step_time_s))
    result = compare(log, read_job(log, "polaris", {"dp": 4}))
    text = comparison_text(result)
    assert ("times as long as estimated" in text) is (times > 2)
    for count in passes:
        assert f"would explain it: gradient accumulation {count} instead of 1" in text
    # the log states the tokens of one pass
    assert text.count("but the log states 262,144 tokens a step") >= len(passes)
    assert comparison_dict(result)["explanations"] == [
        each.sentence(result.measured) for each in result.explanations
    ]
    assert bool(result.explanations) is bool(passes)


def test_a_comparison_is_of_the_model_that_it_names(log_path: Path) -> None:
    printed = comparison_dict(compare_log(log_path, "polaris", {"dp": 4}))
    for own in (load_model("gpt2"), load_model(printed["model"]).replaced(vocab_size=512)):
        run = run_compared(printed, "run.json", model=own)
        assert isinstance(run, Run)
        expected = own if own.name == printed["model"] else load_model(printed["model"])
        assert run.model == expected
