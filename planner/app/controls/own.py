"""Own: the user's own model or machine: upload, edit, remove; the job of their files."""

from dataclasses import replace

import streamlit as st

from planner.app import address, link
from planner.app.controls.page_job import OWN_PARAMETER, YOURS, PageJob
from planner.app.draw import escape
from planner.app.link import OwnDescription
from planner.choose.planning import estimate
from planner.choose.user_layouts import complete_layout
from planner.describe.catalogue import folder, load_framework
from planner.describe.configurations.configuration import Configuration
from planner.describe.model.huggingface.hub import fetch_config, parse_hub_name
from planner.emitters.batch_job import slug
from planner.errors import PlannerError
from planner.evidence.logs.log_job import logged_batch
from planner.evidence.logs.steps import RunLog
from planner.show.job_texts import PARAMETERS, word_of
from planner.units import format_count


def own_description(kind: str) -> OwnDescription | None:
    """Return the user's own description, whether in use or set aside; None if there is none."""
    parameter = OWN_PARAMETER[kind]
    packed = address.requested(parameter) or address.requested(f"kept_{parameter}")
    try:
        return link.unpack_own(packed) if packed else None
    except PlannerError:
        return None


def changes(job: PageJob | None) -> None:
    """Draw controls to edit the description in use, or to remove it."""
    st.caption("Your own files, such as a config.json or a TOML file, go to the page *Your run*.")
    for column, kind in zip(st.columns(2), OWN_PARAMETER, strict=True):
        with column:
            _present(kind, job)


def use(kind: str, description: OwnDescription) -> None:
    """Use a description for the job. Raises PlannerError if it is invalid."""
    # a description without a telling name is named after its family and size
    if kind == "model":
        described_model = description.model()
        if description.name.startswith("own-"):
            count = format_count(described_model.num_params).replace(" ", "")
            own_name = f"own-{described_model.family}-{count}"
            description = OwnDescription(own_name, description.fields)
    else:
        description.machine()
    changes = {kind: None, "layout": None, f"kept_{OWN_PARAMETER[kind]}": None}
    address.request(**changes, **{OWN_PARAMETER[kind]: link.pack_own(description)})


def _present(kind: str, job: PageJob | None) -> None:
    description = own_description(kind)
    in_use = st.session_state.get(kind) == YOURS
    shown = f"In use: {st.session_state.get(kind)}"
    if description:
        shown = f"Your {kind}: {description.name}"
    with st.container(horizontal=True, vertical_alignment="center"):
        st.caption(escape(shown + ("" if in_use or not description else " (not in use)") + "."))
        if st.button("Change its numbers", key=f"{kind}_edit", disabled=job is None):
            _edit(kind, description if in_use and description else _catalogued(kind))
        if description:
            st.button("Remove", key=f"{kind}_remove", on_click=_remove, args=(kind,))


def _remove(kind: str) -> None:
    parameter = OWN_PARAMETER[kind]
    forgotten = ["layout"] if address.requested(parameter) else []
    address.request(**dict.fromkeys([parameter, f"kept_{parameter}", *forgotten]))


def _catalogued(kind: str) -> OwnDescription:
    """Return the file of the catalogue or the hub as a starting point for edits."""
    name = str(st.session_state[kind])
    if kind == "model" and parse_hub_name(name):
        return link.read_own(fetch_config(name).read_bytes(), f"{slug(name)}-changed.json")
    data = (folder(kind) / f"{name}.toml").read_bytes()
    return link.read_own(data, f"{name}-changed.toml")


def _edit(kind: str, description: OwnDescription) -> None:

    @st.dialog(f"Numbers of your {kind}", width="large")
    def window() -> None:
        name = st.text_input("Name", description.name, max_chars=40, key=f"{kind}_edit_name")
        text = st.text_area("Description", description.text, height=420, key=f"{kind}_edit_text")
        if not st.button("Use these numbers", type="primary", key=f"{kind}_edit_use"):
            return
        ending = ".toml" if isinstance(description.fields, str) else ".json"
        try:
            use(kind, link.read_own(text.encode(), (name or description.name) + ending))
        except PlannerError as error:
            st.error(escape(error.plain))
        else:
            st.rerun()

    window()


_NOT_CARRIED = "buckets and overlap are the framework's defaults here, not those of the files"


def query_of_files(
    files: Configuration, job: PageJob, log: RunLog | None = None
) -> tuple[address.Query, tuple[str, ...]]:
    """Return the query for the job in files, and notes; the run's log fills gaps, then `job`."""
    stated_fields = {*files.layout, *files.workload, *files.usual}
    workload = {k: v for k, v in dict(job.workload).items() if k not in stated_fields}
    logged = logged_workload(log, job) if log else {}
    workload |= {k: v for k, v in logged.items() if k not in stated_fields}
    if log is not None:
        files = replace(files, world=files.world or int(log.fact("world") or 0))
    notes = []
    if {"micro_batch", "grad_accumulation"} <= stated_fields:
        workload.pop("global_batch", None)
    # the log's batch and the files' passes give the micro-batch
    by_passes = "grad_accumulation" in stated_fields and "global_batch" in logged
    layout = {} if "micro_batch" in stated_fields or by_passes else {"micro_batch": 1}
    if layout:
        notes.append("micro-batches of one sequence, because the files state none")
    nodes = None if files.world or "dp" in files.layout else job.nodes
    completed = complete_layout(
        job.model, job.machine, files, nodes=nodes, layout=layout, workload=workload
    )
    shown = estimate(
        job.model,
        job.machine,
        completed.layout,
        workload=completed.workload,
        framework=completed.framework,
        experience=job.experience,
    )
    if completed.framework is not None and completed.framework != load_framework(
        completed.framework.name
    ):
        notes.append(_NOT_CARRIED)
    query = {
        PARAMETERS.get(k, k): word_of(v)
        for k, v in dict(completed.workload).items()
        if v is not None and v != getattr(job.workload, k)
    }
    query["nodes"] = str(-(-completed.layout.world // job.machine.node.num_devices))
    query["layout"] = link.pack_layout(completed.layout, shown.framework)
    return query, (*completed.notes, *notes)


def logged_workload(log: RunLog, job: PageJob) -> dict[str, int]:
    """Return the sequence length and the batch that a log states."""
    length = int(log.fact("sequence_length") or 0)
    batch = logged_batch(log, length or job.workload.sequence_length)
    fields = {"sequence_length": length, "global_batch": batch or 0}
    return {name: value for name, value in fields.items() if value}
