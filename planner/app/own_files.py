"""Own files: the job of configuration files that the user gives becomes the job of the page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import streamlit as st

from planner.app import address, link
from planner.app.controls.page_job import SHORT_NAMES, PageJob
from planner.app.draw import escape, refuse
from planner.choose.planning import estimate
from planner.choose.user_layouts import complete_layout
from planner.describe.catalogue import load_framework
from planner.describe.configurations.configuration import joined
from planner.describe.configurations.document import MAX_BYTES
from planner.describe.configurations.reading import read_configuration_text
from planner.errors import CatalogueError, PlannerError, shorten

__all__ = ["offer", "query_of_files"]

_READ = "files_read"
_NOT_CARRIED = (
    "buckets and overlap are taken as the framework's own here: `planner estimate --from` counts "
    "those of the files"
)


def offer(job: PageJob) -> None:
    """Ask for files; say how the last ones were read while their layout is shown."""
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
                refuse(error, title="These files describe no job yet")
            else:
                st.session_state[_READ] = query["layout"], notes
                address.request(**query)
                st.rerun()
    packed, notes = st.session_state.get(_READ, ("", ()))
    if packed and packed == job.layout:
        lines = [f"- {escape(note)}" for note in notes] or ["The files say it all."]
        st.info("\n".join(["How your files were read:", "", *lines]))


def _text(file: Any) -> str:
    """The text of an uploaded file, which is refused before it is read where it is large."""
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
    """What a page must ask for to show the job of files, and how they were read.

    The page's job says what the files leave open. Raises PlannerError where they are none, or
    their layout is not allowed.
    """
    files = joined([read_configuration_text(text, name) for name, text in texts.items()])
    stated_fields = {*files.layout, *files.workload, *files.usual}
    workload = {k: v for k, v in dict(job.workload).items() if k not in stated_fields}
    notes = []
    if {"micro_batch", "grad_accumulation"} <= stated_fields:
        workload.pop("global_batch", None)
    layout = {}
    if "micro_batch" not in stated_fields:
        layout = {"micro_batch": 1}
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
    devices = job.machine.node.num_devices
    query = {
        SHORT_NAMES.get(k, k): _word(v)
        for k, v in dict(completed.workload).items()
        if v is not None
    }
    query["nodes"] = str(-(-completed.layout.world // devices))
    query["layout"] = link.pack_layout(completed.layout, shown.framework)
    return query, (*completed.notes, *notes)


def _word(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return f"{value:g}" if value == 0 and not isinstance(value, bool) else str(value)
