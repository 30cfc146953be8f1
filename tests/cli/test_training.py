"""The whole training on the command line: options, files, and what they refuse."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.test_cli import Captured, refused, run

PLAN = "plan gpt2 -m polaris -f ddp --global-batch 64 --tokens 1e10"
ESTIMATE = "estimate gpt2 -m polaris -f ddp --dp 4 --micro-batch 16 --seq-length 1024 --tokens 1e10"


@pytest.mark.parametrize("line", [PLAN, ESTIMATE])
def test_parts_of_the_json_add_up(capsys: Captured, line: str) -> None:
    asked = "--evaluate-every 1000 --evaluation-sequences 4096 --pue 1.3 --price 2 --json"
    found = json.loads(run(capsys, *line.split(), *asked.split())[1])["training"]
    seconds = {part["name"]: part["time_s"]["expected"] for part in found["parts"]}
    assert sum(seconds.values()) == pytest.approx(found["time_s"]["expected"])
    assert seconds["evaluation"] > 0
    hours = found["bill"]["node_hours"]["expected"]
    assert hours == pytest.approx(sum(seconds.values()) / 3600)
    assert found["bill"]["price"]["expected"] == pytest.approx(2 * hours)


@pytest.mark.parametrize("line", [PLAN, ESTIMATE])
def test_the_text_names_it(capsys: Captured, line: str) -> None:
    explained = ["--explain"] * (line == PLAN)
    out = run(capsys, *line.split(), "--dataset", "openwebtext", *explained)[1]
    assert "The whole training takes" in out
    assert "No evaluation is stated, and none is counted." in out
    assert "No dataset is stated" not in out


def test_without_a_length_there_is_no_training(capsys: Captured) -> None:
    data = json.loads(run(capsys, *PLAN.split()[:-2], "--json")[1])
    assert data["training"] is None


def test_options_count_before_the_file(capsys: Captured, tmp_path: Path) -> None:
    path = tmp_path / "training.toml"
    path.write_text(
        "[charges]\nprice_per_node_hour = 5.0\ncarbon_g_per_kwh = 100.0\n\n"
        "[checkpoints]\nevery_steps = 1000\n"
    )
    line = [*PLAN.split(), "--training", str(path), "--json"]
    stated = json.loads(run(capsys, *line)[1])["training"]
    other = json.loads(run(capsys, *line, "--price", "10")[1])["training"]
    assert other["bill"]["price"]["expected"] == 2 * stated["bill"]["price"]["expected"]
    assert other["bill"]["carbon_kg"] == stated["bill"]["carbon_kg"]
    assert stated["checkpoints"] == pytest.approx(stated["steps"] / 1000)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--dataset nonsense", "unknown dataset 'nonsense'"),
        ("--node-power lots", "write for example 2.5kW"),
        ("--pue 0.5", "'--pue': must be at least 1"),
        ("--failures 2", "'--failures': must be at most 1"),
        ("--training nowhere.toml", "nowhere.toml"),
    ],
)
def test_wrong_use_is_one_sentence(capsys: Captured, options: str, words: str) -> None:
    assert words in refused(capsys, *PLAN.split(), *options.split())


@pytest.mark.parametrize("command", ["plan gpt2 -n 1", "estimate gpt2 --dp 4"])
def test_costs_of_a_training_without_length_are_refused(capsys: Captured, command: str) -> None:
    said = refused(capsys, *command.split(), "--machine", "polaris", "--price", "2")
    assert "is of a whole training, whose length is not stated; add --tokens" in said


def test_a_wrong_file_is_one_sentence(capsys: Captured, tmp_path: Path) -> None:
    path = tmp_path / "training.toml"
    path.write_text("charges = 5\n")
    assert "write [charges]" in refused(
        capsys, *PLAN.split(), "--training", str(path), "--price", "3"
    )
    path.write_text("[charges]\nprize = 5\n")
    assert "prize" in refused(capsys, *PLAN.split(), "--training", str(path))
