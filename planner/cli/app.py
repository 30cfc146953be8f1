"""Command line: `planner app`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from planner.cli.exit_codes import FITS
from planner.errors import PlannerError

THEME = {
    "font": "sans-serif",
    "baseRadius": "small",
    "light.primaryColor": "#0072B2",
    "light.textColor": "#000000",
    "dark.primaryColor": "#0072B2",
    "dark.linkColor": "#56B4E9",
    "dark.textColor": "#FFFFFF",
}
"""Theme of the explorer; `.streamlit/config.toml` of a checkout repeats it."""


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("app")(app_command)


def app_command(
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port on this machine.")] = 8501,
    headless: Annotated[bool, typer.Option(help="Open no browser.")] = False,
) -> int:
    """Open the explorer in a browser (extra `app`)."""
    import importlib.util
    import signal
    import subprocess
    import threading
    import webbrowser
    from pathlib import Path

    if importlib.util.find_spec("streamlit") is None or importlib.util.find_spec("plotly") is None:
        raise PlannerError(
            "the explorer needs streamlit and plotly; install them with "
            "`pip install 'parallelism-planner[app]'`"
        )
    page = Path(__file__).parents[1] / "app" / "__main__.py"
    # Streamlit would ask for an e-mail address before it opens a browser
    options = [f"--server.port={port}", "--server.headless=true"]
    options += ["--server.address=127.0.0.1", "--browser.gatherUsageStats=false"]
    options += ["--server.maxUploadSize=5", "--client.toolbarMode=minimal"]
    options += ["--client.showErrorDetails=none"]
    # otherwise two runs of one session could overlap and corrupt its shared state
    options += ["--runner.fastReruns=false"]
    options += [f"--theme.{name}={value}" for name, value in THEME.items()]
    if not headless:
        opening = threading.Timer(3, webbrowser.open, (f"http://127.0.0.1:{port}",))
        opening.daemon = True
        opening.start()
    command = [sys.executable, "-m", "streamlit", "run", str(page), *options]
    # in a session of its own: a signal reaches it once, through this process
    server = subprocess.Popen(command, start_new_session=True)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: server.terminate())
    code = server.wait()
    return FITS if code in (FITS, -signal.SIGTERM) else code
