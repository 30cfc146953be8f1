"""Main: the pages, their order and the navigation between them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import streamlit as st
from PIL import Image
from streamlit.navigation.page import Page

from planner.app import address
from planner.app.controls import own_runs, page_job
from planner.app.controls.page_job import PageRequest
from planner.app.controls.panel import ROW
from planner.app.draw import FIGURES, escape
from planner.app.views import ask, collectives, fit, learn, machines, one_layout, trust

PAGES = {
    "fit": fit,
    "layout": one_layout,
    "ask": ask,
    "machines": machines,
    "collectives": collectives,
    "trust": trust,
    "learn": learn,
}
"""Pages by their path in the address, in order of navigation; the first is the start page."""
FIRST = next(iter(PAGES))
NAME = "Parallelism planner"
_PURPOSE = (
    "Which way to spread a model's training over a machine fits, how long a step takes, and how "
    "sure that is."
)
# Streamlit reserves space for a bar and a footer that this app does not have
_SPACE = "[data-testid=stMainBlockContainer] {padding-block: 1rem 2rem}"
_TABLES = "[data-testid=stMarkdownContainer] table {display: block; overflow-x: auto}"
# wide tables scroll, not the page
_NARROW = (
    f"@media (max-width: 640px) {{.st-key-{ROW} [data-testid=stColumn] {{min-width: 40%; flex: 1}} "
    "h1 {font-size: 2rem !important} h2 {font-size: 1.5rem !important}}"
)
# on a phone the verdict should be visible without scrolling
_SELECTED = (
    "[data-testid$=Active]",
    "[aria-checked=true]",
    "[aria-selected=true]",
    "[data-selected]",
    "[data-testid=stSliderThumbValue]",
)
# on a dark background, text in the colour of buttons is unreadable
_READABLE = f":is({', '.join(_SELECTED)}) p {{color: light-dark(#0072B2, #9CD3F5) !important}}"
# elements that only run a script take no space
_HIDDEN = "[data-testid=stElementContainer]:has(> [data-testid=stHtml] > script) {display: none}"
_STYLE = f"<style>{_SPACE} {_TABLES} {_NARROW} {_READABLE} {_HIDDEN} {FIGURES}</style>"
_WAITING = """<script>
  if (!window.linksWait) {
    window.linksWait = true;
    document.addEventListener("click", click => {
      const link = click.target.closest("[data-testid=stPageLink-NavLink]");
      if (!link || !click.isTrusted) return;
      click.preventDefault();
      click.stopPropagation();
      setTimeout(() => link.click());
    }, true);
  }
</script>"""
# Streamlit sends typed text on a timer, for the page shown at that time. It would undo a click on a
# link that came before it, as every tap does. The script queues the click behind the timer.


def main() -> None:
    """Draw the page that the address names."""
    st.set_page_config(page_title=NAME, page_icon=_icon(), layout="wide")
    st.html(_STYLE)
    st.html(_WAITING, unsafe_allow_javascript=True)
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
    """Create the Streamlit page with its title and URL path."""
    return st.Page(lambda: None, title=PAGES[path].TITLE, url_path=url, default=url == "start")


def open_page(path: str, pages: Mapping[str, Page] | None = None) -> None:
    """Draw one page for the query of the address, below links to `pages`."""
    request, keys = _begin(path)
    if pages:
        with st.container(horizontal=True, vertical_alignment="center"):
            st.markdown(f":material/hub: **{NAME}**", width="content", help=_PURPOSE)
            for path_shown, page in pages.items():
                st.page_link(page, query_params=address.stated_query(keys[path_shown]))
    st.caption(_PURPOSE)
    if request.reader.messages:
        st.warning(escape(" ".join(request.reader.messages)))
    PAGES[path].page(request)
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
    return requests[-1], parameters


def _read_query(path: str, reader: address.QueryReader, request: PageRequest) -> None:
    """Read the parameters that only one page has."""
    if read_query := getattr(PAGES[path], "read_query", None):
        read_query(reader, request.job)
