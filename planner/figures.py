"""Figures by name: the explorer's drawings of an answer, for a notebook (extra `app`).

Every function returns a plotly figure; the sentence that stands in for it where it cannot be seen
is `figure.layout.meta["alt"]`. A plan knows model and machine by name: give those that are in no
catalogue, or were changed. Where an estimate is not given, the recommended one is drawn. Drawings
are those of `planner.show.figures`, which is loaded with the first of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

from planner.choose.plan import Plan
from planner.choose.plots.anatomy import parallel_axes, play_step, scenario_of
from planner.choose.plots.layout_space import LayoutSpace, layout_space
from planner.cost.estimate import Estimate
from planner.cost.memory.footprint import stage_memory
from planner.cost.scenario.experience import Experience
from planner.describe.catalogue import load_machine, load_model
from planner.describe.machine import Machine
from planner.describe.model.model import Model
from planner.errors import PlannerError
from planner.evidence.learning import Learned
from planner.training.answer import WholeTraining
from planner.units import counted

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from planner.show.figures.frame import Drawing

__all__ = [
    "bandwidth",
    "data_picture",
    "errors",
    "gantt",
    "heatmap",
    "host_bars",
    "link_loads",
    "memory_bars",
    "memory_over_step",
    "pareto",
    "parity",
    "rank_map",
    "scaling",
    "stage_bars",
    "strategy_bars",
    "time_bars",
    "times",
    "topology",
    "waterfall",
    "whole_training",
]

Operation = Literal[
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "broadcast",
    "reduce",
    "scatter",
    "gather",
    "all-to-all",
    "send",
]
"""Collectives that are drawn."""

_TEXT, _GRID = "#777777", "rgba(128, 128, 128, 0.25)"
"""Of axes and words: both can be seen on light and on dark pages."""
_COMPARED = 6
"""Layouts of a plan that are drawn side by side."""


def __dir__() -> list[str]:
    return __all__


# --- of a plan --------------------------------------------------------------------------------


def strategy_bars(answer: Plan, *, machine: str | Machine | None = None) -> Figure:
    """Memory per device of every classic strategy, by part, with the device's limit."""
    with _plotly():
        from planner.show.figures.memory import strategy_bars as draw
    return _figure(draw(answer.strategies, _machine(answer, machine)))


def heatmap(
    answer: Plan,
    *,
    model: str | Model | None = None,
    machine: str | Machine | None = None,
    frameworks: Sequence[str] = (),
    experience: Experience = Experience(),
) -> Figure:
    """Fastest step for every tp and pp; searched again, so give what `plan` was given."""
    with _plotly():
        from planner.show.figures.candidates import heatmap as draw
    place = _machine(answer, machine)
    found = _space(answer, model, place, frameworks, experience)
    return _figure(draw(found, place.device.memory_bytes.value))


def pareto(
    answer: Plan,
    *,
    model: str | Model | None = None,
    machine: str | Machine | None = None,
    frameworks: Sequence[str] = (),
    experience: Experience = Experience(),
) -> Figure:
    """Memory against step time of all layouts; searched again, so give what `plan` was given."""
    with _plotly():
        from planner.show.figures.candidates import pareto as draw
    place = _machine(answer, machine)
    found = _space(answer, model, place, frameworks, experience)
    return _figure(draw(found, place.device.memory_bytes.value, answer.recommended))


def scaling(
    answers: Sequence[Plan], what: Literal["time", "efficiency", "node-hours"] = "time"
) -> Figure:
    """Step time, efficiency or node-hours of one job planned for several numbers of nodes."""
    with _plotly():
        from planner.show.figures.time import ScalePoint
        from planner.show.figures.time import scaling as draw
    points = []
    for answer in sorted(answers, key=lambda one: one.nodes):
        best = answer.best
        points.append(
            ScalePoint(answer.nodes, None, 0.0, 0.0, "nothing fits")
            if best is None
            else ScalePoint(
                answer.nodes,
                best.step_time_s,
                best.tokens_per_s,
                answer.node_hours(best),
                f"{best.layout} [{best.framework}]",
            )
        )
    return _figure(draw(points, what))


# --- of estimates -----------------------------------------------------------------------------


def waterfall(answer: Plan | Estimate) -> Figure:
    """Step time by part, each starting where the one before ended, with its 90 % interval."""
    with _plotly():
        from planner.show.figures.time import waterfall as draw
    return _figure(draw(_chosen(answer) if isinstance(answer, Plan) else answer))


def whole_training(answer: Plan | WholeTraining) -> Figure:
    """Time of a whole training by part, each starting where the one before ended.

    Raises PlannerError for a plan that was not told how long it trains.
    """
    with _plotly():
        from planner.show.figures.time import whole_training as draw
    found = answer.training if isinstance(answer, Plan) else answer
    if found is None:
        raise PlannerError(
            "tokens = 0: the plan was not told how long it trains; set tokens, or samples and "
            "epochs, of its workload"
        )
    return _figure(draw(found))


def time_bars(answers: Plan | Mapping[str, Estimate]) -> Figure:
    """Step time by part of estimates with names, or of the layouts of a plan."""
    with _plotly():
        from planner.show.figures.compare import time_bars as draw
    return _figure(draw(_named(answers)))


def memory_bars(
    answers: Plan | Mapping[str, Estimate], *, machine: str | Machine | None = None
) -> Figure:
    """Memory by part of estimates with names, or of the layouts of a plan, with the limit.

    Estimates do not know their machine: name it.
    """
    with _plotly():
        from planner.show.figures.compare import memory_bars as draw
    place = _machine(answers if isinstance(answers, Plan) else None, machine)
    return _figure(draw(_named(answers), place.device.memory_bytes.value))


def stage_bars(
    answer: Plan,
    estimate: Estimate | None = None,
    *,
    model: str | Model | None = None,
    machine: str | Machine | None = None,
) -> Figure:
    """Memory per device on every pipeline stage, by part."""
    with _plotly():
        from planner.show.figures.memory import stage_bars as draw
    place = _machine(answer, machine)
    stages = _stages(answer, _chosen(answer, estimate), _model(answer, model), place)
    return _figure(draw(stages, place.device.memory_bytes.value))


def host_bars(
    answer: Plan | Estimate,
    estimate: Estimate | None = None,
    *,
    machine: str | Machine | None = None,
) -> Figure:
    """Host memory per node, by part. An estimate does not know its machine: name it."""
    with _plotly():
        from planner.show.figures.memory import host_bars as draw
    of_plan = answer if isinstance(answer, Plan) else None
    found = answer if isinstance(answer, Estimate) else _chosen(answer, estimate)
    room = _machine(of_plan, machine).node.host_memory_bytes.value
    return _figure(draw(found, room))


def rank_map(
    answer: Plan,
    estimate: Estimate | None = None,
    *,
    axis: Literal["dp", "tp", "pp", "cp", "ep"] = "tp",
    machine: str | Machine | None = None,
) -> Figure:
    """Which devices of which nodes share an index on one axis of a layout."""
    with _plotly():
        from planner.show.figures.layout import rank_map as draw
    return _figure(draw(_chosen(answer, estimate).layout, _machine(answer, machine), axis))


def link_loads(
    answer: Plan,
    estimate: Estimate | None = None,
    *,
    model: str | Model | None = None,
    machine: str | Machine | None = None,
) -> Figure:
    """Bytes of one step by axis, on the links inside a node and between nodes."""
    with _plotly():
        from planner.show.figures.layout import link_loads as draw
    found, place = _chosen(answer, estimate), _machine(answer, machine)
    carried = parallel_axes(_model(answer, model), place, answer.workload, found)
    return _figure(draw(carried, place, found.step_time_s))


def gantt(
    answer: Plan,
    estimate: Estimate | None = None,
    *,
    model: str | Model | None = None,
    machine: str | Machine | None = None,
    experience: Experience = Experience(),
) -> Figure:
    """What every pipeline stage does when; gaps are waiting."""
    with _plotly():
        from planner.show.figures.pipeline import gantt as draw
    found, place = _chosen(answer, estimate), _machine(answer, machine)
    return _figure(
        draw(play_step(_model(answer, model), place, answer.workload, found, experience))
    )


def memory_over_step(
    answer: Plan,
    estimate: Estimate | None = None,
    *,
    model: str | Model | None = None,
    machine: str | Machine | None = None,
    experience: Experience = Experience(),
) -> Figure:
    """Memory of the first, the fullest and the last pipeline stage while one step runs."""
    with _plotly():
        from planner.show.figures.pipeline import memory_over_step as draw
    found, place = _chosen(answer, estimate), _machine(answer, machine)
    described = _model(answer, model)
    step = play_step(described, place, answer.workload, found, experience)
    stages = _stages(answer, found, described, place)
    return _figure(draw(step, stages, place.device.memory_bytes.value))


# --- of machines ------------------------------------------------------------------------------


def topology(machine: str | Machine) -> Figure:
    """One node and its way out: devices, interfaces, switch, host; links with their rates."""
    with _plotly():
        from planner.show.figures.machines import topology as draw
    return _figure(draw(_machine(None, machine)))


def times(
    machine: str | Machine,
    operation: Operation = "all-reduce",
    *,
    ranks: int | None = None,
    stride: int = 1,
    size_bytes: float = 2.0**26,
) -> Figure:
    """Time of a collective against its size, by algorithm; over two nodes unless ranks are given.

    `stride` ranks lie between neighbours of the group; `size_bytes` is marked.
    """
    with _plotly():
        from planner.show.figures.collectives import ranks_of
        from planner.show.figures.collectives import times as draw
    place = _machine(None, machine)
    return _figure(draw(place, operation, ranks_of(place, ranks, stride), stride, size_bytes))


def bandwidth(
    machine: str | Machine,
    operation: Operation = "all-reduce",
    *,
    ranks: int | None = None,
    stride: int = 1,
) -> Figure:
    """Bus bandwidth of a collective, as nccl-tests defines it, against its size."""
    with _plotly():
        from planner.show.figures.collectives import bandwidth as draw
        from planner.show.figures.collectives import ranks_of
    place = _machine(None, machine)
    return _figure(draw(place, operation, ranks_of(place, ranks, stride), stride))


def data_picture(operation: Operation = "all-reduce") -> Figure:
    """What each of four ranks holds before and after a collective."""
    with _plotly():
        from planner.show.figures.collectives import data_picture as draw
    return _figure(draw(operation))


# --- of measured runs -------------------------------------------------------------------------


def parity(learned: Learned) -> Figure:
    """Estimated against measured step time of the runs that `planner.learn` was given."""
    with _plotly():
        from planner.show.figures.accuracy import parity as draw
    return _figure(draw(learned.scores))


def errors(learned: Learned) -> Figure:
    """Error of every timed run that `planner.learn` was given, largest under-estimate first."""
    with _plotly():
        from planner.show.figures.accuracy import errors as draw
    return _figure(draw(learned.scores))


# --- what they share --------------------------------------------------------------------------


@contextmanager
def _plotly() -> Iterator[None]:
    """Say in one sentence that the drawing library is missing."""
    try:
        yield
    except ImportError as error:
        raise PlannerError(
            f"figures need {error.name or 'plotly'}, which is not installed; run pip install "
            "'parallelism-planner[app]'"
        ) from None


def _figure(drawing: Drawing) -> Any:
    """The figure of a drawing on any page, with its text alternative."""
    figure = drawing.figure
    figure.update_layout(meta={"alt": drawing.alt}, font={"color": _TEXT})
    figure.update_xaxes(gridcolor=_GRID)
    figure.update_yaxes(gridcolor=_GRID)
    return figure


def _machine(answer: Plan | None, given: str | Machine | None) -> Machine:
    if isinstance(given, Machine):
        return given
    if given is None and answer is None:
        raise PlannerError("an estimate does not know its machine; give machine=")
    return load_machine(given or (answer.machine if answer else ""))


def _model(answer: Plan, given: str | Model | None) -> Model:
    if isinstance(given, Model):
        return given
    return load_model(given) if given else load_model(answer.model, run=False)


def _chosen(answer: Plan, estimate: Estimate | None = None) -> Estimate:
    """The estimate that is given, else the recommended one."""
    found = estimate or answer.recommended
    if found is None:
        raise PlannerError(
            f"nothing fits on {counted(answer.nodes, 'node')}, so there is nothing to draw; give "
            "an estimate of answer.strategies, or draw strategy_bars"
        )
    return found


def _named(answers: Plan | Mapping[str, Estimate]) -> list[tuple[str, Estimate]]:
    if isinstance(answers, Plan):
        return [(f"{e.layout} [{e.framework}]", e) for e in answers.listed[:_COMPARED]]
    return list(answers.items())


def _space(
    answer: Plan,
    model: str | Model | None,
    machine: Machine,
    frameworks: Sequence[str],
    experience: Experience,
) -> LayoutSpace:
    described = _model(answer, model)
    return layout_space(
        described, machine, answer.nodes, answer.workload, frameworks, experience=experience
    )


def _stages(
    answer: Plan, estimate: Estimate, model: Model, machine: Machine
) -> list[dict[str, float]]:
    scenario = scenario_of(model, machine, answer.workload, estimate)
    return stage_memory(scenario, estimate.layout)
