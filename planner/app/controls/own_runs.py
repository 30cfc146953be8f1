"""Own runs: the user's measured runs, which correct all estimates of the session."""

from __future__ import annotations

import dataclasses
import hashlib
from typing import Any

import streamlit as st

from planner.app.controls.page_job import PageJob, PageRequest
from planner.app.draw import escape
from planner.choose.plots import scenario_of
from planner.cost.estimate import Estimate
from planner.describe.catalogue import load_machine, names
from planner.describe.machine import Machine
from planner.errors import PlannerError
from planner.evidence.learning import EstimateChange, Learned, change_by_experience, learn_from_text
from planner.show.measured_runs import corrected, lessons

_KEY = "own_runs"
_HASH: dict[Any, Any] = {Machine: lambda machine: machine.model_dump_json()}


def use(name: str, text: str) -> None:
    """Correct all estimates of the session with a table of runs."""
    st.session_state[_KEY] = name, text


def _remove() -> None:
    st.session_state.pop(_KEY, None)


def in_use() -> str:
    """Return the table in use; empty if there is none."""
    return str(st.session_state.get(_KEY, ("", ""))[1])


def with_own_runs(request: PageRequest) -> PageRequest:
    """Return the request with its job corrected by the user's own runs."""
    job = request.job
    if job is None or not in_use():
        return request
    name, text = st.session_state[_KEY]
    try:
        learned = _learned(text, name, _whole_machine(job))
    except PlannerError as error:
        request.reader.messages.append(f"Your own runs are left out: {error.plain}.")
        return request
    digest = hashlib.sha256(text.encode()).hexdigest()
    described = request.description.replaced(measured=(name,))
    learned_job = job.replaced(runs=digest, learned=learned)
    return dataclasses.replace(request, job=learned_job, description=described)


def _whole_machine(job: PageJob) -> Machine:
    """Return the job's machine with whole nodes, even if the job uses part of one."""
    name = job.machine.name
    return load_machine(name) if job.devices and name in names("machine") else job.machine


@st.cache_resource(max_entries=8, show_spinner="Learning from your runs ...", hash_funcs=_HASH)
def _learned(text: str, name: str, machine: Machine) -> Learned:
    return learn_from_text(text, name, machine)


def present(job: PageJob | None) -> None:
    """Show which runs correct the estimates, with a button to remove them."""
    if job is None or job.learned is None:
        return
    badge = f"All estimates are {corrected(job.learned)} ({st.session_state[_KEY][0]})"
    with st.container(horizontal=True, vertical_alignment="center"):
        st.badge(escape(badge), icon=":material/straighten:", color="blue")
        st.button("Remove", key="own_runs_remove", on_click=_remove)


def show_lessons(job: PageJob, estimate: Estimate | None = None) -> None:
    """Show what was learned from the runs, and how it changes an estimate."""
    if job.learned is None:
        return
    changes = EstimateChange(None, None)
    if estimate is not None:
        scenario = scenario_of(job.model, job.machine, job.workload, estimate, job.experience)
        changes = change_by_experience(scenario, estimate)
    if lines := lessons(job.learned, changes):
        st.caption(escape(" ".join(lines)))
