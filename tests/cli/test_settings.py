"""Settings: files of a user and a project, which of them counts, and what they change."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import planner
from planner.cli import FITS, WRONG_USE, settings
from planner.cli.options.help_panels import PanelCommand
from planner.cli.program import COMMANDS, CommandGroup
from planner.cli.waiting import waiting
from tests.cli.test_cli import Captured, run

JOB = ("plan", "gpt2", "-n", "1", "--global-batch", "64", "--seq-length", "1024")


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Work in a folder below the project's, with a user's file next to it."""
    (tmp_path / "project" / "runs").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "project" / "runs")
    monkeypatch.setenv("PLANNER_SETTINGS", str(tmp_path / "user.toml"))
    for variable in ("PLANNER_PREFERENCES", "PLANNER_TEMPLATES"):
        monkeypatch.setenv(variable, "")
    settings.settings.cache_clear()
    yield tmp_path / "project"
    settings.settings.cache_clear()


def write(project: Path, user: str = "", own: str = "") -> None:
    (project.parent / "user.toml").write_text(user)
    (project / "planner.toml").write_text(own)
    settings.settings.cache_clear()


def test_the_project_comes_before_the_user(project: Path, capsys: Captured) -> None:
    write(project, 'machine = "aurora"\naccount = "mine"', 'machine = "polaris"')
    code, out, _ = run(capsys, "config", "--json")
    assert code == FITS
    shown = json.loads(out)
    assert shown["settings"] == {
        "machine": {"value": "polaris", "file": str(project / "planner.toml")},
        "account": {"value": "mine", "file": str(project.parent / "user.toml")},
    }
    code, out, _ = run(capsys, "config")
    assert "polaris" in out
    assert all(name in out for name in settings.MEANINGS)


def test_a_job_takes_what_it_does_not_state(project: Path, capsys: Captured) -> None:
    assert run(capsys, *JOB)[0] == WRONG_USE
    write(project, 'machine = "polaris"\nframeworks = ["ddp"]')
    stated = json.loads(run(capsys, *JOB, "--json")[1])
    assert (stated["machine"], stated["recommended"]["framework"]) == ("polaris", "ddp")
    other = json.loads(run(capsys, *JOB, "-m", "vsc-5", "-f", "fsdp2", "--json")[1])
    assert (other["machine"], other["recommended"]["framework"]) == ("vsc-5", "fsdp2")
    # the file of a job states its own
    (project / "job.toml").write_text('model = "gpt2"\nmachine = "leonardo"\n')
    read = json.loads(run(capsys, "plan", "../job.toml", "-n", "1", "--json")[1])
    assert read["machine"] == "leonardo"


def test_the_account_is_written_into_the_job(project: Path, capsys: Captured) -> None:
    write(project, 'account = "climate-7"')
    emit = ("emit", *JOB[1:], "-m", "polaris", "-f", "ddp", "--dry-run")
    assert 'PROJECT="${PROJECT:-climate-7}"' in run(capsys, *emit)[1]
    assert 'PROJECT="${PROJECT:-other}"' in run(capsys, *emit, "--account", "other")[1]
    code, _, err = run(capsys, *emit, "--account", "a; rm -rf /")
    assert code == WRONG_USE
    assert "is not a name" in err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nodes = 3", "unknown setting 'nodes'; use machine, "),
        ("machine = 3", "machine = 3 has the wrong type"),
        ('frameworks = "ddp"', 'write for example frameworks = ["fsdp2"]'),
        ("machine = ", "is not valid TOML"),
    ],
)
def test_a_wrong_file_is_one_sentence(
    text: str, message: str, project: Path, capsys: Captured
) -> None:
    write(project, text)
    code, out, err = run(capsys, *JOB, "-m", "polaris")
    assert (code, out) == (WRONG_USE, "")
    assert message in err
    assert len(err.strip().splitlines()) == 1


def test_paths_are_relative_to_their_file(project: Path) -> None:
    write(project, own='preferences = "mine.toml"')
    assert settings.value_of("preferences") == str(project / "mine.toml")


# --- help, names, waiting and interrupts ----------------------------------------------------------


def test_options_of_every_day_come_first(capsys: Captured) -> None:
    code, out, _ = run(capsys, "estimate", "--help")
    assert code == FITS
    first = out[out.index("Every day:") : out.index("More about the layout:")]
    for option in ("--machine", "--nodes", "--tp", "--pp", "--zero", "--micro-batch", "--json"):
        assert option in first
    for option in ("--lora-rank", "--reshard", "--price", "--set"):
        assert option not in first
        assert option in out
    assert "default: (" not in out
    assert "[default: (False)]" not in out


def test_the_help_has_every_option(capsys: Captured) -> None:
    group = CommandGroup(name="planner")
    for name in ("plan", "estimate", "simulate", "emit"):
        command = group.get_command(PanelCommand(name).make_context(name, []), name)
        out = run(capsys, name, "--help")[1]
        assert all(option.opts[0] in out for option in command.params), name


def test_summaries_are_whole(capsys: Captured) -> None:
    out = " ".join(run(capsys, "--help")[1].split())
    assert all(summary in out for _, summary in COMMANDS.values())
    assert "..." not in out.partition("Commands:")[2]


@pytest.mark.parametrize(
    ("name", "framework"),
    [("wordplay", "ezpz"), ("nanoGPT", "ddp"), ("fsdp", "fsdp2"), ("megatron", "megatron-lm")],
)
def test_frameworks_are_found_by_the_names_people_use(name: str, framework: str) -> None:
    assert planner.load_framework(name) == planner.load_framework(framework)


def test_a_quiet_plan_is_its_answer(capsys: Captured) -> None:
    job = (*JOB, "-m", "polaris")
    short, screen, full = (run(capsys, *job, *more)[1] for more in (["-q"], [], ["-v"]))
    assert screen.startswith(short)
    assert full.startswith(short)
    assert len(short.splitlines()) < len(screen.splitlines()) < len(full.splitlines())


class Terminal:
    """A standard error that says it is a terminal."""

    def __init__(self) -> None:
        self.text = ""

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.text += text
        return len(text)

    def flush(self) -> None:
        pass


def test_what_takes_long_is_said_and_wiped(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with waiting("searching layouts"):
        pass
    assert terminal.text == ""
    monkeypatch.setattr("planner.cli.waiting._PATIENCE_S", 0.0)
    with waiting("searching layouts"):
        while "searching layouts" not in terminal.text:
            time.sleep(0.01)
    assert terminal.text.endswith("\r")
    written = terminal.text.split("\r")
    assert written[-2].strip() == ""
    assert len(written[-2]) == len(written[-3])


@pytest.mark.alone
@pytest.mark.parametrize(
    "line",
    ["plan llama-3.1-405b -m aurora -n 256", "ask change llama-3-8b -m polaris -n 4"],
)
def test_an_interrupt_is_one_sentence(line: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "planner", *line.split()],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PLANNER_SETTINGS": ""},
    )
    with process:
        maps = Path(f"/proc/{process.pid}/maps")
        while process.poll() is None and maps.exists() and "numpy" not in maps.read_text():
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert "Traceback" not in err
    assert process.returncode in (FITS, 130)
    if process.returncode == 130:
        assert err.strip() == "planner: interrupted"
