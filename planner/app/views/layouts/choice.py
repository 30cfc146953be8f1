"""Choice: the layout that a page shows, and why another is not recommended."""

import functools

import streamlit as st

from planner.app import address, cached, link
from planner.app.controls.page_job import PageJob
from planner.app.draw import announce, refuse
from planner.choose.plan import Plan
from planner.choose.verdicts.layout_words import CODE, estimate_words
from planner.cost.estimate import Estimate
from planner.errors import PlannerError
from planner.units import format_seconds


def layout_box(plan: Plan, shown: Estimate, label: str, about: str | None = None) -> None:
    """Draw the selection of a layout: those of the plan, and the one that is shown."""
    labels: dict[str, str] = {}
    for number, e in enumerate(plan.listed, 1):
        labels.setdefault(
            link.of(e), f"{number}. {estimate_words(e)}: {format_seconds(e.step_time_s)}"
        )
    for verdict in plan.strategies:
        if verdict.estimate is not None:
            e = verdict.estimate
            fate = "" if verdict.fits else ", does not fit"
            labels.setdefault(link.of(e), f"{verdict.name}: {estimate_words(e)}{fate}")
    current = link.of(shown)
    labels.setdefault(current, f"{estimate_words(shown)}, changed by hand or sent")
    # each layout and step time has its own key: the widget would otherwise keep its previous choice
    key = f"pick_{current}_{shown.step_time_s}"
    st.selectbox(
        label,
        list(labels),
        index=list(labels).index(current),
        format_func=lambda packed: labels[packed],
        key=key,
        on_change=lambda: address.request(layout=st.session_state[key]),
        help=about,
    )


def show_code(shown: Estimate | None = None) -> None:
    """Draw what the code of layouts means, folded, with the code of one to copy."""
    with st.expander("How to read and write the code of a layout"):
        if shown is not None:
            st.code(f"{shown.layout} [{shown.framework}]", language=None, wrap_lines=True)
        st.table([{"code": code, "means": means} for code, means in CODE.items()], hide_index=True)


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
