"""Probe files: one job makes all runs, each in its folder."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from planner.describe.catalogue import load_model
from planner.describe.layout import Layout
from planner.describe.model.model import Model
from planner.describe.workload import Workload
from planner.emitters.folder import write_folder
from planner.emitters.probe_files import probe_files
from planner.errors import EmitError
from planner.job import Job


def _job(machine: str, framework: str, nodes: int = 8) -> Job:
    workload = Workload(sequence_length=4096, global_batch=256)
    return Job("llama-3-8b", machine, nodes=nodes, workload=workload, frameworks=framework)


@pytest.mark.slow
def test_every_run_states_its_own_model_and_layout() -> None:
    probe = _job("polaris", "fsdp2").probe()
    files = probe_files(probe)
    assert {name for name in files if "/" not in name} == {"README.md", "job.sh", "submit.sh"}
    for number, run in enumerate(probe.runs, 1):
        data = json.loads(files[f"{number}/layout.json"])
        model = data["model"]
        if isinstance(model, str):
            assert load_model(model) == run.job.model
        else:
            assert Model.described({**model, "source": run.job.model.source}) == run.job.model
        assert Layout.described(data["layout"]) == run.estimate.layout
        assert "interval=31" in files[f"{number}/torchtitan_plan.py"].replace(" ", "")
    assert "walltime=00:10:00" in files["job.sh"]
    assert "#PBS -q debug" in files["job.sh"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("machine", "folder"), [("polaris", "PBS_O_WORKDIR"), ("juwels-booster", "SLURM_SUBMIT_DIR")]
)
def test_the_job_script_runs_each_folder_and_goes_on_after_a_failure(
    machine: str, folder: str, tmp_path: Path
) -> None:
    probe = _job(machine, "megatron-lm").probe()
    write_folder(probe_files(probe), tmp_path)
    for number in range(1, len(probe.runs) + 1):
        stub = (
            f'cd "${{{folder}}}"; echo "${{NUM_LAYERS}} ${{STEPS}}" > seen; exit {number == 1:d}\n'
        )
        (tmp_path / str(number) / "job.sh").write_text(stub)
    variables = {"LEARNING_RATE": "1e-4", "WARMUP_STEPS": "2", "DATA": "x", "TOKENIZER": "y"}
    result = subprocess.run(
        ["bash", "job.sh"],
        cwd=tmp_path,
        env={**os.environ, **variables, folder: str(tmp_path), "MEGATRON": "/x"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "run 1 did not finish" in result.stderr
    seen = [(tmp_path / str(n) / "seen").read_text() for n in range(1, len(probe.runs) + 1)]
    assert seen == [f"{run.job.model.num_layers} 30\n" for run in probe.runs]


def test_an_own_program_is_told_the_sizes() -> None:
    files = probe_files(_job("dgx-h100", "deepspeed", nodes=2).probe(), account="abc")
    assert 'PROGRAM="$(realpath "${PROGRAM:-train.py}")"' in files["job.sh"]
    assert "NUM_LAYERS" in files["README.md"]
    assert "abc" in files["submit.sh"]


def test_no_probe_is_written_for_kubernetes() -> None:
    job = _job("dgx-h100", "fsdp2", nodes=2)
    scheduler = {"kind": "kubernetes", "queues": []}
    job = job.replaced(machine=job.machine.replaced(scheduler=scheduler))
    with pytest.raises(EmitError, match="no probe is written for Kubernetes"):
        probe_files(job.probe())
