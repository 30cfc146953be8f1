"""Registry of figures: every figure by name, and how its arguments are taken from a result."""

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, Literal, TypeVar

from planner.choose.jobs.job_spec import JobSpec
from planner.choose.plan import Plan
from planner.choose.plots import LayoutSpace, layout_space, parallel_axes, simulate_step
from planner.cost.estimate import Estimate
from planner.cost.memory.footprint import stage_memory
from planner.cost.scenario import Scenario
from planner.cost.scenario.experience import Experience
from planner.describe.catalogue import load_framework, load_machine, load_model
from planner.describe.machine import Machine
from planner.describe.model.model import Model
from planner.errors import PlannerError
from planner.show.figures.frame import Drawing
from planner.training.whole_training import WholeTraining
from planner.units import counted

FIGURES: dict[str, Callable[..., Any]] = {}
"""Public figures by name: each takes a result and returns a plotly figure."""

Subject = Literal["answer", "answers", "learned", "machine", ""]
"""First argument of a figure: a plan or estimate, several, learned runs, a machine, or none."""

_TEXT, _GRID = "#777777", "rgba(128, 128, 128, 0.25)"
"""Colours of text and grid, visible on light and on dark pages."""
_MAX_COMPARED = 6
"""Largest number of a plan's layouts to draw side by side."""

Draw = TypeVar("Draw", bound=Callable[..., Drawing])


@dataclass(frozen=True)
class Request:
    """Arguments of a public figure, and the inputs of drawings derived from them."""

    result: Any
    options: Mapping[str, Any]

    @functools.cached_property
    def estimate(self) -> Estimate:
        """The given estimate, else the recommended one. Raises PlannerError if nothing fits."""
        if isinstance(self.result, Estimate):
            return self.result
        estimate: Estimate | None = self.options["estimate"] or self.result.recommended
        if estimate is None:
            raise PlannerError(
                f"nothing fits on {counted(self.result.nodes, 'node')}, so there is nothing to "
                "draw; give an estimate of answer.strategies, or draw strategy_bars"
            )
        return estimate

    @property
    def estimates(self) -> list[tuple[str, Estimate]]:
        """Estimates with their names: the layouts of a plan, or those of a mapping."""
        if not isinstance(self.result, Plan):
            return list(self.result.items())
        listed = self.result.listed[:_MAX_COMPARED]
        return [(f"{each.layout} [{each.framework}]", each) for each in listed]

    @functools.cached_property
    def machine(self) -> Machine:
        """The given machine, else the plan's. Raises PlannerError if neither is known."""
        machine = self.options["machine"] or getattr(self.result, "machine", None)
        if machine is None:
            raise PlannerError("an estimate does not know its machine; give machine=")
        return machine if isinstance(machine, Machine) else load_machine(machine)

    @functools.cached_property
    def model(self) -> Model:
        """The given model, else the plan's."""
        model = self.options["model"]
        if isinstance(model, Model):
            return model
        return load_model(model) if model else load_model(self.result.model, run=False)

    @property
    def training(self) -> WholeTraining:
        """The whole training of the plan. Raises PlannerError if its workload has no tokens."""
        training = self.result.training if isinstance(self.result, Plan) else self.result
        if not isinstance(training, WholeTraining):
            raise PlannerError(
                "tokens = 0: the plan was not told how long it trains; set tokens, or samples and "
                "epochs, of its workload"
            )
        return training

    @property
    def scenario(self) -> Scenario:
        """The scenario of one layout of the plan."""
        framework = load_framework(self.estimate.framework)
        return Scenario(self.model, self.machine, self.result.workload, framework)

    @property
    def space(self) -> LayoutSpace:
        """All layouts of the plan's job, from a new search."""
        options = {name: self.options[name] for name in ("frameworks", "experience")}
        of_plan = {"nodes": self.result.nodes, "workload": self.result.workload}
        return layout_space(JobSpec(self.model, self.machine, **of_plan, **options))


@dataclass(frozen=True, slots=True)
class _Source:
    """An input of drawings: its value for a request, and the arguments that it depends on."""

    value: Callable[[Request], Any]
    needs: tuple[str, ...] = ()


_OF_JOB = ("estimate", "model", "machine")
_SOURCES = {
    "axes": _Source(lambda r: parallel_axes(r.scenario, r.estimate), _OF_JOB),
    "device_limit_bytes": _Source(attrgetter("machine.device.memory_bytes.value"), ("machine",)),
    "estimate": _Source(attrgetter("estimate"), ("estimate",)),
    "estimates": _Source(attrgetter("estimates")),
    "host_limit_bytes": _Source(attrgetter("machine.node.host_memory_bytes.value"), ("machine",)),
    "layout": _Source(attrgetter("estimate.layout"), ("estimate",)),
    "machine": _Source(attrgetter("machine"), ("machine",)),
    "marked": _Source(attrgetter("result.recommended")),
    "simulated": _Source(
        lambda r: simulate_step(
            replace(r.scenario, experience=r.options["experience"]), r.estimate
        ),
        (*_OF_JOB, "experience"),
    ),
    "scores": _Source(attrgetter("result.scores")),
    "space": _Source(attrgetter("space"), ("model", "machine", "frameworks", "experience")),
    "stages": _Source(lambda r: stage_memory(r.scenario, r.estimate.layout), _OF_JOB),
    "step_time_s": _Source(attrgetter("estimate.step_time_s"), ("estimate",)),
    "strategies": _Source(attrgetter("result.strategies")),
    "training": _Source(attrgetter("training")),
}
"""Inputs of drawings, by parameter name."""

_DEFAULTS: dict[str, Any] = {
    "estimate": None,
    "model": None,
    "machine": None,
    "frameworks": (),
    "experience": Experience(),
}
"""Arguments in addition to the result, with defaults, in the order of signatures."""


def figure_of(subject: Subject = "") -> Callable[[Draw], Draw]:
    """Register a drawing; parameters with the name of a source are derived from the result."""

    def register(draw: Draw) -> Draw:
        signature = _public_signature(draw, subject)

        @functools.wraps(draw)
        def figure(*args: Any, **kwargs: Any) -> Any:
            arguments = signature.bind(*args, **kwargs)
            arguments.apply_defaults()
            return _finish(draw(**_drawn_arguments(draw, subject, arguments.arguments)))

        figure.__signature__ = signature  # type: ignore[attr-defined]
        FIGURES[draw.__name__] = figure
        return draw

    return register


def _public_signature(draw: Callable[..., Drawing], subject: Subject) -> inspect.Signature:
    """Return the signature of a public figure: the result, its own options, then the sources'."""
    parameters = inspect.signature(draw).parameters
    needs = {need for name in parameters if name in _SOURCES for need in _SOURCES[name].needs}
    needs -= {subject}
    options = [each for name, each in parameters.items() if name not in {*_SOURCES, subject}]
    first = [inspect.Parameter(subject, inspect.Parameter.POSITIONAL_OR_KEYWORD)] if subject else []
    kinds = {"estimate": inspect.Parameter.POSITIONAL_OR_KEYWORD}
    named = [
        inspect.Parameter(
            name, kinds.get(name, inspect.Parameter.KEYWORD_ONLY), default=_DEFAULTS[name]
        )
        for name in _DEFAULTS
        if name in needs
    ]
    ordered = sorted([*first, *named[:1], *options, *named[1:]], key=lambda each: each.kind)
    return inspect.Signature(ordered)


def _drawn_arguments(
    draw: Callable[..., Drawing], subject: Subject, arguments: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the arguments of a drawing from those of its public figure."""
    request = Request(arguments.get(subject), {**_DEFAULTS, **arguments})
    return {
        name: _SOURCES[name].value(request) if name in _SOURCES else arguments[name]
        for name in inspect.signature(draw).parameters
    }


def _finish(drawing: Drawing) -> Any:
    """Return the figure of a drawing with its text alternative, styled for any page."""
    figure = drawing.figure
    figure.update_layout(meta={"alt": drawing.alt}, font={"color": _TEXT})
    figure.update_xaxes(gridcolor=_GRID)
    figure.update_yaxes(gridcolor=_GRID)
    return figure
