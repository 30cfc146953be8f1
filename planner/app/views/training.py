"""Whole training: duration by part, node-hours, energy and cost, as a view of page 1."""

from collections.abc import Callable
from typing import Any, get_args

import streamlit as st

from planner.app import cached, link
from planner.app.address import QueryReader
from planner.app.controls.fields import integer
from planner.app.controls.page_job import PageJob
from planner.app.draw import LABELS, draw, escape, escaped_rows, list_lines, refuse
from planner.cost.estimate import Estimate
from planner.describe.catalogue import load_dataset, names
from planner.describe.training.training_run import Charges, Loader, Staging, Training
from planner.errors import DescriptionError, PlannerError
from planner.show.figures.bars import whole_training
from planner.show.training import facts, summary, training_table
from planner.units import parse_power, parse_quantity

_NO_DATASET = "not stated"
_STAGING = get_args(Staging)
_MAX_STEPS, _MAX_WORKERS = 10**9, 1024
_TEXT_FIELDS, _STEPS = LABELS["training_texts"], LABELS["training_steps"]
"""Text fields: label and placeholder; numbers of steps: label."""
_FIELDS = {
    "power": "node_power_watts",
    "pue": "pue",
    "carbon": "carbon_g_per_kwh",
    "price": "price_per_node_hour",
}


def read_query(reader: QueryReader) -> None:
    """Read the parameters of the training beyond its steps."""
    reader.choice("dataset", (_NO_DATASET, *names("dataset")), _NO_DATASET)
    reader.choice("staging", _STAGING, _STAGING[0])
    reader.number("workers", 0, _MAX_WORKERS, Loader().workers)
    for key in _STEPS:
        reader.number(key, 0, _MAX_STEPS, 0)
    reader.truth("async", False)
    for key in _TEXT_FIELDS:
        reader.checked(key, _reader(key))


def _reader(key: str) -> Callable[[str], float | None]:
    """Return the parser of a text field: empty text is None, invalid text raises PlannerError."""

    def read(text: str) -> float | None:
        if not text.strip():
            return None
        value = parse_power(text) if key == "power" else parse_quantity(text)
        if key == "failures":
            if not 0 <= value <= 1:
                raise DescriptionError(f"{text.strip()} is not a rate; write 0 to 1, such as 2e-5")
        else:
            Charges.described({_FIELDS[key]: value}, where=key)
        return value

    return read


def stated_training() -> Training:
    """Return the training that the controls describe."""
    state = st.session_state
    text_values = {key: _value(key) for key in _TEXT_FIELDS}
    charges = {_FIELDS[key]: value for key, value in text_values.items() if key in _FIELDS}
    dataset = state["dataset"]
    fields: dict[str, Any] = {
        "loader": {"staging": state["staging"], "workers": state["workers"]},
        "evaluation": {"every_steps": state["evaluate_every"], "sequences": state["evaluate_on"]},
        "checkpoints": {"every_steps": state["save_every"], "asynchronous": state["async"]},
        "failures": {"per_device_hour": text_values["failures"]},
        "charges": {key: value for key, value in charges.items() if value is not None},
    }
    if dataset != _NO_DATASET:
        fields["dataset"] = load_dataset(dataset).model_dump()
    return Training.described(fields, where="training")


def _value(key: str) -> float | None:
    """Return the value of a text field; None if it is invalid, which a message above reports."""
    try:
        return _reader(key)(str(st.session_state[key]))
    except PlannerError:
        return None


def show_training(job: PageJob, estimate: Estimate | None) -> None:
    """Draw the whole-training view of page 1: controls, summary, waterfall, table."""
    if not job.workload.all_tokens:
        st.info("Enter the number of training tokens in *Train on* above.")
        return
    if estimate is None:
        st.info("Nothing fits, so there is no training.")
        return
    _controls()
    try:
        answer = cached.training_of(job, link.of(estimate), stated_training().model_dump_json())
    except PlannerError as error:
        refuse(error, title="Invalid training settings")
        return
    st.markdown(f"**{escape(summary(answer))}**")
    draw(whole_training(answer), key="whole_training")
    with st.expander("Every part, and what it counts"):
        st.table(escaped_rows(training_table(answer)), hide_index=True)
    list_lines([f"{facts(answer)}.", *answer.notes])


def _controls() -> None:
    first = st.columns(4, vertical_alignment="bottom")
    first[0].selectbox("Dataset", (_NO_DATASET, *names("dataset")), key="dataset")
    about = "Where each node stages the dataset: nowhere, on its local disk, or in memory."
    first[1].selectbox("Staging", _STAGING, key="staging", help=about)
    about = "Processes that read and decode; 0: the rank does it between its steps."
    integer(first[2], "Workers of a rank", "workers", (0, _MAX_WORKERS), about)
    about = "Checkpoints are written while training continues."
    first[3].toggle("Asynchronous checkpoints", key="async", help=about)
    second = st.columns(4, vertical_alignment="bottom")
    for column, (key, label) in zip(second, _STEPS.items(), strict=False):
        help_text = "0: the interval that loses the least time." if key == "save_every" else None
        integer(column, label, key, (0, _MAX_STEPS), help_text, step=100)
    places = [second[3], *st.columns(4, vertical_alignment="bottom")]
    for column, (key, (label, example)) in zip(places, _TEXT_FIELDS.items(), strict=True):
        column.text_input(label, key=key, max_chars=20, placeholder=example)
