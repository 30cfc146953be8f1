"""JobSpec: a model to train on nodes of a machine, loaded and checked."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from planner.choose.legality.check import (
    check_nodes,
    check_ramp,
    check_routing,
    check_sequence,
    check_tolerance,
    check_workload,
)
from planner.choose.preferences import preferences
from planner.cost.estimate import Estimate
from planner.cost.scenario import Scenario
from planner.cost.scenario.experience import Experience
from planner.describe.catalogue import load_framework, load_machine, load_model, names
from planner.describe.framework.framework import Framework
from planner.describe.job_description import JobDescription
from planner.describe.machine import Machine
from planner.describe.model.model import Model
from planner.describe.training.training_run import Training
from planner.describe.workload import Workload
from planner.errors import LayoutError
from planner.units import either


@dataclass(frozen=True, slots=True, init=False)
class JobSpec:
    """Fields of a job, with their checks; see `planner.Job`."""

    model: Model
    """Model to train."""
    machine: Machine
    """Machine to train on."""
    nodes: int = 1
    """Number of nodes."""
    workload: Workload = field(default_factory=Workload)
    """Batch, sequence, precision and optimizer."""
    frameworks: tuple[Framework, ...] = ()
    """Frameworks to search; empty: the catalogue's usual ones."""
    tolerance: float = field(default_factory=lambda: preferences().tolerance)
    """Share by which a simpler layout may be slower than the fastest and still be recommended."""
    experience: Experience = field(default=Experience(), compare=False)
    """Measured runs that correct the estimates."""
    training: Training = field(default_factory=Training)
    """Data, evaluation, checkpoints, failures and charges of the whole training."""
    exact: bool = False
    """Whether nodes, batch and sequence are kept to the letter, whatever they cost."""
    measured: tuple[str, ...] = ()
    """Files of measured runs that `experience` was learned from."""

    def __init__(
        self,
        model: str | Model,
        machine: str | Machine,
        *,
        nodes: int = 1,
        workload: Workload | None = None,
        frameworks: str | Framework | Sequence[str | Framework] = (),
        tolerance: float | None = None,
        experience: Experience = Experience(),
        training: Training | None = None,
        exact: bool = False,
        measured: str | Sequence[str] = (),
    ) -> None:
        """Load and check a job; `measured` files are read unless `experience` is given."""
        check_workload(workload)
        model = model if isinstance(model, Model) else load_model(model)
        machine = machine if isinstance(machine, Machine) else load_machine(machine)
        values = {
            "model": model,
            "machine": machine,
            "nodes": nodes,
            "workload": workload or _usual_workload(model),
            "frameworks": _loaded(frameworks),
            "tolerance": preferences().tolerance if tolerance is None else tolerance,
            "experience": experience,
            "training": training or Training(),
            "exact": exact,
            "measured": (measured,) if isinstance(measured, str) else tuple(measured),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)
        self._check()
        self._learn()

    @classmethod
    def described(cls, description: JobDescription, **values: Any) -> Self:
        """Load and check a described job; `values` override its loaded fields."""
        model = description.load_model()
        loaded = {
            "nodes": description.nodes,
            "workload": description.load_workload(model),
            "frameworks": description.load_frameworks(),
            "tolerance": description.tolerance,
            "exact": description.exact,
            "training": Training.described(description.training, where="training"),
        }
        return cls(model, description.load_machine(), **{**loaded, **values})

    def _learn(self) -> None:
        """Learn from the measured runs, where a job can read them."""

    def _check(self) -> None:
        check_nodes(self.machine, self.nodes)
        check_ramp(self.workload)
        check_tolerance(self.tolerance)
        self.machine.peak(self.workload.base_precision)
        check_sequence(self.model, self.workload)
        check_routing(self.model, self.workload)
        if self.frameworks:
            self.searched_frameworks()

    @property
    def num_devices(self) -> int:
        """Number of devices on all nodes."""
        return self.nodes * self.machine.node.num_devices

    def replaced(self, **changes: Any) -> Self:
        """Copy the job with changed fields, and check it again."""
        return replace(self, **changes)

    def searched_frameworks(self) -> list[Framework]:
        """List the frameworks to search. Raises LayoutError if a chosen one cannot run the job."""
        return frameworks_for(self.frameworks, self.machine, self.workload, self.model)

    def scenario(self, framework: Framework) -> Scenario:
        """Make the scenario of the job under a framework."""
        return Scenario(self.model, self.machine, self.workload, framework, self.experience)

    def scenario_of(self, estimate: Estimate) -> Scenario:
        """Make the scenario of the job under the framework of an estimate."""
        named = {framework.name: framework for framework in self.frameworks}
        return self.scenario(named.get(estimate.framework) or load_framework(estimate.framework))


def _usual_workload(model: Model) -> Workload:
    length, usual = model.default_sequence_length, Workload()
    is_own = model.counts_samples or length < usual.sequence_length
    return usual.replaced(sequence_length=length) if is_own else usual


def _loaded(frameworks: str | Framework | Sequence[str | Framework]) -> tuple[Framework, ...]:
    several = frameworks if isinstance(frameworks, (list, tuple)) else (frameworks,)
    return tuple(each if isinstance(each, Framework) else load_framework(each) for each in several)


def frameworks_for(
    chosen: Sequence[str | Framework],
    machine: Machine,
    workload: Workload | None = None,
    model: Model | None = None,
) -> list[Framework]:
    """List the chosen frameworks, or the usual ones that run on the machine."""
    if chosen:
        frameworks = list(_loaded(chosen))
        for framework in frameworks:
            if refusal := framework.refuses(machine, workload, model):
                usual = either(each.name for each in running_frameworks(machine))
                is_elsewhere = refusal.endswith("use another framework")
                raise LayoutError(f"{refusal}, such as {usual}" if is_elsewhere else refusal)
        return frameworks
    running = running_frameworks(machine)
    names_running = {framework.name for framework in running}
    return [each for each in running if each.stands_in_for not in names_running]


def running_frameworks(machine: Machine) -> list[Framework]:
    """List the frameworks that are searched by default and run on the machine."""
    runtime = machine.device.runtime
    return [
        framework
        for framework in map(load_framework, names("framework"))
        if framework.searched
        and runtime in framework.runtimes
        and framework.requires.met_by(machine)
    ]
