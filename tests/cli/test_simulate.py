"""Command line: `planner simulate` prints, writes a trace, and refuses in one sentence."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from planner.cli import FITS, NOTHING_FITS, WRONG_USE, main

Captured = pytest.CaptureFixture[str]
JOB = (
    *("llama-3-8b", "-m", "polaris", "-n", "8", "-f", "megatron-lm", "--tp", "4", "--pp", "4"),
    *("--zero", "1", "--recompute", "full", "--global-batch", "32"),
)


def run(capsys: Captured, *arguments: str) -> tuple[int, str, str]:
    """Exit code, standard output, standard error of a call in this process."""
    with pytest.raises(SystemExit) as stopped:
        main(list(arguments))
    out, err = capsys.readouterr()
    assert isinstance(stopped.value.code, int)
    return stopped.value.code, out, err


def test_the_summary_says_what_sets_the_step(capsys: Captured) -> None:
    code, out, _ = run(capsys, "simulate", *JOB)
    assert code == FITS
    assert "dp2 tp4 pp4 zero1 mb1x16 full recompute [megatron-lm]" in out
    played, closed = map(float, re.findall(r"([\d.]+) s (?:played|\(90 %)", out))
    assert played == pytest.approx(closed, rel=0.05)
    assert re.search(r"Critical path by stage: stage 3 \d+ %", out)
    assert re.search(r"Critical path by stream: compute \d+ %", out)
    assert re.search(r"peak FLOP/s of the device +[\d.]+ s +[\d.]+ %", out)


def test_what_does_not_fit_is_said_and_exits_with_1(capsys: Captured) -> None:
    job = ("llama-3-70b", "-m", "polaris", "-n", "4", "--tp", "4", "--pp", "4")
    code, out, _ = run(capsys, "simulate", *job)
    assert code == NOTHING_FITS
    _, estimated, _ = run(capsys, "estimate", *job)
    assert out.splitlines()[0] == estimated.partition(": dp1 ")[0] + "."
    assert out.splitlines()[0].startswith("Does not fit: ")


def test_json_and_trace_are_of_one_step(capsys: Captured, tmp_path: Path) -> None:
    file = tmp_path / "step.json"
    code, out, _ = run(capsys, "simulate", *JOB, "--json", "--trace", str(file))
    assert code == FITS
    found = json.loads(out)
    assert sum(found["critical_path_s"]["stream"].values()) == pytest.approx(found["makespan_s"])
    assert len(found["idle_s"]) == len(found["memory_bytes"]) == 4
    records = json.loads(file.read_text(encoding="utf-8"))["traceEvents"]
    end = max(r["ts"] + r["dur"] for r in records if r["ph"] == "X")
    assert end == pytest.approx(1e6 * found["makespan_s"], rel=1e-6)
    _, out, _ = run(capsys, "estimate", *JOB, "--json")
    assert json.loads(out)["step_time_s"] == pytest.approx(found["estimated_s"])


def test_wrong_use_is_one_sentence(capsys: Captured, tmp_path: Path) -> None:
    code, out, err = run(capsys, "simulate", *JOB, "--trace", str(tmp_path / "no" / "step.json"))
    assert (code, out) == (WRONG_USE, "")
    assert err.startswith("planner: cannot write ")
    code, out, err = run(capsys, "simulate", *JOB[:-1], "524288")
    assert (code, out) == (WRONG_USE, "")
    assert "too long to simulate" in err
    code, _, err = run(capsys, "simulate", *JOB, "--tp", "3")
    assert code == WRONG_USE
    assert err.startswith("planner: ")
    assert "Traceback" not in err
