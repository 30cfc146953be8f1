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
        # select the network and the attention of the framework, and its kernels for the runtime
        object.__setattr__(self, "machine", self.machine.network_of(self.framework.family))
        object.__setattr__(self, "framework", self.framework.on(self.machine.device.runtime))
        workload = self.framework.with_attention(self.workload, self.model)
        object.__setattr__(self, "workload", workload)
