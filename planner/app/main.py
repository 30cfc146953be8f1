"""Main: the pages, their order and the navigation between them."""

import contextlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import streamlit as st
from PIL import Image
from streamlit.navigation.page import Page

from planner.app import address
from planner.app.controls import elsewhere, own_runs, page_job
from planner.app.controls.page_job import PageRequest
from planner.app.controls.panel import CONTENT
from planner.app.draw import escape
from planner.app.views import ask, collectives, fit, lecture, machines, trust
from planner.app.views.layouts import compare, one_layout
from planner.app.views.runs import your_run
from planner.errors import PlannerError

PAGES = {
    "fit": fit,
    "layout": one_layout,
    "compare": compare,
    "ask": ask,
    "run": your_run,
    "machines": machines,
    "collectives": collectives,
    "trust": trust,
    "lecture": lecture,
}
"""Pages by their path in the address, in order of navigation; the first is the start page."""
FIRST = next(iter(PAGES))
NAME = "Parallelism planner"
_FOLDER = Path(__file__).parent


def main() -> None:
    """Draw the page that the address names."""
    st.set_page_config(page_title=NAME, page_icon=_icon(), layout="wide")
    st.html(_FOLDER / "style.css")
    script = (_FOLDER / "links.js").read_text(encoding="utf-8")
    st.html(f"<script>{script}</script>", unsafe_allow_javascript=True)
    # the start page has the address / and a second one with its own name
    pages = {path: _page(path, "start" if path == FIRST else path) for path in PAGES}
    first_by_name = _page(FIRST, FIRST)
    chosen = st.navigation([*pages.values(), first_by_name], position="hidden")
    # called here, not run as a page: a link keeps just-typed text only of this script's widgets
    open_page(chosen.url_path or FIRST, pages)


def _icon() -> Image.Image:
    """Draw the icon, four ranks in two colours; a named icon would be fetched from the internet."""
    colours = np.array([[[0, 114, 178], [230, 159, 0]], [[230, 159, 0], [0, 114, 178]]])
    return Image.fromarray(np.kron(colours, np.ones((16, 16, 1))).astype(np.uint8))


def _page(path: str, url: str) -> Page:
    return st.Page(lambda: None, title=PAGES[path].TITLE, url_path=url, default=url == "start")


def open_page(path: str, pages: Mapping[str, Page] | None = None) -> None:
    """Draw one page for the query of the address, below links to `pages`."""
    request, keys = _begin(path)
    first = "job" if hasattr(PAGES[path], "controls") else "page"
    if pages:
        with st.container(horizontal=True, vertical_alignment="center"):
            st.html(f'<a href="#content">Skip to the {first}</a>', width="content")
            st.markdown(f":material/hub: **{NAME}**", width="content")
            with st.container(horizontal=True, key="pages"):
                for path_shown, page in pages.items():
                    st.page_link(page, query_params=address.stated_query(keys[path_shown]))
    if first == "page":
        st.html(CONTENT)
    if request.reader.messages:
        st.warning(escape(" ".join(request.reader.messages)))
    PAGES[path].page(request)
    with contextlib.suppress(PlannerError):  # the page has reported it
        if request.job and hasattr(PAGES[path], "elsewhere"):
            elsewhere.offer(request, PAGES[path].elsewhere(request.job, request.description))
    address.keep_undrawn()
    st.caption("Link to exactly this page:")
    path = "" if path == FIRST else path
    st.code(address.link(path, tuple(PAGES)), language=None, wrap_lines=True)


def _begin(path: str) -> tuple[PageRequest, dict[str, list[str]]]:
    """Read the request of this run, and the parameter names of every page's address."""
    requests: list[PageRequest] = []
    jobs: list[str] = []

    def read(reader: address.QueryReader) -> None:
        requests.append(own_runs.with_own_runs(page_job.read(reader)))
        jobs[:] = reader.keys
        _read_query(path, reader, requests[-1])

    address.begin(path, read, page_job.follow)
    parameters = {}
    for page in PAGES:
        reader = address.QueryReader(requests[-1].reader.query)
        _read_query(page, reader, requests[-1])
        parameters[page] = [*jobs, *reader.keys]
    requests[-1].reader.report_unknown({key for keys in parameters.values() for key in keys})
    return requests[-1], parameters


def _read_query(path: str, reader: address.QueryReader, request: PageRequest) -> None:
    if read_query := getattr(PAGES[path], "read_query", None):
        read_query(reader, request.job)
