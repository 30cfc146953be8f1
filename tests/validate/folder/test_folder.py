"""Emitted folders beside one rank of their real framework."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planner import Job, Layout, Workload
from planner.emitters.folder import write_folder
from planner.errors import LayoutError
from planner.validate.folder.folder import check_folder

pytest.importorskip("transformers")
pytest.importorskip("accelerate")

CONFIG = {
    "model_type": "gpt_neox",
    "vocab_size": 2048,
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 1024,
    "max_position_embeddings": 512,
    "rotary_pct": 0.25,
}


def emitted(folder: Path, framework: str) -> Path:
    """A folder for a small GPT-NeoX, and its config.json beside the emitted files."""
    config = folder / "neox.json"
    config.write_text(json.dumps(CONFIG))
    work = Workload(global_batch=8, sequence_length=512)
    job = Job(str(config), "dgx-h100", workload=work, frameworks=framework)
    write_folder(job.emit(), folder / "job")
    return config


@pytest.mark.slow
def test_another_sharding_py_is_not_what_the_plan_says(tmp_path: Path) -> None:
    """In a worker; `test_here` tracks what is emitted in its own process."""
    config = emitted(tmp_path, "fsdp2")
    file = tmp_path / "job" / "sharding.py"
    file.write_text(file.read_text().replace("param_dtype=torch.bfloat16", "param_dtype=None"))
    assert not check_folder(tmp_path / "job", config).agrees


def test_deepspeed_is_refused_with_what_runs(tmp_path: Path) -> None:
    config = emitted(tmp_path, "deepspeed")
    with pytest.raises(LayoutError, match="deepspeed is not run; use accelerate, fsdp2"):
        check_folder(tmp_path / "job", config)


def test_one_device_in_fp32_holds_its_weights_once() -> None:
    work = Workload(global_batch=1, sequence_length=512, precision="fp32")
    job = Job("mistral-7b", "dgx-h100", workload=work, frameworks="ddp").model
    for framework in ("fsdp2", "accelerate"):
        answer = Job(job, "workstation-1x4090", workload=work, frameworks=framework).estimate(
            Layout(zero_stage=2)
        )
        assert answer.memory_bytes["weights"] < 4.01 * job.num_params
