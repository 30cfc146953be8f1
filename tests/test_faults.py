"""Faults: what `benchmarks/faults.py` runs and sees, and what is said of packages that are old."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from planner import errors
from planner.cli.program import _OLD_TYPERS, COMMANDS
from tests import ROOT

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="faults are Linux's")
STATES = ROOT / "benchmarks" / "fault_states.py"


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Import the module `faults` from benchmarks."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("faults")


def test_every_command_is_tried(faults: Any) -> None:
    from planner.validate.program import app

    rows = {*faults.COMMANDS, "app"}
    assert {row.split()[0] for row in rows} == set(COMMANDS)
    checks = {f"validate {command.name}" for command in app.registered_commands}
    assert checks <= rows


@pytest.mark.parametrize(
    ("end", "plain", "wrong"),
    [
        ((2, "", "planner: no room\n"), (0, "", ""), ""),
        ((2, "", ""), (0, "", ""), "nothing is said"),
        ((2, "", "planner: a\nplanner: b\n"), (0, "", ""), "2 lines"),
        ((0, "", "a note\nplanner: 1 of 2 questions answered in 3 s\n"), (0, "", "a note\n"), ""),
        ((2, "", "[1/2] ddp  world 2\nplanner: no room\n"), (0, "", "[1/2] fsdp\n"), ""),
        ((1, "", "Traceback (most recent call last):\nKeyError\n"), (0, "", ""), "a traceback"),
    ],
)
def test_what_is_badly_said_is_seen(faults: Any, end: Any, plain: Any, wrong: str) -> None:
    assert faults.judge_message(faults.End(*end), faults.End(*plain))[1].startswith(wrong)
    assert bool(faults.judge_message(faults.End(*end), faults.End(*plain))[1]) == bool(wrong)


@pytest.mark.parametrize(
    ("number", "code", "message"),
    [
        (signal.SIGKILL, -signal.SIGKILL, ""),
        (signal.SIGTERM, -signal.SIGTERM, ""),
        (signal.SIGINT, 130, "planner: interrupted\n"),
    ],
)
def test_a_command_is_stopped_in_a_state(
    number: int, code: int, message: str, tmp_path: Path
) -> None:
    line = [sys.executable, "-P", STATES, "loads:1", int(number), "datasets"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(
        [str(word) for word in line],
        capture_output=True,
        text=True,
        env=environment,
        cwd=tmp_path,
        start_new_session=True,
        check=False,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (code, "", message)


def test_a_package_that_is_old_or_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = {"numpy": "1.26.4", "typer": "0.19.0+local", "pydantic": "2.7"}
    needed = ["numpy>=1.26", "typer>=0.19", "pydantic>=2.7", "plotly>=5.20; extra == 'app'"]

    def version(name: str) -> str:
        if name not in installed:
            raise metadata.PackageNotFoundError(name)
        return installed[name]

    monkeypatch.setattr(metadata, "requires", lambda _: needed)
    monkeypatch.setattr(metadata, "version", version)
    assert errors.package_fault() == ""
    installed["plotly"] = "5.9"
    assert errors.package_fault().startswith("plotly 5.9 is installed, and planner needs plotly>=")
    del installed["pydantic"]
    assert errors.package_fault() == (
        "pydantic is missing, and planner needs pydantic>=2.7; run `pip install 'pydantic>=2.7'`"
    )


def test_typers_that_misread_options_are_older_than_is_asked_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    [asked] = [name for name in project["dependencies"] if name.startswith("typer")]
    oldest = asked.removeprefix("typer>=")
    assert not f"{oldest}.".startswith(_OLD_TYPERS)
    assert "0.12.5".startswith(_OLD_TYPERS)
