"""Draw: a figure with its text alternative, and what others wrote, shown as text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import streamlit as st

from planner.errors import PlannerError
from planner.show.figures.frame import Drawing
from planner.tables import Table

__all__ = ["FIGURES", "draw", "draw_table", "escape", "escaped_rows", "metrics", "refuse"]


def escape(text: str) -> str:
    r"""Text that Markdown shows as it is; no link, picture, formula or HTML comes to life.

    >>> escape("<b>[x](http://y)</b> $a$")
    '\\<b\\>\\[x\\]\\(http\\://y\\)\\</b\\> \\$a\\$'
    """
    return re.sub(r"([\\`*_{}\[\]()<>#|$~:])", r"\\\1", text)


_CONFIG = {
    "displaylogo": False,
    "responsive": True,
    "modeBarButtonsToRemove": ["lasso2d", "select2d", "autoScale2d"],
}


_INK = "#333333"
_DRAWN = "rgb(51, 51, 51)"
# the same, as browsers write it
FIGURES = (
    f".js-plotly-plot text[style*='{_DRAWN}'] {{fill: light-dark({_INK}, #E0E0E0) !important}}"
)
"""Style of a page: words of figures can be read in both themes, also when the theme changes."""


def draw(drawing: Drawing, key: str) -> None:
    """Draw a figure; readers of screens hear its text alternative."""
    font = {"color": _INK}
    figure = drawing.figure
    figure.update_layout(font=font, legend={"font": font}, modebar={"orientation": "v"})
    figure.update_xaxes(tickfont=font, title={"font": font})
    figure.update_yaxes(tickfont=font, title={"font": font})
    figure.update_traces(textfont=font, selector={"type": "bar", "textposition": "outside"})
    st.plotly_chart(figure, key=key, alt=drawing.alt, config=_CONFIG)


def draw_table(rows: Sequence[dict[str, Any]], key: str, alt: str, **settings: Any) -> None:
    """Draw rows as a table that can be sorted; readers of screens hear its text alternative."""
    st.dataframe(rows, hide_index=True, key=key, alt=alt, **settings)


def escaped_rows(table: Table) -> list[dict[str, str]]:
    """Return the cells of a table for `st.table`, which reads Markdown."""
    rows = table.text_records()
    return [{title: escape(cell) for title, cell in row.items()} for row in rows]


def metrics(rows: Iterable[tuple[str, str, str]]) -> None:
    """Draw figures side by side, each with its label and its small print."""
    with st.container(horizontal=True):
        for label, value, small in rows:
            st.metric(
                label,
                value,
                delta=escape(small),
                delta_color="off",
                delta_arrow="off",
                border=True,
                width="stretch",
            )


def refuse(error: PlannerError, title: str) -> None:
    """Say why something cannot be."""
    st.error(escape(error.plain), title=title)
