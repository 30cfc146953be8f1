"""System: what the job scripts of one batch system are made of; one module for each system.

A job is started either once per device (`tasks` = devices of a node) or once per node.
"""

from __future__ import annotations

import shlex
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from planner.emitters.batch_job import BatchJob
from planner.emitters.queue import Slot

__all__ = ["BREAK", "BatchSystem", "Submission", "cpus_of", "own_directives", "own_options"]

BREAK = " \\\n    "
"""Between two words of a long command."""


@dataclass(frozen=True, slots=True)
class Submission:
    """How a script is handed over, and how one waits for another, as shell words."""

    command: str
    """The command, which prints the number of the job."""
    account: str
    """The option that names who pays, before its value."""
    after: str
    """The options of a job that starts after the job `${id}`, however that ended."""
    number: str = ""
    """Lines that cut the number out of what the command prints, where it prints more."""


class BatchSystem(ABC):
    """One batch system's words."""

    shebang: ClassVar[str] = "#!/bin/bash"
    """First line of the job script."""
    folder: ClassVar[str]
    """Where the script was submitted, as a shell word; empty where it runs there."""
    hosts: ClassVar[str]
    """Command that prints the hosts of the job, one a line; empty where there is only this."""
    number: ClassVar[str]
    """Number of the job, as a shell word."""
    submission: ClassVar[Submission | None]
    """How jobs are submitted; None where the script itself is run."""
    meeting: ClassVar[tuple[str, ...]] = (
        '--main_process_ip "${MASTER_ADDR}"',
        '--main_process_port "${MASTER_PORT}"',
    )
    """How `accelerate launch` on each node finds the others."""
    log: ClassVar[tuple[str, ...]] = ('LOG="run.log"',)
    """Lines that name the file to which this script's output is appended."""

    @abstractmethod
    def directives(self, job: BatchJob, slot: Slot, tasks: int) -> list[str]:
        """Lines that ask for nodes, time and queue."""

    @abstractmethod
    def across(self, job: BatchJob, tasks: int, exported: Iterable[str]) -> str:
        """What starts `tasks` processes on every node; empty where nothing does."""

    def torchrun(self, job: BatchJob) -> str:
        """Options with which one `torchrun` a node finds the others."""
        return BREAK.join(
            [
                f"--nnodes={job.nodes} --nproc-per-node={job.ranks_per_node}",
                f'--rdzv-id="{self.number}" --rdzv-backend=c10d',
                '--rdzv-endpoint="${MASTER_ADDR}:${MASTER_PORT}"',
            ]
        )

    def inherited(self, job: BatchJob, tasks: int) -> dict[str, str]:
        """Variables for the launcher where another program calls it without these options."""
        return {}

    def pass_variables(self, names: Iterable[str]) -> str:
        """Options that hand variables to the job, where the system does not hand on all."""
        return ""


def cpus_of(job: BatchJob) -> int:
    """CPUs of a node that its processes share, as the scheduler counts them [1].

    *Counted:* what the site states, else the cores of the node. *Left out:* nothing.

    Source: definition.
    """
    launch = job.machine.scheduler.launch
    own_cpus = launch.cpus if launch is not None else None
    return own_cpus or int(job.machine.node.num_cores.value)


def own_options(job: BatchJob, tasks: int) -> list[str]:
    """What the site adds to its launcher, as shell words."""
    launch = job.machine.scheduler.launch
    if launch is None:
        return []
    options = launch.options if tasks == job.ranks_per_node else launch.node_options
    return [shlex.quote(option) for option in options]


def own_directives(job: BatchJob, slot: Slot, queue: str, usual: Iterable[str] = ()) -> list[str]:
    """What the site asks in every script (`usual` where nothing is known of it), and the queue:
    `queue` is the option before its name where the queue has no directives of its own."""
    launch = job.machine.scheduler.launch
    lines = list(launch.directives if launch is not None else usual)
    if slot.queue is not None:
        lines += slot.queue.directives or (f"{queue}{slot.queue.name}",)
    return lines
