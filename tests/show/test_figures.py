"""Figures: what they show is what the planner said; each has units and a text alternative."""

from __future__ import annotations

import json
import math
import subprocess
import sys

import pytest

pytest.importorskip("plotly")

import planner
from planner.choose.anatomy import axes, rank_axes, stage_times
from planner.choose.plan import Plan
from planner.choose.space import space
from planner.cost.estimate import stage_memory
from planner.cost.parts import DEVICE_PARTS, HOST_PARTS, TIME_PARTS
from planner.cost.schedules.simulate import StageTime, simulate
from planner.describe.catalogue import load_machine, load_model, names
from planner.describe.layout import Layout
from planner.describe.workload import Workload
from planner.errors import UnknownNameError
from planner.evidence.backtest import score
from planner.evidence.runs.table import runs_from_text
from planner.show.figures import (
    accuracy,
    candidates,
    collectives,
    compare,
    links,
    machines,
    memory,
    palette,
    ranks,
    time,
)
from planner.show.figures.frame import Drawing, plain
from planner.units import GIB
from tests.descriptions import question

_JOB = Workload(global_batch=64, sequence_length=4096)


@pytest.fixture(scope="module")
def plan() -> Plan:
    return planner.plan("llama-3-8b", "polaris", nodes=2, workload=_JOB)


def _check(drawing: Drawing) -> None:
    assert len(drawing.alt) > 20
    assert drawing.alt[-1] in ".%"
    text = drawing.figure.to_json()
    assert "NaN" not in text
    json.loads(text)


def _bars(drawing: Drawing) -> dict[str, dict[str, float]]:
    """Bar values: category -> part -> value."""
    table: dict[str, dict[str, float]] = {}
    for trace in drawing.figure.data:
        if trace.type == "bar":
            for place, value in zip(trace.y, trace.x, strict=True):
                table.setdefault(place, {})[trace.name] = float(value)
    return table


def test_strategy_bars_add_up_and_mark_what_is_out_of_memory(plan: Plan) -> None:
    machine = load_machine("polaris")
    drawing = memory.strategy_bars(plan.strategies, machine)
    _check(drawing)
    table = _bars(drawing)
    marks = {a.y: a.text for a in drawing.figure.layout.annotations if isinstance(a.y, str)}
    for verdict in plan.strategies:
        if verdict.estimate is None:
            continue
        total = verdict.estimate.memory_bytes["total"]
        assert sum(table[verdict.name].values()) * GIB == pytest.approx(total)
        assert ("fits" in marks[verdict.name]) is verdict.fits
        assert verdict.name in drawing.alt


def test_every_part_has_its_own_ink() -> None:
    for parts in (DEVICE_PARTS, HOST_PARTS, TIME_PARTS):
        inks = [(palette.ink(p).color, palette.ink(p).pattern) for p in parts]
        assert len(set(inks)) == len(inks), parts
    with pytest.raises(UnknownNameError):
        palette.ink("a part of tomorrow")


def _luminance(color: str) -> float:
    channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_hues_stand_on_white_and_on_black() -> None:
    for hue in (*palette.HUES, palette.GREY):
        on_white = 1.05 / (_luminance(hue) + 0.05)
        on_black = (_luminance(hue) + 0.05) / 0.05
        assert min(on_white, on_black) > 2.0, hue


def test_waterfall_is_gapless_and_ends_at_the_step(plan: Plan) -> None:
    assert plan.best is not None
    drawing = time.waterfall(plan.best)
    _check(drawing)
    bars = [t for t in drawing.figure.data if t.y[0] != "step"]
    end = 0.0
    for bar in bars:
        assert bar.base[0] == pytest.approx(end)
        end += bar.x[0]
    assert end == pytest.approx(plan.best.step_time_s, rel=0.01)
    step = drawing.figure.data[-1]
    low, high = plan.best.interval_step_time_s
    assert step.x[0] - step.error_x.arrayminus[0] == pytest.approx(low)
    assert step.x[0] + step.error_x.array[0] == pytest.approx(high)


def test_space_holds_the_plan(plan: Plan) -> None:
    found = space(load_model("llama-3-8b"), load_machine("polaris"), 2, _JOB)
    assert plan.best is not None
    assert found.num_candidates == plan.num_candidates
    fastest = min(cell.step_time_s for cell in found.cells)
    assert fastest == pytest.approx(plan.best.step_time_s)
    front = [(p.memory_bytes, p.step_time_s) for p in found.front]
    assert front == sorted(front)
    assert [t for _, t in front] == sorted((t for _, t in front), reverse=True)
    for point in found.cloud:
        assert any(m <= point.memory_bytes and t <= point.step_time_s for m, t in front)
    limit = load_machine("polaris").device.memory_bytes.value
    _check(candidates.heatmap(found, limit))
    _check(candidates.pareto(found, limit))


def test_nothing_legal_is_drawn_as_such() -> None:
    found = space(
        load_model("gpt2"),
        load_machine("polaris"),
        1,
        Workload(global_batch=1, sequence_length=1024),
        ["ddp"],
    )
    drawing = candidates.heatmap(found, 1e9)
    assert drawing.alt == "No layout is legal for this job."


@pytest.mark.parametrize("name", names("machine"))
def test_topology_of_every_machine(name: str) -> None:
    machine = load_machine(name)
    drawing = machines.topology(machine)
    _check(drawing)
    shown = {text for t in drawing.figure.data if t.mode == "markers+text" for text in t.hovertext}
    assert len([t for t in shown if t.startswith("device")]) == machine.node.num_devices


def test_ranks_partition_the_world() -> None:
    layout = Layout(tp=2, dp=4, pp=2, cp=2)
    places = {tuple(rank_axes(layout, rank).values()) for rank in range(layout.world)}
    assert len(places) == layout.world == 32
    drawing = ranks.rank_map(layout, load_machine("polaris"), "pp")
    _check(drawing)
    cells = [word for row in drawing.figure.data[0].text for word in row]
    assert cells.count("pp 0") == cells.count("pp 1") == 16


def test_axes_cover_the_world() -> None:
    layout = Layout(tp=4, pp=2, dp=2, grad_accumulation=32, zero_stage=1, schedule="1f1b")
    found = planner.estimate("llama-3-8b", "polaris", layout, framework="megatron-lm")
    machine = load_machine("polaris")
    rows = axes(load_model("llama-3-8b"), machine, Workload(), found)
    assert [row.name for row in rows] == ["tp", "dp", "pp"]
    assert math.prod(row.size for row in rows) == layout.world
    assert rows[0].nodes == 1
    drawing = links.link_loads(rows, machine, found.step_time_s)
    _check(drawing)
    drawn = sum(sum(bar.x) for bar in drawing.figure.data) * GIB
    sent = sum(row.traffic.inside_bytes + row.traffic.node_bytes for row in rows)
    assert drawn == pytest.approx(sent)


def test_timeline_of_a_plan_agrees_with_its_estimate() -> None:
    machine, model = load_machine("polaris"), load_model("llama-3-8b")
    layout = Layout(
        pp=4, dp=2, grad_accumulation=32, zero_stage=1, schedule="1f1b", recompute="full"
    )
    found = planner.estimate(model, machine, layout, workload=_JOB, framework="megatron-lm")
    timeline = simulate(stage_times(model, machine, _JOB, found), layout.grad_accumulation, "1f1b")
    _check(time.gantt(timeline))
    tables = stage_memory(question(), layout)
    limit = machine.device.memory_bytes.value
    drawing = memory.memory_over_step(timeline, tables, limit)
    _check(drawing)
    peak = max(drawing.figure.data[0].y) * GIB
    assert peak == pytest.approx(sum(tables[0].values()))
    _check(memory.stage_bars(tables, limit))
    _check(memory.host_bars(found, machine.node.host_memory_bytes.value))


def test_the_gantt_says_what_the_step_waits_for() -> None:
    # three micro-batches on a slow second stage: 1 + 3 (2 + 4) + 2 s, and a transfer each way
    stages = [StageTime(1, 2, send_s=0.5), StageTime(2, 4, send_s=0.5)]
    drawing = time.gantt(simulate(stages, 3, "1f1b"))
    _check(drawing)
    assert drawing.alt.endswith(
        "Critical path: 82 % on stage 1 (backward 55 %, forward 27 %), 14 % on 1 other stage, "
        "5 % in transfers."
    )
    line = next(trace for trace in drawing.figure.data if trace.name == "critical path")
    assert (line.x[0], line.x[-1]) == (0, 22)
    assert list(line.x) == sorted(line.x)


@pytest.mark.parametrize("operation", list(collectives.OPERATIONS))
def test_collectives(operation: str) -> None:
    machine = load_machine("polaris")
    _check(collectives.times(machine, operation, 8, 1, 2**20))
    _check(collectives.bandwidth(machine, operation, 8, 1))
    _check(collectives.data_picture(operation))


def test_measured_points_are_shown_where_there_are_some() -> None:
    machine = load_machine("polaris")
    with_points = collectives.times(machine, "all-reduce", 1024, 1, 2**20)
    assert any("measured" in t.name for t in with_points.figure.data)
    for other in (
        collectives.times(machine, "all-reduce", 16, 1, 2**20),
        collectives.times(machine, "all-reduce", 8, 4, 2**20),
    ):
        assert not any("measured" in t.name for t in other.figure.data)


def test_data_pictures_say_what_the_operation_does() -> None:
    after = collectives.data_picture("all-to-all").figure.data[1].text
    assert list(after[0]) == ["A0", "B0", "C0", "D0"]
    scattered = collectives.data_picture("reduce-scatter").figure.data[1].text
    assert [[cell for cell in row if cell] for row in scattered] == [[f"sum {i}"] for i in range(4)]


def test_comparisons(plan: Plan) -> None:
    named = [(str(i), e) for i, e in enumerate(plan.ranked[:3])]
    _check(compare.time_bars(named))
    _check(compare.memory_bars(named, 4e10))


def test_accuracy_of_the_example() -> None:
    from planner.app.views import trust

    result = score(runs_from_text(trust._EXAMPLE.read_text(), "example"))
    assert len(result.scores) == 9
    _check(accuracy.parity(result.scores))
    _check(accuracy.errors(result.scores))
    assert len(accuracy.parity([]).alt) > 5


def test_scaling_without_points() -> None:
    none = time.ScalePoint(4, None, 0.0, 0.0, "nothing fits")
    assert "Nothing fits" in time.scaling([none], "time").alt
    some = [time.ScalePoint(n, 8.0 / n, 100.0 * n, 2.0, "x") for n in (1, 2, 4)]
    for what in ("time", "efficiency", "node-hours"):
        _check(time.scaling(some, what))


def test_hostile_names_lose_their_force() -> None:
    assert "<" not in plain('<a href="javascript:x">')


def test_figures_load_no_streamlit() -> None:
    code = (
        "import sys, planner.show.figures.memory, planner.show.figures.time;"
        "import planner.show.figures.candidates;"
        "sys.exit('streamlit' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
