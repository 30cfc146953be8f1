"""Terminal: print pages and tables with rich, complete at any terminal width."""

import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from textwrap import wrap

from rich import table as rich_table
from rich.console import Console, JustifyMethod
from rich.text import Text

from planner.tables import Block, Line, Table, read_page

_PIPE_WIDTH = 160
_PADDING = 2
# blanks between columns of a table without lines


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Leave a closed pipe to the caller; rich would exit with code 1, "nothing fits"."""
        raise BrokenPipeError


def console() -> Console:
    """Return standard output as a console: as wide as the terminal or COLUMNS; wide for a pipe."""
    has_width = sys.stdout.isatty() or "COLUMNS" in os.environ
    return _Console(width=None if has_width else _PIPE_WIDTH)


def show(result: object, out: Console) -> None:
    """Print the page of a result."""
    print_page(read_page(result), out)


def print_page(blocks: Iterable[Block], out: Console) -> None:
    """Print the lines, tables and notes of a page, with a blank line around tables."""
    previous: Block | None = None
    for block in blocks:
        if previous is not None and (isinstance(block, Table) or isinstance(previous, Table)):
            out.print()
        previous = block
        if isinstance(block, Table):
            print_table(block, out)
        elif isinstance(block, Line):
            out.print(Text(block.text, block.style))
        else:
            print_notes(block.lines, out)


def print_notes(notes: Iterable[str], out: Console) -> None:
    """Print remarks, one per line."""
    for note in notes:
        out.print(Text(f"- {note}"))


def print_link(link: str, out: Console) -> None:
    """Print the explorer's address of an answer, in one piece; nothing without one."""
    if link:
        out.print(Text(f"Link:   {link} (planner app)"), soft_wrap=True)


def print_table(table: Table, out: Console) -> None:
    """Print a table; columns that do not fit are printed below their rows."""
    if table.title:
        out.print(Text(table.title, "italic"))
    widths = _column_widths(table, out.width - _PADDING * len(table.columns))
    if widths is None:
        below = [column.title for column in table.columns if column.min_width]
        rows = [*table.cells(), list(table.total)] if table.total else table.cells()
        head, body = stack_table(table.titles, rows, below, out.width)
        out.print(Text("\n".join(head), "bold"))
        out.print(Text("\n".join(body)))
        return
    printed = rich_table.Table(box=None)
    for column, width, numeric in zip(table.columns, widths, table.numeric(), strict=True):
        justify: JustifyMethod = "right" if numeric else "left"
        printed.add_column(Text(column.title), justify=justify, overflow="fold", width=width)
    for record in table.records:
        printed.add_row(
            *(Text(column.cell(record), column.cell_style(record)) for column in table.columns)
        )
    if table.total:
        printed.add_row(*map(Text, table.total), style="bold")
    for segments in out.render_lines(printed, pad=False):
        line = Text.assemble(*((each.text, each.style or "") for each in segments))
        line.rstrip()
        out.print(line)


def _column_widths(table: Table, width: int) -> list[int] | None:
    """Distribute a width over columns, wrapping long texts; None if it is too small."""
    rows = [*table.cells(), table.total] if table.total else table.cells()
    titled, folded, longest = [], [], []
    for n, column in enumerate(table.columns):
        most = max((len(row[n]) for row in rows), default=0)
        least = min(column.min_width or most, most)
        longest.append(most)
        titled.append(max(least, len(column.title)))
        folded.append(max(least, *map(len, column.title.split() or [""])))
    widths = titled if sum(titled) <= width else folded
    for _ in range(width - sum(widths)):
        narrow = [n for n, most in enumerate(longest) if widths[n] < most]
        if not narrow:
            break
        widths[min(narrow, key=lambda n: widths[n])] += 1
    return widths if sum(widths) <= width else None


_INDENT = 4
_JOINED_PERCENT = "\xa0%"
# keeps a percent sign with its number
_UNTITLED = ("layout", "reason")
# cells that need no title


@dataclass(frozen=True, slots=True)
class _Column:
    """A printed column: its title and cells, each as lines."""

    title: list[str]
    cells: list[list[str]]
    left: bool

    @property
    def width(self) -> int:
        return max(len(line) for lines in (self.title, *self.cells) for line in lines)

    def lines(self, lines: Sequence[str]) -> list[str]:
        return [line.ljust(self.width) if self.left else line.rjust(self.width) for line in lines]


def stack_table(
    titles: Sequence[str], rows: Sequence[Sequence[str]], below: Sequence[str], width: int
) -> tuple[list[str], list[str]]:
    """Return the lines of a table's head and body; columns in `below` go under the rows."""
    places = [n for n, title in enumerate(titles) if n == 0 or title not in below]
    for folded in (False, True):
        columns = [_column(titles[n], [row[n] for row in rows], folded) for n in places]
        count = _fitting(columns, width)
        if count == len(columns):
            break
    shown = columns[:count]
    head = _side_by_side([(column, column.title) for column in shown], bottom=True)
    rest = [n for n in range(len(titles)) if n not in places[:count]]
    body: list[str] = []
    for number, row in enumerate(rows):
        body += _side_by_side([(column, column.cells[number]) for column in shown], bottom=False)
        body += _under(titles, row, rest, width)
    return head, body


def _column(title: str, cells: Sequence[str], folded: bool) -> _Column:
    """Return a column; if folded, intervals go below their values."""
    lines = [cell.replace(" (", "\n(").split("\n") if folded else [cell] for cell in cells]
    widest = max(len(line) for cell in lines for line in cell)
    word = max(map(len, wrap(title, 1, break_long_words=False)), default=0)
    titles = wrap(title, max(widest, word, 1)) or [""]
    return _Column(titles, lines, left=any(cell[:1].isalpha() for cell in cells))


def _fitting(columns: Sequence[_Column], width: int) -> int:
    """Count the columns that fit; the first always does."""
    used = 1 + columns[0].width
    for count, column in enumerate(columns[1:], 1):
        used += 2 + column.width
        if used > width:
            return count
    return len(columns)


def _side_by_side(cells: Sequence[tuple[_Column, Sequence[str]]], bottom: bool) -> list[str]:
    """Join cells line by line: titles are aligned at the bottom, values at the top."""
    sides = [column.lines(lines) for column, lines in cells]
    sides = [side[::-1] for side in sides] if bottom else sides
    blanks = [" " * column.width for column, _ in cells]
    lines = [
        " " + "  ".join(part or blank for part, blank in zip(each, blanks, strict=True)).rstrip()
        for each in zip_longest(*sides)
    ]
    return lines[::-1] if bottom else lines


def _under(
    titles: Sequence[str], row: Sequence[str], places: Sequence[int], width: int
) -> list[str]:
    """Format the cells whose columns do not fit, as lines below the row."""
    texts = [
        row[n] if titles[n] in _UNTITLED else f"{titles[n]} {row[n]}"
        for n in places
        if row[n] not in ("", "-")
    ]
    indent = " " * _INDENT
    lines = wrap(
        "; ".join(texts).replace(" %", _JOINED_PERCENT),
        max(width, 2 * _INDENT),
        initial_indent=indent,
        subsequent_indent=indent,
        break_on_hyphens=False,
    )
    return [line.replace(_JOINED_PERCENT, " %") for line in lines]
