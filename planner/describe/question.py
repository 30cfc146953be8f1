"""Question: what is estimated."""

from __future__ import annotations

from dataclasses import dataclass

from planner.describe.framework import Framework
from planner.describe.machine import Machine
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
