"""Job files on the command line: a job's TOML file in place of the model, options before it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planner.cli import FITS, WRONG_USE, main
from planner.describe.catalogue import load_model
from planner.show.descriptions import model_toml

TEXT = """\
model = "gpt2"
machine = "polaris"
nodes = 2
frameworks = ["ddp"]

[workload]
sequence_length = 1024
global_batch = 64
"""
OPTIONS = (
    *("gpt2", "-m", "polaris", "-n", "2", "-f", "ddp"),
    *("--seq-length", "1024", "--global-batch", "64"),
)
Captured = pytest.CaptureFixture[str]


@pytest.fixture(name="file")
def _file(tmp_path: Path) -> str:
    path = tmp_path / "job.toml"
    path.write_text(TEXT, encoding="utf-8")
    return str(path)


def run(capsys: Captured, *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


@pytest.mark.parametrize(
    "command",
    [
        ("plan", "--json"),
        ("estimate", "--json"),
        ("simulate", "--json"),
        ("emit", "--dry-run"),
        ("ask", "host", "--json"),
        ("ask", "nodes", "--most-nodes", "2", "--json"),
    ],
    ids=" ".join,
)
def test_a_file_is_the_same_as_its_options(
    command: tuple[str, ...], file: str, capsys: Captured
) -> None:
    words = [word for word in command if not word.startswith("--") and not word.isdigit()]
    more = [word for word in command if word not in words]
    options = list(OPTIONS)
    if words == ["ask", "nodes"]:  # it varies the nodes itself
        del options[3:5]
    assert run(capsys, *words, file, *more) == run(capsys, *words, *options, *more)


def test_options_go_before_the_file(file: str, capsys: Captured) -> None:
    code, out, _ = run(capsys, "plan", file, "-n", "1", "--global-batch", "32", "--json")
    answer = json.loads(out)
    assert code == FITS
    assert (answer["nodes"], answer["workload"]["global_batch"]) == (1, 32)
    assert answer["workload"]["sequence_length"] == 1024  # the file's


def test_a_file_takes_the_whole_training(file: str, capsys: Captured) -> None:
    text = TEXT + "tokens = 1e9\n\n[training.charges]\npue = 1.5\n"
    Path(file).write_text(text, encoding="utf-8")
    _, out, _ = run(capsys, "plan", file, "--json")
    stated = ("--tokens", "1e9", "--pue", "1.5")
    assert run(capsys, "plan", *OPTIONS, *stated, "--json")[1] == out


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (TEXT.replace("nodes", "node"), "job.toml: the field 'node' is not known; remove it or"),
        (TEXT.replace("64", "0"), "workload: global_batch = 0 is refused: "),
        (TEXT.replace("polaris", "polari"), "unknown machine 'polari': did you mean polaris or"),
        (TEXT.replace('machine = "polaris"\n', ""), "Missing option '--machine' / '-m'; name"),
    ],
)
def test_a_wrong_file_is_one_sentence(text: str, message: str, file: str, capsys: Captured) -> None:
    Path(file).write_text(text, encoding="utf-8")
    code, out, err = run(capsys, "plan", file)
    assert (code, out) == (WRONG_USE, "")
    assert err.startswith(f"planner: {message}")
    assert err.count("\n") == 1


def test_files_that_a_job_names_lie_beside_it(tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "mine.toml").write_text(model_toml(load_model("gpt2").replaced(num_layers=3)))
    job = tmp_path / "job.toml"
    job.write_text('model = "mine.toml"\nmachine = "polaris"\n[workload]\nglobal_batch = 16\n')
    code, out, _ = run(capsys, "estimate", str(job), "--dp", "4", "-f", "ddp", "--json")
    assert code == 0
    beside = run(
        capsys,
        "estimate",
        str(tmp_path / "mine.toml"),
        "-m",
        "polaris",
        "--dp",
        "4",
        "-f",
        "ddp",
        "--global-batch",
        "16",
        "--json",
    )
    assert beside[1] == out
