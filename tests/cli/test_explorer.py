"""`planner app`: where its server listens, and what it may read."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from planner.cli.explorer import app_command, server_arguments
from planner.errors import PlannerError
from tests import ROOT
from tests.hub import TOKEN, serving


@pytest.mark.slow
@pytest.mark.parametrize("flag", [False, True])
def test_visitors_read_the_hub_with_the_owners_token_only_if_it_is_lent(
    flag: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("streamlit", reason="no streamlit: pip install '.[app]'")
    environment: dict[str, str] = {}
    monkeypatch.setattr("streamlit.web.cli.main", lambda *_, **__: environment.update(os.environ))
    monkeypatch.setenv("HF_HUB_DISABLE_IMPLICIT_TOKEN", "0")
    monkeypatch.setattr("planner.cli.explorer._check_port", lambda *_: None)
    assert app_command(headless=True, hub_token=flag) == 0
    monkeypatch.undo()
    with serving() as hub:
        environment = {
            **environment,
            "PYTHONPATH": str(ROOT),
            "HF_ENDPOINT": hub.address,
            "HF_HOME": str(tmp_path),
            "HF_TOKEN": TOKEN,
            "HF_HUB_OFFLINE": "0",
            "NO_PROXY": "127.0.0.1",
            "no_proxy": "127.0.0.1",
        }
        code = "from planner.app.controls.page_job import load_from_hub as f; f('here/small')"
        subprocess.run([sys.executable, "-c", code], env=environment, check=True, cwd=tmp_path)
        tokens = {token for _, _, token in hub.asked}
    assert tokens == ({f"Bearer {TOKEN}"} if flag else {None})


def test_it_listens_on_this_machine_alone_unless_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--server.address=127.0.0.1" in server_arguments(8501)
    assert "--server.address=::1" in server_arguments(8501, "::1")
    assert not capsys.readouterr().err
    assert "--server.address=0.0.0.0" in server_arguments(8765, "0.0.0.0")
    warning = capsys.readouterr().err
    assert warning.count("\n") == 1
    assert "everybody who reaches port 8765" in warning
    with pytest.raises(PlannerError, match=r"address = everywhere is not an IP address; give"):
        server_arguments(8501, "everywhere")


def test_a_taken_port_is_one_sentence() -> None:
    pytest.importorskip("streamlit", reason="no streamlit: pip install '.[app]'")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(
            PlannerError, match=rf"port {port} of 127\.0\.0\.1 cannot be used \(Add"
        ):
            app_command(port, headless=True)


@pytest.mark.parametrize(
    ("url", "path", "host"),
    [
        ("", "", ""),
        ("/node/n12/8501/", "node/n12/8501", ""),
        ("https://hub.example.org/user/me/proxy/8501", "user/me/proxy/8501", "hub.example.org"),
    ],
)
def test_a_proxy_names_its_path_and_its_host(url: str, path: str, host: str) -> None:
    arguments = server_arguments(8501, base_url=url)
    assert f"--server.baseUrlPath={path}" in arguments
    hosts = [word for word in arguments if word.startswith("--browser.serverAddress")]
    assert hosts == ([f"--browser.serverAddress={host}"] if host else [])


@pytest.mark.slow
def test_pages_answer_below_the_path_and_sigterm_ends_the_server(tmp_path: Path) -> None:
    pytest.importorskip("streamlit", reason="no streamlit: pip install '.[app]'")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "planner", "app", "--headless", "--port", str(port)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    command += ["--base-url", "/node/n1"]
    server = subprocess.Popen(command, env=environment, cwd=tmp_path, **quiet)

    def answers() -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/node/n1/_stcore/health") as page:
                return bool(page.status == 200)
        except OSError:
            return False

    try:
        for _ in range(240):
            if server.poll() is not None or answers():
                break
            time.sleep(0.25)
        assert answers()
    finally:
        server.send_signal(signal.SIGTERM)
        assert server.wait(timeout=60) == 0
    for _ in range(40):
        if not answers():
            break
        time.sleep(0.25)
    assert not answers()
