"""Question: what is estimated."""

from __future__ import annotations

from dataclasses import dataclass

from planner.cost.operators.blocks import blocks
from planner.describe.framework import Framework
from planner.describe.machine import Machine
from planner.describe.model.block import Block
from planner.describe.model.model import Model
from planner.describe.workload import Workload

__all__ = ["Question"]


@dataclass(frozen=True, slots=True)
class Question:
    """What is estimated: a model, on a machine, for a workload, with a framework."""

    model: Model
    machine: Machine
    workload: Workload
    framework: Framework

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The model's distinct blocks under this workload and framework."""
        return blocks(self.model, self.workload, self.framework)
