"""Figures: what they show is what the planner said; each has units and a text alternative."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("plotly")

from plotly.colors import sample_colorscale

import planner
from planner.choose.jobs.job_spec import JobSpec
from planner.choose.plan import Plan
from planner.choose.plots import (
    SimulatedStep,
    layout_space,
    parallel_axes,
    rank_axes,
    simulate_step,
)
from planner.choose.verdicts.layout_words import layout_words
from planner.cost.estimate import Estimate
from planner.cost.memory.footprint import stage_memory
from planner.cost.parts import DEVICE_PARTS, HOST_PARTS, TIME_PARTS
from planner.cost.schedules.simulate import StageTime, simulate
from planner.describe.catalogue import load_machine, names
from planner.describe.layout import Layout
from planner.describe.workload import Workload
from planner.errors import UnknownNameError
from planner.evidence.backtest import score
from planner.evidence.residuals import residuals
from planner.evidence.runs.run_files import runs_from_text
from planner.show.figures import (
    accuracy,
    bars,
    candidates,
    collective_times,
    node_topology,
    palette,
    rank_layout,
    step_timeline,
)
from planner.show.figures.frame import Drawing, log_ticks, plain
from planner.units import GIB, format_seconds
from tests.contrast import contrast
from tests.descriptions import scenario

# figures of whole plans
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


@pytest.mark.parametrize(
    ("value", "round_value"),
    [(0.8, 1), (1, 1), (1.0005, 1), (1.2, 2), (2, 2), (3, 5), (5.1, 10), (0.013, 0.02), (40, 50)],
)
def test_marks_of_a_clock_are_round(value: float, round_value: float) -> None:
    assert step_timeline._nice(value) == pytest.approx(round_value)


def test_strategy_bars_add_up_and_mark_what_is_out_of_memory(plan: Plan) -> None:
    machine = load_machine("polaris")
    drawing = bars.strategy_bars(plan.strategies, machine)
    _check(drawing)
    table = _bars(drawing)
    marks = {a.y: a.text for a in drawing.figure.layout.annotations if isinstance(a.y, str)}
    for verdict in plan.strategies:
        if verdict.estimate is None:
            continue
        total = verdict.estimate.memory_bytes["total"]
        longest = 1.3 * machine.device.memory_bytes.value
        drawn = sum(table[verdict.name].values()) * GIB
        assert drawn == pytest.approx(min(total, longest))
        # a bar that is cut off says so, and the axis says what its mark means
        assert ("//" in marks[verdict.name]) is (total > longest)
        assert total <= longest or "// the bar is cut off" in drawing.figure.layout.xaxis.title.text
        says_so = "fits" in marks[verdict.name] or "tight" in marks[verdict.name]
        assert says_so is verdict.fits
        assert ("tight" in marks[verdict.name]) is verdict.estimate.tight
        # the step stands beside the memory of what fits, and only there
        step = format_seconds(verdict.estimate.step_time_s)
        assert (step in marks[verdict.name]) is verdict.fits
        assert verdict.name in drawing.alt


def test_strategy_bars_are_in_order_and_no_label_stands_on_a_bar(plan: Plan) -> None:
    drawing = bars.strategy_bars(plan.strategies, load_machine("polaris"))
    verdicts = {verdict.name: verdict for verdict in plan.strategies}
    # plotly draws the last row on top
    rows = [verdicts[name] for name in drawing.figure.data[0].y[::-1]]
    steps = [row.estimate.step_time_s for row in rows if row.fits and row.estimate]
    assert steps == sorted(steps)
    assert [row.fits for row in rows] == sorted((row.fits for row in rows), reverse=True)
    table = _bars(drawing)
    for each in drawing.figure.layout.annotations:
        if each.y in table:
            assert each.x >= 0.999 * sum(table[each.y].values())
            assert (each.xanchor, each.bgcolor) == ("left", None)


def test_every_part_has_its_own_ink() -> None:
    for parts in (DEVICE_PARTS, HOST_PARTS, TIME_PARTS):
        inks = [(palette.ink(p).color, palette.ink(p).pattern) for p in parts]
        assert len(set(inks)) == len(inks), parts
    with pytest.raises(UnknownNameError):
        palette.ink("a part of tomorrow")


def test_hues_stand_on_white_and_on_black() -> None:
    for hue in (*palette.HUES, palette.GREY):
        assert min(contrast(hue, "#FFFFFF"), contrast(hue, "#000000")) > 2.0, hue


def test_waterfall_is_gapless_and_ends_at_the_step(plan: Plan) -> None:
    assert plan.best is not None
    drawing = bars.waterfall(plan.best)
    _check(drawing)
    stretches = [t for t in drawing.figure.data if t.y[0] != "step"]
    end = 0.0
    for bar in stretches:
        assert bar.base[0] == pytest.approx(end)
        end += bar.x[0]
    assert end == pytest.approx(plan.best.step_time_s, rel=0.01)
    step = drawing.figure.data[-1]
    low, high = plan.best.interval_step_time_s
    assert step.x[0] - step.error_x.arrayminus[0] == pytest.approx(low)
    assert step.x[0] + step.error_x.array[0] == pytest.approx(high)


def test_space_holds_the_plan(plan: Plan) -> None:
    found = layout_space(JobSpec("llama-3-8b", "polaris", nodes=2, workload=_JOB))
    assert plan.best is not None
    assert plan.recommended is not None
    assert found.num_candidates == plan.num_candidates
    fastest = min(cell.step_time_s for cell in found.cells if cell.fits)
    assert fastest == pytest.approx(plan.best.step_time_s)
    front = [(p.memory_bytes["total"], p.step_time_s) for p in found.front]
    assert front == sorted(front)
    assert [t for _, t in front] == sorted((t for _, t in front), reverse=True)
    limit = load_machine("polaris").device.memory_bytes.value
    inside = [each for each in found.cloud if each.fits]
    assert 0 < len(inside) < len(found.cloud)
    assert 0 < found.num_fitting < found.num_candidates
    for each in inside:
        place = each.memory_bytes["total"], each.step_time_s
        assert any(m <= place[0] and t <= place[1] for m, t in front)
    assert front[-1][0] <= limit
    _check(candidates.heatmap(found, limit))
    for chosen in (None, plan.best):
        star = chosen or plan.recommended
        drawing = candidates.pareto(found, limit, plan.recommended, chosen)
        _check(drawing)
        (trace,) = (t for t in drawing.figure.data if t.marker.symbol == "star")
        assert (trace.y[0], trace.x[0] * GIB) == (star.step_time_s, star.memory_bytes["total"])
        low, high = star.interval_step_time_s
        assert trace.y[0] - trace.error_y.arrayminus[0] == pytest.approx(low)
        assert trace.y[0] + trace.error_y.array[0] == pytest.approx(high)
        assert layout_words(star.layout, brief=True) in drawing.alt
        is_chosen = star != plan.recommended
        assert trace.name.startswith("chosen: " if is_chosen else "recommended: ")


def test_a_dot_is_its_layout_in_the_shape_of_its_strategy() -> None:
    found = layout_space(JobSpec("llama-3-8b", "polaris", nodes=2, workload=_JOB))
    limit = load_machine("polaris").device.memory_bytes.value
    drawing, layouts = candidates.pareto(found, limit, found.choices[0]), candidates.dots(found)
    drawn = []
    for trace in (t for t in drawing.figure.data if t.customdata is not None):
        for x, y, (number, hover) in zip(trace.x, trace.y, trace.customdata, strict=True):
            each = layouts[number]
            assert (x * GIB, y) == (each.memory_bytes["total"], each.step_time_s)
            assert format_seconds(each.step_time_s) in hover
            degrees = {"tensor": each.layout.tp, "pipeline": each.layout.pp}
            if not each.fits or each.layout.cp > 1:
                assert trace.name == ("context" if each.fits else "does not fit")
            else:
                for axis, degree in degrees.items():
                    assert (axis in trace.name) is (degree > 1)
            drawn.append(number)
    # those that take several times longer are not cut at the edge, but counted below the axis
    longest_s = 5 * found.choices[0].step_time_s
    slower = [each for each in layouts if each.step_time_s > longest_s]
    assert sorted(drawn) == [n for n, each in enumerate(layouts) if each not in slower]
    assert f"{len(slower)} layouts slower than {format_seconds(longest_s)}" in drawing.alt
    assert f"<br>{len(slower)} layouts slower" in drawing.figure.layout.xaxis.title.text
    shapes = [(t.marker.symbol, t.name) for t in drawing.figure.data]
    assert len(dict(shapes)) == len(shapes)


def test_every_cell_says_its_words_once_and_readably() -> None:
    found = layout_space(JobSpec("llama-2-70b", "polaris", nodes=8, workload=_JOB))
    fitting = [cell for cell in found.cells if cell.fits]
    assert 0 < len(fitting) < len(found.cells)  # both kinds of cells are there
    drawing = candidates.heatmap(found, load_machine("polaris").device.memory_bytes.value)
    written = [t for t in drawing.figure.data if t.type == "heatmap" and t.texttemplate]
    (words,) = (t for t in drawing.figure.data if t.type == "scatter")
    assert not written
    assert len(words.text) == len(found.cells) == len(set(zip(words.x, words.y, strict=True)))
    said = dict(zip(zip(words.x, words.y, strict=True), words.text, strict=True))
    for cell in found.cells:
        text = said[str(cell.layout.tp), str(cell.layout.pp)]
        assert ("GiB" in text or text == "host") is not cell.fits
    # the contrast that WCAG AA asks for
    times = {place: cell.step_time_s for cell in fitting if (place := _place(cell))}
    low, high = math.log(min(times.values())), math.log(max(times.values()))
    for place, ink in zip(zip(words.x, words.y, strict=True), words.textfont.color, strict=True):
        shade = (math.log(times[place]) - low) / (high - low) if place in times else None
        ground = "#6E6E6E" if shade is None else sample_colorscale("Cividis_r", [shade])[0]
        assert contrast(ink, ground) >= 4.5


def _place(cell: Estimate) -> tuple[str, str]:
    return str(cell.layout.tp), str(cell.layout.pp)


@pytest.mark.parametrize(
    ("low", "high"), [(4.1, 62.0), (18.8, 20.1), (0.9, 1.1), (3.0, 3e4), (95.0, 140.0)]
)
def test_logarithmic_axes_have_round_ticks(low: float, high: float) -> None:
    ticks = log_ticks([low, high])
    assert 3 <= len(ticks) <= 9
    assert all(float(f"{tick:.3g}") == tick for tick in ticks)
    assert any(low <= tick <= high for tick in ticks)


def test_ticks_of_a_narrow_range_are_close_together() -> None:
    assert log_ticks([97.0, 103.0]) == [97.0, 98.0, 99.0, 100.0, 101.0, 102.0, 103.0]


def test_nothing_legal_is_drawn_as_such() -> None:
    one = Workload(global_batch=1, sequence_length=1024)
    found = layout_space(JobSpec("gpt2", "polaris", nodes=1, workload=one, frameworks="ddp"))
    drawing = candidates.heatmap(found, 1e9)
    assert drawing.alt == "No layout is legal for this job."


@pytest.mark.parametrize("name", names("machine"))
def test_topology_of_every_machine(name: str) -> None:
    machine = load_machine(name)
    drawing = node_topology.topology(machine)
    _check(drawing)
    shown = {text for t in drawing.figure.data if t.mode == "markers+text" for text in t.hovertext}
    assert len([t for t in shown if t.startswith("device")]) == machine.node.num_devices


def test_ranks_partition_the_world() -> None:
    spread = Layout(tp=2, dp=4, pp=2, cp=2)
    places = {tuple(rank_axes(spread, rank).values()) for rank in range(spread.world)}
    assert len(places) == spread.world == 32
    drawing = rank_layout.rank_map(spread, load_machine("polaris"), "pp")
    _check(drawing)
    cells = [word for row in drawing.figure.data[0].text for word in row]
    assert cells.count("pp 0") == cells.count("pp 1") == 16
    assert list(drawing.figure.data[0].colorbar.ticktext) == ["0", "1"]


def test_a_map_of_many_nodes_says_what_it_shows() -> None:
    drawing = rank_layout.rank_map(Layout(tp=4, dp=4096), load_machine("polaris"), "tp")
    assert len(drawing.figure.data[0].x) == 128
    assert "the first 128 of 4,096 nodes are drawn" in drawing.alt
    assert "first 128 of 4,096 nodes" in drawing.figure.layout.xaxis.title.text


def test_axes_cover_the_world() -> None:
    spread = Layout(tp=4, pp=2, dp=2, grad_accumulation=32, zero_stage=1, schedule="1f1b")
    found = planner.estimate("llama-3-8b", "polaris", spread, framework="megatron-lm")
    machine = load_machine("polaris")
    job = JobSpec("llama-3-8b", machine, nodes=4, workload=Workload())
    rows = parallel_axes(job.scenario_of(found), found)
    assert [row.name for row in rows] == ["tp", "dp", "pp"]
    assert math.prod(row.size for row in rows) == spread.world
    assert rows[0].nodes == 1
    drawing = rank_layout.link_loads(rows, machine, found.step_time_s)
    _check(drawing)
    drawn = sum(sum(bar.x) for bar in drawing.figure.data) * GIB
    sent = sum(row.traffic.inside_bytes + row.traffic.node_bytes for row in rows)
    assert drawn == pytest.approx(sent)


def _played(
    layout: Layout, framework: str, model: str, machine: str
) -> tuple[Estimate, SimulatedStep]:
    job = Workload(global_batch=layout.global_batch, sequence_length=2048)
    found = planner.estimate(model, machine, layout, workload=job, framework=framework)
    scenario = JobSpec(model, machine, nodes=1, workload=job).scenario_of(found)
    return found, simulate_step(scenario, found)


_SHORT = Layout(pp=4, dp=2, grad_accumulation=32, zero_stage=1, schedule="1f1b", recompute="full")
_DEEP = Layout(
    pp=16,
    tp=8,
    vpp=6,
    dp=4,
    grad_accumulation=128,
    zero_stage=1,
    schedule="interleaved-1f1b",
    recompute="selective",
)
_LONG = Layout(tp=4, dp=2, grad_accumulation=40_000, zero_stage=1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spread", "model", "machine"),
    [
        (_SHORT, "llama-3-8b", "polaris"),
        (_DEEP, "gpt3-175b", "eos"),
        (_LONG, "llama-3-8b", "polaris"),
    ],
)
def test_the_drawn_step_is_the_estimated_step(spread: Layout, model: str, machine: str) -> None:
    found, step = _played(spread, "megatron-lm", model, machine)
    drawing = step_timeline.gantt(step)
    _check(drawing)
    assert step.step_s == pytest.approx(found.step_time_s)
    # gaps of the stage that sets the pace are the bubble and the transfers that are said
    waits = sum(found.step_time_parts_s[part] for part in ("pipeline_bubble", "pipeline_transfer"))
    assert step.idle_s == pytest.approx(waits, abs=1e-9 * found.step_time_s)
    bars = [trace for trace in drawing.figure.data if trace.type == "bar"]
    drawn = [base + width for bar in bars for base, width in zip(bar.base, bar.x, strict=True)]
    assert max(drawn) == pytest.approx(drawing.figure.layout.xaxis.range[1])
    assert all(width > 0 for bar in bars for width in bar.x)
    # ticks say the step's own time: none of it is beyond the step, and the last is near its end
    if (words := drawing.figure.layout.xaxis.ticktext) is not None:
        ticks = [float(word) for word in words]
        assert ticks == sorted(ticks)
        assert 0.8 * found.step_time_s < ticks[-1] <= found.step_time_s
        assert "not drawn" in drawing.figure.layout.annotations[0].text
        assert "the first and the last are drawn" in drawing.alt


@pytest.mark.slow
def test_a_deep_pipeline_is_drawn_beyond_its_filling() -> None:
    _, step = _played(_DEEP, "megatron-lm", "gpt3-175b", "eos")
    drawing = step_timeline.gantt(step)
    assert "8 of 16 stages are drawn: 0, 2, 4" in drawing.alt
    gap = drawing.figure.layout.shapes[0]
    before = [
        base
        for bar in drawing.figure.data
        if bar.name == "backward"
        for base, y in zip(bar.base, bar.y, strict=True)
        if y == 0 and base < gap.x0
    ]
    assert before, "the first stage works backward before the break: the steady middle is reached"


def test_memory_over_the_step_peaks_where_the_estimate_does() -> None:
    limit = load_machine("polaris").device.memory_bytes.value
    found, step = _played(_SHORT, "megatron-lm", "llama-3-8b", "polaris")
    tables = stage_memory(scenario(sequence_length=2048), _SHORT)
    drawing = step_timeline.memory_over_step(step, tables, limit)
    _check(drawing)
    peak = max(value for value in drawing.figure.data[0].y if value is not None) * GIB
    assert peak == pytest.approx(sum(tables[0].values()))
    assert drawing.figure.data[0].x[-1] == pytest.approx(found.step_time_s)
    assert drawing.figure.layout.yaxis.range[1] > limit / GIB
    assert "device limit" in drawing.figure.layout.annotations[0].text
    _check(bars.stage_bars(tables, limit))
    host = load_machine("polaris").node.host_memory_bytes.value
    _check(bars.host_bars(found, host))


def test_the_fullest_stage_is_among_those_drawn() -> None:
    """Its peak is the memory that the estimate states; the first, middle and last may hold less."""
    _, step = _played(_SHORT, "megatron-lm", "llama-3-8b", "polaris")
    stages = stage_memory(scenario(sequence_length=2048), _SHORT)
    fuller = dict(stages[1], weights=stages[1]["weights"] + 9 * GIB)
    stages = [stages[0], fuller, *stages[2:]]
    drawing = step_timeline.memory_over_step(step, stages, 8e10)
    highest = max(v for trace in drawing.figure.data for v in trace.y if v is not None)
    assert highest * GIB == pytest.approx(sum(fuller.values()))


def _step(stages: list[StageTime], micro_batches: int) -> SimulatedStep:
    """A step that is its 1F1B schedule alone."""
    timeline = simulate(stages, micro_batches, "1f1b")
    return SimulatedStep(timeline, micro_batches, timeline.makespan_s)


def test_numbers_are_explained_where_there_are_some() -> None:
    few, many = (_step([StageTime(1, 2)] * 2, count) for count in (4, 400))
    assert step_timeline.has_numbers(step_timeline.gantt(few))
    assert not step_timeline.has_numbers(step_timeline.gantt(many))


def test_the_gantt_says_what_the_step_waits_for() -> None:
    # three micro-batches on a slow second stage: 1 + 3 (2 + 4) + 2 s, and a transfer each way
    stages = [StageTime(1, 2, send_s=0.5), StageTime(2, 4, send_s=0.5)]
    drawing = step_timeline.gantt(_step(stages, 3))
    _check(drawing)
    assert drawing.alt.endswith(
        "Critical path: 82 % on stage 1 (backward 55 %, forward 27 %), 14 % on 1 other stage, "
        "5 % in transfers."
    )
    line = next(trace for trace in drawing.figure.data if trace.name == "critical path")
    assert (line.x[0], line.x[-1]) == (0, 22)
    assert list(line.x) == sorted(line.x)


@pytest.mark.parametrize("operation", list(collective_times.OPERATIONS))
def test_collectives(operation: str) -> None:
    machine = load_machine("polaris")
    _check(collective_times.times(machine, operation, 8, 1, 2**20))
    _check(collective_times.bandwidth(machine, operation, 8, 1))
    _check(collective_times.data_picture(operation))


def test_measured_points_are_shown_where_there_are_some() -> None:
    machine = load_machine("polaris")
    with_points = collective_times.times(machine, "all-reduce", 1024, 1, 2**20)
    assert any("measured" in t.name for t in with_points.figure.data)
    for other in (
        collective_times.times(machine, "all-reduce", 16, 1, 2**20),
        collective_times.times(machine, "all-reduce", 8, 4, 2**20),
    ):
        assert not any("measured" in t.name for t in other.figure.data)


def test_data_pictures_say_what_the_operation_does() -> None:
    after = collective_times.data_picture("all-to-all").figure.data[1].text
    assert list(after[0]) == ["A0", "B0", "C0", "D0"]
    scattered = collective_times.data_picture("reduce-scatter").figure.data[1].text
    assert [[cell for cell in row if cell] for row in scattered] == [
        [f"sum<br>{i}"] for i in range(4)
    ]
    # what is rooted has all of it at rank 0, before a scatter and after a gather
    before, after = (trace.text for trace in collective_times.data_picture("scatter").figure.data)
    assert [list(row) for row in before[1:]] == [[""] * 4] * 3
    assert [[cell for cell in row if cell] for row in after] == [[f"A{i}"] for i in range(4)]
    gathered = collective_times.data_picture("gather").figure.data[1].text
    assert [list(row) for row in gathered] == [["A0", "B1", "C2", "D3"], *[[""] * 4] * 3]
    reduced = collective_times.data_picture("reduce").figure.data[1].text
    assert [bool(row[0]) for row in reduced] == [True, False, False, False]
    received = collective_times.data_picture("broadcast").figure.data[1].text
    assert [list(row) for row in received] == [["A0", "A1", "A2", "A3"]] * 4


def test_switches_are_drawn_where_they_add_up() -> None:
    def drawn(name: str, ranks: int) -> list[str]:
        figure = collective_times.times(load_machine(name), "all-reduce", ranks, 1, 2**30).figure
        return [trace.name for trace in figure.data]

    assert "switches (NVLS)" in drawn("dgx-h200", 8)
    assert "switches (NVLS)" not in drawn("selene", 8)
    solid = collective_times.times(load_machine("dgx-h200"), "all-reduce", 8, 1, 2**30).figure.data
    assert [line.name for line in solid if line.line.dash == "solid"] == ["the library's choice"]


def test_comparisons(plan: Plan) -> None:
    named = [(str(i), e) for i, e in enumerate(plan.ranked[:3])]
    _check(bars.time_bars(named))
    _check(bars.memory_bars(named, 4e10))


def test_accuracy_of_the_example() -> None:
    from planner.app.views.runs import your_run

    result = score(runs_from_text(your_run._EXAMPLE.read_text(), "example"))
    assert len(result.scores) == 9
    _check(accuracy.parity(result.scores))
    _check(accuracy.errors(result.scores))
    assert len(accuracy.parity([]).alt) > 5


def test_all_evidence_is_drawn_by_source_and_by_what_fits_have_seen() -> None:
    rows = residuals()
    for what in ("step_time", "memory"):
        drawing = accuracy.spread(rows, what)
        _check(drawing)
        unseen, seen = drawing.figure.data
        # a line where what was measured is what was estimated
        assert (drawing.figure.layout.shapes[0].x0, drawing.figure.layout.shapes[0].x1) == (1, 1)
        assert len(unseen.x) == sum(bool(getattr(row, what)) for row in rows if not row.seen)
        assert len(seen.x) == sum(bool(getattr(row, what)) for row in rows if row.seen)
        assert len(drawing.figure.layout.yaxis.ticktext) <= 25
    assert len(accuracy.spread([], "memory").alt) > 5


def test_what_does_not_fit_is_marked_where_layouts_are_compared(plan: Plan) -> None:
    lacking = next(v for v in plan.strategies if v.estimate is not None and not v.fits)
    assert plan.best is not None
    assert lacking.estimate is not None
    answers = [("best", plan.best), ("other", lacking.estimate)]
    for drawing in (bars.time_bars(answers), bars.memory_bars(answers, 4e10)):
        marks = {note.y: note.text for note in drawing.figure.layout.annotations if note.y != 1}
        assert "does not fit" in marks["other"]
        assert "does not fit" not in marks["best"]
        assert drawing.alt.count("does not fit") == 1


def test_figures_leave_room_on_a_phone(plan: Plan) -> None:
    assert plan.best is not None
    drawing = bars.waterfall(plan.best)
    axis = drawing.figure.layout.yaxis
    names = dict(zip(axis.tickvals, axis.ticktext, strict=True))
    # rows keep their names, in lines that fit beside the bars
    assert set(_bars(drawing)) <= set(names)
    assert all(text.replace("<br>", " ") == name for name, text in names.items())
    assert max(len(line) for text in names.values() for line in text.split("<br>")) <= 16
    low, high = (format_seconds(value) for value in plan.best.interval_step_time_s)
    assert f"{low} to {high}" in drawing.figure.layout.xaxis.title.text
    # ticks that do not run into each other
    spread = rank_layout.rank_map(Layout(dp=256), load_machine("polaris"), "dp").figure.layout.xaxis
    assert len(spread.tickvals) <= 10
    assert max(len(tick) for tick in spread.tickvals) <= 3


def test_times_of_collectives_have_units() -> None:
    drawing = collective_times.times(load_machine("vsc-5"), "all-reduce", 8, 1, 2.0**26)
    assert {"100 us", "1 ms", "10 ms"} <= set(drawing.figure.layout.yaxis.ticktext)


def test_hostile_names_lose_their_force() -> None:
    assert "<" not in plain('<a href="javascript:x">')


def test_figures_load_no_streamlit() -> None:
    code = (
        "import sys, planner.show.figures.bars, planner.show.figures.curves;"
        "import planner.show.figures.candidates;"
        "sys.exit('streamlit' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_break_is_a_twentieth_of_what_is_drawn() -> None:
    step: Any = SimpleNamespace(step_s=100.0, instant_s=lambda tail: tail + 5.0)
    clock = step_timeline._Clock(step, head_s=10.0, tail_s=85.0)
    assert clock.x(10.0) == 10.0
    assert clock.x(100.0) == pytest.approx(20.0 + 0.05 * 20.0)
