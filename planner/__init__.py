"""Which parallelism strategy fits a model on a machine, how fast it is, and why.

>>> import planner
>>> planner.estimate("llama-3-8b", "polaris", planner.Layout(dp=4, tp=4, zero_stage=1)).fits
True
"""

from planner.catalogue import load_framework, load_machine, load_model
from planner.emit import emit
from planner.errors import PlannerError
from planner.estimation import Estimate
from planner.framework import Framework
from planner.layout import Layout
from planner.machine import Machine
from planner.model import Model
from planner.planning import Plan, estimate, plan
from planner.workload import Workload

__version__ = "0.1.0"

__all__ = [
    "Estimate",
    "Framework",
    "Layout",
    "Machine",
    "Model",
    "Plan",
    "PlannerError",
    "Workload",
    "emit",
    "estimate",
    "load_framework",
    "load_machine",
    "load_model",
    "plan",
]
