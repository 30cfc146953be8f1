"""PBS: `#PBS` directives, `qsub`, and the `mpiexec` of the site's MPI."""

from __future__ import annotations

from collections.abc import Iterable

from planner.emitters.batch_job import BatchJob
from planner.emitters.queue import Slot, walltime_text
from planner.emitters.scripts.system import (
    BREAK,
    BatchSystem,
    Submission,
    own_directives,
    own_options,
)

__all__ = ["Pbs"]

_HOSTFILE = '--hostfile="${PBS_NODEFILE}"'


class Pbs(BatchSystem):
    """PBS Professional."""

    shebang = "#!/bin/bash -l"
    folder = '"${PBS_O_WORKDIR}"'
    hosts = "awk '!seen[$0]++' \"${PBS_NODEFILE}\""
    number = "${PBS_JOBID}"
    submission = Submission("qsub", "-A ", '-W "depend=afterany:${id}"')

    def directives(self, job: BatchJob, slot: Slot, tasks: int) -> list[str]:
        """`#PBS` lines; no comment may stand on or between them: PBS reads it as one."""
        time = walltime_text(slot.seconds)
        lines = [f"-N {job.name}", f"-l select={job.nodes}", f"-l walltime={time}", "-j oe"]
        lines += own_directives(job, slot, "-q ")
        return [f"#PBS {line}" for line in lines]

    def across(self, job: BatchJob, tasks: int, exported: Iterable[str]) -> str:
        """`mpiexec` of PALS hands on every variable, `mpirun` of Open MPI those that are named."""
        ranks = job.nodes * tasks
        launch = job.machine.scheduler.launch
        if launch is not None and launch.mpi == "openmpi":
            names = " ".join(f"-x {name}" for name in ("PATH", "LD_LIBRARY_PATH", *exported))
            words = [f"mpirun -n {ranks} -N {tasks} --bind-to none {_HOSTFILE}", names]
        else:
            words = [f"mpiexec --verbose --envall -n {ranks} --ppn {tasks} {_HOSTFILE}"]
        options = " ".join(own_options(job, tasks))
        return BREAK.join([*words, options] if options else words)

    def pass_variables(self, names: Iterable[str]) -> str:
        """`-v` with the names: PBS hands on nothing else."""
        listed = ",".join(names)
        return f"-v {listed}" if listed else ""
