"""Emitted files start: the software that runs on CPUs really trains a few steps with them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from planner.describe.layout import Layout
from planner.emitters.folder import write_folder
from tests.emitters.emitted import files_of

pytestmark = [pytest.mark.slow, pytest.mark.alone]

DEEPSPEED = """
import argparse, os, torch, deepspeed
parser = argparse.ArgumentParser()
deepspeed.add_config_arguments(parser)
given = parser.parse_args()
deepspeed.init_distributed(dist_backend="gloo")
model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.GELU(), torch.nn.Linear(64, 16))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
engine, *_ = deepspeed.initialize(given, model=model, optimizer=optimizer)
losses = []
for step in range(4):
    torch.manual_seed(torch.distributed.get_rank())
    for micro in range(engine.gradient_accumulation_steps()):
        x = torch.randn(engine.train_micro_batch_size_per_gpu(), 16, dtype=torch.bfloat16)
        loss = (engine(x).float() ** 2).mean()
        engine.backward(loss)
        engine.step()
    losses.append(loss.item())
stage = int(engine.zero_optimization_stage())
assert losses[-1] < losses[0], losses
if torch.distributed.get_rank() == 0:
    print("STARTED", engine.global_steps, stage, engine.train_batch_size())
"""

FSDP2 = """
import os, torch, torch.distributed as dist
import sharding
dist.init_process_group("gloo")
model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.GELU(), torch.nn.Linear(64, 16))
sharding.shard(model, torch.nn.ModuleList([model[0], model[2]]), "cpu")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
losses = []
for step in range(4):
    torch.manual_seed(dist.get_rank())
    for micro in range(sharding.GRAD_ACCUMULATION):
        loss = (model(torch.randn(sharding.MICRO_BATCH, 16)).float() ** 2).mean()
        (loss / sharding.GRAD_ACCUMULATION).backward()
    optimizer.step(); optimizer.zero_grad()
    losses.append(loss.item())
assert losses[-1] < losses[0], losses
if dist.get_rank() == 0:
    print("STARTED", len(losses), model[0].weight.to_local().shape[0])
dist.destroy_process_group()
"""

TRAINER = """
import dataclasses, sys, torch
from transformers import GPT2Config, GPT2LMHeadModel, HfArgumentParser, Trainer, TrainingArguments
# a Trainer writes into its arguments: each gets its own
given, first = (HfArgumentParser(TrainingArguments).parse_json_file(sys.argv[1])[0] for _ in "12")
model = GPT2LMHeadModel(GPT2Config(vocab_size=32, n_positions=16, n_embd=16, n_layer=1, n_head=2))
rows = [{"input_ids": torch.arange(8), "labels": torch.arange(8)}] * 64
Trainer(model, dataclasses.replace(first, max_steps=2), train_dataset=rows).train()
trainer = Trainer(model, given, train_dataset=rows)
trainer.train(resume_from_checkpoint=True)
each = trainer.accelerator.gradient_state.plugin_kwargs["sync_each_batch"]
print("STARTED", trainer.state.global_step, len(trainer.state.log_history), each)
"""


def ran(folder: Path, program: str, *arguments: str, ranks: int = 2) -> list[str]:
    """What the program's first rank prints after STARTED, once all of them ended well."""
    (folder / "train.py").write_text(program)
    launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, *(launch if ranks > 1 else []), "train.py", *arguments],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    said = [line for line in done.stdout.splitlines() if "STARTED" in line]
    assert done.returncode == 0, done.stderr[-2000:]
    assert len(said) == 1, said
    return said[0].partition("STARTED ")[2].split()


def test_deepspeed_starts(tmp_path: Path) -> None:
    pytest.importorskip("deepspeed")
    layout = Layout(dp=2, zero_stage=3, micro_batch=2, grad_accumulation=2)
    write_folder(files_of("gpt2", "vsc-5", 1, layout, "deepspeed", steps=4), tmp_path)
    arguments = ("--deepspeed", "--deepspeed_config", "ds_config.json")
    assert ran(tmp_path, DEEPSPEED, *arguments) == ["4", "3", "8"]


def test_fsdp2_starts(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    layout = Layout(dp=2, zero_stage=3, micro_batch=2, grad_accumulation=2)
    write_folder(files_of("gpt2", "vsc-5", 1, layout, "fsdp2", steps=4), tmp_path)
    assert ran(tmp_path, FSDP2) == ["4", "32"]


def test_the_trainer_starts_and_goes_on(tmp_path: Path) -> None:
    """It saves where the job looks for checkpoints, and resumes from there."""
    pytest.importorskip("transformers")
    layout = Layout(dp=2, zero_stage=3, grad_accumulation=2)
    files = files_of("gpt2", "vsc-5", 1, layout, "accelerate", steps=4)
    write_folder(files, tmp_path)
    path = tmp_path / "training_arguments.json"
    given = json.loads(path.read_text()) | {"use_cpu": True, "report_to": "none", "save_steps": 1}
    path.write_text(json.dumps(given))
    steps, logged, each = ran(tmp_path, TRAINER, path.name, ranks=1)
    assert steps == "4"
    # the estimate counts a reduction after every batch
    assert each == "True"
    # one line a step, those of the first job from its checkpoint, and the summary
    assert int(logged) == 4 + 1
    assert (tmp_path / "checkpoints" / "checkpoint-4").is_dir()
