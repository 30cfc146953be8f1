"""Picture of the README: the explorer's answer to the README's example, in a browser.

python website/picture.py     # or `make picture`; writes docs/assets/first.png

It needs playwright and a chromium, found as the tests of the explorer find it: the environment
variable CHROMIUM, or the path.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from urllib.parse import urlencode

from playwright.sync_api import sync_playwright

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "assets" / "first.png"
JOB = {"model": "mistral-7b", "machine": "vsc-5", "nodes": 2, "batch": 64, "seq": 4096}
_SIZE = {"width": 1180, "height": 1250}
_PATIENCE_S = 120
_DRAWN = "document.querySelector('[data-testid=stPlotlyChart] .main-svg .bars')"
_RESTS = "document.querySelector('[data-test-script-state=notRunning]')"


def main() -> None:
    """Start the explorer, photograph its first page, stop it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = subprocess.Popen(
        [sys.executable, "-m", "planner", "app", "--headless", "--port", str(port)],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        _wait_for(f"http://127.0.0.1:{port}/_stcore/health")
        _photograph(f"http://127.0.0.1:{port}/?{urlencode(JOB)}")
    finally:
        # the command and the server that it started
        os.killpg(server.pid, 15)
        server.wait(timeout=20)


def _wait_for(url: str) -> None:
    end = time.monotonic() + _PATIENCE_S
    while time.monotonic() < end:
        try:
            urllib.request.urlopen(url, timeout=2)
        except OSError:
            time.sleep(0.25)
        else:
            return
    raise TimeoutError(url)


def _photograph(address: str) -> None:
    browser_path = os.environ.get("CHROMIUM") or shutil.which("chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=browser_path, args=["--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_page(viewport=_SIZE, color_scheme="light")
        page.set_default_timeout(_PATIENCE_S * 1000)
        page.goto(address)
        page.wait_for_function(f"{_DRAWN} && {_RESTS}")
        page.wait_for_timeout(2000)  # until widgets have their final width
        page.screenshot(path=PICTURE)
        browser.close()


if __name__ == "__main__":
    main()
