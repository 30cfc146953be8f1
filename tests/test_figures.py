"""Figures: the list of names, drawing each from an answer, and the text that they show."""

from __future__ import annotations

import ast
import inspect
import math
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import planner
from planner.errors import PlannerError
from planner.evidence.learning import Learned, learn_from_text
from planner.units import format_bytes, format_seconds
from tests.contrast import contrast
from tests.test_architecture import PACKAGE

go = pytest.importorskip("plotly.graph_objects", reason="no plotly")

_LEFT_OUT = {"measured_step", "spread"}
"""Figures of published runs, which no answer contains."""
_OF_PLAN = (
    *("strategy_bars", "heatmap", "pareto", "waterfall", "time_bars", "memory_bars"),
    "whole_training",
    *("stage_bars", "host_bars", "rank_map", "link_loads", "gantt", "memory_over_step"),
)
_OF_MACHINE = ("topology", "times", "bandwidth")
_OF_RUNS = ("parity", "errors")
_RUNS = (
    "system,gpu,n_gpus,model,seq_len,framework,dp,tp,zero_stage,micro_batch,global_batch,"
    "step_time_s\n"
    "Polaris,A100,16,Llama-3-8B,8192,Megatron-LM,4,4,1,1,64,60\n"
)


@pytest.fixture(scope="module")
def answer() -> planner.Plan:
    job = planner.Workload(global_batch=64, sequence_length=1024, tokens=1e9)
    return planner.plan("gpt2-xl", "polaris", nodes=2, workload=job)


@pytest.fixture(scope="module")
def learned() -> Learned:
    return learn_from_text(_RUNS, "runs.csv")


def _drawn(name: str) -> Callable[..., Any]:
    found: Callable[..., Any] = getattr(planner.figures, name)
    return found


def _alt(figure: Any) -> str:
    assert isinstance(figure, go.Figure)
    assert len(figure.data) > 0
    return str(figure.layout.meta["alt"])


def test_every_figure_of_the_explorer_has_its_name() -> None:
    drawings = set()
    for path in (PACKAGE / "show" / "figures").glob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and node.returns is not None:
                public = not node.name.startswith("_")
                if public and ast.unparse(node.returns) == "Drawing":
                    drawings.add(node.name)
    assert drawings - _LEFT_OUT == set(planner.figures.__all__) == set(dir(planner.figures))
    named = {*_OF_PLAN, *_OF_MACHINE, *_OF_RUNS, "curve", "data_picture"}
    assert named == set(planner.figures.__all__)
    assert all(inspect.getdoc(_drawn(name)) for name in named)


@pytest.mark.parametrize("name", _OF_PLAN)
def test_figures_are_drawn_of_a_plan(answer: planner.Plan, name: str) -> None:
    assert len(_alt(_drawn(name)(answer))) > 20


@pytest.mark.parametrize("name", _OF_MACHINE)
def test_figures_are_drawn_of_a_machine(name: str) -> None:
    assert _alt(_drawn(name)("polaris")) == _alt(_drawn(name)(planner.load_machine("polaris")))


@pytest.mark.parametrize("name", _OF_RUNS)
def test_figures_are_drawn_of_measured_runs(learned: Learned, name: str) -> None:
    assert _alt(_drawn(name)(learned))


def _ends(figure: Any, letter: str, name: str) -> tuple[float, float] | None:
    """Ends of an axis in the units of its data; None where plotly chooses them."""
    axis = figure.layout[f"{letter}axis{name[1:]}"]
    if axis.range is None or axis.type == "category":
        return None
    ends = sorted(10.0**end if axis.type == "log" else float(end) for end in axis.range)
    return ends[0], ends[1]


def _of_axis(trace: Any, letter: str) -> list[float]:
    """Numbers of a trace along an axis; a bar begins at its base."""
    values = np.atleast_1d(np.asarray(trace[letter] if trace[letter] is not None else []))
    if values.dtype.kind not in "if":
        return []
    if (
        trace.type == "bar"
        and trace.base is not None
        and letter == ("xy"[trace.orientation != "h"])
    ):
        base = np.broadcast_to(np.asarray(trace.base, float), values.shape)
        values = np.concatenate([base, base + values])
    return [float(value) for value in values.ravel() if math.isfinite(value)]


def _assert_inside(figure: Any) -> None:
    for trace in figure.data:
        for letter in "xy":
            ends = _ends(figure, letter, trace[f"{letter}axis"] or letter)
            numbers = _of_axis(trace, letter) if ends else []
            assert not ends or all(ends[0] <= number <= ends[1] for number in numbers), (
                trace.name,
                letter,
                ends,
                numbers[:9],
            )


@pytest.mark.parametrize("name", _OF_PLAN)
def test_what_is_drawn_of_a_plan_lies_inside_its_axes(answer: planner.Plan, name: str) -> None:
    _assert_inside(_drawn(name)(answer))


@pytest.mark.parametrize("name", _OF_MACHINE)
def test_what_is_drawn_of_a_machine_lies_inside_its_axes(name: str) -> None:
    for machine in ("polaris", "dgx-gb200", "frontier", "laptop"):
        if planner.load_machine(machine).node.num_devices > 1:
            _assert_inside(_drawn(name)(machine))


def test_figures_say_the_numbers_of_the_answer(answer: planner.Plan) -> None:
    found, best = answer.recommended, answer.best
    assert found is not None
    assert best is not None
    figures = planner.figures
    assert format_seconds(found.step_time_s) in _alt(figures.waterfall(answer))
    assert format_seconds(best.step_time_s) in _alt(figures.waterfall(best))
    assert format_seconds(best.step_time_s) in _alt(figures.gantt(answer, best))
    both = {"mine": found, "the fastest": best}
    assert "mine" in _alt(figures.time_bars(both))
    said = _alt(figures.memory_bars(both, machine="polaris"))
    assert format_bytes(best.memory_bytes["total"]) in said
    assert "sum" in _alt(figures.data_picture("reduce-scatter"))


def test_the_curve_of_a_question_has_its_rows() -> None:
    job = planner.Workload(global_batch=64, sequence_length=1024)
    scaling = planner.ask.scaling("gpt2", "polaris", workload=job, most_nodes=2)
    assert all(
        f"{row['nodes']} {row['efficiency']:.1%}"[:4] in _alt(planner.figures.curve(scaling))
        for row in scaling.rows
    )
    host = planner.ask.host("gpt2", "polaris", workload=job)
    with pytest.raises(PlannerError, match=r"no figure shows this answer of host; use answer\."):
        planner.figures.curve(host)


def test_words_and_lines_can_be_seen_on_light_and_dark_pages(answer: planner.Plan) -> None:
    figure = planner.figures.waterfall(answer)
    assert figure.layout.paper_bgcolor == "rgba(0,0,0,0)"
    for ground in ("#FFFFFF", "#111111"):
        # WCAG 2.1, 1.4.11: contrast of at least 3 for anything but running text
        assert contrast(figure.layout.font.color, ground) > 4


def test_what_cannot_be_drawn_is_said(answer: planner.Plan) -> None:
    best = answer.best
    assert best is not None
    with pytest.raises(PlannerError, match="does not know its machine"):
        planner.figures.host_bars(best)
    job = planner.Workload(global_batch=8, sequence_length=8192)
    nothing = planner.plan("llama-3.1-405b", "polaris", nodes=1, workload=job)
    with pytest.raises(PlannerError, match="nothing fits on 1 node, so"):
        planner.figures.gantt(nothing)
    assert _alt(planner.figures.strategy_bars(nothing))


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"ranks": 0}, "ranks = 0, stride = 1: a collective needs at least 2 ranks"),
        ({"ranks": 1}, "a collective needs at least 2 ranks"),
        ({"ranks": 2.5}, "a collective needs at least 2 ranks"),
        ({"ranks": 4, "stride": 0}, "a collective needs at least 2 ranks"),
        ({"ranks": 2241}, "2,241 ranks with stride 1 exceed the 2,240 devices of polaris"),
        ({"ranks": 2, "stride": 2240}, "2 ranks with stride 2,240 exceed"),
        ({"operation": "allreduce"}, "operation = 'allreduce' is not known; use all-reduce, all-g"),
    ],
)
def test_what_is_no_collective_is_not_drawn(asked: dict[str, Any], said: str) -> None:
    for name in ("times", "bandwidth"):
        with pytest.raises(PlannerError, match=said):
            _drawn(name)("polaris", **asked)
        assert _alt(_drawn(name)("polaris", ranks=2, stride=2239))


def test_words_and_sizes_that_say_nothing_are_not_drawn(answer: planner.Plan) -> None:
    figures: Any = planner.figures
    for size in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(PlannerError, match=r"^size_bytes = .* is no size"):
            figures.times("polaris", size_bytes=size)
    with pytest.raises(PlannerError, match=r"^axis = 'px' is not known; use dp, tp, pp, cp or ep"):
        figures.rank_map(answer, axis="px")
    with pytest.raises(PlannerError, match=r"^operation = 'barrier' is not known"):
        figures.data_picture("barrier")


def test_without_plotly_one_sentence_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['plotly'] = sys.modules['plotly.graph_objects'] = None\n"
        "import planner\n"
        "assert 'planner.figures' not in sys.modules and 'figures' in dir(planner)\n"
        "assert 'topology' in dir(planner.figures)\n"
        "try: planner.figures.topology('polaris')\n"
        "except planner.PlannerError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("figures need plotly")
    assert "pip install 'parallelism-planner[app]'" in done.stdout
