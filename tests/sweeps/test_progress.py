"""Progress of a sweep: when a line is printed, and what it says of the rest."""

from __future__ import annotations

import io
import re
import sys

import pytest

from planner.sweeps import progress as module
from planner.sweeps.definition import define_sweep
from planner.sweeps.progress import Progress
from planner.sweeps.questions import list_questions, make_tasks


class _Clock:
    """A clock that the test moves."""

    now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> _Clock:
    clock = _Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


def test_a_line_takes_a_pause_and_a_share(
    clock: _Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    with Progress(True) as progress:
        progress.start(200, 100)

        def lines(after_s: float, answers: int) -> str:
            clock.now_s += after_s
            progress.advance(answers, 0)
            return capsys.readouterr().err

        assert "100 of 200 questions were answered before" in capsys.readouterr().err
        assert lines(2.0, 20) == ""  # 10 % more, but after no more than two seconds
        assert lines(0.5, 0) == (
            "planner: 120 of 200 questions answered in 2.5 s, about 10 s to go\n"
        )
        assert lines(10.0, 9) == ""  # after a pause, but less than 5 % more
        assert lines(0.0, 1) == (
            "planner: 130 of 200 questions answered in 12 s, about 29 s to go\n"
        )
        # the last one is told whenever it comes
        assert lines(0.0, 70) == "planner: 200 of 200 questions answered in 12 s\n"


def test_what_is_refused_is_counted_and_nothing_is_printed_unasked(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with Progress() as progress:
        assert (progress.done, progress.total, progress.num_known, progress.refused) == (0,) * 4
        progress.start(10, 4)
        progress.advance(3, 1)
        progress.advance(3, 2)
    assert (progress.done, progress.refused, progress.total, progress.num_known) == (10, 3, 10, 4)
    assert capsys.readouterr().err == ""


def test_a_sweep_without_answers_says_nothing_of_earlier_ones(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with Progress(True) as progress:
        progress.start(0, 0)
        assert capsys.readouterr().err == ""
        progress.advance(0, 0)
    assert "0 of 0 questions answered" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("kind", "count", "tasks", "largest"),
    [
        # 32 tasks at least, of four plans or a thousand estimates at most
        ("plan", 3, 3, 1),
        ("plan", 32, 32, 1),
        ("plan", 33, 17, 2),
        ("plan", 400, 100, 4),
        ("estimate", 33, 7, 5),
        ("estimate", 32_500, 33, 1000),
        ("plan", 0, 0, 0),
    ],
)
def test_small_sweeps_are_divided_finely(kind: str, count: int, tasks: int, largest: int) -> None:
    layout = {"dp": 8} if kind == "estimate" else {}
    sweep = list_questions(
        define_sweep({"kind": kind, "models": "gpt2", "machines": "polaris", "layout": layout})
    )
    (question,) = sweep.questions
    made = make_tasks(sweep, [question] * count)
    assert (len(made), max((len(task.questions) for task in made), default=0)) == (tasks, largest)
    assert sum(len(task.questions) for task in made) == count


def test_a_terminal_has_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    class _Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stderr", shown := _Terminal())
    with Progress(True) as progress:
        progress.start(40, 10)
        bar = progress._bar
        (task,) = bar.tasks
        assert (task.total, task.completed, task.fields) == (40, 10, {"refused": 0})
        progress.advance(5, 2)
        assert (task.completed, task.fields) == (15, {"refused": 2})
        assert bar.live.is_started
    assert not bar.live.is_started
    assert "were answered before" not in shown.getvalue()
    assert "15/40 2 refused" in re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.getvalue())
