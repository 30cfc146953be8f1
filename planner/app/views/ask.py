"""Questions: about the job, with controls, a verdict, a table and a figure."""

import functools
import inspect
import json
from typing import Any

import streamlit as st

from planner.app import address, cached
from planner.app.address import QueryReader
from planner.app.controls.elsewhere import texts
from planner.app.controls.page_job import PageJob, PageRequest
from planner.app.controls.panel import ROW, controls
from planner.app.draw import LABELS, announce, draw, draw_table, escape, in_rows, refuse
from planner.app.views.layouts.choice import show_code
from planner.ask import GROUPS, QUESTIONS, Answer
from planner.ask.option import Parameter, parameters
from planner.describe.job_description import JobDescription
from planner.errors import PlannerError
from planner.show.answers import answer_table
from planner.show.figures.curves import answer_figure
from planner.show.job_texts import arguments

TITLE = "Questions"
_QUESTION, _ANSWER = "question", "answer"
AT_ONCE: tuple[str, ...] = tuple(LABELS["at_once"])
"""Questions that are answered on opening: they take about a second; the others many plans."""
_SENTENCES: dict[str, str] = LABELS["questions"]
_BY_GROUP = {
    title: sorted(group, key=lambda name: name not in AT_ONCE) for title, group in GROUPS.items()
}
"""Questions by subject, those that are answered at once first."""
_MAX_VALUE = 1e9


def read_query(reader: QueryReader, job: PageJob | None) -> None:
    """Read the question and its options from the address; nodes are the job's."""
    reader.packed(_ANSWER)
    name = reader.choice(_QUESTION, tuple(_SENTENCES), AT_ONCE[0])
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
    name = _question()
    described = " ".join(QUESTIONS[name].description.split())
    st.caption(escape(described.replace("`", "")))
    values = _controls(name)
    if name not in AT_ONCE:
        start = functools.partial(address.request, **{_ANSWER: "1"})
        st.button("Answer", type="primary", key="ask_start", on_click=start)
        if not address.requested(_ANSWER):
            st.info("An answer takes some seconds: many jobs are planned for it.")
            return
    try:
        answer = cached.answer_of(job, name, json.dumps(values, sort_keys=True))
    except PlannerError as error:
        refuse(error)
        return
    _show(answer, job)


def _question() -> str:
    """Draw the subjects and the questions of the chosen one."""
    current = st.session_state[_QUESTION]
    subjects = list(_BY_GROUP)
    place, listed = next(item for item in enumerate(_BY_GROUP.values()) if current in item[1])
    # each question has its own key: the widget would otherwise keep its previous subject
    key = f"subject_{current}"

    def take() -> None:
        address.request(**{_QUESTION: _BY_GROUP[st.session_state[key]][0], _ANSWER: None})

    st.radio("Subject", subjects, place, horizontal=True, key=key, on_change=take)
    return st.selectbox("Question", listed, key=_QUESTION, format_func=_SENTENCES.__getitem__)


def _options(name: str) -> list[Parameter]:
    return [option for option in parameters(QUESTIONS[name]) if option.name != "nodes"]


def _key(option: Parameter) -> str:
    return f"ask_{option.name}"


def _initial_value(option: Parameter) -> Any:
    if option.default is inspect.Parameter.empty:
        return option.bounds.initial
    return "" if option.repeats else option.default


def elsewhere(_: PageJob, described: JobDescription) -> tuple[str, str]:
    """Return the command and the Python lines that answer the question."""
    name, job = st.session_state[_QUESTION], described
    values = {option.name: (_value(option), option.default) for option in _options(name)}
    changed = {k: v for k, (v, usual) in values.items() if v not in (usual, None, [], "")}
    call = f"ask.{name.replace('-', '_')}({arguments(changed)})"
    takes_nodes = any(option.name == "nodes" for option in parameters(QUESTIONS[name]))
    job = job if takes_nodes else job.replaced(nodes=1)
    return texts(f"planner ask {name}", job, call, "verdict", **changed)


def _controls(name: str) -> dict[str, Any]:
    options = _options(name)
    with st.container(key=f"{ROW}_ask"):
        for column, option in in_rows(options, 4, vertical_alignment="bottom"):
            _control(column, option)
    return {o.name: value for o in options if (value := _value(o)) not in ("", None)}


def _value(option: Parameter) -> Any:
    value = st.session_state[_key(option)]
    return (value or "").replace(",", " ").split() if option.repeats else value


def _control(column: Any, option: Parameter) -> None:
    label, bounds = option.bounds.label, option.bounds
    settings = {"key": _key(option), "help": bounds.help}
    if option.choices:
        column.selectbox(label, option.choices, **settings)
    elif option.kind is bool:
        column.checkbox(label, **settings)
    elif option.kind in (int, float):
        least, most = option.kind(bounds.least or 0), option.kind(bounds.most or _MAX_VALUE)
        step = option.kind(1)
        column.number_input(label, min_value=least, max_value=most, step=step, **settings)
    else:
        column.text_input(label, max_chars=400, **settings)


def _show(answer: Answer, job: PageJob) -> None:
    announce(answer.verdict, answer.found)
    if (drawing := answer_figure(answer)) is not None:
        draw(drawing, key="ask_figure")
    if answer.rows:
        alt = "Options that were compared for the answer, a row each, with the reason."
        draw_table(answer_table(answer).text_records(), key="ask_table", alt=alt)
        show_code()
    for note in answer.notes:
        st.caption(escape(note))
    file = f"{job.file_name}-{answer.question}"
    with st.container(horizontal=True):
        st.download_button("Answer (JSON)", answer.to_json(), f"{file}.json", "application/json")
        st.download_button("Rows (CSV)", answer.to_csv(), f"{file}.csv", "text/csv")
