"""Batch scripts: wall times, devices and ranks, as the manual of each system reads them."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.describe.configurations.batch_script import BatchScript, directives, read_batch_script
from planner.errors import CatalogueError

_DAY_S = 86_400


def _read(folder: Path, *lines: str) -> BatchScript:
    (folder / "job.sh").write_text("\n".join(("#!/bin/bash", *lines, "")))
    return read_batch_script(folder)


@pytest.mark.parametrize(
    ("directive", "seconds"),
    [
        # sbatch(1): minutes, minutes:seconds, hours:minutes:seconds, days-hours, ...
        ("#SBATCH -t 90", 5400),
        ("#SBATCH -t 90:30", 5430),
        ("#SBATCH --time=1:30:15", 5415),
        ("#SBATCH -t 2-3", 2 * _DAY_S + 3 * 3600),
        ("#SBATCH -t 2-3:30", 2 * _DAY_S + 3.5 * 3600),
        ("#SBATCH -t 2-3:30:06", 2 * _DAY_S + 3.5 * 3600 + 6),
        # pbs_resources(7): seconds, or hours:minutes:seconds
        ("#PBS -l walltime=90", 90),
        ("#PBS -l walltime=02:30", 150),
        ("#PBS -l select=2,walltime=01:30:00", 5400),
        # bsub(1): [hours:]minutes
        ("#BSUB -W 90", 5400),
        ("#BSUB -W 2:30", 9000),
        # flux-batch(1): minutes, or a number with a suffix
        ("#FLUX: -t 90", 5400),
        ("#FLUX: -t 1.5h", 5400),
        ("#FLUX: -t 30s", 30),
        ("#FLUX: -t 2d", 2 * _DAY_S),
        ("#FLUX: -t 5m", 300),
        ("#SBATCH -t UNLIMITED", None),
        ("#SBATCH -t x-1", None),
        ("#SBATCH -N 2", None),
    ],
)
def test_wall_times(directive: str, seconds: float | None, tmp_path: Path) -> None:
    assert _read(tmp_path, directive, "srun python train.py").walltime_s == seconds


@pytest.mark.parametrize(
    ("lines", "devices"),
    [
        (("--gres=gpu:4",), 4),
        (("--gres=gpu:a100:4",), 4),
        (("--gpus-per-node=8",), 8),
        (("--gpus-per-node=h100:8",), 8),
        (("--gpus-per-task=2", "--ntasks-per-node=3"), 6),
        (("-N 2", "-G 8"), 4),
        (("-N 3", "-G 8"), 2),
        (("--gpus-per-task=2",), None),
        (("-N 2",), None),
    ],
)
def test_devices_of_a_node(lines: tuple[str, ...], devices: int | None, tmp_path: Path) -> None:
    script = _read(tmp_path, *(f"#SBATCH {line}" for line in lines), "srun python train.py")
    assert script.devices == devices


def test_devices_of_a_pbs_chunk(tmp_path: Path) -> None:
    assert _read(tmp_path, "#PBS -l select=2:ngpus=4:ncpus=64", "mpiexec x").devices == 4


@pytest.mark.parametrize(
    ("lines", "command", "ranks", "inside", "alone"),
    [
        (("-N 2", "--ntasks-per-node=4"), "srun python t.py", 4, False, False),
        (("-N 2", "-n 8"), "srun python t.py", 4, False, False),
        (("-N 2",), "srun python t.py", None, False, False),
        (("-N 2",), "srun torchrun --nproc-per-node 4 t.py", 4, True, False),
        (("-N 2",), "torchrun --nproc-per-node 4 t.py", 4, True, True),
        (("-N 2", "--gres=gpu:4"), "srun torchrun t.py", 4, True, False),
        (("-N 2",), "srun torchrun t.py", None, True, False),
        (("-N 2", "--ntasks-per-node=2"), "srun torchrun --nproc-per-node 4 t.py", 8, True, False),
        (("-N 2",), "srun accelerate launch --num_processes 8 t.py", 4, True, False),
        (("-N 2",), "deepspeed --num_gpus 4 t.py", 4, True, False),
    ],
)
def test_ranks_of_a_node(
    lines: tuple[str, ...],
    command: str,
    ranks: int | None,
    inside: bool,
    alone: bool,
    tmp_path: Path,
) -> None:
    script = _read(tmp_path, *(f"#SBATCH {line}" for line in lines), command)
    assert (script.ranks_per_node, script.inside, script.starts_alone) == (ranks, inside, alone)


def test_directives_are_read_by_field() -> None:
    lines = ["-N 4  # nodes", "--time=10", "-p 'gpu'", "--exclusive", "-J a -A b"]
    assert directives("slurm", lines) == {
        "nodes": "4",
        "time": "10",
        "queue": "gpu",
        "--exclusive": "",
        "name": "a",
        "account": "b",
    }
    assert directives("pbs", ["-l select=2, walltime=10", "-q prod"]) == {
        "nodes": "2",
        "time": "10",
        "queue": "prod",
    }


def test_a_script_without_a_system_or_nodes(tmp_path: Path) -> None:
    script = _read(tmp_path, "torchrun --nproc-per-node 2 t.py")
    assert (script.scheduler, script.nodes, script.starts_alone) == ("", None, False)
    assert _read(tmp_path, "#SBATCH -t 10", "srun t.py").nodes == 1
    assert _read(tmp_path, "#SBATCH -N 3", "srun t.py").nodes == 3


def test_a_chain_resumes(tmp_path: Path) -> None:
    assert not _read(tmp_path, "#SBATCH -N 1", "srun python train.py").resumes
    assert _read(tmp_path, "#SBATCH -N 1", "srun python train.py --load x").resumes
    assert _read(tmp_path, "#SBATCH -N 1", "srun python train.py --auto-resume").resumes


def test_variables_of_the_system_are_known_and_scripts_beside_are_followed(tmp_path: Path) -> None:
    (tmp_path / "inner.sh").write_text("torchrun --nnodes $SLURM_NNODES --nproc-per-node $G t.py\n")
    script = _read(
        tmp_path, "#SBATCH -N 3", "#SBATCH --gres=gpu:2", "export G=2", "bash ./inner.sh"
    )
    words = [word for command in script.run.commands for word in command]
    assert words[words.index("--nnodes") + 1 : words.index("--nnodes") + 4] == [
        *("3", "--nproc-per-node", "2")
    ]


def test_a_folder_has_one_script(tmp_path: Path) -> None:
    for name in ("a.sh", "b.sh"):
        (tmp_path / name).write_text("srun x\n")
    with pytest.raises(CatalogueError, match=r"a\.sh, b\.sh; name the job script"):
        read_batch_script(tmp_path)
    (tmp_path / "job.sh").write_text("#SBATCH -N 5\nsrun x\n")
    assert read_batch_script(tmp_path).nodes is None  # a directive stands in a line of its own
