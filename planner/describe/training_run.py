"""Training run: checkpoints, evaluation, start-up, failures and charges around the steps."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from planner.describe.base import Description
from planner.describe.dataset import Dataset, Loader

__all__ = [
    "Charges",
    "Checkpoints",
    "Contents",
    "Environment",
    "Evaluation",
    "Failures",
    "Loading",
    "StartUp",
    "Storage",
    "Training",
]


Contents = Literal["states", "weights"]
Storage = Literal["file-system", "local-disk"]


class Checkpoints(Description):
    """What a training saves, and how."""

    contents: Contents = "states"
    """states: all that training goes on from, weights and the optimizer's states; weights: the
    weights alone, in the precision that computes."""
    full: bool = False
    """Whether one rank gathers and writes the whole of it (a full state dict), where ranks could
    each write what they own."""
    asynchronous: bool = False
    """Whether ranks only copy what they save to the host's memory, and write it while steps go
    on."""
    storage: Storage = "file-system"
    """What is written to while ranks wait: a shared file system, or the nodes' own disks."""
    file_system: str = Field(default="", max_length=100)
    """Shared file system; the machine's first of known rate where it is not said."""
    share: float = Field(default=1.0, gt=0, le=1)
    """Part of the file system's rate that the job gets."""
    interval_s: Annotated[float, Field(gt=0, le=1e9)] | None = None
    """Work between two checkpoints; None: what loses least by Daly's formula [s]."""
    every_steps: int = Field(default=0, ge=0, le=10**9)
    """The same in steps, with all that comes between them; 0: as interval_s says."""

    @model_validator(mode="after")
    def _one_interval(self) -> Checkpoints:
        if self.interval_s is not None and self.every_steps:
            raise ValueError(
                f"interval_s = {self.interval_s:g} and every_steps = {self.every_steps} both say "
                "how often; give one of them"
            )
        return self


class Evaluation(Description):
    """Forward passes without gradients, and text that is generated, every some steps."""

    every_steps: int = Field(default=0, ge=0, le=10**9)
    """Steps between two evaluations; 0 for none."""
    sequences: int = Field(default=0, ge=0, le=10**12)
    """Sequences (samples) of one evaluation, of all its sets together."""
    ranks: Literal["all", "first"] = "all"
    """Who computes it: all replicas share the sequences, or the first one has them all while the
    others wait (nanoGPT, wordplay)."""
    generated_tokens: int = Field(default=0, ge=0, le=10**9)
    """Tokens generated at each evaluation, one by one, by one rank; 0 for none."""


_FailureSeconds = Annotated[float, Field(ge=0, le=1e7)]


class Failures(Description):
    """What interrupts a training; what is not stated is as published trainings had it."""

    per_device_hour: float | None = Field(default=None, ge=0, le=1)
    """Interruptions of the whole job per device and hour of it; None: what Llama 3 405B had."""
    detection_s: _FailureSeconds | None = None
    """Until an interruption is noticed and the job is ended; None: the time after which torch gives
    up a collective [s]."""
    queue_s: _FailureSeconds = 0.0
    """Until the nodes are there again: repair, spare nodes, waiting in the queue [s]."""


Environment = Literal["file-system", "local-disk", "nfs"]
Loading = Literal["none", "sharded", "rank-0", "every-rank"]

_StartUpSeconds = Annotated[float, Field(ge=0, le=1e6)]


class StartUp(Description):
    """What a job does before its first step."""

    environment: Environment = "file-system"
    """Where the Python environment lies: on the parallel file system; on the nodes' own disks or in
    their memory, brought there before as one file (sbcast, an image, a container); on NFS."""
    loading: Loading = "none"
    """How it gets weights: made at random and, without sharding, broadcast from rank 0; each rank
    reads what it owns of a checkpoint; rank 0 reads all of it and broadcasts; every rank reads all
    of it."""
    ordered_groups: bool = True
    """Whether a process group is made by its own ranks alone; if not, all ranks of the job wait for
    each other at every group (torch's new_group without use_local_synchronization)."""
    compile_s: _StartUpSeconds = 0.0
    """What compiling the model takes, of torch.compile or of kernels built at first use [s]."""
    data_index_s: _StartUpSeconds = 0.0
    """What building or reading the index of the dataset takes [s]."""
    warm_up_s: _StartUpSeconds = 0.0
    """What the first steps take longer than others [s]."""


class Charges(Description):
    """What a node-hour draws, costs and emits."""

    node_power_watts: float | None = Field(default=None, gt=0, le=1e6)
    """What a node draws while it trains [W]; None: worked out from the machine's power."""
    pue: float = Field(default=1.0, ge=1, le=10)
    """Power usage effectiveness: what the whole centre draws over what its nodes draw."""
    carbon_g_per_kwh: float | None = Field(default=None, ge=0, le=10_000)
    """Carbon intensity of the electricity [g CO2e/kWh]; None: not told."""
    price_per_node_hour: float | None = Field(default=None, ge=0, le=1e9)
    """Price of a node-hour, in a currency of the user's; None: not told."""
    price_per_kwh: float | None = Field(default=None, ge=0, le=1e6)
    """Price of a kWh, in the same currency; None: not told."""


class Training(Description):
    """All that a training does besides its steps, and what it is charged."""

    dataset: Dataset | None = None
    """What it reads; None: its data are there as fast as they are asked for."""
    loader: Loader = Loader()
    """How it reads that."""
    evaluation: Evaluation = Evaluation()
    """What is computed between steps."""
    checkpoints: Checkpoints = Checkpoints()
    """What is saved, how often and to where."""
    failures: Failures = Failures()
    """What interrupts it."""
    start_up: StartUp = StartUp()
    """What every job does before its first step."""
    charges: Charges = Charges()
    """What a node-hour draws, costs and emits."""
