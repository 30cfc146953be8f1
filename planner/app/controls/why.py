"""Why: the answer to why a layout is not recommended."""

from __future__ import annotations

import functools

import streamlit as st

from planner.app import address, cached, link
from planner.app.controls.page_job import PageJob
from planner.app.draw import announce, refuse
from planner.errors import PlannerError


def show_why(job: PageJob, text: str) -> None:
    """Draw what speaks against the layout that `text` states, with a button to show it."""
    try:
        answer = cached.why_of(job, text)
    except PlannerError as error:
        refuse(error)
        return
    announce(answer.lines, answer.estimate is not None and answer.estimate.fits, tight=True)
    takes = {"Show this layout": answer.estimate, "Show the changed layout": answer.changed}
    with st.container(horizontal=True):
        for label, estimate in takes.items():
            if estimate is not None:
                take = functools.partial(address.request, layout=link.of(estimate))
                st.button(label, key=f"take_{label}", on_click=take)
