"""Submission: jobs in a row wait for each other, go on, and stop when the steps are done."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from planner.describe.machine import Machine
from planner.emitters.recipe import Recipe, Resume
from planner.emitters.scripts.job_script import job_files
from tests.emitters.emitted import place_files
from tests.emitters.jobs import plain_job
from tests.emitters.scripts.test_systems import FLUX, own

# command, what it prints for the n-th job, and how the next one waits for it
CHAINS = {
    "polaris": ("qsub", "{}.polaris-pbs-01", "-W depend=afterany:{}.polaris-pbs-01"),
    "vsc-5": ("sbatch", "{};cluster", "--dependency=afterany:{}"),
    "summit": ("bsub", "Job <{}> is submitted to queue <batch>.", "-w ended({})"),
    "flux": ("flux", "f2A{}", "--dependency=afterany:f2A{}"),
}


def stand_in(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/bash\n{text}\n")
    path.chmod(0o755)


def run(folder: Path, script: str, **given: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", script],
        cwd=folder,
        env={"PATH": f"{folder}:{os.environ['PATH']}", **given},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("name", CHAINS)
def test_each_job_waits_for_the_one_before(name: str, tmp_path: Path) -> None:
    machine: str | Machine = own("mi300x-node", FLUX) if name == "flux" else name
    command, printed, waits = CHAINS[name]
    (tmp_path / "submit.sh").write_text(place_files(machine, steps=10**7)["submit.sh"])
    count = 'n=$(($(wc -l < calls 2>/dev/null || echo 0) + 1)); echo "$*" >> calls'
    stand_in(tmp_path, command, f'{count}; echo "{printed.format("${n}")}"')
    done = run(tmp_path, "submit.sh", PROJECT="climate", JOBS="3")
    assert done.returncode == 0, done.stderr
    calls = (tmp_path / "calls").read_text().splitlines()
    assert len(calls) == 3
    assert all("climate" in call and call.endswith(" job.sh") for call in calls)
    assert not re.search("depend|ended", calls[0])
    assert [waits.format(n) in calls[n] for n in (1, 2)] == [True, True]


def test_a_refused_job_ends_the_chain(tmp_path: Path) -> None:
    (tmp_path / "submit.sh").write_text(place_files("polaris", steps=10**7)["submit.sh"])
    stand_in(tmp_path, "qsub", "echo x >> calls; exit 1")
    assert run(tmp_path, "submit.sh", PROJECT="climate", JOBS="3").returncode != 0
    assert (tmp_path / "calls").read_text() == "x\n"


def test_a_queue_that_takes_one_job_gets_one() -> None:
    files = place_files("polaris", nodes=4, steps=10**7, queue="debug-scaling")
    assert 'JOBS="${JOBS:-1}"' in files["submit.sh"]
    assert "submits one: run it again" in files["README.md"]
    files = place_files("vsc-5", steps=10**7)
    jobs = re.search(r"(\d+) jobs in a row are needed", files["README.md"])
    assert jobs is not None
    assert f'JOBS="${{JOBS:-{jobs[1]}}}"' in files["submit.sh"]
    assert "submits them in a chain" in files["README.md"]


# --- the job itself --------------------------------------------------------------------------


def test_a_job_goes_on_and_stops_when_the_steps_are_done(tmp_path: Path) -> None:
    """The first run dies after a checkpoint, the second ends, the third has nothing to do."""
    job = plain_job("workstation-2x4090")
    recipe = Recipe(
        files=(),
        arguments=("--steps 9",),
        saves=True,
        resume=Resume("checkpoints/last", ("--go-on checkpoints/last",)),
    )
    for file in job_files(job, recipe, job.slot):
        (tmp_path / file.name).write_text(file.text)
    (tmp_path / "train.py").write_text("")
    dies = 'echo "$*"; [[ -e checkpoints/last ]] || { touch checkpoints/last; exit 1; }'
    stand_in(tmp_path, "torchrun", dies)
    first, second, third = (run(tmp_path, "job.sh") for _ in range(3))
    assert [done.returncode for done in (first, second, third)] == [1, 0, 0]
    start = "--standalone --nproc-per-node=2 train.py --steps 9"
    assert first.stdout == f"{start}\n"
    assert second.stdout == f"{start} --go-on checkpoints/last\n"
    assert third.stdout == "all steps are done; remove finished to train on\n"
    # nothing of the first run is lost
    assert (tmp_path / "run.log").read_text() == first.stdout + second.stdout
    assert "resume from the last" in place_files("polaris")["README.md"]


@pytest.mark.parametrize("steps", [1, 7, 1000, 10**7])
@pytest.mark.parametrize("machine", ["polaris", "vsc-5", "workstation-2x4090"])
def test_checkpoints_fall_into_every_job(machine: str, steps: int) -> None:
    job = plain_job(machine, steps)
    slot = job.slot
    assert 1 <= slot.save_every <= steps
    # a job that is cut at its wall time has kept all the steps that are counted for it
    assert slot.jobs == 1 or slot.steps % slot.save_every == 0
    assert slot.jobs * slot.steps >= steps
    slow = job.estimate.interval_step_time_s[1]
    assert slot.save_every == 1 or slot.save_every * slow <= min(3600, slot.seconds / 10)
