"""Tables of answers in terminals of any width: nothing is cut off, whatever has no room."""

from __future__ import annotations

import io
import sys

import pytest
from rich.console import Console

import planner
from planner.ask import QUESTIONS, Answer
from planner.cost.parts import part as label_of
from planner.show.answers import answer_table
from planner.show.plan_report import show_plan
from planner.show.terminal import console, show, stack_table
from tests.ask.jobs import OWN, SHORT


def printed(answer: Answer, width: int) -> list[str]:
    """Lines of an answer in a terminal of some width."""
    out = io.StringIO()
    show(answer, Console(file=out, width=width))
    return out.getvalue().splitlines()


def letters(text: str) -> str:
    """A text without the blanks that folding puts in or takes out."""
    return "".join(text.split())


@pytest.fixture(scope="module")
def answers() -> dict[str, Answer]:
    return {
        name: ask("gpt2", "polaris", workload=SHORT, **OWN[name]) for name, ask in QUESTIONS.items()
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", QUESTIONS)
@pytest.mark.parametrize("width", [80, 100, 120, 160])
def test_every_cell_is_printed(name: str, width: int, answers: dict[str, Answer]) -> None:
    answer = answers[name]
    lines = printed(answer, width)
    assert max(map(len, lines)) <= width
    table = answer_table(answer)
    titles, rows = table.titles, table.cells()
    # a folded cell stands in several lines: its letters are there as often as in all cells
    seen = letters("".join(lines))
    for character in set(letters("".join(cell for row in rows for cell in row))) - {"-"}:
        told = sum(cell.count(character) for row in rows for cell in row)
        assert seen.count(character) >= told, character
    for title in titles:
        assert all(word in "".join(lines) for word in title.replace("-", " ").split()) or (
            title in ("layout", "reason")
        )


@pytest.fixture(scope="module")
def plan() -> planner.Plan:
    return planner.plan("gpt2", "polaris", nodes=2, workload=SHORT)


def printed_plan(plan: planner.Plan, width: int) -> list[str]:
    """Lines of the ranked layouts of a plan in a terminal of some width."""
    out = io.StringIO()
    show_plan(plan, Console(file=out, width=width), detail="all")
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    assert max(map(len, lines)) <= width
    first = lines.index("Fastest layouts that fit, one of a kind")
    return lines[first + 1 : lines.index("Classic strategies")]


@pytest.mark.parametrize("width", [80, 100])
def test_layouts_of_a_plan_are_whole_in_a_narrow_terminal(width: int, plan: planner.Plan) -> None:
    lines = printed_plan(plan, width)
    assert "slowest parts" not in lines[0]
    below = " ".join(line.strip() for line in lines)
    for one in plan.ranked[:8]:
        # a folded layout would stand in the lines of several columns
        part, seconds = max(one.step_time_parts_s.items(), key=lambda item: item[1])
        share = f"{100 * seconds / one.step_time_s:.0f} %"
        assert f"{one.layout}; slowest parts {label_of(part).label} {share}" in below
        assert f"{100 * one.mfu:.1f} %" in below
    assert not any(line.strip().startswith("%") for line in lines)


@pytest.mark.parametrize("width", [110, 120, 160])
def test_layouts_of_a_plan_are_columns_in_a_wide_terminal(width: int, plan: planner.Plan) -> None:
    head = printed_plan(plan, width)[0]
    assert head.split("  ")[0].strip() == "framework"
    assert head.endswith("slowest parts")


@pytest.mark.parametrize("width", [20, 30, 40, 60])
def test_what_has_no_room_stands_under_its_row(width: int) -> None:
    titles = ["nodes", "step", "days", "late", "reason"]
    rows = [["4", "77 s (62.4-95)", "42.5 (34.4-52.4)", "50 %", "why it is"]] * 3
    head, body = stack_table(titles, rows, ("reason",), width)
    assert max(map(len, head + body)) <= width
    said = letters("".join(body))
    assert said.count("50%") == said.count("whyitis") == said.count("(62.4-95)") == 3
    assert ("late" in head[-1]) == (f"late {rows[0][3]}" not in " ".join(body))


def test_intervals_are_folded_before_columns_are_moved() -> None:
    rows = [["4", "77 s (62.4-95)", "50 %", "why"]]
    titles = ["nodes", "step", "late", "reason"]
    wide, _ = stack_table(titles, rows, ("reason",), 30)
    assert len(wide) == 1
    head, body = stack_table(titles, rows, ("reason",), 24)
    assert head[-1].split() == titles[:3]
    assert body[1].split() == ["(62.4-95)"]


@pytest.mark.parametrize(("columns", "width"), [("77", 77), (None, 160)])
def test_a_pipe_is_wide_unless_columns_says_otherwise(
    monkeypatch: pytest.MonkeyPatch, columns: str | None, width: int
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns is not None:
        monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    assert console().width == width
