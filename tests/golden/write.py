"""Answer every question of questions.toml and write the answers beside it.

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
from tests.golden.moments import moments

HERE = Path(__file__).parent
ANSWERS = HERE / "answers"
KEPT_MOMENTS = HERE / "moments.json"


def questions() -> dict[str, list[str]]:
    """Arguments of the command line, by name of the question."""
    table = tomllib.loads((HERE / "questions.toml").read_text(encoding="utf-8"))
    return {
        f"{command}-{name}": [command, *shlex.split(line), *options]
        for command, options in (("plan", ["--top", "3", "--json"]), ("estimate", ["--json"]))
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
    ANSWERS.mkdir(exist_ok=True)
    asked = questions()
    for name, arguments in asked.items():
        text = json.dumps(answer(arguments), indent=1)
        (ANSWERS / f"{name}.json").write_text(text + "\n", encoding="utf-8")
    rows = [f" {json.dumps(name)}: {json.dumps(found)}" for name, found in moments().items()]
    KEPT_MOMENTS.write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")
    for path in ANSWERS.glob("*.json"):
        if path.stem not in asked:
            path.unlink()


if __name__ == "__main__":
    write()
