"""Rooms: the table of packages in CONTRIBUTING.md, made from their docstrings' first lines.

python -m tests.rooms          # update the table
"""

from __future__ import annotations

import ast
from pathlib import Path

from tests.markdown import PAGES, read
from tests.test_architecture import ORDER, PACKAGE

__all__ = ["HEAD", "rooms", "written"]

HEAD = "| room | what it holds |\n|---|---|\n"


def rooms() -> str:
    """Return the table: packages in import order, lowest first, each followed by its folders."""
    return HEAD + "".join(_row(name) for floor in ORDER for name in floor)


def _row(name: str) -> str:
    path = PACKAGE / name
    if not path.is_dir():
        return f"| `{name}` | {_said(path.with_suffix('.py'))} |\n"
    inner = sorted(folder.parent for folder in path.glob("*/__init__.py"))
    rows = [f"| `{name}/{folder.name}` | {_said(folder / '__init__.py')} |\n" for folder in inner]
    return f"| **`{name}`** | {_said(path / '__init__.py')} |\n" + "".join(rows)


def _said(path: Path) -> str:
    """Return the first line of a module's docstring, without a leading `Topic:` of one word."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    said = text.splitlines()[0]
    name, _, rest = said.partition(": ")
    return rest[0].upper() + rest[1:] if rest and " " not in name else said


def written() -> str:
    """Return the present table of CONTRIBUTING.md."""
    below = read("CONTRIBUTING.md").split(HEAD, 1)[1].splitlines(keepends=True)
    end = next(i for i, line in enumerate(below) if not line.startswith("|"))
    return HEAD + "".join(below[:end])


if __name__ == "__main__":
    PAGES["CONTRIBUTING.md"].write_text(
        read("CONTRIBUTING.md").replace(written(), rooms()), encoding="utf-8"
    )
