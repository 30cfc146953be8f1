"""Question: what is estimated."""

from __future__ import annotations

from dataclasses import dataclass

from planner.block import Block
from planner.framework import Framework
from planner.machine import Machine
from planner.model import Model
from planner.transformer import blocks
from planner.workload import Workload

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
