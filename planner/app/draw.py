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


def draw(drawing: Drawing, key: str) -> None:
    """Draw a figure; readers of screens hear its text alternative."""
    st.plotly_chart(drawing.figure, key=key, alt=drawing.alt, config=_CONFIG)
