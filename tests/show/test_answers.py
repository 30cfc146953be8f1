"""Figures and tables of answers: what they show is what the rows say."""

from __future__ import annotations

import json
from html import escape

import pytest

pytest.importorskip("plotly")

import planner
from planner.ask import QUESTIONS, Answer
from planner.describe.workload import Workload
from planner.show.answers import answer_table
from planner.show.figures.curves import answer_figure

JOB = Workload(sequence_length=1024, global_batch=64, tokens=1e9)
WITH_FIGURE = {
    "nodes": {"most_nodes": 4},
    "deadline": {"days": 2.0, "most_nodes": 4},
    "cheapest": {"most_nodes": 4},
    "scaling": {"most_nodes": 4},
    "sequence": {},
    "batch": {"nodes": 3},
    "change": {},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", WITH_FIGURE)
def test_a_figure_shows_the_rows(name: str) -> None:
    answer = QUESTIONS[name]("gpt2", "polaris", workload=JOB, **WITH_FIGURE[name])
    drawing = answer_figure(answer)
    assert drawing is not None
    json.loads(drawing.figure.to_json())
    assert "NaN" not in drawing.figure.to_json()
    assert drawing.alt.endswith(".")
    [trace] = drawing.figure.data
    if trace.type == "scatter":
        fitting = [row for row in answer.rows if row["fits"]]
        assert len(trace.x) == len(trace.y) == len(fitting)
    else:
        assert len(trace.x) <= 12
        assert list(trace.x) == sorted(trace.x)


def test_intervals_of_a_figure_are_those_of_the_rows() -> None:
    answer = planner.ask.nodes("gpt2", "polaris", workload=JOB, most_nodes=4)
    drawing = answer_figure(answer)
    assert drawing is not None
    [trace] = drawing.figure.data
    for row, y, more, less in zip(
        answer.rows, trace.y, trace.error_y.array, trace.error_y.arrayminus, strict=True
    ):
        assert y + more == pytest.approx(row["step_time_high_s"])
        assert y - less == pytest.approx(row["step_time_low_s"])


def test_other_answers_are_read() -> None:
    assert answer_figure(planner.ask.host("gpt2", "polaris", workload=JOB)) is None
    nothing = planner.ask.nodes("llama-3.1-405b", "workstation-1x4090", workload=JOB)
    assert answer_figure(nothing) is None


def test_a_table_leaves_out_what_says_nothing() -> None:
    rows = (
        {"nodes": 1, "fits": True, "gathered_bytes": 0.0, "reason": "one"},
        {"nodes": 2, "fits": False, "reason": "two"},
    )
    table = answer_table(Answer("host", {}, True, "It is.", rows))
    assert table.titles == ["nodes", "fits", "reason"]
    assert table.cells() == [["1", "yes", "one"], ["2", "no", "two"]]


def test_a_notebook_shows_sentence_table_and_notes() -> None:
    answer = planner.ask.nodes("gpt2", "polaris", workload=JOB, most_nodes=2)
    page = answer._repr_html_()
    assert escape(answer.verdict) in page
    assert page.count("<tr>") == 1 + len(answer.rows)
    assert all(escape(note) in page for note in answer.notes)


def test_a_frame_has_the_rows() -> None:
    pytest.importorskip("pandas")
    answer = planner.ask.nodes("gpt2", "polaris", workload=JOB, most_nodes=2)
    assert answer.to_frame()["step_time_s"].tolist() == [row["step_time_s"] for row in answer.rows]
    with pytest.raises(planner.PlannerError, match="use one of rows"):
        answer.to_frame("columns")  # type: ignore[call-overload]
