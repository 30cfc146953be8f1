"""Scheduler: the batch system of a machine, its queues, and how jobs are written there."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from planner.describe.base import Description

__all__ = ["Launch", "Queue", "Scheduler"]


class Queue(Description):
    """A queue or partition with its limits."""

    name: str
    """Name given to the scheduler."""
    min_nodes: int = Field(default=1, ge=1, le=1_000_000)
    """Fewest nodes of a job."""
    max_nodes: int = Field(ge=1, le=1_000_000)
    """Most nodes of a job."""
    max_hours: float = Field(gt=0, le=100_000)
    """Longest wall time [h]."""
    max_jobs: int | None = Field(default=None, ge=1, le=1_000_000)
    """Most jobs that one user may have there, waiting or running; None where none is stated."""
    note: str = ""
    """What else the site says about it."""
    directives: tuple[str, ...] = ()
    """How a job script asks for it; empty: `-q NAME` (PBS, LSF), `--partition=NAME` (Slurm),
    `--queue=NAME` (Flux)."""
    on_request: bool = False
    """Whether it is left alone unless a user names it: by permission, interactive, killable."""


class Launch(Description):
    """How the site says a job is written and started."""

    directives: tuple[str, ...] = ()
    """Directives that every job script carries, without the prefix."""
    account: bool = False
    """Whether a job is refused without an account or project."""
    tasks: Literal["device", "node"] = "node"
    """What the launcher starts: one process per device, or one `torchrun` per node."""
    cpus: int | None = Field(default=None, ge=1, le=1_000_000)
    """CPUs of a node that the job's processes share, as the scheduler counts them: cores or
    threads; None: the cores of the node."""
    mpi: Literal["pals", "openmpi"] = "pals"
    """Whose launcher starts processes where the scheduler has none of its own (PBS)."""
    options: tuple[str, ...] = ()
    """Options of the launcher with one process per device, such as its binding."""
    node_options: tuple[str, ...] = ()
    """Options with one process per node."""
    rank_variables: tuple[str, str] | None = None
    """Where a process finds its rank and its rank on the node; None where that is not known."""
    one_device_each: bool = False
    """Whether a process sees only its own device, which is then number 0."""
    setup: tuple[str, ...] = ()
    """Shell lines before the launch, such as modules."""
    environment: dict[str, str] = Field(default_factory=dict)
    """Variables to export."""
    device_environment: dict[str, str] = Field(default_factory=dict)
    """Variables to export where the site's launcher starts every rank, besides; they are removed
    where one process a node starts them, whatever a module has set."""
    node_environment: dict[str, str] = Field(default_factory=dict)
    """Variables to export where one process a node starts the ranks, besides."""
    local_disk: str = ""
    """Folder of the node-local disk."""
    notes: tuple[str, ...] = ()
    """What the site warns of."""
    source: str = Field(min_length=2)
    """Where this was read."""


class Scheduler(Description):
    """The batch system."""

    kind: Literal["pbs", "slurm", "lsf", "flux", "kubernetes", "cobalt", "none"]
    """Batch system; LSF with `jsrun`, Kubernetes with Kubeflow's PyTorchJob."""
    queues: tuple[Queue, ...] = ()
    """Queues with their limits."""
    kind_of_limits: Literal["datasheet", "measured", "assumed"] = "datasheet"
    """How the limits came to be known."""
    source: str = ""
    """Where the limits were read."""
    launch: Launch | None = None
    """How jobs are written; absent where that is not known."""
