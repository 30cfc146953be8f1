"""Command line: `planner app`."""

import ipaddress
import os
import socket
import sys
import tomllib
import urllib.parse
from pathlib import Path
from typing import Annotated

import typer

from planner.errors import FITS, PlannerError, shorten

_PAGE = Path(__file__).parents[1] / "app" / "__main__.py"


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("app")(app_command)


def app_command(
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port on this machine.")] = 8501,
    headless: Annotated[bool, typer.Option(help="Open no browser.")] = False,
    address: Annotated[str, typer.Option(help="IP address to listen on.")] = "127.0.0.1",
    base_url: Annotated[
        str, typer.Option(metavar="URL", help="URL or path under which a proxy shows it.")
    ] = "",
    hub_token: Annotated[
        bool, typer.Option("--hub-token", help="Read the Hugging Face hub with your token.")
    ] = False,
) -> int:
    """Open the explorer in a browser (extra `app`)."""
    import importlib.util
    import threading
    import webbrowser

    if importlib.util.find_spec("streamlit") is None or importlib.util.find_spec("plotly") is None:
        raise PlannerError(
            "the explorer needs streamlit and plotly; install them with "
            "`pip install 'parallelism-planner[app]'`"
        )
    _check_port(port, address)
    arguments = server_arguments(port, address, base_url)
    from click import Abort
    from streamlit.web.cli import main

    if not headless:
        opening = threading.Timer(3, webbrowser.open, (f"http://127.0.0.1:{port}",))
        opening.daemon = True
        opening.start()
    # visitors would read the owner's private models: the hub is asked without a token
    os.environ["HF_HUB_DISABLE_IMPLICIT_TOKEN"] = str(int(not hub_token))
    # the server is this process: it ends with it, whatever ends it
    try:
        main(arguments, prog_name="streamlit", standalone_mode=False)
    except Abort:  # what Streamlit's own parser makes of Ctrl-C
        raise KeyboardInterrupt from None
    return FITS


def _check_port(port: int, address: str) -> None:
    """Raise PlannerError if the server cannot listen; Streamlit would exit with 1."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        socket.create_server((address, port), family=family).close()
    except socket.gaierror:
        return  # no address at all
    except OSError as error:
        why = os.strerror(error.errno or 0)
        raise PlannerError(
            f"port {port} of {address} cannot be used ({why}); give another with --port"
        ) from None


def server_arguments(port: int, address: str = "127.0.0.1", base_url: str = "") -> list[str]:
    """Return the arguments of Streamlit; warn of an address that others reach."""
    public = urllib.parse.urlsplit(base_url)
    try:
        is_private = ipaddress.ip_address(address).is_loopback
    except ValueError:
        raise PlannerError(
            f"address = {shorten(address)} is not an IP address; give 127.0.0.1 or 0.0.0.0"
        ) from None
    if not is_private:
        everybody = f"everybody who reaches port {port} of this machine can use the explorer"
        print(f"planner: {everybody}, without a password", file=sys.stderr)
    options = {
        "server.port": port,
        "server.address": address,
        "server.baseUrlPath": public.path.strip("/"),
        # a proxy's own host: pages from elsewhere are refused
        **({"browser.serverAddress": public.hostname} if public.hostname else {}),
        **tomllib.loads(_PAGE.with_name("server.toml").read_text(encoding="utf-8")),
    }
    words = [f"--{name}={value}" for name, value in options.items()]
    return ["run", str(_PAGE), *words]
