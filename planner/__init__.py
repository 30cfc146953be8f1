"""Which parallelism strategy fits a model on a machine, how fast it is, and why.

>>> import planner
>>> planner.estimate("llama-3-8b", "polaris", planner.Layout(dp=4, tp=4, zero_stage=1)).fits
True
"""

import importlib
import typing

from planner.choose.given.configured import estimate_configuration
from planner.choose.plan import Plan
from planner.choose.planning import estimate, plan
from planner.choose.simulated.simulation import Simulation, simulate
from planner.cost.estimate import Estimate
from planner.describe.catalogue import load_framework, load_machine, load_model
from planner.describe.configurations.configuration import Configuration
from planner.describe.configurations.reading import read_configuration
from planner.describe.framework.framework import Framework
from planner.describe.layout import Layout
from planner.describe.machine import Machine
from planner.describe.model.model import Model
from planner.describe.workload import Workload
from planner.emitters import emit
from planner.errors import PlannerError
from planner.evidence.learning import Learned
from planner.evidence.learning import learn_from as learn
from planner.show.html import html
from planner.sweeps import Swept, sweep

__version__ = "0.1.0"

__all__ = [
    "Configuration",
    "Estimate",
    "Framework",
    "Layout",
    "Learned",
    "Machine",
    "Model",
    "Plan",
    "PlannerError",
    "Simulation",
    "Swept",
    "Workload",
    "emit",
    "estimate",
    "estimate_configuration",
    "html",
    "learn",
    "load_framework",
    "load_machine",
    "load_model",
    "plan",
    "read_configuration",
    "simulate",
    "sweep",
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
