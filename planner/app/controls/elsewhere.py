"""Elsewhere: the command and the Python lines that give the answer of a page."""

from typing import Any

import streamlit as st

from planner.app import link
from planner.app.controls import own_runs
from planner.app.controls.page_job import OWN_PARAMETER, YOURS, PageRequest
from planner.app.draw import download, escape
from planner.describe.job_description import JobDescription
from planner.show.job_texts import command, python


def texts(
    start: str, job: JobDescription, call: str, printed: str, **options: Any
) -> tuple[str, str]:
    """Write a command that begins with `start`, and a `call` of the job's methods."""
    return command(start, job, **options), python(job, call, printed)


def offer(request: PageRequest, elsewhere: tuple[str, str] | None) -> None:
    """Draw the command and the Python lines, if any, folded, with the files that they read."""
    if elsewhere is None:
        return
    with st.expander("The same in a terminal or in Python"):
        for name, text in own_files(request).items():
            download(f"Save {escape(name)} first", text, name, f"save_{name}")
        for text, language in zip(elsewhere, ("bash", "python"), strict=True):
            if text:
                st.code(text, language=language, wrap_lines=True)


def own_files(request: PageRequest) -> dict[str, str]:
    """Return the files of the user's own that the command reads: text by name."""
    reader = request.reader
    packed = [reader.query[p] for k, p in OWN_PARAMETER.items() if reader.values[k] == YOURS]
    files = {each.file_name: each.text for each in map(link.unpack_own, packed)}
    runs = own_runs.session_runs()
    return {**files, runs.name: runs.table} if runs.table else files
