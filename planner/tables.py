"""Tables: result records as CSV, pandas data frames, and formatted cells."""

from __future__ import annotations

import csv
import functools
import importlib
import io
import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from planner.errors import PlannerError, shorten

if TYPE_CHECKING:
    import pandas

Record = dict[str, Any]
"""One row: numbers, strings and booleans by column name; a name ends in its unit."""

T = TypeVar("T", bound=str)


@dataclass(frozen=True, slots=True)
class Column:
    """A display column: one value of every record, with a title and a format."""

    key: str
    """Key of the value in a record; empty: the whole record."""
    title: str
    format: Callable[[Any], str] = str
    """Format a value with its unit. A missing value becomes an empty cell."""
    min_width: int = 0
    """Smallest width in characters when a narrow terminal wraps the column; 0: no wrapping."""
    style: Callable[[Any], str] | None = None
    """Return the terminal style of a value."""

    def cell(self, record: Record) -> str:
        """Format a record's cell."""
        value = self.value(record)
        return "" if value is None else self.format(value)

    def cell_style(self, record: Record) -> str:
        """Return the terminal style of a record's cell; empty for the default."""
        return "" if self.style is None else self.style(self.value(record))

    def value(self, record: Record) -> Any:
        """Return the value that a record's cell shows."""
        return record.get(self.key) if self.key else record


@dataclass(frozen=True, slots=True)
class Table:
    """Records, and the columns that display them."""

    records: tuple[Record, ...]
    title: str = ""
    columns: tuple[Column, ...] = ()
    """Display columns; CSV and data frames contain every key of the records."""
    total: tuple[str, ...] = ()
    """Cells of a final row with totals."""
    folded: bool = False
    """True if a notebook shows the table collapsed at first."""

    @property
    def titles(self) -> list[str]:
        """Titles of the columns."""
        return [column.title for column in self.columns]

    @property
    def names(self) -> list[str]:
        """Keys of all records, in order of first appearance."""
        return list(dict.fromkeys(name for record in self.records for name in record))

    def cells(self) -> list[list[str]]:
        """Format every record as a row of cells, without the total row."""
        return [[column.cell(record) for column in self.columns] for record in self.records]

    def text_records(self) -> list[dict[str, str]]:
        """Format every record as cells by column title."""
        return [dict(zip(self.titles, row, strict=True)) for row in self.cells()]

    def numeric(self) -> list[bool]:
        """Return for each column whether it is numeric (no word, no wrapping): right-aligned."""
        cells = self.cells()
        return [
            not column.min_width and not any(_is_word(row[n]) for row in cells)
            for n, column in enumerate(self.columns)
        ]

    def to_csv(self) -> str:
        """Write the records as CSV; empty if there are none."""
        return csv_text(self.names, self.records) if self.records else ""

    def to_frame(self) -> pandas.DataFrame:
        """Return the records as a pandas frame; integers beside missing values are not rounded."""
        names = self.names
        rows = [{name: record.get(name) for name in names} for record in self.records]
        try:
            import pandas
        except ImportError:
            raise PlannerError(
                "a frame needs pandas, which is not installed; run pip install pandas"
            ) from None
        frame = pandas.DataFrame(rows)
        for name in names:
            values = [row[name] for row in rows]
            dtype = _nullable_dtype(values)
            if dtype is not None:
                frame[name] = pandas.array(values, dtype=dtype)
        return frame


def _is_word(cell: str) -> bool:
    """True if a cell holds a word, not a number; a switch such as +compile is a word."""
    return cell.lstrip("+-<> ")[:1].isalpha()


@dataclass(frozen=True, slots=True)
class Line:
    """A sentence of a page."""

    text: str
    style: str = ""
    """Terminal style."""


@dataclass(frozen=True, slots=True)
class Notes:
    """Remarks on an answer; a notebook shows them collapsed at first."""

    lines: tuple[str, ...]
    title: str = "Notes"


Block = Line | Notes | Table
"""A building block of a page."""


def _nullable_dtype(values: list[Any]) -> Any:
    """Return the pandas dtype that keeps integers or booleans intact when some are missing."""
    types = {type(value) for value in values}
    if types == {bool, type(None)}:
        return "boolean"
    if types == {int, type(None)}:
        fits = all(-(2**63) <= value < 2**63 for value in values if value is not None)
        return "Int64" if fits else object
    return None


def csv_text(names: Iterable[str], records: Iterable[Record]) -> str:
    """Write named columns of records as CSV; a missing value is empty."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    columns = list(names)
    writer.writerow(columns)
    writer.writerows([record.get(name) for name in columns] for record in records)
    return out.getvalue()


class NotebookView:
    """A result that a notebook shows as HTML instead of its Python text."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return html(self)


class Tabular(NotebookView, Generic[T]):
    """A result that consists of one or more named tables."""

    __slots__ = ()

    def tables(self) -> dict[str, Table]:
        """Return the tables by name, the main one first."""
        raise NotImplementedError

    def table(self, name: T | None = None) -> Table:
        """Return a table by name, by default the first."""
        tables = self.tables()
        if name is None:
            return next(iter(tables.values()))
        if name not in tables:
            raise PlannerError(
                f"table = {shorten(str(name))!r} is not known; use one of {', '.join(tables)}"
            )
        return tables[name]

    def records(self, table: T | None = None) -> list[Record]:
        """Return the records of a table, by default the first."""
        return list(self.table(table).records)

    def to_frame(self, table: T | None = None) -> pandas.DataFrame:
        """Return a table, by default the first, as a pandas data frame."""
        return self.table(table).to_frame()


_PAGES = "planner.show.pages"
"""Module that registers all pages. It imports this one, so it is loaded late, by name."""


@functools.singledispatch
def page(value: object) -> list[Block]:
    """Return the page of a result or a description: its blocks from top to bottom."""
    return [Line(repr(value))]


def read_page(value: object) -> list[Block]:
    """Return the page of a result or a description; the first call loads all pages."""
    importlib.import_module(_PAGES)
    return page(value)


def html(value: object) -> str:
    """Write a result or a description as HTML for a notebook, in the colours of its theme."""
    parts = []
    for tables, blocks in itertools.groupby(
        read_page(value), lambda block: isinstance(block, Table) and not block.folded
    ):
        inner = "".join(map(_block_html, blocks))
        parts.append(f'<div style="{_SIDE_BY_SIDE}">{inner}</div>' if tables else inner)
    return f'<div style="overflow-x:auto">{"".join(parts)}</div>'


_LEFT = "text-align:left;vertical-align:top"
_RIGHT = "text-align:right;vertical-align:top;white-space:nowrap"
_SIDE_BY_SIDE = "display:flex;flex-wrap:wrap;gap:1.5em;align-items:flex-start"


def _block_html(block: Block) -> str:
    if isinstance(block, Line):
        text = escape(block.text)
        strong = f"<strong>{text}</strong>" if "bold" in block.style else text
        return f'<div style="margin:.2em 0">{strong}</div>'
    if isinstance(block, Notes):
        items = "".join(f"<li>{escape(line)}</li>" for line in block.lines)
        return _folded_html(block.title, f"<ul>{items}</ul>") if items else ""
    if block.folded:
        return _folded_html(block.title, html_table(block))
    title = f"<div>{escape(block.title)}</div>" if block.title else ""
    return f"<div>{title}{html_table(block)}</div>"


def _folded_html(title: str, inner: str) -> str:
    return f"<details><summary>{escape(title)}</summary>{inner}</details>"


def html_table(table: Table) -> str:
    """Write a table as HTML, its title left out; all text is escaped."""
    styles = [_RIGHT if numeric else _LEFT for numeric in table.numeric()]

    def row(cells: Iterable[str], tag: str) -> str:
        inner = (
            f'<{tag} style="{style}">{escape(cell)}</{tag}>'
            for cell, style in zip(cells, styles, strict=True)
        )
        return f"<tr>{''.join(inner)}</tr>"

    head = f"<thead>{row(table.titles, 'th')}</thead>" if any(table.titles) else ""
    body = "".join(row(cells, "td") for cells in table.cells())
    total = row(table.total, "th") if table.total else ""
    return f'<table style="margin:.2em 0">{head}<tbody>{body}{total}</tbody></table>'
