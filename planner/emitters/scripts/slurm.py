"""Slurm: `#SBATCH` directives, `sbatch` and `srun`, with the CPUs that every task may use."""

from __future__ import annotations

from collections.abc import Iterable

from planner.emitters.batch_job import BatchJob
from planner.emitters.queue import Slot, walltime_text
from planner.emitters.scripts.system import (
    BREAK,
    BatchSystem,
    Submission,
    cpus_of,
    own_directives,
    own_options,
)

__all__ = ["Slurm"]


class Slurm(BatchSystem):
    """Slurm, where a task gets one CPU unless it is asked for more."""

    folder = '"${SLURM_SUBMIT_DIR}"'
    hosts = 'scontrol show hostnames "${SLURM_JOB_NODELIST}"'
    number = "${SLURM_JOB_ID}"
    submission = Submission("sbatch --parsable", "--account=", '--dependency="afterany:${id%%;*}"')

    def directives(self, job: BatchJob, slot: Slot, tasks: int) -> list[str]:
        """`#SBATCH` lines."""
        cpu = job.machine.device.runtime == "cpu"
        devices = () if cpu else (f"--gpus-per-node={job.ranks_per_node}",)
        lines = [
            f"--job-name={job.name}",
            f"--nodes={job.nodes}",
            f"--time={walltime_text(slot.seconds)}",
            f"--ntasks-per-node={tasks}",
            _cpus(job, tasks),
            "--output=%x-%j.out",
        ]
        lines += own_directives(job, slot, "--partition=", devices)
        return [f"#SBATCH {line}" for line in lines]

    def across(self, job: BatchJob, tasks: int, exported: Iterable[str]) -> str:
        """`srun`, which does not take the CPUs of a task from the directives of the job."""
        options = own_options(job, tasks)
        if not any(option.startswith("--cpu-bind") for option in options):
            options.insert(0, "--cpu-bind=cores")
        count = f"--ntasks={job.nodes * tasks} --ntasks-per-node={tasks} {_cpus(job, tasks)}"
        # one dead rank ends the job instead of leaving the others to wait for it
        options.insert(0, "--kill-on-bad-exit=1")
        return f"srun {count}{BREAK}{' '.join(options)}"

    def inherited(self, job: BatchJob, tasks: int) -> dict[str, str]:
        """The CPUs of a task."""
        return {"SRUN_CPUS_PER_TASK": _cpus(job, tasks).partition("=")[2]}


def _cpus(job: BatchJob, tasks: int) -> str:
    return f"--cpus-per-task={max(cpus_of(job) // tasks, 1)}"
