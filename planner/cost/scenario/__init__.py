"""Scenario: what is estimated, and what was measured before."""

from __future__ import annotations

from dataclasses import dataclass, field

from planner.cost.scenario.experience import Experience
from planner.describe.framework.framework import Framework
from planner.describe.machine import Machine
from planner.describe.model.model import Model
from planner.describe.workload import Workload

__all__ = ["Scenario"]


@dataclass(frozen=True, slots=True)
class Scenario:
    """Question of an estimate: a model, machine, workload and framework, and measured runs."""

    model: Model
    machine: Machine
    workload: Workload
    framework: Framework
    experience: Experience = field(default=Experience(), compare=False)
    """Runs measured before, which correct the estimate."""

    def __post_init__(self) -> None:
        # the network of the framework's jobs, the kernels of the machine's devices
        object.__setattr__(self, "machine", self.machine.network_of(self.framework.family))
        object.__setattr__(self, "framework", self.framework.on(self.machine.device.runtime))
