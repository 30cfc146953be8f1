"""Scheduler: the batch system of a machine, its queues, and its job scripts."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from planner.describe.base import Description

__all__ = ["Launch", "Queue", "Scheduler"]


class Queue(Description):
    """A queue or partition with its limits."""

    name: str
    """Name in the scheduler."""
    min_nodes: int = Field(default=1, ge=1, le=1_000_000)
    """Fewest nodes of a job."""
    max_nodes: int = Field(ge=1, le=1_000_000)
    """Most nodes of a job."""
    max_hours: float = Field(gt=0, le=100_000)
    """Longest wall time [h]."""
    max_jobs: int | None = Field(default=None, ge=1, le=1_000_000)
    """Most jobs of one user in the queue, waiting or running; None: no stated limit."""
    note: str = ""
    """Other rules of the site."""
    directives: tuple[str, ...] = ()
    """Directives that select the queue; empty: `-q NAME` (PBS, LSF), `--partition=NAME` (Slurm),
    `--queue=NAME` (Flux)."""
    on_request: bool = False
    """Whether it is used only by name: restricted, interactive or preemptible queues."""


class Launch(Description):
    """Job script and launcher, as the site documents them."""

    directives: tuple[str, ...] = ()
    """Directives of every job script, without the prefix."""
    account: bool = False
    """Whether a job needs an account or project."""
    tasks: Literal["device", "node"] = "node"
    """Processes of the launcher: one per device, or one `torchrun` per node."""
    cpus: int | None = Field(default=None, ge=1, le=1_000_000)
    """CPUs of a node as the scheduler counts them (cores or threads); None: the cores."""
    mpi: Literal["pals", "openmpi"] = "pals"
    """MPI launcher, if the scheduler has none of its own (PBS)."""
    options: tuple[str, ...] = ()
    """Launcher options with one process per device, such as binding."""
    node_options: tuple[str, ...] = ()
    """Launcher options with one process per node."""
    rank_variables: tuple[str, str] | None = None
    """Variables with the rank and the rank on the node; None: unknown."""
    one_device_each: bool = False
    """Whether a process sees only its own device, as number 0."""
    setup: tuple[str, ...] = ()
    """Shell lines before the launch, such as modules."""
    environment: dict[str, str] = Field(default_factory=dict)
    """Variables to export."""
    device_environment: dict[str, str] = Field(default_factory=dict)
    """Further variables with one process per device; unset with one process per node."""
    node_environment: dict[str, str] = Field(default_factory=dict)
    """Further variables with one process per node."""
    local_disk: str = ""
    """Folder of the node-local disk."""
    notes: tuple[str, ...] = ()
    """Warnings of the site."""
    source: str = Field(min_length=2)
    """Where the launch was read."""


class Scheduler(Description):
    """The batch system."""

    kind: Literal["pbs", "slurm", "lsf", "flux", "kubernetes", "cobalt", "none"]
    """Batch system; LSF with `jsrun`, Kubernetes with Kubeflow's PyTorchJob."""
    queues: tuple[Queue, ...] = ()
    """Queues with their limits."""
    kind_of_limits: Literal["datasheet", "measured", "assumed"] = "datasheet"
    """Kind of evidence of the limits."""
    source: str = ""
    """Where the limits were read."""
    launch: Launch | None = None
    """Job script and launcher; None: unknown."""
