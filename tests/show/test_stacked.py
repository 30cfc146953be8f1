"""Tables of answers in terminals of any width: nothing is cut off, whatever has no room."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from planner.ask import QUESTIONS, Answer
from planner.show.answers import answer_table
from planner.show.report import show_answer
from planner.show.stacked import stacked
from tests.ask.jobs import OWN, SHORT


def printed(answer: Answer, width: int) -> list[str]:
    """Lines of an answer in a terminal of some width."""
    out = io.StringIO()
    show_answer(answer, Console(file=out, width=width))
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
    titles, rows = answer_table(answer)
    # a folded cell stands in several lines: its letters are there as often as in all cells
    seen = letters("".join(lines))
    for character in set(letters("".join(cell for row in rows for cell in row))) - {"-"}:
        told = sum(cell.count(character) for row in rows for cell in row)
        assert seen.count(character) >= told, character
    for title in titles:
        assert all(word in "".join(lines) for word in title.replace("-", " ").split()) or (
            title in ("layout", "reason")
        )


@pytest.mark.parametrize("width", [20, 30, 40, 60])
def test_what_has_no_room_stands_under_its_row(width: int) -> None:
    titles = ["nodes", "step", "days", "late", "reason"]
    rows = [["4", "77 s (62.4-95)", "42.5 (34.4-52.4)", "50 %", "why it is"]] * 3
    head, body = stacked(titles, rows, ("reason",), width)
    assert max(map(len, head + body)) <= width
    said = letters("".join(body))
    assert said.count("50%") == said.count("whyitis") == said.count("(62.4-95)") == 3
    assert ("late" in head[-1]) == (f"late {rows[0][3]}" not in " ".join(body))


def test_intervals_are_folded_before_columns_are_moved() -> None:
    rows = [["4", "77 s (62.4-95)", "50 %", "why"]]
    titles = ["nodes", "step", "late", "reason"]
    wide, _ = stacked(titles, rows, ("reason",), 30)
    assert len(wide) == 1
    head, body = stacked(titles, rows, ("reason",), 24)
    assert head[-1].split() == titles[:3]
    assert body[1].split() == ["(62.4-95)"]
