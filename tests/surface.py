"""Public surface: names of the package, commands with their options, fields of JSON answers.

python -m tests.surface          # write it into tests/public_surface.json for review
"""

from __future__ import annotations

import json
from typing import Any

import planner
from planner.ask import QUESTIONS
from planner.cli.program import COMMANDS, app
from tests import ROOT
from tests.golden.write import ANSWERS, questions

__all__ = ["PATH", "surface"]

PATH = ROOT / "tests" / "public_surface.json"


def surface() -> dict[str, Any]:
    """Return everything that users may rely on."""
    return {
        "names": planner.__all__,
        "figures": sorted(dir(planner.figures)),
        "questions": sorted(QUESTIONS),
        "commands": {name: options for name, options in sorted(commands().items())},
        "json": {name: sorted(fields) for name, fields in sorted(json_fields().items())},
    }


def commands() -> dict[str, list[str]]:
    """Return the options of every command, by command."""
    from typer.main import get_group

    group = get_group(app)
    found = {}
    for name in COMMANDS:
        command: Any = group.get_command(None, name)  # type: ignore[arg-type]
        inner = getattr(command, "commands", None)
        parts = {name: command} if inner is None else {f"{name} {n}": c for n, c in inner.items()}
        for words, part in parts.items():
            found[words] = sorted(flag for option in part.params for flag in option.opts)
    return found


def json_fields() -> dict[str, set[str]]:
    """Return the dotted fields of the stored JSON answers, by command."""
    fields: dict[str, set[str]] = {}
    for name, arguments in questions().items():
        command = " ".join(arguments[: 1 + (arguments[0] == "ask")])
        answer = json.loads((ANSWERS / f"{name}.json").read_text(encoding="utf-8"))
        fields.setdefault(command, set()).update(_dotted(answer))
    return fields


def _dotted(value: Any, prefix: str = "") -> set[str]:
    if isinstance(value, dict):
        inner = {f"{prefix}{key}": each for key, each in value.items()}
        return set(inner).union(*(_dotted(each, f"{name}.") for name, each in inner.items()))
    if isinstance(value, list):
        return set().union(*(_dotted(each, prefix) for each in value))
    return set()


def written() -> str:
    """Return the surface as the text of its file."""
    return json.dumps(surface(), indent=1) + "\n"


if __name__ == "__main__":
    PATH.write_text(written(), encoding="utf-8")
