"""What tests of the explorer in a browser share: one server, one browser, pages that rest.

They run where Debian's chromium and playwright are installed; elsewhere they say what is missing.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests import ROOT
from tests.hub import Hub, serving


@pytest.fixture(autouse=True, scope="session")
def _known_components() -> None:
    """Search the installed packages for components once: each run of a script takes a second."""
    try:
        from streamlit.components.v2 import manifest_scanner
    except ImportError:
        return
    found = functools.cache(manifest_scanner.scan_component_manifests)
    manifest_scanner.scan_component_manifests = found


_PLANS: dict[tuple[str, int], Any] = {}


@pytest.fixture(autouse=True)
def _known_plans(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Search each job once, whatever test asks; one that counts plans asks for its own searches."""
    pytest.importorskip("streamlit")
    from planner.app import cached
    from planner.choose.plots import plan_with_space

    def plan(job: Any, top: int) -> Any:
        if (job.key, top) not in _PLANS:
            _PLANS[job.key, top] = plan_with_space(job, top)
        return _PLANS[job.key, top]

    if "own_searches" not in request.fixturenames:
        monkeypatch.setattr(cached, "plan_with_space", plan)


@pytest.fixture
def own_searches() -> None:
    """Every page searches anew."""


_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-sync",
    "--disable-background-networking",
    "--disable-component-update",
]
_PATIENCE_MS = 300_000
# the machine that runs the tests may be busy
_RESTS = """() => new Promise(resolve => {
  let since = performance.now();
  const look = () => {
    const app = document.querySelector('[data-testid=stApp]');
    const rests = app && app.getAttribute('data-test-script-state') === 'notRunning'
      && document.querySelector('h1') && document.querySelector('.st-key-pages a');
    if (!rests) since = performance.now();
    if (performance.now() - since > 250) resolve(true); else setTimeout(look, 25);
  };
  look();
})"""
"""The script has run, the page and its links are drawn, and no event under way started it again."""
_FIGURES = """() => [...document.querySelectorAll('[data-testid=stPlotlyChart]')].every(
  chart => chart.querySelector('.js-plotly-plot .main-svg'))"""


class _Runs:
    """Runs of the script that a page requests: the messages between it and the server tell them."""

    def __init__(self, page: Any) -> None:
        self.complete = True
        self._started = True
        page.on("websocket", self._watch)

    def _watch(self, socket: Any) -> None:
        socket.on("framesent", self._request)
        socket.on("framereceived", self._answer)

    def _request(self, data: bytes) -> None:
        from streamlit.proto.BackMsg_pb2 import BackMsg

        if BackMsg.FromString(data).HasField("rerun_script"):
            self.complete = self._started = False

    def _answer(self, data: bytes) -> None:
        from streamlit.proto.ForwardMsg_pb2 import ForwardMsg

        message = ForwardMsg.FromString(data)
        if message.HasField("new_session"):
            self._started = True
        elif message.HasField("script_finished"):
            interrupted = message.script_finished == ForwardMsg.FINISHED_EARLY_FOR_RERUN
            self.complete = self._started and not interrupted


class Browsed:
    """A page of the explorer in a browser."""

    def __init__(self, page: Any, address: str) -> None:
        self.page = page
        self.address = address
        self._runs = _Runs(page)

    def open(self, path: str = "") -> Browsed:
        """Load an address of the explorer."""
        self.page.goto(self.address + path)
        return self.settle()

    def settle(self) -> Browsed:
        """Wait until the page rests: all that was done to it is answered and drawn."""
        self.page.wait_for_function(_RESTS)
        while not self._runs.complete:
            self.eventually(lambda: self._runs.complete)
            self.page.wait_for_function(_RESTS)
        assert self.page.locator("[data-testid=stException]").count() == 0
        return self

    def drawn(self) -> Browsed:
        """Wait until every figure is drawn: the browser fetches the library after the page."""
        self.settle().page.wait_for_selector("[data-testid=stSkeleton]", state="detached")
        self.page.wait_for_function(_FIGURES)
        return self

    def eventually(self, condition: Callable[[], bool]) -> Browsed:
        """Wait until a condition holds."""
        limit = time.monotonic() + _PATIENCE_MS / 1e3
        while not condition():
            assert time.monotonic() < limit, "the page never came to what is expected of it"
            self.page.wait_for_timeout(50)
        return self

    def place(self, element: Any) -> dict[str, float]:
        """Where an element stands in the window, once it no longer moves."""
        element.scroll_into_view_if_needed()
        return self.steady(element.bounding_box)

    def steady(self, look: Callable[[], Any]) -> Any:
        """What a look at the page gives, once two looks in a row give the same."""
        last = look()

        def stands() -> bool:
            nonlocal last
            before, last = last, look()
            return bool(last) and last == before

        self.eventually(stands)
        return last

    def go(self, name: str, press_ms: float = 60) -> Browsed:
        """Follow a link of the navigation, as a hand does: press, then let go."""
        self.page.get_by_role("link", name=name).first.click(delay=press_ms)
        self.page.locator("h1", has_text=name).wait_for()
        self.settle()
        # and no other page after it
        assert name in self.page.locator("h1").inner_text()
        return self

    def back(self) -> Browsed:
        """The browser's Back."""
        self.page.go_back()
        return self.settle()

    def forward(self) -> Browsed:
        """The browser's Forward."""
        self.page.go_forward()
        return self.settle()

    def number(self, label: str, value: int) -> Browsed:
        """Type a number and press Enter."""
        box = self.settle().page.get_by_role("spinbutton", name=label, exact=True).first
        box.fill(str(value))
        box.press("Enter")
        return self

    def pick(self, label: str, value: str) -> Browsed:
        """Choose an option by typing it."""
        box = self.settle().page.get_by_role("combobox", name=label).first
        box.click()
        # as keys do: text that is put in place of the shown value counts as an edit of that value
        box.press_sequentially(value)
        self.page.get_by_role("option").filter(has_text=value).first.wait_for()
        self.page.keyboard.press("Enter")
        return self

    def value(self, label: str) -> str:
        """What a number or a choice says."""
        number = self.settle().page.get_by_role("spinbutton", name=label, exact=True)
        choice = self.page.get_by_role("combobox", name=label)
        # a page that is just loaded may have neither yet
        number.or_(choice).first.wait_for()
        return str((number if number.count() else choice).first.input_value())

    def says(self, text: str) -> str:
        """The first message or line of small print that says something, once it does."""
        texts = self.page.locator("[data-testid=stAlert], [data-testid=stCaptionContainer]")
        alert = texts.filter(has_text=text).first
        alert.wait_for()
        return str(alert.inner_text())

    def reads(self, text: str) -> Browsed:
        """Wait until the page holds a text."""
        self.page.get_by_text(re.compile(re.escape(text))).first.wait_for()
        return self

    def select(self, row: int) -> Browsed:
        """Select a row of the ranking by its box."""
        table = self.settle().page.locator("[data-testid=stDataFrame]").first
        # rows as screen readers see them, for the table is a picture; the first is the header
        line = table.locator("tr").nth(row + 1)
        line.wait_for(state="attached")
        place = self.place(table)
        self.page.mouse.click(place["x"] + 18, place["y"] + 35 * (row + 1) + 17)
        return self

    @property
    def asked(self) -> str:
        """The address below the explorer's own, once the page rests."""
        return str(self.settle().page.url).removeprefix(self.address)

    @property
    def entries(self) -> int:
        """Entries of the browser's history."""
        return int(self.page.evaluate("() => history.length"))


@pytest.fixture(scope="session")
def hub() -> Iterator[Hub]:
    """The hub that the explorer asks for models."""
    with serving() as found:
        yield found


@pytest.fixture(scope="session")
def address(hub: Hub, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The explorer as `planner app` starts it, on a free port of the loopback interface."""
    pytest.importorskip("streamlit", reason="no streamlit: pip install '.[app]'")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = subprocess.Popen(
        [sys.executable, "-m", "planner", "app", "--headless", "--port", str(port)],
        cwd=ROOT,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "HF_ENDPOINT": hub.address,
            "HF_HUB_OFFLINE": "0",
            "HF_HOME": str(tmp_path_factory.mktemp("hub")),
            "NO_PROXY": "127.0.0.1",
            "no_proxy": "127.0.0.1",
        },
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        _wait_for(f"http://127.0.0.1:{port}/_stcore/health", server)
        yield f"http://127.0.0.1:{port}/"
    finally:
        # the command and the server that it started
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(timeout=120)


def _wait_for(url: str, server: subprocess.Popen[bytes]) -> None:
    for _ in range(1200):
        assert server.poll() is None, "the server ended by itself"
        try:
            urllib.request.urlopen(url, timeout=2)
        except OSError:
            time.sleep(0.25)
        else:
            return
    raise TimeoutError(url)


@pytest.fixture(scope="session")
def context() -> Iterator[Any]:
    """One browser with one cache: it loads the drawing library once."""
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium")
    chromium = chromium or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no chromium: apt-get install chromium, or set CHROMIUM")
    reason = "no playwright: pip install playwright"
    sync_api = pytest.importorskip("playwright.sync_api", reason=reason)
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=_FLAGS)
        found = browser.new_context(viewport={"width": 1280, "height": 900}, accept_downloads=True)
        found.set_default_timeout(_PATIENCE_MS)
        yield found
        browser.close()


@pytest.fixture
def window(context: Any, address: str) -> Iterator[Callable[[], Browsed]]:
    """Opens windows; none may complain, nor ask the outside for anything."""
    pages, complaints, outside = [], [], []

    def opened() -> Browsed:
        page = context.new_page()
        pages.append(page)
        page.on(
            "console",
            lambda m: (
                complaints.append((m.text, m.location.get("url", "")))
                if m.type == "error"
                else None
            ),
        )
        page.on("pageerror", lambda e: complaints.append((str(e), "")))
        page.on(
            "request",
            lambda r: (
                outside.append(r.url) if not r.url.startswith((address, "data:", "blob:")) else None
            ),
        )
        return Browsed(page, address)

    yield opened
    for page in pages:
        page.close()
    # Streamlit itself looks for its server under the page's own path before it finds it at /
    real = [c for c in complaints if "/_stcore/" not in c[1]]
    assert not real
    assert not outside
