"""Answer the questions of questions.toml, compare logs, draw figures, emit files; keep it all.

python -m tests.golden.write          # or `make golden`
"""

from __future__ import annotations

import contextlib
import io
import json
import shlex
import tomllib
from pathlib import Path
from typing import Any

from planner.cli import main
from tests.golden.asked import everything_asked
from tests.golden.choices import every_choice
from tests.golden.evidence import evidence
from tests.golden.fields import fields
from tests.golden.figures import drawn
from tests.golden.files import emitted
from tests.golden.moments import moments
from tests.golden.pages import pages
from tests.golden.parts import sums
from tests.golden.printed import texts
from tests.golden.sweeps import rows

HERE = Path(__file__).parent
ANSWERS = HERE / "answers"
KEPT_MODULES = HERE / "modules.json"
KEPT_MOMENTS = HERE / "moments.json"
KEPT_ASKED = HERE / "asked.json"
KEPT_CHOICES = HERE / "choices.json"
KEPT_EVIDENCE = HERE / "evidence.json"
KEPT_FIELDS = HERE / "fields.json"
KEPT_FIGURES = HERE / "figures.json"
KEPT_FILES = HERE / "files.json"
KEPT_PAGES = HERE / "pages.json"
KEPT_PARTS = HERE / "parts.json"
KEPT_ROWS = HERE / "sweeps.json"
KEPT_TEXTS = HERE / "printed.json"
KINDS = {"plan": ["--top", "3", "--json"], "estimate": ["--json"], "ask": ["--json"]}


def questions() -> dict[str, list[str]]:
    """Arguments of the command line, by name of the question."""
    table = tomllib.loads((HERE / "questions.toml").read_text(encoding="utf-8"))
    return {
        f"{command}-{name}": [command, *shlex.split(line), *options]
        for command, options in KINDS.items()
        for name, line in table[command].items()
    }


def answer(arguments: list[str]) -> dict[str, Any]:
    """Exit code and printed JSON of one question."""
    printed, said = io.StringIO(), io.StringIO()
    code: object = 0
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(said):
        try:
            main(arguments)
        except SystemExit as stop:
            code = stop.code
    assert code in (0, 1), said.getvalue()
    return {"exit_code": code, "answer": json.loads(printed.getvalue())}


def write() -> None:
    """All answers, one file each; files of questions that are gone are removed."""
    from tests.golden.modules import computed  # needs torch

    ANSWERS.mkdir(exist_ok=True)
    asked = questions()
    for name, arguments in asked.items():
        text = json.dumps(answer(arguments), indent=1)
        (ANSWERS / f"{name}.json").write_text(text + "\n", encoding="utf-8")
    _write_lines(KEPT_MODULES, computed())
    _write_lines(KEPT_MOMENTS, moments())
    _write_lines(KEPT_ASKED, everything_asked())
    _write_lines(KEPT_CHOICES, every_choice())
    _write_lines(KEPT_EVIDENCE, evidence())
    _write_lines(KEPT_FIELDS, fields())
    _write_lines(KEPT_PARTS, sums())
    _write_lines(KEPT_FIGURES, drawn())
    texts_of = {KEPT_FILES: emitted, KEPT_PAGES: pages, KEPT_ROWS: rows, KEPT_TEXTS: texts}
    for file, found in texts_of.items():
        file.write_text(json.dumps(found(), indent=0) + "\n", encoding="utf-8")
    for path in ANSWERS.glob("*.json"):
        if path.stem not in asked:
            path.unlink()


def _write_lines(file: Path, table: dict[str, Any]) -> None:
    """Write a table as JSON, a line an entry."""
    rows = [f" {json.dumps(name)}: {json.dumps(found)}" for name, found in table.items()]
    file.write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    write()
