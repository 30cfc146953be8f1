"""Main: the pages and their order."""

from __future__ import annotations

import streamlit as st

from planner.app.views import collectives, fit, learn, machines, one_layout, trust

__all__ = ["PAGES", "main"]

PAGES = {
    "fit": fit,
    "layout": one_layout,
    "machines": machines,
    "collectives": collectives,
    "trust": trust,
    "learn": learn,
}
"""Pages by their path in the address, in the order of the navigation; the first opens."""


def main() -> None:
    """Draw the page that the address names."""
    st.set_page_config(page_title="Parallelism planner", layout="wide")
    pages = [
        st.Page(module.page, title=module.TITLE, url_path=path, default=number == 0)
        for number, (path, module) in enumerate(PAGES.items())
    ]
    st.navigation(pages, position="top").run()
