"""Batch job: one estimated layout, and everything that its files are written from."""

import re
from dataclasses import dataclass, replace
from operator import attrgetter

from planner.cost.estimate import Estimate
from planner.cost.scenario import Scenario
from planner.describe.catalogue import load_machine, load_model, names
from planner.describe.machine import Launch
from planner.describe.machine.variants import take_devices
from planner.describe.model.huggingface.hub import is_from_hub
from planner.errors import shorten
from planner.training.job_slot import Run, Slot, slot_of

CHECKPOINTS = "checkpoints"
"""Checkpoint folder next to the job script; each job saves there and resumes from the latest."""

FINISHED = "finished"
"""Marker file that a job writes next to its script after the last step."""


_STANDARD = Launch(source="not stated in the profile; standard options are used")


def slug(text: str, limit: int = 40) -> str:
    """Make a name safe for every file: letters, digits, . _ -; a letter first."""
    text = re.sub(r"(?<=[0-9.][eE])[+](?=[0-9])", "", text)
    clean = re.sub(r"[^A-Za-z0-9._-]+", "-", text)[:limit].strip("-._")
    return clean if clean[:1].isalpha() else f"m-{clean}".rstrip("-")


@dataclass(frozen=True)  # no slots: in Python 3.14 they take no property of an attrgetter
class BatchJob:
    """A run to write files for: an estimated layout, its nodes, steps and queue."""

    scenario: Scenario
    estimate: Estimate
    nodes: int
    steps: int
    queue: str = ""
    """Queue that the user chose; empty: the shortest that holds the run."""
    account: str = ""
    """Account that pays; empty: the user sets it."""
    benchmark: bool = False
    """Whether to add a script that times collectives on these nodes."""
    saves: bool = True
    """Whether the run saves checkpoints before its end."""

    model = property(attrgetter("scenario.model"))
    machine = property(attrgetter("scenario.machine"))
    workload = property(attrgetter("scenario.workload"))
    framework = property(attrgetter("scenario.framework"))
    layout = property(attrgetter("estimate.layout"))

    @property
    def launch(self) -> Launch:
        """How the machine's site launches jobs, as its profile states it."""
        return self.machine.scheduler.launch or _STANDARD

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
        """The machine's name, shortened for messages."""
        return shorten(self.machine.name)

    @property
    def summary(self) -> str:
        """The run in one line of text."""
        nodes = f"{self.nodes} node{'s' if self.nodes > 1 else ''}"
        return (
            f"{self.name} on {nodes} of {slug(self.machine.name)} with "
            f"{slug(self.framework.name)}: {self.layout}"
        )

    @property
    def model_is_catalogued(self) -> bool:
        """Whether the model can be loaded again by name."""
        if is_from_hub(self.model):
            return True
        return self.model.name in names("model") and load_model(self.model.name) == self.model

    @property
    def machine_is_catalogued(self) -> bool:
        """Whether the machine, or the one that this is a part of, can be loaded again by name."""
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
        """Replicas of the training states, and ranks that shard each replica."""
        layout = self.layout
        shard = (layout.dp_shard or layout.dp) if layout.zero_stage else 1
        return layout.dp // shard, shard

    @property
    def dropout(self) -> float:
        """Dropout probability: the workload's if stated, else the model's."""
        dropout_rate = self.workload.dropout
        return self.model.dropout if dropout_rate is None else dropout_rate

    @property
    def num_positions(self) -> int:
        """Positions that the model needs: its maximum, or the sequence length if longer."""
        return max(self.model.max_sequence_length, self.workload.sequence_length)

    @property
    def batches(self) -> str:
        """The batches of a rank for one step, as a phrase."""
        return (
            f"batches of {self.layout.micro_batch} sequences and steps after "
            f"{self.layout.grad_accumulation} of them"
        )

    @property
    def run(self) -> Run:
        """The run for choosing a queue, with the step time at the slow end of its interval."""
        slow_s = self.estimate.interval_step_time_s[1]
        return Run(self.machine, self.nodes, self.steps, slow_s, self.queue)

    @property
    def slot(self) -> Slot:
        """Queue, wall time and number of jobs of the run."""
        slot = slot_of(self.run)
        return slot if self.saves else replace(slot, save_every=self.steps + 1)
