"""What is said of finished cases, and which cases a run asks for, without running any."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from planner.describe.catalogue import load_model
from planner.validate.ranks.rank import Rank, RankError
from planner.validate.train import run as module
from planner.validate.train.run import RunOptions, case_line, exit_code, run, run_text

CASE: dict[str, Any] = {
    "strategy": "zero3",
    "world": 2,
    "loss_error": 8e-8,
    "sent_bytes_per_rank": [1.5e6, 2.5e6],
    "bytes_equal": True,
    "state_bytes_equal": True,
    "peak_bytes_per_rank": [30_000_000, 20_000_000],
    "peak_error": -0.013,
    "peak_within": True,
    "step_time_s": None,
    "load": None,
}
LINE = "zero3       world 2  equal to 1 process (loss 8e-08)      2.500 MB sent, as expected"
PEAK = "  peak 30.0 MB, estimate -1.3 % (within 10 %)"
TIMED = {"step_time_s": 0.0125, "load": {"why_not": ""}}


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({}, LINE + PEAK),
        ({"bytes_equal": False}, LINE.replace("as expected", "NOT AS EXPECTED") + PEAK),
        ({"peak_within": False}, LINE + PEAK.replace("within", "NOT WITHIN")),
        (TIMED, f"{LINE}{PEAK}      12.5 ms"),
        (TIMED | {"planned_step_time_s": 0.01}, f"{LINE}{PEAK}      12.5 ms (planned 10.0)"),
        (
            TIMED | {"load": {"why_not": "2 ranks share 1 cores"}},
            f"{LINE}{PEAK}      12.5 ms  not scored: 2 ranks share 1 cores",
        ),
    ],
)
def test_a_case_is_a_line(changes: dict[str, Any], line: str) -> None:
    assert case_line(CASE | changes) == line


def test_the_verdict_names_what_differs() -> None:
    good = {"cases": [CASE, CASE], "skipped": ["tp: odd"]}
    assert run_text(good).splitlines()[-2:] == ["left out: tp: odd", "all 2 cases as expected"]
    assert (exit_code(good), exit_code(None)) == (0, 0)
    wrong = {"strategy": "tp", "bytes_equal": False, "peak_within": False}
    bad = {"cases": [CASE, CASE | wrong, CASE | {"state_bytes_equal": False}]}
    assert run_text(bad).splitlines()[-1] == (
        "2 of 3 cases NOT AS EXPECTED (tp: bytes sent, peak; zero3: states)"
    )
    assert exit_code(bad) == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"world": 65},
            "world = 65 must lie between 1 and 64; for more ranks start under torchrun",
        ),
        ({"world": 0}, "world = 0 must lie between 1 and 64"),
        ({"timed_steps": -1}, "steps = -1 must not be negative, and attempts = 2 must be"),
        ({"attempts": 0}, "steps = 10 must not be negative, and attempts = 0 must be"),
        ({"limit_s": 1}, "limit = 1 s"),
        ({"strategies": ("tp", "none")}, "unknown strategy 'none'; use all or single, ddp"),
    ],
)
def test_what_cannot_be_run(options: dict[str, Any], words: str) -> None:
    with pytest.raises(RankError, match=words):
        run(RunOptions(**options))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Launches, which end with two cases at once."""
    launched: list[Any] = []

    def launch(entry: str, world: int, payload: dict[str, Any], **others: Any) -> None:
        launched.append((entry, world, payload["cases"], others))
        others["progress"](0, "building")
        others["progress"](1, "other ranks are not shown")
        others["progress"](0, "building")
        for case in payload["cases"][:2]:
            others["on_result"](CASE | {"strategy": case["strategy"]})

    monkeypatch.setattr(module, "launch", launch)
    monkeypatch.setattr(module, "estimate_peak", lambda case: {"peak_error": 0.0})
    monkeypatch.setattr(module, "estimate_time", lambda case, machine: {"on": machine.name})
    return launched


def test_a_run_asks_for_every_strategy_that_fits(
    asked: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = RunOptions(timed_steps=3, attempts=4, output=tmp_path / "r.json", sequence=64)
    results = run(options)
    assert results is not None
    ((entry, world, cases, _),) = asked
    assert (entry, world) == (module.CASES, 2)
    assert [case["strategy"] for case in cases] == [
        *("ddp", "zero1", "zero2", "zero3", "tp", "sp", "gpipe", "1f1b", "interleaved")
    ]
    assert {(case["timed_steps"], case["attempts"]) for case in cases} == {(3, 4)}
    task = cases[0]["task"]
    assert (task["sequence"], task["model"]["num_position_rows"], task["batch"]) == (64, 64, 8)
    assert [case["strategy"] for case in results["cases"]] == ["ddp", "zero1"]
    assert all("on" not in case for case in results["cases"])
    assert len(results["skipped"]) == 2
    assert json.loads((tmp_path / "r.json").read_text()) == results
    said = capsys.readouterr().err.splitlines()
    assert [line[:12] for line in said] == ["[1/9] buildi", "[1/9] ddp   ", "[2/9] zero1 "]


def test_a_profile_adds_times(asked: list[Any]) -> None:
    results = run(RunOptions(("tp", "sp"), profile="laptop"))
    assert results is not None
    assert [case["on"] for case in results["cases"]] == [results["cases"][0]["on"]] * 2
    assert results["profile"] == "laptop"


def test_a_strategy_that_does_not_fit_is_refused_where_it_is_named(asked: list[Any]) -> None:
    with pytest.raises(Exception, match="3d"):
        run(RunOptions(("3d",)))
    with pytest.raises(RankError, match="no strategy fits world = 7: "):
        run(RunOptions(world=7))
    assert asked == []


def test_other_ranks_of_a_launcher_write_nothing(
    asked: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    rank = Rank(1, 2, 1, "srun", "tcp://a:1", 60.0)
    monkeypatch.setattr(module, "external_rank", lambda _: rank)
    assert run(RunOptions(("tp",), world=99, output=tmp_path / "r.json")) is None
    assert asked[0][1] == 2
    assert asked[0][3]["outer"] is rank
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr().err == ""


def test_a_model_is_reduced_unless_it_is_to_be_exact(
    asked: list[Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small = load_model("gpt2").replaced(vocab_size=1024, num_layers=6)
    monkeypatch.setattr(module, "load_transformer", lambda _: small)
    for exact in (False, True):
        run(RunOptions(("tp",), model="gpt2", exact=exact))
        assert ("Running a reduced gpt2" in capsys.readouterr().err) is not exact
    reduced, full = (launched[2][0]["task"]["model"] for launched in asked)
    assert reduced["num_layers"] < full["num_layers"] == 6
    assert not full["tied_embeddings"]
