"""Systems: commands and options of every batch system (`systems.toml`), and their values."""

import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import Field

from planner.describe.base import Description
from planner.describe.files import read_toml
from planner.emitters.batch_job import BatchJob
from planner.training.job_slot import Slot, walltime_text

BREAK = " \\\n    "
"""Line break between two words of a long command."""


class Submission(Description):
    """How a script is submitted, and how one job waits for another, as shell words."""

    command: str
    """Command that submits a script and prints the job number."""
    account: str
    """Option for the account that is charged, without its value."""
    after: str
    """Options to start a job after job `${id}` has ended, successful or not."""
    number: str = ""
    """Shell lines that extract the job number from longer output; empty: it is all the output."""


class BatchSystem(Description):
    """Commands and options of one batch system."""

    title: str
    """Name of the batch system, with a remark."""
    shebang: str = "#!/bin/bash"
    """First line of the job script."""
    folder: str = ""
    """Folder of submission, as a shell word; empty if the script starts there."""
    hosts: str = ""
    """Command that prints the hosts of the job, one per line; empty if it needs none."""
    number: str = "0"
    """Job number, as a shell word."""
    submission: Submission | None = None
    """How jobs are submitted; None if the script is run directly or a manifest is applied."""
    prefix: str = ""
    """Start of a directive line."""
    directives: tuple[str, ...] = ()
    """Directives that request nodes and time."""
    usual: tuple[str, ...] = ()
    """Further directives for a machine whose profile does not describe launching."""
    queue: str = ""
    """Option before a queue's name, for queues without directives of their own."""
    across: tuple[str, ...] = ()
    """Launcher of `tasks` processes on every node, as lines; empty: none."""
    torchrun: tuple[str, ...] = (
        "--nnodes={{ job.nodes }} --nproc-per-node={{ job.ranks_per_node }}",
        '--rdzv-id="{{ number }}" --rdzv-backend=c10d',
        '--rdzv-endpoint="${MASTER_ADDR}:${MASTER_PORT}"',
    )
    """Options with which the `torchrun` of a node finds the others, as lines."""
    meeting: tuple[str, ...] = (
        '--main_process_ip "${MASTER_ADDR}"',
        '--main_process_port "${MASTER_PORT}"',
    )
    """Options with which the `accelerate launch` of a node finds the others."""
    log: tuple[str, ...] = ('LOG="run.log"',)
    """Shell lines that set LOG, the file that the output is appended to."""
    inherited: dict[str, str] = Field(default_factory=dict)
    """Variables in place of launcher options, for programs that call the launcher themselves."""
    passes: str = ""
    """Option that passes variables to the job; empty if the system passes all of them."""
    resources: dict[str, str] = Field(default_factory=dict)
    """Resource names of devices in a manifest, by runtime; empty if a script is submitted."""
    variables: dict[str, str] = Field(default_factory=dict)
    """Variables that only the user knows on this system, with their meanings."""


SYSTEMS: Mapping[str, BatchSystem] = {
    name: BatchSystem.described(table)
    for name, table in read_toml(Path(__file__).with_name("systems.toml")).items()
}
"""Batch systems by scheduler kind."""


def values_of(job: BatchJob, slot: Slot, tasks: int, exported: Iterable[str]) -> dict[str, Any]:
    """Values that fill in a batch system's templates for `tasks` processes per node."""
    launch = job.launch
    cpus = launch.cpus or int(job.machine.node.num_cores.value)
    site_options = launch.options if tasks == job.ranks_per_node else launch.node_options
    options = [shlex.quote(option) for option in site_options]
    return {
        "job": job,
        "runtime": job.machine.device.runtime,
        "number": SYSTEMS[job.machine.scheduler.kind].number,
        "walltime": walltime_text(slot.seconds),
        "minutes": round(slot.seconds) // 60,
        "tasks": tasks,
        "ranks": job.nodes * tasks,
        "cpus": cpus,
        "task_cpus": max(cpus // tasks, 1),
        "openmpi": launch.mpi == "openmpi",
        "options": " ".join(options),
        "binds": any(option.startswith("--cpu-bind") for option in options),
        "exported": list(exported),
    }
