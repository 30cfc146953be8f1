"""Systems: the words of every batch system (`systems.toml`), and what fills them in."""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import Field

from planner.describe.base import Description
from planner.emitters.batch_job import BatchJob
from planner.training.job_slot import Slot, walltime_text

BREAK = " \\\n    "
"""Between two words of a long command."""


class Submission(Description):
    """How a script is handed over, and how one waits for another, as shell words."""

    command: str
    """The command, which prints the number of the job."""
    account: str
    """The option that names who pays, before its value."""
    after: str
    """The options of a job that starts after the job `${id}`, however that ended."""
    number: str = ""
    """Lines that cut the number out of what the command prints, where it prints more."""


class BatchSystem(Description):
    """One batch system's words."""

    title: str
    """What it is."""
    shebang: str = "#!/bin/bash"
    """First line of the job script."""
    folder: str = ""
    """Where the script was submitted, as a shell word; empty where it runs there."""
    hosts: str = ""
    """Command that prints the hosts of the job, one a line; empty where there is only this."""
    number: str = "0"
    """Number of the job, as a shell word."""
    submission: Submission | None = None
    """How jobs are submitted; None where the script itself is run, or a manifest is applied."""
    prefix: str = ""
    """What a directive begins with."""
    directives: tuple[str, ...] = ()
    """Directives that ask for nodes and time."""
    usual: tuple[str, ...] = ()
    """Directives of a site of which nothing is known."""
    queue: str = ""
    """The option before a queue's name, where the queue has no directives of its own."""
    across: tuple[str, ...] = ()
    """What starts `tasks` processes on every node, in lines; empty where nothing does."""
    torchrun: tuple[str, ...] = (
        "--nnodes={{ job.nodes }} --nproc-per-node={{ job.ranks_per_node }}",
        '--rdzv-id="{{ number }}" --rdzv-backend=c10d',
        '--rdzv-endpoint="${MASTER_ADDR}:${MASTER_PORT}"',
    )
    """Options with which one `torchrun` a node finds the others, in lines."""
    meeting: tuple[str, ...] = (
        '--main_process_ip "${MASTER_ADDR}"',
        '--main_process_port "${MASTER_PORT}"',
    )
    """How `accelerate launch` on each node finds the others."""
    log: tuple[str, ...] = ('LOG="run.log"',)
    """Lines that name the file to which this script's output is appended."""
    inherited: dict[str, str] = Field(default_factory=dict)
    """Variables for the launcher where another program calls it without these options."""
    passes: str = ""
    """The option that hands variables to the job, where the system does not hand on all."""
    resources: dict[str, str] = Field(default_factory=dict)
    """Names of devices by their runtime, in a manifest; empty where a script is submitted."""
    variables: dict[str, str] = Field(default_factory=dict)
    """What only the user of such a system knows, with what it is."""


def _systems() -> dict[str, BatchSystem]:
    text = Path(__file__).with_name("systems.toml").read_text(encoding="utf-8")
    return {name: BatchSystem.described(table) for name, table in tomllib.loads(text).items()}


SYSTEMS: Mapping[str, BatchSystem] = _systems()
"""Batch systems by the kind of the machine's scheduler."""


def values_of(job: BatchJob, slot: Slot, tasks: int, exported: Iterable[str]) -> dict[str, Any]:
    """What fills in the words of a system for `tasks` processes a node."""
    launch, node = job.machine.scheduler.launch, job.machine.node
    cpus = (launch.cpus if launch is not None else None) or int(node.num_cores.value)
    options: list[str] = []
    if launch is not None:
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
        "openmpi": launch is not None and launch.mpi == "openmpi",
        "options": " ".join(options),
        "binds": any(option.startswith("--cpu-bind") for option in options),
        "exported": list(exported),
    }
