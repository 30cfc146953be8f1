"""Batch job: one estimated layout with everything that its files are written from."""

from __future__ import annotations

import re
from dataclasses import dataclass

from planner.cost.estimate import Estimate
from planner.cost.scenario import Scenario
from planner.describe.catalogue import load_machine, load_model, names
from planner.describe.framework.framework import Framework
from planner.describe.layout import Layout
from planner.describe.machine import Machine
from planner.describe.machine.variants import take_devices
from planner.describe.model.huggingface.hub import is_from_hub
from planner.describe.model.model import Model
from planner.describe.workload import Workload
from planner.errors import shorten
from planner.training.job_slot import Run, Slot, slot_of

CHECKPOINTS = "checkpoints"
"""Folder beside the job script: every job saves into it and goes on from the last found there."""

FINISHED = "finished"
"""File that a job leaves beside its script when the program came to the last step."""


def slug(text: str, limit: int = 40) -> str:
    """A name that is harmless in every file: letters, digits, . _ -; opens with a letter.

    >>> slug('7b "$(rm -rf ~)"'), slug("mistral-7b")
    ('m-7b-rm--rf', 'mistral-7b')
    >>> slug("deepspeed+bucket=2e+08")  # not 2e-08
    'deepspeed-bucket-2e08'
    """
    text = re.sub(r"(?<=[0-9.][eE])[+](?=[0-9])", "", text)
    clean = re.sub(r"[^A-Za-z0-9._-]+", "-", text)[:limit].strip("-._")
    return clean if clean[:1].isalpha() else f"m-{clean}".rstrip("-")


@dataclass(frozen=True, slots=True)
class BatchJob:
    """What is run, where, on how many nodes, and for how many steps."""

    scenario: Scenario
    estimate: Estimate
    nodes: int
    steps: int
    queue: str = ""
    """The queue that a user asked for; empty: the shortest that holds the run."""
    benchmark: bool = False
    """Whether a script that times the collectives of its nodes comes with it."""

    @property
    def model(self) -> Model:
        """The model."""
        return self.scenario.model

    @property
    def machine(self) -> Machine:
        """The machine."""
        return self.scenario.machine

    @property
    def workload(self) -> Workload:
        """The workload."""
        return self.scenario.workload

    @property
    def framework(self) -> Framework:
        """The framework."""
        return self.scenario.framework

    @property
    def layout(self) -> Layout:
        """The layout."""
        return self.estimate.layout

    @property
    def ranks_per_node(self) -> int:
        """Ranks of one node."""
        return self.machine.node.num_devices

    @property
    def name(self) -> str:
        """Name of the job."""
        return slug(self.model.name)

    @property
    def where(self) -> str:
        """The machine's name as a message may print it."""
        return shorten(self.machine.name)

    @property
    def summary(self) -> str:
        """The run in one line of plain words."""
        nodes = f"{self.nodes} node{'s' if self.nodes > 1 else ''}"
        return (
            f"{self.name} on {nodes} of {slug(self.machine.name)} with "
            f"{slug(self.framework.name)}: {self.layout}"
        )

    @property
    def model_is_catalogued(self) -> bool:
        """Whether the model's name suffices to find it again."""
        if is_from_hub(self.model):
            return True
        return self.model.name in names("model") and load_model(self.model.name) == self.model

    @property
    def machine_is_catalogued(self) -> bool:
        """Whether the machine's name suffices to find it again, or the node that this is of."""
        name, devices = self.machine.name, self.ranks_per_node
        if name not in names("machine"):
            return False
        catalogued = load_machine(name).network_of(self.framework.family)
        return self.machine == catalogued or (
            devices <= catalogued.node.num_devices
            and self.machine == take_devices(catalogued, devices)
        )

    @property
    def sharding(self) -> tuple[int, int]:
        """Replicas of the training states, and the ranks over which each is sharded."""
        layout = self.layout
        shard = (layout.dp_shard or layout.dp) if layout.zero_stage else 1
        return layout.dp // shard, shard

    @property
    def dropout(self) -> float:
        """Dropout probability: the workload's where it states one, else the model's."""
        dropout_rate = self.workload.dropout
        return self.model.dropout if dropout_rate is None else dropout_rate

    @property
    def num_positions(self) -> int:
        """Positions that the model must know: its own, or the sequence where that is longer."""
        return max(self.model.max_sequence_length, self.workload.sequence_length)

    @property
    def batches(self) -> str:
        """What a rank reads for a step, in plain words."""
        return (
            f"batches of {self.layout.micro_batch} sequences and steps after "
            f"{self.layout.grad_accumulation} of them"
        )

    @property
    def run(self) -> Run:
        """The steps at the slow end of the interval, for a queue."""
        slow_s = self.estimate.interval_step_time_s[1]
        return Run(self.machine, self.nodes, self.steps, slow_s, self.queue)

    @property
    def slot(self) -> Slot:
        """The queue, wall time and number of its jobs."""
        return slot_of(self.run)
