"""The questions people ask: every command and call of the page answers as the page shows."""

from __future__ import annotations

import inspect
import re
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import planner
from planner.ask import QUESTIONS, Answer
from planner.ask.asked import asked_of
from planner.ask.option import parameters
from planner.cli import main
from tests.markdown import read

pytestmark = pytest.mark.slow

PARTS = dict(part.split("\n", 1) for part in read("questions.md").split("\n## ")[1:])
"""Every question of the page."""
_JOB = ("workload", "frameworks", "tolerance", "experience")


def command(part: str) -> list[str]:
    """The words of a question's command."""
    [said] = re.findall(r"^    planner (.+)$", part.split("```python")[0], re.MULTILINE)[:1]
    return shlex.split(said)


def shown(part: str) -> list[str]:
    """What is shown of the answer, in pieces, without regard to blanks."""
    text = part.split("\n    planner ", 1)[1].split("\n", 1)[1].split("```python")[0]
    lines = [line for line in text.splitlines() if line.startswith("    ")]
    pieces = "\n".join(lines).replace("\n    ...", " ... ").split(" ...")
    return [plain for piece in pieces if (plain := " ".join(piece.split()))]


def call(part: str) -> str:
    """The call in Python; empty where there is none."""
    found = re.findall(r"```python\n(.+?)```", part, re.DOTALL)
    return str(found[0]) if found else ""


def printed(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """What a command prints, without regard to blanks."""
    with pytest.raises(SystemExit):
        main(words)
    out, err = capsys.readouterr()
    return " ".join(f"{out} {err}".split())


def asked(question: Any, args: Any, given: dict[str, Any]) -> Any:
    """What a question is asked with: the job, and what it asks besides."""
    job = {name: given[name] for name in _JOB if name in given}
    own = {one.name: given.get(one.name, one.default) for one in parameters(question)}
    described = asked_of(*args, job)  # type: ignore[arg-type]
    names = [getattr(each, "name", each) for each in described.frameworks]
    return described.at(frameworks=tuple(names)), own


def test_the_questions_of_the_field_are_there() -> None:
    assert len(PARTS) >= 15
    assert len(PARTS) == read("questions.md").count("\n## ")
    told = {command(part)[1] for part in PARTS.values() if command(part)[0] == "ask"}
    named = set(re.findall(r"`planner ask ([\w-]+)`", read("questions.md")))
    assert told | named >= set(QUESTIONS)


@pytest.mark.parametrize("heading", [h for h, part in PARTS.items() if command(part)[0] == "ask"])
def test_an_answer_is_as_shown(
    heading: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The call is worked out, and the command is found to ask the same and to print it so."""
    part = PARTS[heading]
    words = command(part)
    real = QUESTIONS[words[1]]
    calls: list[tuple[Any, dict[str, Any]]] = []

    def heard(*args: Any, **given: Any) -> Any:
        calls.append((args, given))

    namespace = SimpleNamespace(ask=SimpleNamespace(), Workload=planner.Workload)
    setattr(namespace.ask, words[1].replace("-", "_"), heard)
    eval(call(part), {"planner": namespace})
    [(args, given)] = calls

    def answered(*theirs: Any, **options: Any) -> Answer:
        assert asked(real, theirs, options) == asked(real, args, given)
        return real(*args, **given)

    answered.__signature__ = inspect.signature(real)  # type: ignore[attr-defined]
    monkeypatch.setitem(QUESTIONS, words[1], answered)
    _compare(shown(part), printed(words, capsys))


@pytest.mark.parametrize("heading", [h for h, part in PARTS.items() if command(part)[0] != "ask"])
def test_other_commands_print_what_is_shown(
    heading: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    part = PARTS[heading]
    for name, text in re.findall(r"with `(\w+\.json)` as\n\n```json\n(.+?)```", part, re.DOTALL):
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    out = printed(command(part), capsys)
    _compare(shown(part), out)
    if call(part):
        plan = eval(call(part), {"planner": planner})
        assert str(plan.recommended.layout) in out


def _compare(pieces: list[str], out: str) -> None:
    """That pieces stand in an output, one after the other."""
    assert pieces
    place = 0
    for piece in pieces:
        found = out.find(piece, place)
        assert found >= 0, f"not printed any more: {piece}"
        place = found + len(piece)
