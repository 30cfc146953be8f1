"""`planner ask`: the same answers as the calls, exit codes, and errors of one sentence."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import planner
from planner.ask import QUESTIONS, Answer
from planner.ask.option import parameters
from planner.cli import main
from planner.describe.workload import Workload
from tests.ask.jobs import OWN


def run(capsys: pytest.CaptureFixture[str], command: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of a command."""
    with pytest.raises(SystemExit) as stopped:
        main(shlex.split(command))
    out, err = capsys.readouterr()
    return int(stopped.value.code or 0), out, err


JOB = "gpt2 -m polaris --global-batch 64 --tokens 1B"
WORKLOAD = Workload(sequence_length=1024, global_batch=64, tokens=1e9)
FLAGS = {
    "nodes": "--most-nodes 2",
    "deadline": "--days 2 --most-nodes 2",
    "cheapest": "--most-nodes 2 --node-power 2kW --price-per-node-hour 3 --days 5",
    "scaling": "--most-nodes 2 --kind weak",
    "machine": "--against vsc-5 --against vsc-4",
    "startup": "--most-nodes 2 --environment nfs --loading sharded",
    "checkpoints": "--most-nodes 2 --interval-minutes 30",
    "model": "--days 3",
    "batch": "-n 3",
    "change": "--also device.launch_s=1us",
    "zero": "--alone",
    "network": "-n 2",
    "why": "--layout 'dp4 zero3 mb1x16 [fsdp2]'",
    "data": "--dataset unet3d --step-seconds 0.3 --most-nodes 4",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", QUESTIONS)
def test_a_command_answers_as_the_call(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, f"ask {name} {JOB} {FLAGS.get(name, '')} --json")
    asked = QUESTIONS[name]("gpt2", "polaris", workload=WORKLOAD, **OWN[name])
    assert Answer.from_json(out) == asked
    assert code == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["nodes", "change", "host"])
def test_people_read_sentence_table_and_notes(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, f"ask {name} {JOB} {FLAGS.get(name, '')}")
    answer = QUESTIONS[name]("gpt2", "polaris", workload=WORKLOAD, **OWN[name])
    assert " ".join(out.split()).startswith(" ".join(answer.verdict.split()))
    assert out.count("\n- ") == len(answer.notes)
    assert (code, err) == (0, "")


@pytest.mark.slow
def test_csv_is_a_row_each(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, f"ask nodes {JOB} --most-nodes 4 --csv")
    assert (code, len(out.splitlines())) == (0, 4)


@pytest.mark.parametrize("name", QUESTIONS)
def test_every_parameter_is_an_option(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, f"ask {name} --help")
    words = set(out.replace(",", " ").split())
    asked = {one.name for one in parameters(QUESTIONS[name])}
    assert {f"--{each.replace('_', '-')}" for each in asked} <= words
    assert ("--nodes" in words) == ("nodes" in asked)
    assert {"--global-batch", "--framework", "--set", "--measured", "--json", "--csv"} <= words
    assert code == 0


def test_what_fits_nowhere_exits_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "ask nodes llama-3.1-405b -m workstation-1x4090 --json")
    assert code == 1
    assert not Answer.from_json(out).found


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("deadline gpt2 -m polaris --days 3", "tokens = 0: how long it takes"),
        ("deadline gpt2 -m polaris --tokens 1B", "Missing option '--days'"),
        ("deadline gpt2 -m polaris --tokens 1B --days x", "'--days': write a number"),
        ("nodes gpt2 -m polaris -n 3", "No such option: -n"),
        ("nodes gpt2 -m polaris --most-nodes 561", "most_nodes = 561 exceeds the 560 nodes"),
        ("model gpt2 -m polaris --family lama", "unknown family 'lama'"),
        ("machine gpt2 -m polaris --against polari", "unknown machine 'polari'"),
        ("scaling gpt2 -m polaris --kind sideways", "'sideways' is not one of 'strong', 'weak'"),
        ("host gpt2 -m polaris -n 561", "nodes = 561 exceeds"),
        ("cheapest gpt2 -m polaris --node-power much", "node_power = 'much' is no power"),
        ("change gpt2 -m polaris --also faster", "is not of the form section.field=value"),
        ("network gpt2 -m polaris -n 1", "nothing leaves one node"),
        ("nothing gpt2 -m polaris", "No such command 'nothing'"),
        ("zero -m polaris", "Missing argument 'model'. (`planner ask zero --help` shows"),
        (
            "nodes gpt2 -m polaris --most-nodes 0",
            "'--most-nodes': must be at least 1 (`planner ask nodes",
        ),
        ("nodes gpt2", "Missing option '--machine'"),
    ],
)
def test_wrong_use_is_one_sentence(
    command: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, f"ask {command}")
    assert (code, out) == (2, "")
    assert said in err
    assert err.startswith("planner: ")
    assert err.count("\n") == 1


@pytest.mark.alone
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("words", ["machines", "ask host gpt2 -m polaris"])
def test_a_full_disk_is_one_sentence(words: str) -> None:
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = subprocess.run(
            [sys.executable, "-m", "planner", *words.split()],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=120,
            check=False,
        )
    assert done.returncode == 2
    assert done.stderr.startswith("planner: the answer cannot be written: No space left")
    assert done.stderr.count("\n") == 1


def test_the_version_of_python_has_the_same_door() -> None:
    assert planner.ask.nodes is QUESTIONS["nodes"]
