"""A whole training in words, as a table, as a figure and in a notebook: views of one answer."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

import planner
from planner.show.figures.bars import whole_training as drawn
from planner.show.terminal import show
from planner.show.training import bill, facts, summary, training_table
from planner.training.whole_training import WholeTraining


@pytest.fixture(scope="module")
def found() -> WholeTraining:
    job = planner.Workload(global_batch=64, sequence_length=1024, tokens=1e12)
    asked = planner.Training(
        evaluation=planner.Evaluation(every_steps=1000, sequences=4096),
        charges=planner.Charges(pue=1.2, carbon_g_per_kwh=380, price_per_node_hour=2.5),
    )
    layout = planner.Layout(dp=4, micro_batch=16)
    return planner.whole_training("gpt2", "polaris", layout, workload=job, training=asked)


def test_the_sentence_has_what_it_takes(found: WholeTraining) -> None:
    said = summary(found)
    assert said.startswith(f"The whole training takes {found.days.expected:.3g} days (90 % between")
    assert f"in {found.jobs} jobs of capacity" in said
    for unit in ("node-hours", "kWh", "t CO2e", "a price of"):
        assert sum(unit in line.replace("MWh", "kWh") for line in bill(found)) == 1, unit


def test_rows_are_the_parts_that_there_are(found: WholeTraining) -> None:
    shown = [row[0] for row in training_table(found).cells()]
    assert shown[:2] == ["start-up", "steps"]
    assert "waiting for data" not in shown  # no dataset was stated
    shares = [float(row[2].removesuffix(" %")) for row in training_table(found).cells()]
    assert sum(shares) == pytest.approx(100, abs=0.05 * len(shares))


def test_the_table_says_what_is_not_counted(found: WholeTraining) -> None:
    out = Console(file=io.StringIO(), width=160)
    show(found, out)
    text = out.file.getvalue()  # type: ignore[attr-defined]
    assert "No dataset is stated" in text
    assert "Interruptions are as frequent" in text
    assert facts(found) in text


def test_the_figure_has_no_gaps_and_ends_at_the_total(found: WholeTraining) -> None:
    pytest.importorskip("plotly", reason="no plotly")
    drawing = drawn(found)
    *parts, total = drawing.figure.data
    end = 0.0
    for bar in parts:
        assert bar.base[0] == pytest.approx(end)
        end = bar.base[0] + bar.x[0]
    assert end == pytest.approx(found.days.expected, rel=0.01)  # shorter parts are left out
    assert total.x[0] == pytest.approx(found.days.expected)
    assert "time [d]" in drawing.figure.layout.xaxis.title.text


def test_a_notebook_shows_it(found: WholeTraining) -> None:
    text = planner.html(found)
    assert summary(found) in text
    job = planner.Workload(global_batch=64, sequence_length=1024, tokens=1e10)
    answer = planner.plan("gpt2", "polaris", nodes=1, workload=job)
    assert "The whole training takes" in planner.html(answer)
    frame = pytest.importorskip("pandas", reason="no pandas") and found.to_frame()
    assert frame["time_s"].sum() == pytest.approx(found.time.expected)
