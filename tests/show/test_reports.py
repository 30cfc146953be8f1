"""Reports: refused rows of measured collectives, and what is odd about measured runs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from planner.cost.network.topology import group_view
from planner.describe.catalogue import load_machine
from planner.describe.layout import Layout
from planner.evidence.nccl_tests import score
from planner.show.descriptions import page
from planner.show.measured_runs import lessons
from planner.show.reports.collective_report import group_text, score_text
from planner.tables import Line, Table


@pytest.mark.parametrize("count", [0, 1, 10, 11, 13])
def test_ten_refused_rows_are_named_and_the_others_counted(count: int) -> None:
    lines = score_text(score([]), [f"row {n}" for n in range(count)]).splitlines()
    assert lines[:10] == [f"refused: row {n}" for n in range(min(count, 10))]
    more = {11: ["refused: 1 further row"], 13: ["refused: 3 further rows"]}
    assert lines[10:] == more.get(count, [])


@pytest.mark.parametrize(("odd", "is_said"), [(0.5, False), (0.51, True)])
def test_an_odd_site_is_told_with_three_assumptions(odd: float, is_said: bool) -> None:
    runs = [SimpleNamespace(assumed=words) for words in (["a", "b"], ["b", "c"], ["d"])]
    learned: Any = SimpleNamespace(
        odd_runs={"one": 0.4, "two": 0.8},
        odd_site=odd,
        scores=[SimpleNamespace(run=run) for run in runs],
        refused=[],
    )
    nothing: Any = SimpleNamespace(step_time=None, memory=None)
    run, *site = lessons(learned, nothing)
    assert run.startswith("Run two deviates from the others (80 % probability)")
    assert [line.endswith("and what was assumed (a; b; c).") for line in site] == [True] * is_said


@pytest.mark.parametrize(("ranks_per_node", "nodes"), [(1, 2), (4, 1), (4, 2)])
def test_a_group_names_the_links_that_it_has(ranks_per_node: int, nodes: int) -> None:
    polaris = load_machine("polaris")
    text = group_text(group_view(polaris, ranks_per_node * nodes, 4 // ranks_per_node))
    assert ("inside a node" in text) == (ranks_per_node > 1)
    assert ("links to others" in text) == (nodes > 1)


def test_fields_of_a_layout_are_folded_away() -> None:
    code, fields = page(Layout(dp=2))
    assert isinstance(fields, Table)
    assert fields.folded
    assert isinstance(code, Line)
    assert "2 ranks" in code.text
