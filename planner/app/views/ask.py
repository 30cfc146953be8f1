"""Page 3: questions that need many plans, with controls, a verdict, a table and a figure."""

from __future__ import annotations

import functools
import inspect
import json
from typing import Any

import streamlit as st

from planner.app import address, cached
from planner.app.address import QueryReader
from planner.app.controls.page_job import PageJob, PageRequest
from planner.app.controls.panel import ROW, controls
from planner.app.draw import announce, draw, draw_table, escape, in_rows, on_page, refuse
from planner.ask import QUESTIONS, Answer
from planner.ask.option import Parameter, parameters
from planner.errors import PlannerError
from planner.show.answers import answer_table
from planner.show.figures.curves import answer_figure

TITLE = "Questions"
_QUESTION, _ANSWER = "question", "answer"
_FIRST = next(iter(QUESTIONS))
_INITIAL_VALUES: dict[str, Any] = {
    "days": 30.0,
    "against": "dgx-h100",
    "base_batch": 256,
    "base_rate": 1e-4,
}
"""Initial values of options that have no default."""
_MAX_VALUE = 1e9
_COLUMNS = 4


def read_query(reader: QueryReader, job: PageJob | None) -> None:
    """Read the question and its options from the address; nodes are the job's."""
    reader.packed(_ANSWER)
    name = reader.choice(_QUESTION, tuple(QUESTIONS), _FIRST)
    for option in _options(name):
        key, initial = _key(option), _initial_value(option)
        if option.choices:
            reader.choice(key, option.choices, initial)
        elif option.kind is bool:
            reader.truth(key, initial)
        elif option.kind in (int, float):
            least, most = option.bounds.least or 0, option.bounds.most or _MAX_VALUE
            reader.number(key, least, most, initial, option.kind)
        else:
            reader.text(key, initial or "")


def page(request: PageRequest) -> None:
    """Draw the job, the question and the answer."""
    st.title(TITLE, anchor=False)
    job = controls(request)
    if job is None:
        return
    name = st.selectbox(
        "Question",
        list(QUESTIONS),
        key=_QUESTION,
        format_func=lambda n: f"{n}: {QUESTIONS[n].summary}",
    )
    described = on_page(" ".join(QUESTIONS[name].description.split()))
    st.caption(escape(described.replace("`", "")))
    values = _controls(name, job)
    start = functools.partial(address.request, **{_ANSWER: "1"})
    st.button("Answer", type="primary", key="ask_start", on_click=start)
    if not address.requested(_ANSWER):
        st.info("An answer takes some seconds: many jobs are planned for it.")
        return
    try:
        answer = cached.answer_of(job, name, values)
    except PlannerError as error:
        refuse(error)
        return
    _show(answer, job)


def _options(name: str) -> list[Parameter]:
    """Return the options of a question that have a control on this page."""
    return [option for option in parameters(QUESTIONS[name]) if option.name != "nodes"]


def _key(option: Parameter) -> str:
    return f"ask_{option.name}"


def _initial_value(option: Parameter) -> Any:
    """Return the initial value of a control."""
    if option.default is inspect.Parameter.empty:
        return _INITIAL_VALUES[option.name]
    return "" if option.repeats else option.default


def _controls(name: str, job: PageJob) -> str:
    """Draw the question's controls, and return their values as JSON."""
    values: dict[str, Any] = {}
    options = _options(name)
    with st.container(key=f"{ROW}_ask"):
        for column, option in in_rows(options, _COLUMNS, vertical_alignment="bottom"):
            value = _control(column, option)
            if option.repeats:
                values[option.name] = (value or "").replace(",", " ").split()
            elif value not in ("", None):
                values[option.name] = value
    if len(options) < len(parameters(QUESTIONS[name])):
        values["nodes"] = job.nodes
    return json.dumps(values, sort_keys=True)


def _control(column: Any, option: Parameter) -> Any:
    """Draw one control, and return its value."""
    label, bounds = option.bounds.label, option.bounds
    settings = {"key": _key(option), "help": bounds.help}
    if option.choices:
        return column.selectbox(label, option.choices, **settings)
    if option.kind is bool:
        return column.checkbox(label, **settings)
    if option.kind in (int, float):
        least, most = option.kind(bounds.least or 0), option.kind(bounds.most or _MAX_VALUE)
        step = option.kind(1)
        return column.number_input(label, min_value=least, max_value=most, step=step, **settings)
    return column.text_input(label, max_chars=400, **settings)


def _show(answer: Answer, job: PageJob) -> None:
    announce(answer.verdict, answer.found)
    if (drawing := answer_figure(answer)) is not None:
        draw(drawing, key="ask_figure")
    if answer.rows:
        alt = "Options that were compared for the answer, a row each, with the reason."
        draw_table(answer_table(answer).text_records(), key="ask_table", alt=alt)
    for note in answer.notes:
        st.caption(escape(note))
    file = f"{job.file_name}-{answer.question}"
    left, right, _ = st.columns([1, 1, 4])
    left.download_button("Answer (JSON)", answer.to_json(), f"{file}.json", "application/json")
    right.download_button("Rows (CSV)", answer.to_csv(), f"{file}.csv", "text/csv")
