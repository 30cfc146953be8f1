"""Reference of the commands: the help of every command, as the program prints it."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterator
from unittest import mock

from planner.ask import QUESTIONS
from planner.cli import main
from planner.cli.program import COMMANDS

_TERMINAL = {"COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"}
_VALIDATE = ("trace", "run", "collectives", "calibrate")
_INTRODUCTION = """\
# {title}

What the program prints for `--help`, written when this site is built.

"""


def pages() -> Iterator[tuple[str, str]]:
    """Yield the page of the commands, of the questions and of the checks with torch."""
    plain = [name for name in COMMANDS if name not in ("ask", "validate")]
    yield _page("commands", "Commands", [[], *([name] for name in plain)])
    yield _page("questions", "Questions", [["ask"], *(["ask", name] for name in sorted(QUESTIONS))])
    checks = [["validate"], *(["validate", name] for name in _VALIDATE)]
    yield _page("checks", "Checks with torch", checks)


def _page(name: str, title: str, commands: list[list[str]]) -> tuple[str, str]:
    parts = [_INTRODUCTION.format(title=title)]
    for words in commands:
        command = " ".join(["planner", *words])
        parts.append(f"## {command}\n\n```text\n{_help(words)}\n```\n\n")
    return f"reference/commands/{name}.md", "".join(parts)


def _help(words: list[str]) -> str:
    out = io.StringIO()
    terminal = mock.patch.dict(os.environ, _TERMINAL)
    with terminal, contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        main([*words, "--help"])
    lines = [line.rstrip() for line in out.getvalue().strip("\n").splitlines()]
    assert lines, f"no help of {words}"
    return "\n".join(lines)
