"""Answers of docs/questions.md: every command of the page is run, and what it shows written again.

python -m tests.questions         # or `make questions`; the prose stays as it is

What is shown of an answer is chosen on the page, and stays chosen: how many lines before a `...`,
of a table which rows, and the columns up to one whose lines end in ` ...`. A row is known by its
first cells, as many as tell rows apart; what stands under it belongs to it. Where it is gone the
nearest takes its place; where rows are numbered, and the sentence spoke of its layout, one of which
the sentence speaks now.
"""

from __future__ import annotations

import contextlib
import functools
import io
import re
import shlex
import tempfile
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from planner.cli import main
from tests.markdown import PAGES, read

__all__ = ["PAGE", "call", "command", "parts", "printed", "rewritten", "shown", "written"]

PAGE = "questions.md"
_WIDTH, _INDENT, _CUT, _SKIPPED = 100, "    ", " ...", "..."
_COMMAND = re.compile(r"^    planner (.+)\n", re.MULTILINE)
_UNDER = re.compile(r" {4}\S+(?: \S+)*")
"""A line of what has no room beside a row; cells are two blanks apart."""
_FILE = re.compile(r"with `(\w+\.json)` as\n\n```json\n(.+?)```", re.DOTALL)


# --- the page -------------------------------------------------------------------------------------


def parts(page: str) -> dict[str, str]:
    """Every question of a page: its part by its heading."""
    return dict(part.split("\n", 1) for part in page.split("\n## ")[1:])


def command(part: str) -> list[str]:
    """The words of a question's command."""
    return shlex.split(_command(part)[1])


def call(part: str) -> str:
    """The call in Python; empty where there is none."""
    found = re.findall(r"```python\n(.+?)```", part, re.DOTALL)
    return str(found[0]) if found else ""


def _command(part: str) -> re.Match[str]:
    found = _COMMAND.search(part.split("```python")[0])
    assert found is not None, f"no command in {part[:60]!r}"
    return found


def shown(part: str) -> slice:
    """Where what is shown of the answer stands: indented lines below the command."""
    start = end = _command(part).end()
    for line in part[start:].splitlines(keepends=True):
        if line.strip() and not line.startswith(_INDENT):
            break
        end += len(line)
    below = part[start:end]
    return slice(end - len(below.lstrip("\n")), start + len(below.rstrip("\n")))


def printed(part: str) -> str:
    """What the command of a question prints, in a folder with the files that its part states."""
    out, err, code = io.StringIO(), io.StringIO(), None
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for name, text in _FILE.findall(part):
            Path(name).write_text(text, encoding="utf-8")
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                main(command(part))
            except SystemExit as stop:
                code = stop.code
    if command(part)[0] == "ask" and code not in (0, 1):
        raise ValueError(f"no answer to {' '.join(command(part))}: {err.getvalue()}")
    return out.getvalue() or err.getvalue()


def rewritten(part: str, output: str) -> str:
    """A part with what its command prints now; ValueError where a row that it shows is gone."""
    place = shown(part)
    old = [line.removeprefix(_INDENT) for line in part[place].splitlines()]
    lines = [line.rstrip() for line in output.splitlines()]
    new = _of_question(old, lines) if command(part)[0] == "ask" else _first(old, lines)
    text = "\n".join(f"{_INDENT}{line}" if line else "" for line in new)
    return part[: place.start] + text + part[place.stop :]


def written(page: str) -> str:
    """A page with all its answers written again."""
    for heading, part in parts(page).items():
        page = page.replace(f"{heading}\n{part}", f"{heading}\n{rewritten(part, printed(part))}")
    return page


def _first(old: Sequence[str], lines: Sequence[str]) -> list[str]:
    """As many lines as were shown, from the first on."""
    count = sum(line != _SKIPPED for line in old)
    return [*lines[:count], *([_SKIPPED] if any(lines[count:]) else [])]


def _of_question(old: Sequence[str], lines: Sequence[str]) -> list[str]:
    """The sentence, and of the table the rows and columns that were shown."""
    (first, *tables), (sentence, *others) = _paragraphs(old), _paragraphs(lines)
    width = _WIDTH - len(_INDENT)
    wrapped = textwrap.wrap(
        " ".join(sentence), width, break_long_words=False, break_on_hyphens=False
    )
    if not tables:
        return wrapped
    before, now = Table.of(tables[0]), Table.of(others[0])
    kept = now.those(before, " ".join(first), " ".join(sentence))
    return [*wrapped, "", *now.shortened(kept, before)]


def _paragraphs(lines: Sequence[str]) -> list[list[str]]:
    return [part.split("\n") for part in "\n".join(lines).split("\n\n") if part.strip()]


# --- a table --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Table:
    """A printed table: lines of titles and of rows, and where its columns begin and end."""

    titles: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    """The lines of each."""
    columns: tuple[tuple[int, int], ...]
    cut: bool
    """Whether columns are left out on the right."""

    @classmethod
    def of(cls, lines: Sequence[str]) -> Table:
        """A table from its lines; one that was shortened from what is left of it."""
        cut = any(line.endswith(_CUT) for line in lines)
        whole = [line.removesuffix(_CUT).rstrip() for line in lines if line.strip() != _SKIPPED]
        columns = tuple(_columns([line for line in whole if not _UNDER.fullmatch(line)]))
        first, second = (slice(*column) for column in columns[:2])
        # cells of a row have text on its first line: long ones go on below, but not both of these
        head, *starts = [
            n
            for n, line in enumerate(whole)
            if line[first].strip() and line[second].strip() and not _UNDER.fullmatch(line)
        ]
        ends = [*starts[1:], len(whole)]
        rows = tuple(tuple(whole[a:b]) for a, b in zip(starts, ends, strict=True))
        return cls(tuple(whole[: head + 1]), rows, columns, cut)

    def cells(self, row: Sequence[str]) -> tuple[str, ...]:
        """The texts of a row, long ones in one line again."""
        lines = [line for line in row if not _UNDER.fullmatch(line)]
        return tuple(
            " ".join(" ".join(line[start:end] for line in lines).split())
            for start, end in self.columns
        )

    def layout(self, row: Sequence[str]) -> str:
        """The layout of a row, in its column or under the row; empty where it has none."""
        names = self.cells(self.titles)
        if "layout" in names:
            return self.cells(row)[names.index("layout")]
        under = " ".join(line.strip() for line in row if _UNDER.fullmatch(line))
        return under.partition("; ")[0]

    @functools.cached_property
    def width(self) -> int:
        """The fewest first cells that tell all rows apart."""
        cells = [self.cells(row) for row in self.rows]
        widths = range(1, len(self.columns))
        return next((n for n in widths if len({row[:n] for row in cells}) == len(cells)), 1)

    def spoken(self, row: Sequence[str], sentence: str) -> bool:
        """Whether rows are numbered and a sentence names the layout of one."""
        layout = self.layout(row)
        return _number(self.cells(row)[0]) is not None and bool(layout) and layout in sentence

    def those(self, before: Table, old: str, new: str) -> list[int]:
        """Which rows stand for those of the table before, given the sentences above them."""
        found = set()
        every = range(len(self.rows))
        for row in before.rows:
            told = [n for n in every if self.spoken(self.rows[n], new)]
            able = told if told and before.spoken(row, old) else every
            key = before.cells(row)[: self.width]
            far = {n: _distance(key, self.cells(self.rows[n])[: self.width]) for n in able}
            nearest = min(able, key=lambda n: far[n])
            if far[nearest][0] == self.width and _number(key[0]) is None:
                raise ValueError(f"the row {' '.join(key)!r} is not printed any more; show another")
            found.add(nearest)
        return sorted(found)

    def shortened(self, kept: Sequence[int], before: Table) -> Iterator[str]:
        """Lines of some rows, with the columns of the table before."""
        place = 0
        if before.cut:
            names, last = self.cells(self.titles), before.cells(before.titles)[-1]
            if last not in names:
                raise ValueError(f"there is no column {last!r} any more; cut the table elsewhere")
            place = self.columns[names.index(last)][1]
        yield from self._cut(self.titles, place, before.cut)
        for number, row in enumerate(self.rows):
            if number in kept:
                yield from self._cut(row, place, before.cut)
            elif not before.cut and (number == 0 or number - 1 in kept):
                yield _SKIPPED

    def _cut(self, lines: Sequence[str], place: int, cut: bool) -> Iterator[str]:
        if not cut:
            yield from lines
            return
        for line in lines:
            if text := line[:place].rstrip():
                yield text + _CUT


def _columns(lines: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Where columns begin and end: two blanks in all lines keep them apart."""
    length = max(map(len, lines))
    text = "".join(
        "x" if any(line[n : n + 1].strip() for line in lines) else " " for n in range(length)
    )
    for found in re.finditer(r"x+(?: x+)*", text):
        yield found.span()


def _number(cell: str) -> float | None:
    try:
        return float(cell.replace(",", ""))
    except ValueError:
        return None


def _distance(key: Sequence[str], other: Sequence[str]) -> tuple[int, float]:
    """How many cells differ from the first that does on, and by how much that does."""
    for place, (one, another) in enumerate(zip(key, other, strict=True)):
        if one != another:
            numbers = _number(one), _number(another)
            apart = abs(numbers[0] - numbers[1]) if None not in numbers else 0.0
            return len(key) - place, apart
    return 0, 0.0


if __name__ == "__main__":
    PAGES[PAGE].write_text(written(read(PAGE)), encoding="utf-8")
