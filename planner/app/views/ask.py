"""Page 3: questions that take many plans, each with its controls, a sentence, a table, a figure."""

from __future__ import annotations

import inspect
import json
import re
from typing import Any

import streamlit as st

from planner.app import cached
from planner.app.address import Reading
from planner.app.controls.job import Asked, Job
from planner.app.controls.panel import controls
from planner.app.draw import draw
from planner.app.markdown import escape
from planner.ask import QUESTIONS, Answer
from planner.ask.option import Parameter, parameters
from planner.errors import PlannerError
from planner.show.answers import answer_table
from planner.show.figures.answers import drawn

__all__ = ["TITLE", "page"]

TITLE = "Questions"
_QUESTION, _TASK = "question", "ask_task"
_FIRST = next(iter(QUESTIONS))
_USUAL: dict[str, Any] = {
    "days": 30.0,
    "against": "dgx-h100",
    "base_batch": 256,
    "base_rate": 1e-4,
}
"""What is asked where a question needs a value and has none of its own."""
_MOST = 1e9
_COLUMNS = 4


def asks(reading: Reading, job: Job | None) -> None:
    """What only this page asks: the question and its controls; nodes are the job's."""
    name = reading.choice(_QUESTION, tuple(QUESTIONS), _FIRST)
    for one in _own(name):
        key, usual = _key(one), _usual(one)
        if one.choices:
            reading.choice(key, one.choices, usual)
        elif one.kind is bool:
            reading.truth(key, usual)
        elif one.kind in (int, float):
            least, most = one.option.least or 0, one.option.most or _MOST
            reading.number(key, least, most, usual, one.kind)
        else:
            reading.text(key, usual or "")


def page(asked: Asked) -> None:
    """Job and question on top, then the answer."""
    st.title(TITLE, anchor=False)
    job = controls(asked)
    if job is None:
        return
    name = st.selectbox(
        "Scenario",
        list(QUESTIONS),
        key=_QUESTION,
        format_func=lambda n: f"{n}: {QUESTIONS[n].summary}",
    )
    st.caption(escape(_as_labelled(" ".join(QUESTIONS[name].description.split()))))
    own = _controls(name, job)
    task = f"{name} {own} {job.key}"
    st.button("Answer", type="primary", key="ask_start", on_click=_work, args=(task,))
    if st.session_state.get(_TASK) != task:
        st.info("An answer takes some seconds: many jobs are planned for it.")
        return
    try:
        answer = cached.answer_of(job, name, own)
    except PlannerError as error:
        st.error(escape(error.plain))
        return
    _show(answer, job)


def _own(name: str) -> list[Parameter]:
    """What a question asks besides the job."""
    return [one for one in parameters(QUESTIONS[name]) if one.name != "nodes"]


def _key(one: Parameter) -> str:
    return f"ask_{one.name}"


def _usual(one: Parameter) -> Any:
    """What a control shows where nothing is asked."""
    if one.default is inspect.Parameter.empty:
        return _USUAL[one.name]
    return "" if one.repeats else one.default


def _as_labelled(text: str) -> str:
    """Options in the words of their labels: `most_jobs` is the field "Most jobs"."""
    return re.sub("`([a-z_]+)`", lambda found: found[1].replace("_", " "), text)


def _controls(name: str, job: Job) -> str:
    """Draw the question's controls; what they say, as JSON."""
    found: dict[str, Any] = {}
    own = _own(name)
    places = st.columns(_COLUMNS, vertical_alignment="bottom")
    for place, one in zip(places * (len(own) // _COLUMNS + 1), own, strict=False):
        value = _control(place, one)
        if one.repeats:
            found[one.name] = [word for word in (value or "").replace(",", " ").split() if word]
        elif value not in ("", None):
            found[one.name] = value
    if any(one.name == "nodes" for one in parameters(QUESTIONS[name])):
        found["nodes"] = job.nodes
    return json.dumps(found, sort_keys=True)


def _control(place: Any, one: Parameter) -> Any:
    label, settings = one.name.replace("_", " ").capitalize(), {"key": _key(one)}
    settings["help"] = one.option.help
    if one.choices:
        return place.selectbox(label, one.choices, **settings)
    if one.kind is bool:
        return place.checkbox(label, **settings)
    if one.kind in (int, float):
        least, most = one.kind(one.option.least or 0), one.kind(one.option.most or _MOST)
        step = one.kind(1)
        return place.number_input(label, min_value=least, max_value=most, step=step, **settings)
    return place.text_input(label, max_chars=400, **settings)


def _work(task: str) -> None:
    st.session_state[_TASK] = task


def _show(answer: Answer, job: Job) -> None:
    (st.success if answer.found else st.error)(escape(answer.verdict))
    drawing = drawn(answer)
    if drawing is not None:
        draw(drawing, key="ask_figure")
    if answer.rows:
        titles, rows = answer_table(answer)
        st.dataframe(
            [dict(zip(titles, row, strict=True)) for row in rows],
            hide_index=True,
            key="ask_table",
            alt="What was looked at for the answer, a row each, with the reason.",
        )
    for note in answer.notes:
        st.caption(escape(note))
    file = f"{job.file_name}-{answer.question}"
    left, right, _ = st.columns([1, 1, 4])
    left.download_button("Answer (JSON)", answer.to_json(), f"{file}.json", "application/json")
    right.download_button("Rows (CSV)", answer.to_csv(), f"{file}.csv", "text/csv")
