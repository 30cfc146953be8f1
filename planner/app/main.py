"""Main: the pages and their order."""

from __future__ import annotations

import streamlit as st

from planner.app.pages import collectives, fit, learn, machines, one_layout, trust

__all__ = ["main"]


def main() -> None:
    """Draw the page that the address names."""
    st.set_page_config(page_title="Parallelism planner", layout="wide")
    page = st.navigation(
        [
            st.Page(fit.page, title="Which strategy fits?", url_path="fit", default=True),
            st.Page(one_layout.page, title="One layout", url_path="layout"),
            st.Page(machines.page, title="Machines", url_path="machines"),
            st.Page(collectives.page, title="Collectives", url_path="collectives"),
            st.Page(trust.page, title="Trust", url_path="trust"),
            st.Page(learn.page, title="Learn", url_path="learn"),
        ],
        position="top",
    )
    page.run()
