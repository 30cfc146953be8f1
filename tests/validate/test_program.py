"""The validation's program: one sentence for wrong use."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from planner.cli import main as planner_main
from planner.errors import INTERRUPTED

COMMANDS = ("trace", "run", "collectives", "calibrate")
Captured = pytest.CaptureFixture[str]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "--batch", "0"], "batch = 0 must be at least 1"),
        (["run", "--limit", "inf"], "limit = inf s"),
        (["collectives", "--limit", "nan"], "limit = nan s"),
        (["calibrate", "-o", "here.toml", "--limit", "nan"], "limit = nan s"),
        (["calibrate", "-o", "here.toml", "--device", "x"], "unknown device 'x'"),
        (["run", "--world", "two"], "Invalid value for '--world'"),
        (["run", "--nope"], "No such option"),
        (["calibrate"], "Missing option"),
        (["calibrate", "-o", "here.json"], "must end in .toml"),
        (["trace", "gpt2", "--world", "4", "--tp", "3"], "must be a multiple"),
        (["trace", "gpt2", "--optimizer", "looped"], "use fused or foreach"),
        (["guess"], "No such command"),
    ],
)
def test_wrong_use_ends_in_one_sentence(arguments: list[str], words: str, capsys: Captured) -> None:
    assert main(arguments) == 2
    said = capsys.readouterr()
    assert words in said.err
    assert said.err.startswith("planner: ")
    assert said.err.count("\n") == 1
    assert said.out == ""


def main(arguments: list[str]) -> int:
    """Exit code of `planner validate`."""
    with pytest.raises(SystemExit) as stopped:
        planner_main(["validate", *arguments])
    return int(stopped.value.code or 0)


def test_help_lists_the_commands(capsys: Captured) -> None:
    assert main(["--help"]) == 0
    said = capsys.readouterr().out
    assert all(f"  {command} " in said for command in COMMANDS)


def test_options_of_a_run_reach_it(monkeypatch: Any, capsys: Captured) -> None:
    from planner.validate.train import run as train

    given: list[train.RunOptions] = []

    def run(options: train.RunOptions) -> dict[str, Any]:
        given.append(options)
        return {"cases": []}

    monkeypatch.setattr(train, "run", run)
    asked = ["--strategy", "ddp", "--strategy", "tp", "--batch", "16", "--steps", "0", "--json"]
    assert main(["run", *asked, "--seq-length", "64", "--limit", "9"]) == 0
    assert capsys.readouterr().out == '{\n "cases": []\n}\n'
    assert main(["run"]) == 0
    assert given == [
        train.RunOptions(
            strategies=("ddp", "tp"),
            timed_steps=0,
            limit_s=9.0,
            batch=16,
            sequence=64,
        ),
        train.RunOptions(),
    ]


def test_an_interruption_is_no_error(monkeypatch: Any, capsys: Captured) -> None:
    from planner.validate.train import run as train

    def run(options: train.RunOptions) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(train, "run", run)
    assert main(["run"]) == INTERRUPTED
    assert capsys.readouterr().err == "planner: interrupted\n"


@pytest.mark.slow
def test_the_program_loads_no_torch() -> None:
    code = "import planner.validate.program, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    "arguments", [["trace", "resnet-50"], ["run", "--model", "resnet-50", "--steps", "0"]]
)
def test_what_is_no_transformer_is_refused(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    message = "resnet-50 is convolutional: validation can only build transformers"
    assert message in capsys.readouterr().err
