"""Answers of docs/howto/questions.md: run every command of the page and update its shown output.

python -m tests.questions         # or `make questions`; the prose is not changed

The page selects the shown part of an answer, and the selection is kept: the number of lines before
a `...`, the rows of a table, and the columns up to one whose lines end in ` ...`. A row is matched
by its first cells, as many as make rows unique; indented lines below belong to it. A missing row is
replaced by the nearest one. If rows are numbered and the old sentence names the row's layout, it is
replaced by a row whose layout the new sentence names.
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
"""An indented continuation line below a row; cells are separated by two blanks."""
_FILE = re.compile(r"with `(\w+\.json)` as\n\n```json\n(.+?)```", re.DOTALL)


# --- the page -------------------------------------------------------------------------------------


def parts(page: str) -> dict[str, str]:
    """Split a page into its questions: text by heading."""
    return dict(part.split("\n", 1) for part in page.split("\n## ")[1:])


def command(part: str) -> list[str]:
    """Return the arguments of a question's command."""
    return shlex.split(_command(part)[1])


def call(part: str) -> str:
    """Return the Python call of a question; empty if there is none."""
    found = re.findall(r"```python\n(.+?)```", part, re.DOTALL)
    return str(found[0]) if found else ""


def _command(part: str) -> re.Match[str]:
    found = _COMMAND.search(part.split("```python")[0])
    assert found is not None, f"no command in {part[:60]!r}"
    return found


def shown(part: str) -> slice:
    """Locate the shown output: the indented lines below the command."""
    start = end = _command(part).end()
    for line in part[start:].splitlines(keepends=True):
        if line.strip() and not line.startswith(_INDENT):
            break
        end += len(line)
    below = part[start:end]
    return slice(end - len(below.lstrip("\n")), start + len(below.rstrip("\n")))


def printed(part: str) -> str:
    """Run a question's command in a folder with the files that the part defines; return output."""
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
    """Return a part with its current output; ValueError if a shown named row no longer exists."""
    place = shown(part)
    old = [line.removeprefix(_INDENT) for line in part[place].splitlines()]
    lines = [line.rstrip() for line in output.splitlines()]
    new = _of_question(old, lines) if command(part)[0] == "ask" else _first(old, lines)
    text = "\n".join(f"{_INDENT}{line}" if line else "" for line in new)
    return part[: place.start] + text + part[place.stop :]


def written(page: str) -> str:
    """Return a page with all its outputs updated."""
    for heading, part in parts(page).items():
        page = page.replace(f"{heading}\n{part}", f"{heading}\n{rewritten(part, printed(part))}")
    return page


def _first(old: Sequence[str], lines: Sequence[str]) -> list[str]:
    """Return the first lines of the output, as many as were shown."""
    count = sum(line != _SKIPPED for line in old)
    return [*lines[:count], *([_SKIPPED] if any(lines[count:]) else [])]


def _of_question(old: Sequence[str], lines: Sequence[str]) -> list[str]:
    """Return the sentence, and the table's rows and columns that were shown."""
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
    """A printed table: title lines, lines of rows, and the span of each column."""

    titles: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    """Lines of each row."""
    columns: tuple[tuple[int, int], ...]
    cut: bool
    """True if columns on the right are left out."""

    @classmethod
    def of(cls, lines: Sequence[str]) -> Table:
        """Parse a table, full or shortened, from its lines."""
        cut = any(line.endswith(_CUT) for line in lines)
        whole = [line.removesuffix(_CUT).rstrip() for line in lines if line.strip() != _SKIPPED]
        columns = tuple(_columns([line for line in whole if not _UNDER.fullmatch(line)]))
        first, second = (slice(*column) for column in columns[:2])
        # a row starts where both of its first cells have text; long cells continue below
        head, *starts = [
            n
            for n, line in enumerate(whole)
            if line[first].strip() and line[second].strip() and not _UNDER.fullmatch(line)
        ]
        ends = [*starts[1:], len(whole)]
        rows = tuple(tuple(whole[a:b]) for a, b in zip(starts, ends, strict=True))
        return cls(tuple(whole[: head + 1]), rows, columns, cut)

    def cells(self, row: Sequence[str]) -> tuple[str, ...]:
        """Return the cells of a row, with wrapped text joined."""
        lines = [line for line in row if not _UNDER.fullmatch(line)]
        return tuple(
            " ".join(" ".join(line[start:end] for line in lines).split())
            for start, end in self.columns
        )

    def layout(self, row: Sequence[str]) -> str:
        """Return the layout of a row, from its column or below the row; empty if it has none."""
        names = self.cells(self.titles)
        if "layout" in names:
            return self.cells(row)[names.index("layout")]
        under = " ".join(line.strip() for line in row if _UNDER.fullmatch(line))
        return under.partition("; ")[0]

    @functools.cached_property
    def width(self) -> int:
        """Smallest number of first cells that makes all rows unique; 1 if none does."""
        cells = [self.cells(row) for row in self.rows]
        widths = range(1, len(self.columns))
        return next((n for n in widths if len({row[:n] for row in cells}) == len(cells)), 1)

    def spoken(self, row: Sequence[str], sentence: str) -> bool:
        """True if a row is numbered and the sentence names its layout."""
        layout = self.layout(row)
        return _number(self.cells(row)[0]) is not None and bool(layout) and layout in sentence

    def those(self, before: Table, old: str, new: str) -> list[int]:
        """Match rows with those of an older table, given the old and the new sentence."""
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
        """Yield the lines of the kept rows, with the columns of the older table."""
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
    """Yield the span of each column; columns are separated by two blanks in all lines."""
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
    """Return the count of cells from the first differing one on, and its numeric difference."""
    for place, (one, another) in enumerate(zip(key, other, strict=True)):
        if one != another:
            numbers = _number(one), _number(another)
            apart = abs(numbers[0] - numbers[1]) if None not in numbers else 0.0
            return len(key) - place, apart
    return 0, 0.0


if __name__ == "__main__":
    PAGES[PAGE].write_text(written(read(PAGE)), encoding="utf-8")
