"""LSF with jsrun: `#BSUB` directives, `bsub`, and one resource set a node for `jsrun`."""

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

__all__ = ["Lsf"]


class Lsf(BatchSystem):
    """IBM Spectrum LSF on machines whose jobs are started by `jsrun`."""

    folder = '"${LS_SUBCWD}"'
    # the first line is the batch node, which computes nothing
    hosts = 'sort -u "${LSB_DJOB_HOSTFILE}" | grep -v -e batch -e login'
    number = "${LSB_JOBID}"
    submission = Submission("bsub", "-P ", '-w "ended(${id})"', 'id="${id#*<}"\n    id="${id%%>*}"')

    def directives(self, job: BatchJob, slot: Slot, tasks: int) -> list[str]:
        """`#BSUB` lines; LSF counts whole minutes."""
        hours, minutes = divmod(round(slot.seconds) // 60, 60)
        lines = [f"-J {job.name}", f"-nnodes {job.nodes}", f"-W {hours}:{minutes:02d}"]
        lines += [f"-o {job.name}.%J"]
        lines += own_directives(job, slot, "-q ")
        return [f"#BSUB {line}" for line in lines]

    def across(self, job: BatchJob, tasks: int, exported: Iterable[str]) -> str:
        """`jsrun`: devices in different resource sets would not reach each other directly."""
        cpus = cpus_of(job)
        sets = f"--nrs={job.nodes} --rs_per_host=1 --tasks_per_rs={tasks} --cpu_per_rs={cpus}"
        bound = f"--gpu_per_rs={job.ranks_per_node} --bind=packed:{cpus // tasks}"
        return BREAK.join([f"jsrun {sets}", " ".join([bound, *own_options(job, tasks)])])
