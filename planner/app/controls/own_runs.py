"""Own runs: the user's measured runs, which correct all estimates of the session."""

import dataclasses
import hashlib
from dataclasses import dataclass
from typing import Any

import streamlit as st

from planner.app import address
from planner.app.controls.page_job import PageJob, PageRequest
from planner.app.draw import escape
from planner.cost.estimate import Estimate
from planner.describe.catalogue import load_machine, names
from planner.describe.machine import Machine
from planner.errors import PlannerError
from planner.evidence import learning
from planner.evidence.runs.run import Run
from planner.evidence.runs.run_files import runs_from_text
from planner.show.measured_runs import corrected, lessons

_KEY, _MEASURED = "own_runs", "measured"
_HASH: dict[Any, Any] = {Machine: lambda machine: machine.model_dump_json()}


@dataclass(frozen=True, slots=True)
class OwnRuns:
    """Measured runs of the session: a table, and runs that logs measured."""

    name: str = ""
    """File name of the table."""
    table: str = ""
    logged: tuple[Run, ...] = ()

    @property
    def file_names(self) -> tuple[str, ...]:
        """File names of the table and the logs."""
        return tuple(filter(None, (self.name, *(run.row_id for run in self.logged))))


def session_runs() -> OwnRuns:
    """Return the runs of the session."""
    runs = st.session_state.get(_KEY)
    return runs if isinstance(runs, OwnRuns) else OwnRuns()


def use_table(name: str, text: str) -> None:
    """Correct all estimates of the session with a table of runs, in place of an earlier one."""
    st.session_state[_KEY] = dataclasses.replace(session_runs(), name=name, table=text)


def use_run(run: Run) -> None:
    """Correct all estimates of the session with the run of a log, in place of an earlier one."""
    earlier = (each for each in session_runs().logged if each.row_id != run.row_id)
    st.session_state[_KEY] = dataclasses.replace(session_runs(), logged=(*earlier, run))


def _remove() -> None:
    st.session_state.pop(_KEY, None)
    address.request(measured=None)


def with_own_runs(request: PageRequest) -> PageRequest:
    """Return the request with its job corrected by the user's own runs."""
    job, runs = request.job, session_runs()
    request.reader.packed(_MEASURED)
    if job is None or runs == OwnRuns():
        return request
    request.reader.query[_MEASURED] = "yes"
    digest = hashlib.sha256(repr(runs).encode()).hexdigest()
    try:
        learned = _learned(digest, runs, whole_machine(job))
    except PlannerError as error:
        request.reader.messages.append(f"Your own runs are left out: {error.plain}.")
        return request
    described = request.description.replaced(measured=runs.file_names)
    learned_job = job.replaced(runs=digest, learned=learned)
    return dataclasses.replace(request, job=learned_job, description=described)


def whole_machine(job: PageJob) -> Machine:
    """Return the job's machine with whole nodes, even if the job uses part of one."""
    name = job.machine.name
    return load_machine(name) if job.devices and name in names("machine") else job.machine


@st.cache_resource(max_entries=8, show_spinner="Learning from your runs ...", hash_funcs=_HASH)
def _learned(digest: str, _runs: OwnRuns, machine: Machine) -> learning.Learned:
    table, where = _runs.table, _runs.name
    if table and not _runs.logged:
        return learning.learn_from_text(table, where, machine)
    return learning.learn(
        [*(runs_from_text(table, where, machine) if table else ()), *_runs.logged]
    )


def present(job: PageJob | None) -> None:
    """Show which runs correct the estimates, with a button to remove them."""
    if job is None or not address.requested(_MEASURED):
        return
    badge = "No longer corrected by measured runs: give them again on the page Your run"
    if job.learned is not None:
        files = ", ".join(session_runs().file_names)
        badge = f"All estimates are {corrected(job.learned)} ({files}) until a page is reloaded"
    with st.container(horizontal=True, vertical_alignment="center"):
        st.badge(escape(badge), icon=":material/straighten:", color="blue")
        st.button("Remove", key="own_runs_remove", on_click=_remove)


def show_lessons(job: PageJob, estimate: Estimate | None = None) -> None:
    """Show what was learned from the runs, and how it changes an estimate."""
    if job.learned is None:
        return
    changes = learning.EstimateChange(None, None)
    if estimate is not None:
        changes = learning.change_by_experience(job.scenario_of(estimate), estimate)
    if lines := lessons(job.learned, changes):
        st.caption(escape(" ".join(lines)))
