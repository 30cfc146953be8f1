"""Panel: the job controls of a page; a widget's key is its parameter in the address."""

from collections.abc import Sequence
from typing import Any

import streamlit as st

from planner.app.controls import own_runs
from planner.app.controls.fields import integer, widget
from planner.app.controls.own import changes, own_description
from planner.app.controls.page_job import (
    MOST_LAYOUTS,
    MOST_TOLERANCE,
    YOURS,
    PageJob,
    PageRequest,
    precisions,
    running_on,
)
from planner.app.controls.switches import SWITCHES, Setting, help_of, offered
from planner.app.draw import LABELS, escape, in_rows
from planner.describe.catalogue import names
from planner.describe.machine import Machine
from planner.describe.machine.variants import MAX_FREE_PERCENT
from planner.describe.workload import Workload
from planner.show.job_texts import PARAMETERS
from planner.units import format_bytes, format_count

ROW = "job_row"
"""Start of the keys of containers with rows of controls, two beside each other on a phone."""

CONTENT = '<span id="content"></span>'  # the first link of a page leads here

_LABELS, _TEXT_FIELDS = LABELS["workload"], LABELS["workload_texts"]
"""Labels of fields; of text fields also maximum length, placeholder and help."""
_NUMBERS = LABELS["job_numbers"]
"""Numbers of the job: label and help."""
_FIRST = ("global_batch", "sequence_length", "tokens")
"""Workload fields in the first row."""
_HUB = (
    "Choose from the catalogue, or type a name on the Hugging Face hub, org/name or "
    "org/name@revision: its config.json is read."
)
_MAX_NODES = 1_000_000
_MAX_DEVICES = 1024


def controls(request: PageRequest, beside: Any = None) -> PageJob | None:
    """Draw the controls, the first `beside` the answer; return the job, None if it is invalid."""
    box = st.container(border=beside is None)
    with beside or box, st.container(key=ROW):
        st.html(CONTENT)
        _first_controls([1, 1] if beside else [3, 3, 2, 2, 2, 2])
    with box:
        # drawn only when open: the rest of the job are some sixty controls
        more = st.expander("More about the job", key="more", on_change="rerun")
        if more.open:
            with more:
                _more_controls(request)
        if request.job is None:
            st.error(escape(request.problem), title="Invalid job settings")
            return None
        _caution(request.job)
    own_runs.present(request.job)
    return request.job


def _first_controls(widths: Sequence[int]) -> None:
    places = (
        column
        for _ in range(0, 3 + len(_FIRST), len(widths))
        for column in st.columns(widths, vertical_alignment="bottom")
    )
    choice_box(next(places), "model")
    choice_box(next(places), "machine")
    _number(next(places), "nodes", 1, _MAX_NODES)
    for column, name in zip(places, _FIRST, strict=True):
        _workload(column, name)


def _more_controls(request: PageRequest) -> None:
    tabs = st.tabs(("The rest of the job", "Your own model or machine"), on_change="rerun")
    for tab, is_job in zip(tabs, (True, False), strict=True):
        if tab.open:
            with tab:
                if is_job and request.job:
                    _summary(request.job)
                if is_job:
                    _details(request)
                else:
                    changes(request.job)


def choice_box(place: Any, kind: str) -> None:
    """Draw the selection of the job's model or machine."""
    description = own_description(kind)
    options = (YOURS, *names(kind)) if description else names(kind)
    now = str(st.session_state[kind])
    place.selectbox(
        kind.capitalize(),
        options if now in options else (now, *options),
        key=kind,
        accept_new_options=kind == "model",
        help=_HUB if kind == "model" else None,
        format_func=lambda name: (
            f"{description.name} (yours)" if description and name == YOURS else name
        ),
    )


def _workload(place: Any, name: str, **more: Any) -> None:
    label = _LABELS.get(name, name.replace("_", " ").capitalize())
    key = PARAMETERS.get(name, name)
    if name in _TEXT_FIELDS:
        label, most, example, help_text = _TEXT_FIELDS[name]
        place.text_input(label, key=key, max_chars=most, placeholder=example, help=help_text)
    else:
        widget(place, Workload, name, label, key=key, **more)


def _details(request: PageRequest) -> None:
    """Draw the controls beyond the first row: the rest of the workload, the search, the machine."""
    machine = request.job.machine if request.job else None
    names_left = [name for name in Workload.model_fields if name not in _FIRST]
    for column, name in in_rows(names_left, 4):
        more = {"options": precisions(machine)} if machine and name == "precision" else {}
        _workload(column, name, **more)
    _search(request.job, machine)
    _machine(machine)


def _search(job: PageJob | None, machine: Machine | None) -> None:
    left, part, tolerance, exact = st.columns([2, 1, 1, 1], vertical_alignment="bottom")
    left.multiselect(
        "Frameworks",
        running_on(machine) if machine else names("framework"),
        key="frameworks",
        placeholder="all that run on the machine",
        help="Which training frameworks to search; none chosen means the usual ones. What users of "
        "a framework turn on, such as torch.compile, can be chosen once the framework is.",
    )
    if job:
        _switches(job)
    _number(part, "devices", 0, _MAX_DEVICES)
    _number(tolerance, "tolerance", 0, MOST_TOLERANCE)
    exact.checkbox(
        "Exactly this job",
        key="exact",
        help="No fewer nodes, nearby batch or padded sequence, however much they gain.",
    )


def _machine(machine: Machine | None) -> None:
    if machine and machine.networks:
        topologies = {network.name: network.topology for network in machine.all_networks}
        st.selectbox(
            "Network",
            ("", *sorted(topologies)),
            key="network",
            format_func=lambda name: (
                f"{name}: {topologies[name]}" if name else "the framework's own"
            ),
            help="Network topology between nodes, as the software uses it.",
        )
    free, middle, right = st.columns([1, 1, 2])
    _number(free, "free", 0, MAX_FREE_PERCENT, step=5)
    _number(middle, "top", 1, MOST_LAYOUTS)
    right.text_area(
        "Other numbers of the machine",
        key="set",
        height=68,
        max_chars=2000,
        placeholder="network.latency_s=3us",
        help="One section.field=value a line, as the page Machines names them; values take units.",
    )


def _number(place: Any, key: str, least: int, most: int, step: int = 1) -> None:
    label, about = _NUMBERS[key]
    integer(place, label, key, (least, most), about, step)


def _switches(job: PageJob) -> None:
    setting = Setting(job.machine, job.model, job.workload)
    chosen = [name for name in st.session_state["frameworks"] if name in running_on(job.machine)]
    if not chosen:
        return
    options = offered(chosen, setting)
    typed = [word for word in st.session_state.get(SWITCHES, []) if word not in options]
    st.multiselect(
        "Switches of these frameworks",
        [*options, *typed],
        key=SWITCHES,
        placeholder="no switches on",
        accept_new_options=True,
        help=help_of(chosen, setting),
    )


def _summary(job: PageJob) -> None:
    device, workload = job.machine.device, job.workload
    free = f" ({job.free} % of the memory left free)" * bool(job.free)
    summary = (
        f"{job.model.name}: {format_count(job.model.num_params)} parameters on {job.num_devices:,} "
        f"devices ({device.name}) with {format_bytes(device.memory_bytes.value)} each{free}; "
        f"{format_count(workload.tokens_per_step)} {workload.unit} per step."
    )
    st.caption(escape(summary))


def _caution(job: PageJob) -> None:
    longest = job.model.longest_sequence
    if longest and job.workload.sequence_length > longest:
        limit = f"{job.model.name} was made for sequences of at most {longest:,} tokens."
        st.caption(escape(limit))
