"""Stacked: a table for a terminal that is too narrow for it: what has no room stands under its row.

Nothing is cut off: figures that fit stand in columns, and texts and the figures that do not fit
follow each row, indented.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from textwrap import wrap

__all__ = ["stacked"]

_INDENT = 4
_KEPT = "\xa0%"
# a percent stays with its number
_PLAIN = ("layout", "reason")
# texts that need no title


@dataclass(frozen=True, slots=True)
class _Column:
    """A column of figures: its title and cells in the lines in which they are printed."""

    title: list[str]
    cells: list[list[str]]
    left: bool

    @property
    def width(self) -> int:
        return max(len(line) for lines in (self.title, *self.cells) for line in lines)

    def lines(self, lines: Sequence[str]) -> list[str]:
        return [line.ljust(self.width) if self.left else line.rjust(self.width) for line in lines]


def stacked(
    titles: Sequence[str], rows: Sequence[Sequence[str]], below: Sequence[str], width: int
) -> tuple[list[str], list[str]]:
    """Lines of the head and of the body of a table of some characters; `below` go under the rows.

    >>> head, body = stacked(["nodes", "step", "reason"], [["2", "1 s (0.9-1.2)", "why"]],
    ...                      ["reason"], 18)
    >>> print("\\n".join(head + body))
     nodes       step
         2        1 s
            (0.9-1.2)
        why
    """
    places = [n for n, title in enumerate(titles) if n == 0 or title not in below]
    for folded in (False, True):
        columns = [_column(titles[n], [row[n] for row in rows], folded) for n in places]
        count = _fitting(columns, width)
        if count == len(columns):
            break
    shown = columns[:count]
    head = _joined([(column, column.title) for column in shown], bottom=True)
    rest = [n for n in range(len(titles)) if n not in places[:count]]
    body: list[str] = []
    for number, row in enumerate(rows):
        body += _joined([(column, column.cells[number]) for column in shown], bottom=False)
        body += _under(titles, row, rest, width)
    return head, body


def _column(title: str, cells: Sequence[str], folded: bool) -> _Column:
    """A column; folded, intervals stand under their values."""
    lines = [cell.replace(" (", "\n(").split("\n") if folded else [cell] for cell in cells]
    widest = max(len(line) for cell in lines for line in cell)
    word = max(map(len, wrap(title, 1, break_long_words=False)))
    return _Column(wrap(title, max(widest, word)), lines, any(cell[:1].isalpha() for cell in cells))


def _fitting(columns: Sequence[_Column], width: int) -> int:
    """How many columns have room, the first of them in any case [1]."""
    taken = 1 + columns[0].width
    for count, column in enumerate(columns[1:], 1):
        taken += 2 + column.width
        if taken > width:
            return count
    return len(columns)


def _joined(cells: Sequence[tuple[_Column, Sequence[str]]], bottom: bool) -> list[str]:
    """Cells side by side: titles stand on the ground, values hang from the top."""
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
    """What has no room in columns, in lines of its own."""
    said = [
        row[n] if titles[n] in _PLAIN else f"{titles[n]} {row[n]}"
        for n in places
        if row[n] not in ("", "-")
    ]
    indent = " " * _INDENT
    lines = wrap(
        "; ".join(said).replace(" %", _KEPT),
        max(width, 2 * _INDENT),
        initial_indent=indent,
        subsequent_indent=indent,
        break_on_hyphens=False,
    )
    return [line.replace(_KEPT, " %") for line in lines]
