"""Flux: `#FLUX:` directives, `flux batch`, and `flux run` inside the job."""

from __future__ import annotations

from collections.abc import Iterable

from planner.emitters.batch_job import BatchJob
from planner.emitters.queue import Slot
from planner.emitters.scripts.system import (
    BREAK,
    BatchSystem,
    Submission,
    cpus_of,
    own_directives,
    own_options,
)

__all__ = ["Flux"]


class Flux(BatchSystem):
    """Flux, whose batch job runs where it was submitted, with its variables."""

    folder = ""
    hosts = "flux hostlist --expand instance | tr ' ' '\\n'"
    number = "${FLUX_JOB_ID:-0}"
    submission = Submission("flux batch", "--bank=", '--dependency="afterany:${id}"')

    def directives(self, job: BatchJob, slot: Slot, tasks: int) -> list[str]:
        """`#FLUX:` lines."""
        lines = [
            f"--job-name={job.name}",
            f"--nodes={job.nodes}",
            "--exclusive",
            f"--time-limit={round(slot.seconds) // 60}m",
            "--output={{name}}-{{id}}.out",
        ]
        lines += own_directives(job, slot, "--queue=")
        return [f"#FLUX: {line}" for line in lines]

    def across(self, job: BatchJob, tasks: int, exported: Iterable[str]) -> str:
        """`flux run` binds each task to cores of its own; all see the devices of the node."""
        devices = job.ranks_per_node // tasks
        count = f"--nodes={job.nodes} --ntasks={job.nodes * tasks}"
        each = f"--cores-per-task={max(cpus_of(job) // tasks, 1)}"
        if job.machine.device.runtime != "cpu":
            each += f" --gpus-per-task={devices}"
        bound = " ".join(["-o cpu-affinity=per-task", *own_options(job, tasks)])
        return BREAK.join([f"flux run {count} {each}", bound])
