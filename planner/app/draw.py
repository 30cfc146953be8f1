"""Draw: figures with their text alternatives, tables, messages and escaped text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import streamlit as st

from planner.errors import PlannerError
from planner.show.figures.frame import Drawing
from planner.tables import Table


def escape(text: str) -> str:
    """Escape text for Markdown, so that links, pictures, formulas and HTML stay plain text."""
    return re.sub(r"([\\`*_{}\[\]()<>#|$~:])", r"\\\1", text)


_CONFIG = {
    "displaylogo": False,
    "responsive": True,
    "modeBarButtonsToRemove": ["lasso2d", "select2d", "autoScale2d"],
}


_INK = "#333333"
_DRAWN = "rgb(51, 51, 51)"
# _INK as browsers write it
FIGURES = (
    f".js-plotly-plot text[style*='{_DRAWN}'] {{fill: light-dark({_INK}, #E0E0E0) !important}}"
)
"""CSS that keeps text in figures readable in both themes, also when the theme changes."""


def draw(drawing: Drawing, key: str, caption: bool = False) -> None:
    """Draw a figure with a text alternative for screen readers; `caption` also shows it as text."""
    font = {"color": _INK}
    figure = drawing.figure
    figure.update_layout(font=font, legend={"font": font}, modebar={"orientation": "v"})
    figure.update_xaxes(tickfont=font, title={"font": font})
    figure.update_yaxes(tickfont=font, title={"font": font})
    figure.update_traces(textfont=font, selector={"type": "bar", "textposition": "outside"})
    st.plotly_chart(figure, key=key, alt=drawing.alt, config=_CONFIG)
    if caption:
        st.caption(escape(drawing.alt))


def draw_table(rows: Sequence[dict[str, Any]], key: str, alt: str, **settings: Any) -> None:
    """Draw rows as a sortable table with a text alternative for screen readers."""
    st.dataframe(rows, hide_index=True, key=key, alt=alt, **settings)


def escaped_rows(table: Table) -> list[dict[str, str]]:
    """Return the cells of a table for `st.table`, which reads Markdown."""
    rows = table.text_records()
    return [{title: escape(cell) for title, cell in row.items()} for row in rows]


def metrics(rows: Iterable[tuple[str, str, str]]) -> None:
    """Draw metrics side by side: label, value and small print."""
    with st.container(horizontal=True):
        for label, value, small in rows:
            st.metric(label, value, escape(small), "off", delta_arrow="off", border=True)


def refuse(error: PlannerError, title: str | None = None) -> None:
    """Show an error message."""
    st.error(escape(error.plain), title=title)


def announce(sentence: str, fits: bool, tight: bool = False) -> None:
    """Show a verdict in the colour for fits, fits tightly, or does not fit."""
    say = (st.warning if tight else st.success) if fits else st.error
    say(escape(sentence))


def download(label: str, data: str | bytes, name: str, key: str) -> None:
    """Draw a button that saves data as a file."""
    ending = name.rpartition(".")[2]
    kind = "text/csv" if ending == "csv" else f"application/{ending}"
    st.download_button(label, data, name, kind, key=key, on_click="ignore")


def list_lines(lines: Iterable[str]) -> None:
    """Draw a list, a bullet a line."""
    for line in lines:
        st.markdown("- " + escape(line))


def in_rows(items: Sequence[str], width: int, **settings: Any) -> Iterator[tuple[Any, str]]:
    """Yield every item with its column, in rows of `width` columns."""
    for start in range(0, len(items), width):
        yield from zip(st.columns(width, **settings), items[start : start + width], strict=False)
