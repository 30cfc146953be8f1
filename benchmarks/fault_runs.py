"""Fault runs: one run of a command in a folder of its own, under a fault."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
STATES = ROOT / "benchmarks" / "fault_states.py"
COUNT = "calls:0"
"""No state: the command counts its calls and writes, and goes on."""
LIMIT_S = 600
"""A command that has not ended by then hangs."""
_PR_CAPBSET_DROP, _CAP_DAC_OVERRIDE = 24, 1

Prepare = Callable[[], None] | None
Variables = Mapping[str, str | None]


@dataclass(frozen=True)
class End:
    """How a command ended."""

    code: int
    printed: str = ""
    message: str = ""
    left: tuple[str, ...] = ()
    """Processes that it left running."""
    counts: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Run:
    """A folder of its own for one run: `work`, beside a home and a folder of temporary files."""

    base: Path

    @property
    def work(self) -> Path:
        """The working folder."""
        return self.base / "work"

    def start(
        self,
        words: str,
        state: str = "none:0",
        number: int = 0,
        variables: Variables | None = None,
        prepare: Prepare = None,
        stdout: Any = subprocess.PIPE,
    ) -> subprocess.Popen[str]:
        """Start a command in a session of its own; it stops itself at a state."""
        own = {name: value for name, value in os.environ.items() if not name.startswith("PLANNER")}
        environment = {
            **own,
            "PYTHONPATH": str(ROOT),
            "HF_HUB_OFFLINE": "1",
            "HOME": str(self.base / "home"),
            "TMPDIR": str(self.base / "tmp"),
            **({"PLANNER_FAULT_COUNTS": str(self.base / "counts.json")} if state == COUNT else {}),
            **(variables or {}),
        }
        line = [sys.executable, "-P", STATES, state, number, *words.split()]
        return subprocess.Popen(
            [str(word) for word in line],
            cwd=self.work,
            env={name: value for name, value in environment.items() if value is not None},
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.PIPE,
            preexec_fn=prepare,
            start_new_session=True,
            text=True,
            errors="replace",
        )

    def end(self, process: subprocess.Popen[str]) -> End:
        """Wait for the end of a command, and of the processes that it started."""
        try:
            printed, message = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return End(124, message=f"planner: no end within {LIMIT_S} s")
        left = _wait_for_session(process.pid)
        code = process.returncode if process.returncode >= 0 else 128 - process.returncode
        counted = self.base / "counts.json"
        counts = json.loads(counted.read_text()) if counted.is_file() else {}
        return End(code, printed or "", message, left, counts)

    def __call__(self, words: str, *arguments: Any, **options: Any) -> End:
        """Run a command to its end."""
        return self.end(self.start(words, *arguments, **options))


@contextmanager
def run_in_copy(inputs: Path) -> Iterator[Run]:
    """Yield a run whose working folder is a copy of the inputs."""
    with tempfile.TemporaryDirectory(prefix="faults-") as name:
        run = Run(Path(name))
        shutil.copytree(inputs, run.work)
        for folder in ("home", "tmp"):
            (run.base / folder).mkdir()
        for path in (run.base, *run.base.rglob("*")):
            path.chmod(path.stat().st_mode | 0o777)
        yield run
        run.work.chmod(0o777)


def _members(session: int) -> list[str]:
    """List the processes of a session that run."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            name, _, rest = status.read_text().rpartition(")")
            state, _, _, member_of, *_ = rest.split()
            if int(member_of) == session and state != "Z":
                found.append(name.partition("(")[2])
    return found


def _wait_for_session(session: int) -> tuple[str, ...]:
    """Wait until no process of a session runs; end and return those that go on."""
    for _ in range(600):
        if not _members(session):
            return ()
        time.sleep(0.1)
    left = tuple(_members(session))
    with contextlib.suppress(ProcessLookupError):
        os.killpg(session, signal.SIGKILL)
    return left


# --- faults --------------------------------------------------------------------------------------


def reader_gone(run: Run, words: str) -> End:
    """Run a command whose reader has closed the pipe."""
    read, write = os.pipe()
    os.close(read)
    try:
        return run(words, stdout=write)
    finally:
        os.close(write)


def full_output(run: Run, words: str) -> End:
    """Run a command whose standard output is a full disk."""
    with open("/dev/full", "w") as full:
        return run(words, stdout=full)


def full_disk(run: Run, words: str) -> End:
    """Run a command that may write files of 100 bytes: more fails as on a full disk."""
    limit = (100, resource.RLIM_INFINITY)
    return run(words, prepare=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit))


def read_only(run: Run, words: str) -> End:
    """Run a command in a folder that its user must not change."""
    run.work.chmod(0o555)
    return run(words, prepare=_keep_permissions)


def _keep_permissions() -> None:
    """Take from root the right to write everywhere."""
    if os.getuid() == 0:
        ctypes.CDLL(None).prctl(_PR_CAPBSET_DROP, _CAP_DAC_OVERRIDE, 0, 0, 0)


def no_home(run: Run, words: str) -> End:
    """Run a command without HOME, by a user without an account, as in a container."""
    none = dict.fromkeys(("HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "USER", "LOGNAME"))
    variables = {**none, "PLANNER_FAULT_NO_ACCOUNT": "1"}
    return run(words, variables=variables)


def ascii_locale(run: Run, words: str) -> End:
    """Run a command where text is ASCII."""
    return run(words, variables={"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"})


def old_package(run: Run, words: str) -> End:
    """Run a command with a typer that is older than what `pyproject.toml` asks for."""
    packages = run.base / "packages"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed = "".join(f"Requires-Dist: {name}\n" for name in project["dependencies"])
    _write_metadata(packages, project["name"].replace("-", "_"), project["version"], needed)
    _write_metadata(packages, "typer", "0.12.5")
    import typer

    shutil.copytree(Path(typer.__file__).parent, packages / "typer")
    start = packages / "typer" / "__init__.py"
    start.write_text(start.read_text().replace(typer.__version__, "0.12.5"), encoding="utf-8")
    return run(words, variables={"PYTHONPATH": f"{packages}{os.pathsep}{ROOT}"})


def _write_metadata(packages: Path, name: str, version: str, more: str = "") -> None:
    folder = packages / f"{name}-{version}.dist-info"
    folder.mkdir(parents=True)
    text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{more}"
    (folder / "METADATA").write_text(text, encoding="utf-8")


FAULTS: dict[str, Callable[[Run, str], End]] = {
    "output on a full disk": full_output,
    "files on a full disk": full_disk,
    "read-only folder": read_only,
    "no HOME, no account": no_home,
    "ASCII locale": ascii_locale,
    "reader gone": reader_gone,
    "old package": old_package,
}
STOPS = {"kill -9": signal.SIGKILL, "SIGTERM": signal.SIGTERM, "Ctrl-C": signal.SIGINT}


# --- addresses -----------------------------------------------------------------------------------


@contextmanager
def closed_port() -> Iterator[int]:
    """Yield a port of this machine at which nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        yield probe.getsockname()[1]  # bound and not listening: refused, and nobody else's


@contextmanager
def silent_port() -> Iterator[int]:
    """Yield a port that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        connections = []

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connections.append(server.accept())

        threading.Thread(target=accept, daemon=True).start()
        yield server.getsockname()[1]


def free_port() -> int:
    """Return a port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def is_served(port: int) -> bool:
    """Whether the explorer answers at a port."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/_stcore/health", timeout=30) as page:
            return bool(page.status == 200)
    except OSError:
        return False
