"""Emitted files start: the software that runs on CPUs really trains a few steps with them."""

from __future__ import annotations

from pathlib import Path

import pytest

import planner
from planner.describe.catalogue import load_model
from planner.describe.layout import Layout
from planner.emitters import emit
from planner.emitters.folder import write_folder
from tests.emitters.emitted import files_of, plan_of
from tests.emitters.training import ddp, deepspeed, fsdp2, started, trainer

pytest.importorskip("torch")
pytestmark = [pytest.mark.slow, pytest.mark.alone]

SHARDED = Layout(dp=2, zero_stage=3, micro_batch=2, grad_accumulation=2)


def test_deepspeed_starts(tmp_path: Path) -> None:
    pytest.importorskip("deepspeed")
    write_folder(files_of("gpt2", "vsc-5", 1, SHARDED, "deepspeed", steps=4), tmp_path)
    steps, stage, batch, first, last = started(deepspeed, tmp_path)
    assert (steps, stage, batch) == (4, 3, 8)
    assert last < first


def test_fsdp2_starts(tmp_path: Path) -> None:
    write_folder(files_of("gpt2", "vsc-5", 1, SHARDED, "fsdp2", steps=4), tmp_path)
    rows, first, last = started(fsdp2, tmp_path)
    assert rows == 64 // 2
    assert last < first


def test_ddp_starts_and_goes_on(tmp_path: Path) -> None:
    """With nanoGPT's options: the tokens of a step, and the checkpoint of a job that was cut."""
    sizes = {"num_layers": 1, "hidden_size": 64, "num_heads": 1, "num_kv_heads": 1, "ffn_size": 256}
    model = load_model("gpt2").replaced(name="small", **sizes)
    layout = Layout(dp=2, micro_batch=4, grad_accumulation=3)
    workload = planner.Workload(sequence_length=32, global_batch=layout.global_batch)
    found = planner.estimate(model, "vsc-5", layout, workload=workload, framework="ddp")
    plan = plan_of("small", "vsc-5", 1, workload)
    write_folder(emit(plan, found, model=model, steps=40), tmp_path)
    tokens, start, end, first, last = started(ddp, tmp_path, stop=20)
    assert (tokens, start, end) == (32 * 4 * 3 * 2, 0, 19)
    assert last < first
    _, start, end, again, _ = started(ddp, tmp_path, stop=40)
    assert 0 < start < 20
    assert end == 39
    assert again < first


def test_the_trainer_starts_and_goes_on(tmp_path: Path) -> None:
    """It saves where the job looks for checkpoints, and resumes from there."""
    pytest.importorskip("transformers")
    layout = Layout(dp=2, zero_stage=3, grad_accumulation=2)
    files = files_of("gpt2", "vsc-5", 1, layout, "accelerate", steps=4)
    write_folder(files, tmp_path)
    # one line a step, those of the first job from its checkpoint, and the summary
    # the estimate counts a reduction after every batch
    assert started(trainer, tmp_path, ranks=1) == [4, 4 + 1, True]
    assert (tmp_path / "checkpoints" / "checkpoint-4").is_dir()
