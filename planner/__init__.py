"""Which parallelism strategy fits a model on a machine, how fast it is, and why.

>>> import planner
>>> planner.estimate("llama-3-8b", "polaris", planner.Layout(dp=4, tp=4, zero_stage=1)).fits
True
"""

import importlib
from typing import TYPE_CHECKING

__version__ = "0.2.0"

if TYPE_CHECKING:
    from planner import ask as ask
    from planner import figures as figures
    from planner.choose.plan import Plan as Plan
    from planner.choose.planning import estimate as estimate
    from planner.choose.planning import plan as plan
    from planner.choose.planning import whole_training as whole_training
    from planner.choose.simulation.step_simulation import Simulation as Simulation
    from planner.choose.simulation.step_simulation import simulate as simulate
    from planner.choose.user_layouts import estimate_configuration as estimate_configuration
    from planner.cost.estimate import Estimate as Estimate
    from planner.describe.catalogue import load_dataset as load_dataset
    from planner.describe.catalogue import load_framework as load_framework
    from planner.describe.catalogue import load_machine as load_machine
    from planner.describe.catalogue import load_model as load_model
    from planner.describe.configurations.configuration import Configuration as Configuration
    from planner.describe.configurations.reading import read_configuration as read_configuration
    from planner.describe.framework.framework import Framework as Framework
    from planner.describe.layout import Layout as Layout
    from planner.describe.machine import Machine as Machine
    from planner.describe.model.model import Model as Model
    from planner.describe.training.training_run import Charges as Charges
    from planner.describe.training.training_run import Checkpoints as Checkpoints
    from planner.describe.training.training_run import Dataset as Dataset
    from planner.describe.training.training_run import Evaluation as Evaluation
    from planner.describe.training.training_run import Failures as Failures
    from planner.describe.training.training_run import Loader as Loader
    from planner.describe.training.training_run import StartUp as StartUp
    from planner.describe.training.training_run import Training as Training
    from planner.describe.workload import Workload as Workload
    from planner.emitters import emit as emit
    from planner.errors import PlannerError as PlannerError
    from planner.evidence.learning import Learned as Learned
    from planner.evidence.learning import learn_from
    from planner.job import Job as Job
    from planner.sweeps import Swept as Swept
    from planner.sweeps import sweep as sweep
    from planner.tables import html as html
    from planner.training.whole_training import WholeTraining as WholeTraining

    learn = learn_from
else:
    # loaded on first use, so that `import planner` stays fast
    _NAMES = {
        "planner.choose.plan": "Plan",
        "planner.choose.planning": "estimate plan whole_training",
        "planner.choose.simulation.step_simulation": "Simulation simulate",
        "planner.choose.user_layouts": "estimate_configuration",
        "planner.cost.estimate": "Estimate",
        "planner.describe.catalogue": "load_dataset load_framework load_machine load_model",
        "planner.describe.configurations.configuration": "Configuration",
        "planner.describe.configurations.reading": "read_configuration",
        "planner.describe.framework.framework": "Framework",
        "planner.describe.layout": "Layout",
        "planner.describe.machine": "Machine",
        "planner.describe.model.model": "Model",
        "planner.describe.training.training_run": "Charges Checkpoints Dataset Evaluation Failures "
        "Loader StartUp Training",
        "planner.describe.workload": "Workload",
        "planner.emitters": "emit",
        "planner.errors": "PlannerError",
        "planner.evidence.learning": "Learned learn",
        "planner.job": "Job",
        "planner.sweeps": "Swept sweep",
        "planner.tables": "html",
        "planner.training.whole_training": "WholeTraining",
    }
    _PLACES = {name: place for place, names in _NAMES.items() for name in names.split()}
    _MODULES = ("ask", "figures")

    __all__ = sorted([*_PLACES, "ask"])

    def __getattr__(name: str) -> object:
        """Load a public name from its module on first use."""
        if name in _MODULES:
            return importlib.import_module(f"planner.{name}")
        if name in _PLACES:
            module = importlib.import_module(_PLACES[name])
            value = getattr(module, "learn_from" if name == "learn" else name)
            globals()[name] = value
            return value
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        """List all public names, loaded or not."""
        return sorted({*globals(), *__all__, *_MODULES})
