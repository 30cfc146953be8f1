"""Tutorials: run every command of docs/tutorials and README.md; update the shown outputs.

python -m tests.tutorials         # or `make tutorials`; the prose is not changed

A block of the language `console` is a command and all that it prints in a terminal of 100 columns.
The commands of a page run one after the other in one folder, and read what earlier ones wrote. A
block with a title is a file in that folder. `cat FILE` is known besides `planner`. Every number of
the prose occurs in a block of the page.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import tempfile
from pathlib import Path
from unittest import mock

from planner.cli import main
from planner.show import terminal
from tests import ROOT

__all__ = ["README", "TUTORIALS", "loose_numbers", "printed", "written"]

README = ROOT / "README.md"
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
_COLUMNS = 100
_BLOCK = re.compile(
    r'^```(?P<language>\w+)(?: title="(?P<title>[\w./-]+)")?\n(?P<text>.*?)^```$',
    re.MULTILINE | re.DOTALL,
)
_NUMBER = re.compile(r"(?<![\w.,-])\d[\d,]*(?:\.\d+)?(?![\w-]|[.,]\d)")
_LINK = re.compile(r"\]\([^)]*\)")


def written(page: str) -> str:
    """Return a page with the outputs that its commands print now."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        return _BLOCK.sub(_rewritten, page)


def loose_numbers(page: str) -> set[str]:
    """Return the numbers of the prose that no block of the page has."""
    blocks = " ".join(block["text"] for block in _BLOCK.finditer(page))
    prose = _LINK.sub("]", _BLOCK.sub("", page))
    prose = re.sub(r"^#.*$|`[^`]*`", "", prose, flags=re.MULTILINE)
    shown = set(_NUMBER.findall(blocks)) | set(re.findall(r"\d+", blocks))
    return {number for number in _NUMBER.findall(prose) if number not in shown}


def _rewritten(block: re.Match[str]) -> str:
    if block["title"]:
        path = Path(block["title"])
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block["text"], encoding="utf-8")
    if block["language"] != "console":
        return block[0]
    line = block["text"].partition("\n")[0]
    assert line.startswith("$ "), f"no command in {line!r}"
    return f"```console\n{line}\n{printed(line.removeprefix('$ '))}```"


def printed(command: str) -> str:
    """Run a command; return its output without trailing blanks."""
    program, _, target = command.partition(" > ")
    words = shlex.split(program)
    if words[0] == "cat":
        text = Path(words[1]).read_text(encoding="utf-8")
    else:
        assert words[0] == "planner", f"not a command of the planner: {command!r}"
        text = _answered(words[1:])
    if target:
        Path(target).write_text(text, encoding="utf-8")
        return ""
    return "".join(f"{line.rstrip()}\n" for line in text.strip("\n").splitlines())


def _answered(arguments: list[str]) -> str:
    out, code = io.StringIO(), None
    with (
        mock.patch.object(terminal, "_PIPE_WIDTH", _COLUMNS),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(out),
    ):
        try:
            main(arguments)
        except SystemExit as stop:
            code = stop.code
    assert code != 2, f"planner {shlex.join(arguments)}: {out.getvalue()}"
    return out.getvalue()


if __name__ == "__main__":
    for tutorial in [README, *TUTORIALS]:
        tutorial.write_text(written(tutorial.read_text(encoding="utf-8")), encoding="utf-8")
