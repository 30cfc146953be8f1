"""Own: a model or machine that the user describes: uploaded, changed in place, removed.

The description travels in the address and is kept nowhere else.
"""

from __future__ import annotations

import streamlit as st

from planner.app import address, link
from planner.app.controls.page_job import OWN_PARAMETER, YOURS, PageJob
from planner.app.draw import escape
from planner.app.link import OwnDescription
from planner.describe.catalogue import folder
from planner.describe.model.huggingface.hub import fetch_config, parse_hub_name
from planner.emitters.batch_job import slug
from planner.errors import PlannerError
from planner.units import format_count

__all__ = ["changes", "own_description"]

_FILES = {
    "model": ("Your own model: a Hugging Face config.json, or a TOML file", ["json", "toml"]),
    "machine": ("Your own machine: a TOML file as hardware profiles are", ["toml"]),
}


def own_description(kind: str) -> OwnDescription | None:
    """The description that the user gave, in use or put aside."""
    packed = address.requested(OWN_PARAMETER[kind]) or address.requested(
        f"kept_{OWN_PARAMETER[kind]}"
    )
    try:
        return link.unpack_own(packed) if packed else None
    except PlannerError:
        return None


def changes(job: PageJob | None) -> None:
    """Upload a description, change the one in use, or remove it."""
    for column, kind in zip(st.columns(2), OWN_PARAMETER, strict=True):
        with column:
            _upload(kind)
            _present(kind, job)
            if complaint := st.session_state.pop(f"{kind}_complaint", ""):
                st.error(escape(complaint), title=f"This file describes no {kind}")


def _upload(kind: str) -> None:
    label, types = _FILES[kind]
    # an upload is taken over at once: the box is empty again, and what is in use stands below
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
    """Plan with a description; PlannerError where it describes nothing."""
    # a file that is called like everything else gets a name that says what it is
    if kind == "model":
        described_model = description.model()
        if description.name.startswith("own-"):
            count = format_count(described_model.num_params).replace(" ", "")
            description = OwnDescription(
                f"own-{described_model.family}-{count}", description.fields
            )
    else:
        description.machine()
    packed = link.pack_own(description)
    address.request(
        **{
            kind: None,
            OWN_PARAMETER[kind]: packed,
            f"kept_{OWN_PARAMETER[kind]}": None,
            "layout": None,
        }
    )


def _present(kind: str, job: PageJob | None) -> None:
    """What is in use, with buttons to change or remove it."""
    description = own_description(kind)
    in_use = st.session_state.get(kind) == YOURS
    shown = (
        f"Your {kind}: {description.name}"
        if description
        else f"In use is {st.session_state.get(kind)}"
    )
    with st.container(horizontal=True, vertical_alignment="center"):
        st.caption(escape(shown + ("" if in_use or not description else " (not in use)") + "."))
        if st.button("Change its numbers", key=f"{kind}_edit", disabled=job is None):
            _edit(kind, description if in_use and description else _catalogued(kind))
        if description:
            st.button("Remove", key=f"{kind}_remove", on_click=_remove, args=(kind,))


def _remove(kind: str) -> None:
    changes: dict[str, str | None] = {
        OWN_PARAMETER[kind]: None,
        f"kept_{OWN_PARAMETER[kind]}": None,
    }
    if address.requested(OWN_PARAMETER[kind]):
        changes["layout"] = None
    address.request(**changes)


def _catalogued(kind: str) -> OwnDescription:
    """The catalogue's own file, or that of the hub, as a start for changes."""
    name = str(st.session_state[kind])
    if kind == "model" and parse_hub_name(name):
        return link.read_own(fetch_config(name).read_bytes(), f"{slug(name)}-changed.json")
    data = (folder(kind) / f"{name}.toml").read_bytes()
    return link.read_own(data, f"{name}-changed.toml")


def _edit(kind: str, description: OwnDescription) -> None:
    """Ask for changes in a window of its own."""

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
