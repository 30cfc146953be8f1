"""Own: the user's own model, machine or configuration files: upload, edit, remove."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import streamlit as st

from planner.app import address, link
from planner.app.controls.page_job import OWN_PARAMETER, YOURS, PageJob
from planner.app.draw import escape, refuse
from planner.app.link import OwnDescription
from planner.choose.planning import estimate
from planner.choose.user_layouts import complete_layout
from planner.describe.catalogue import folder, load_framework
from planner.describe.configurations.configuration import joined
from planner.describe.configurations.document import MAX_BYTES
from planner.describe.configurations.reading import read_configuration_text
from planner.describe.model.huggingface.hub import fetch_config, parse_hub_name
from planner.emitters.batch_job import slug
from planner.errors import CatalogueError, PlannerError, shorten
from planner.show.job_texts import PARAMETERS, word_of
from planner.units import format_count

_FILES = {
    "model": ("Your own model: a Hugging Face config.json, or a TOML file", ["json", "toml"]),
    "machine": ("Your own machine: a TOML file in the form of a hardware profile", ["toml"]),
}


def own_description(kind: str) -> OwnDescription | None:
    """Return the user's own description, whether in use or set aside; None if there is none."""
    parameter = OWN_PARAMETER[kind]
    packed = address.requested(parameter) or address.requested(f"kept_{parameter}")
    try:
        return link.unpack_own(packed) if packed else None
    except PlannerError:
        return None


def changes(job: PageJob | None) -> None:
    """Draw controls to upload a description, edit the one in use, or remove it."""
    for column, kind in zip(st.columns(2), OWN_PARAMETER, strict=True):
        with column:
            _upload(kind)
            _present(kind, job)
            if complaint := st.session_state.pop(f"{kind}_complaint", ""):
                st.error(escape(complaint), title=f"Invalid {kind} description")


def _upload(kind: str) -> None:
    label, types = _FILES[kind]
    # a new key after each upload empties the box; the description in use is shown below it
    key = f"{kind}_file_{st.session_state.get(f'{kind}_uploads', 0)}"
    st.file_uploader(
        label,
        type=types,
        max_upload_size=1,
        key=key,
        on_change=_uploaded,
        args=(kind, key),
        help="Only numbers are read. They are kept in the page's address, nowhere else.",
    )


def _uploaded(kind: str, key: str) -> None:
    upload = st.session_state.get(key)
    if upload is None:
        return
    st.session_state[f"{kind}_uploads"] = st.session_state.get(f"{kind}_uploads", 0) + 1
    try:
        use(kind, link.read_own(upload.getvalue(), upload.name))
    except PlannerError as error:
        st.session_state[f"{kind}_complaint"] = error.plain


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
    """Show the model or machine in use, with buttons to edit or remove it."""
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
    """Edit a description in a dialog."""

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


_READ = "files_read"
_NOT_CARRIED = "buckets and overlap are the framework's defaults here, not those of the files"


def offer_files(job: PageJob) -> None:
    """Draw an upload of configuration files; with their layout in use, show how they were read."""
    with st.expander("Start from configuration files of yours"), st.form("files", border=False):
        uploads = st.file_uploader(
            "Files of one job: DeepSpeed, Accelerate, torchtitan, Megatron, nanotron, nanoGPT or "
            "Hugging Face Trainer",
            accept_multiple_files=True,
        )
        if st.form_submit_button("Read") and uploads:
            try:
                query, notes = query_of_files({f.name: _text(f) for f in uploads}, job)
            except PlannerError as error:
                refuse(error, title="Invalid configuration files")
            else:
                st.session_state[_READ] = query["layout"], notes
                address.request(**query)
                st.rerun()
    packed, notes = st.session_state.get(_READ, ("", ()))
    if packed and packed == job.layout:
        complete = "The files state everything; nothing was assumed."
        lines = [f"- {escape(note)}" for note in notes] or [complete]
        st.info("\n".join(["How your files were read:", "", *lines]))


def _text(file: Any) -> str:
    """Read the text of an uploaded file; a large one is refused before it is read."""
    name = shorten(file.name)
    if file.size > MAX_BYTES:
        raise CatalogueError(
            f"{name} has {file.size / 1e3:.0f} kB; configurations above {MAX_BYTES / 1e3:.0f} kB "
            "are refused: give the configuration alone"
        )
    try:
        return str(file.getvalue().decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise CatalogueError(f"{name} is not UTF-8 text; save it as UTF-8") from None


def query_of_files(texts: Mapping[str, str], job: PageJob) -> tuple[address.Query, tuple[str, ...]]:
    """Return the query for the job in configuration files, and notes; `job` fills gaps."""
    files = joined([read_configuration_text(text, name) for name, text in texts.items()])
    stated_fields = {*files.layout, *files.workload, *files.usual}
    workload = {k: v for k, v in dict(job.workload).items() if k not in stated_fields}
    notes = []
    if {"micro_batch", "grad_accumulation"} <= stated_fields:
        workload.pop("global_batch", None)
    layout = {} if "micro_batch" in stated_fields else {"micro_batch": 1}
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
        if v is not None
    }
    query["nodes"] = str(-(-completed.layout.world // job.machine.node.num_devices))
    query["layout"] = link.pack_layout(completed.layout, shown.framework)
    return query, (*completed.notes, *notes)
