"""Plain: a machine without a batch system; its job script is run as it stands."""

from __future__ import annotations

from collections.abc import Iterable

from planner.emitters.batch_job import BatchJob
from planner.emitters.queue import Slot
from planner.emitters.scripts.system import BatchSystem

__all__ = ["Plain"]


class Plain(BatchSystem):
    """One node that nobody shares."""

    folder = '"$(dirname "${BASH_SOURCE[0]}")"'
    hosts = ""
    number = "0"
    submission = None
    meeting = ()

    def directives(self, job: BatchJob, slot: Slot, tasks: int) -> list[str]:
        """None."""
        return []

    def across(self, job: BatchJob, tasks: int, exported: Iterable[str]) -> str:
        """Nothing: the launcher of the framework starts the processes."""
        return ""

    def torchrun(self, job: BatchJob) -> str:
        """Nobody else is to be found."""
        return f"--standalone --nproc-per-node={job.ranks_per_node}"
