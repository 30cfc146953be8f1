"""Which parallelism strategy fits a model on a machine, how fast it is, and why.

>>> import planner
>>> planner.estimate("llama-3-8b", "polaris", planner.Layout(dp=4, tp=4, zero_stage=1)).fits
True
"""

import importlib
import typing

from planner import ask
from planner.choose.plan import Plan
from planner.choose.planning import estimate, plan, whole_training
from planner.choose.simulation.step_simulation import Simulation, simulate
from planner.choose.user_layouts.configuration_estimate import estimate_configuration
from planner.cost.estimate import Estimate
from planner.describe.catalogue import load_dataset, load_framework, load_machine, load_model
from planner.describe.configurations.configuration import Configuration
from planner.describe.configurations.reading import read_configuration
from planner.describe.dataset import Dataset, Loader
from planner.describe.framework.framework import Framework
from planner.describe.layout import Layout
from planner.describe.machine import Machine
from planner.describe.model.model import Model
from planner.describe.training_run import (
    Charges,
    Checkpoints,
    Evaluation,
    Failures,
    StartUp,
    Training,
)
from planner.describe.workload import Workload
from planner.emitters import emit
from planner.errors import PlannerError
from planner.evidence.learning import Learned
from planner.evidence.learning import learn_from as learn
from planner.job import Job
from planner.show.html import html
from planner.sweeps import Swept, sweep
from planner.training.answer import WholeTraining

__version__ = "0.1.0"

__all__ = [
    "Charges",
    "Checkpoints",
    "Configuration",
    "Dataset",
    "Estimate",
    "Evaluation",
    "Failures",
    "Framework",
    "Job",
    "Layout",
    "Learned",
    "Loader",
    "Machine",
    "Model",
    "Plan",
    "PlannerError",
    "Simulation",
    "StartUp",
    "Swept",
    "Training",
    "WholeTraining",
    "Workload",
    "ask",
    "emit",
    "estimate",
    "estimate_configuration",
    "html",
    "learn",
    "load_dataset",
    "load_framework",
    "load_machine",
    "load_model",
    "plan",
    "read_configuration",
    "simulate",
    "sweep",
    "whole_training",
]

if typing.TYPE_CHECKING:
    from planner import figures as figures
else:

    def __getattr__(name: str) -> object:
        """`planner.figures`, loaded when it is first asked for."""
        if name == "figures":
            return importlib.import_module("planner.figures")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return [*globals(), "figures"]
