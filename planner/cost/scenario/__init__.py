"""Scenario: inputs of an estimate, and measured runs that correct it."""

from dataclasses import dataclass, field

from planner.cost.scenario.experience import Experience
from planner.describe.framework.framework import Framework
from planner.describe.machine import Machine
from planner.describe.model.model import Model
from planner.describe.workload import Workload

__all__ = ["Scenario"]


@dataclass(frozen=True, slots=True)
class Scenario:
    """Inputs of an estimate: model, machine, workload, framework and measured runs."""

    model: Model
    machine: Machine
    workload: Workload
    framework: Framework
    experience: Experience = field(default=Experience(), compare=False)
    """Measured runs that correct the estimate."""

    def __post_init__(self) -> None:
        # select the framework's network and attention, and its kernels for model and runtime
        object.__setattr__(self, "machine", self.machine.network_of(self.framework.family))
        around = self.framework.around(self.model, self.workload)
        object.__setattr__(self, "framework", around.on(self.machine.device.runtime))
        workload = self.framework.with_attention(self.workload, self.model)
        object.__setattr__(self, "workload", workload)

    @property
    def knows_blocks(self) -> bool:
        """Whether the blocks of the model were compared with the code that computes them."""
        return self.framework.knows_blocks(self.model)
