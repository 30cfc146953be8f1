"""Markdown: the documents and their tables, as rows of text."""

from __future__ import annotations

from collections.abc import Iterator

from tests import ROOT

__all__ = ["METHOD", "PAGES", "method", "read", "table"]

_DOCS = sorted((ROOT / "docs").rglob("*.md"))
PAGES = {path.name: path for path in [*_DOCS, *ROOT.glob("*.md")]} | {
    f"{path.parent.name}/{path.name}": path
    for path in _DOCS
    if path.name == "README.md" or path.parent.name == "machines"
}
"""Path of every document, by file name; a README, or the page of a machine, has the name of
its folder too, by which alone it is known where a tutorial has its name."""
METHOD = sorted(path.name for path in (ROOT / "docs" / "explanation").glob("*.md"))
"""Pages of the method."""

Row = dict[str, str]


def read(name: str) -> str:
    """Return the text of a document."""
    return PAGES[name].read_text(encoding="utf-8")


def method() -> str:
    """Return the text of all pages of the method."""
    return "\n".join(read(name) for name in METHOD)


def table(name: str, heading: str, number: int = 0) -> list[Row]:
    """Return the rows of a table below a heading, by column; the first table by default.

    >>> table("nomenclature.md", "Units")[0]
    {'suffix': '`_bytes`', 'unit': 'bytes'}
    """
    title = next(line for line in read(name).splitlines() if line.lstrip("#") == f" {heading}")
    level = len(title) - len(title.lstrip("#"))
    below = read(name).split(f"{title}\n", 1)[1].splitlines()
    ends = (i for i, line in enumerate(below) if _level(line) in range(1, level + 1))
    found = list(_tables(below[: next(ends, len(below))]))
    return found[number]


def _level(line: str) -> int:
    return len(line) - len(line.lstrip("#")) if line.lstrip("#").startswith(" ") else 0


def _tables(lines: list[str]) -> Iterator[list[Row]]:
    """Yield the rows of each table: a run of lines that start with a bar."""
    rows: list[list[str]] = []
    for line in [*lines, ""]:
        if line.startswith("|"):
            rows.append([cell.strip() for cell in line.strip("|").split("|")])
        elif rows:
            yield [dict(zip(rows[0], row, strict=True)) for row in rows[2:]]
            rows = []
