"""Draw: a figure on a page, with its text alternative."""

from __future__ import annotations

import streamlit as st

from planner.show.figures.frame import Drawing

__all__ = ["draw"]

_CONFIG = {
    "displaylogo": False,
    "responsive": True,
    "modeBarButtonsToRemove": ["lasso2d", "select2d", "autoScale2d"],
}


_INKS = {"light": "#333333", "dark": "#E0E0E0"}
# words of figures, readable on the grounds of both themes


def draw(drawing: Drawing, key: str) -> None:
    """Draw a figure; readers of screens hear its text alternative."""
    ink = _INKS.get(st.context.theme.type or "light", _INKS["light"])
    font = {"color": ink}
    figure = drawing.figure
    figure.update_layout(font=font, legend={"font": font}, modebar={"orientation": "v"})
    figure.update_xaxes(tickfont=font, title={"font": font})
    figure.update_yaxes(tickfont=font, title={"font": font})
    figure.update_traces(textfont=font, selector={"type": "bar", "textposition": "outside"})
    st.plotly_chart(figure, key=key, alt=drawing.alt, config=_CONFIG)
