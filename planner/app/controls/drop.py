"""Drop: one place for any file of the user; files fill the job and are shown on *Your run*."""

from collections.abc import Sequence

import streamlit as st

from planner.app import address, link
from planner.app.controls import own, own_runs
from planner.app.controls.page_job import PageJob, running_on
from planner.describe.catalogue import names
from planner.describe.configurations.configuration import Configuration, joined
from planner.errors import PlannerError
from planner.evidence.logs.log_job import is_of_size, models_of_size
from planner.evidence.logs.steps import RunLog
from planner.evidence.recognition import Recognised, recognise
from planner.show.job_texts import PARAMETERS
from planner.units import format_count

PATH = "run"
"""Path of the page that shows the files."""
_FILES, _PENDING, _NOTES, _COUNT = "drop_files", "drop_pending", "drop_notes", "drop_count"
_COLUMNS, _LEAD, _PROBLEM = "drop_columns", "drop_lead", "drop_problem"
_MAX_MB, _MAX_FILES = 50, 8
_HELP = (
    "A log of nanoGPT, ezpz, Megatron-LM, DeepSpeed, torchtitan, nanotron, the Trainer or others; "
    "a profile of torch.profiler; events of TensorBoard; a table of steps; a CSV of runs; a "
    "config.json; the configuration of a framework; a TOML file of a model or a machine. Files are "
    "read in memory and kept for this session alone."
)


def drop_place(job: PageJob | None = None, leads: bool = True) -> None:
    """Draw the place that takes any file, fills the job, and `leads` to the page *Your run*."""
    count = st.session_state.get(_COUNT, 0)
    key = f"{_FILES}_{count}"
    # a new key after each upload empties the box; the files are listed below it
    st.file_uploader(
        "Drop files of a run here: log, profile, CSV of runs, config, description",
        accept_multiple_files=True,
        max_upload_size=_MAX_MB,
        key=key,
        on_change=_dropped,
        args=(key,),
        help=_HELP,
    )
    if not leads:
        st.session_state[_LEAD] = False
        return
    # filled here: a page that reruns at once may reach the browser without the values of controls
    fill(job)
    if st.session_state.pop(_LEAD, False):
        page = st.Page(lambda: None, title="Your run", url_path=PATH)
        address.leave()
        st.switch_page(page, query_params=address.stated_query())


def _dropped(key: str) -> None:
    if uploads := st.session_state.get(key):
        st.session_state[_COUNT] = st.session_state.get(_COUNT, 0) + 1
        take_files([(upload.name, upload.getvalue()) for upload in uploads[:_MAX_FILES]])


def take_files(files: Sequence[tuple[str, bytes]]) -> None:
    """Take files, by name and content, in place of those of before."""
    st.session_state[_FILES] = list(files)
    st.session_state[_PENDING], st.session_state[_LEAD] = 2, True
    st.session_state[_NOTES], st.session_state[_COLUMNS] = [], {}
    st.session_state[_PROBLEM] = None


def clear() -> None:
    """Forget the files; the job that they filled stays."""
    take_files([])
    st.session_state[_LEAD] = False


def use_columns(columns: dict[str, str]) -> None:
    """Read tables of steps again, by the columns that hold their figures."""
    st.session_state[_COLUMNS], st.session_state[_PENDING] = columns, 1


def problem() -> PlannerError | None:
    """Return why the files do not fill the job; None if they do."""
    error: PlannerError | None = st.session_state.get(_PROBLEM)
    return error


def notes(read: Sequence[Recognised], job: PageJob | None) -> list[str]:
    """Return how the files filled the job, and what is assumed."""
    lines = list(st.session_state.get(_NOTES, ()))
    if job and log_of(read) and not _configurations(read):
        remedy = "the one chosen below is used" if job.layout else "choose it below"
        lines.append(f"the log does not state its layout: {remedy}")
    return lines


def files() -> list[Recognised | PlannerError]:
    """Return each file as recognised, or why it is not."""
    columns = tuple(st.session_state.get(_COLUMNS, {}).items())
    return [_read(data, name, columns) for name, data in st.session_state.get(_FILES, ())]


# kept in memory as they are: a log is not changed
@st.cache_resource(max_entries=16, show_spinner="Reading your file ...")
def _read(
    data: bytes, name: str, columns: tuple[tuple[str, str], ...]
) -> Recognised | PlannerError:
    try:
        return recognise(data, name, dict(columns))
    except PlannerError as error:
        return error


def fill(job: PageJob | None) -> None:
    """Fill the job with what new files state: descriptions first, then all else."""
    if not (stage := st.session_state.pop(_PENDING, 0)):
        return
    read = [each for each in files() if isinstance(each, Recognised)]
    try:
        changed = stage == 2 and _use_descriptions(read, job)
        if changed:
            st.session_state[_PENDING] = 1
        elif job is not None:
            query, st.session_state[_NOTES] = query_of(read, job)
            changed = bool(query)
            if changed:
                address.request(**{"layout": None, **query})
    except PlannerError as error:
        st.session_state[_PROBLEM] = error
        return
    if changed:
        st.rerun()


def _use_descriptions(read: Sequence[Recognised], job: PageJob | None) -> bool:
    """Use descriptions and the model that the files name; True if there are any."""
    descriptions = [each for each in read if each.kind in ("model", "machine")]
    for each in descriptions:
        own.use(each.kind, link.read_own(each.content, each.name))
    if name := _model_name(read, job):
        address.request(model=name, config=None, layout=None)
    return bool(descriptions or name)


def _model_name(read: Sequence[Recognised], job: PageJob | None) -> str:
    """Return the model of the catalogue that the files name; empty if it is not one."""
    candidates = [each.model for each in _configurations(read) if each.model in names("model")]
    log = log_of(read)
    count = log.fact("num_params") if log else None
    if not candidates and count and not (job and is_of_size(job.model, count)):
        candidates = models_of_size(count)
    own_model = any(each.kind == "model" for each in read)
    return "" if own_model or len(candidates) != 1 else candidates[0]


def _configurations(read: Sequence[Recognised]) -> list[Configuration]:
    return [each.content for each in read if each.kind == "configuration"]


def log_of(read: Sequence[Recognised | PlannerError]) -> RunLog | None:
    """Return the first log among files; None without one."""
    recognised = (each for each in read if isinstance(each, Recognised))
    return next((each.content for each in recognised if each.kind == "log"), None)


def query_of(read: Sequence[Recognised], job: PageJob) -> tuple[address.Query, list[str]]:
    """Return the query for the job that files describe, and notes; `job` fills gaps."""
    log, configurations = log_of(read), _configurations(read)
    query, lines = query_of_log(log, job) if log else ({}, [])
    if configurations:
        of_files, more = own.query_of_files(joined(configurations), job, log)
        # the layout has its own framework, which the search need not be limited to
        query |= {**of_files, "frameworks": ""}
        return query, [*lines, *(more or ["the files state everything; nothing was assumed"])]
    return query, lines


def query_of_log(log: RunLog, job: PageJob) -> tuple[address.Query, list[str]]:
    """Return the query for what a log states of its job, and a note on its model."""
    count, model, tokens = log.fact("num_params"), job.model.name, job.workload.tokens
    if count is None:
        note = f"the log does not state its model: that of the job, {model}"
    elif is_of_size(job.model, count):
        note = f"model {model}, by its {count:,.0f} parameters"
    else:
        note = f"the log states {count:,.0f} parameters, and {model} has others: choose its model"
    query = {PARAMETERS.get(k, k): str(v) for k, v in own.logged_workload(log, job).items()}
    if ranks := int(log.fact("world") or 0):
        query |= query_of_ranks(ranks, job)
    if log.framework in running_on(job.machine):
        query["frameworks"] = log.framework
    training = f"training on {format_count(tokens)} tokens, as the job before; no log states it"
    return query, [note, training][: 1 + bool(tokens)]


def query_of_ranks(ranks: int, job: PageJob) -> address.Query:
    """Return the query for the nodes of a number of ranks, or for a part of one node."""
    per_node = own_runs.whole_machine(job).node.num_devices
    devices = str(ranks) if ranks < per_node else ""
    return {"nodes": str(-(-ranks // per_node)), "devices": devices}
