"""Typing: types of the library that editors and type checkers see in a user's script."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT

_SCRIPT = """
from typing import Any

import planner
from planner import Plan

model = planner.load_model("llama-3-8b")
reveal_type(model)
reveal_type(planner.load_model(input()))
reveal_type(planner.load_machine("polaris", ("device.memory_bytes=80GB",)))
reveal_type(planner.load_framework("fsdp2+compile"))
job = planner.Workload(sequence_length=4096, global_batch=256, tokens=1e12)
answer = planner.plan("llama-3-8b", "polaris", nodes=8, workload=job, frameworks=["fsdp2"])
reveal_type(answer)
named: str = input()
again: Plan = planner.plan(named, "polaris", nodes=8, frameworks=["mine.toml"])
reveal_type(answer.best)
reveal_type(planner.estimate(model, "polaris", planner.Layout(dp=4)))
rows: list[dict[str, Any]] = answer.records("strategies")
columns = list(answer.to_frame("dropped").columns)
reveal_type(columns)
reveal_type(planner.html(answer))
figure = planner.figures.gantt(answer, answer.best)
planner.emit(answer)
"""
_REVEALED = [
    *("Model", "Model", "Machine", "Framework", "Plan", "Estimate | None", "Estimate"),
    *("list[Any]", "str"),
]
"""Expected types, without module names, which only some versions of mypy print."""
_WRONG = """
import planner

answer = planner.plan("gpt2", "polaris", nodes=1)
answer.to_frame("everything")
answer.to_frame(library="polars")
answer.records("everything")
planner.figure
planner.plan("gpt2", "polaris", node=1)
planner.ask.nodes("gpt2", "polaris", most_node=1)
"""


def _checked(text: str, path: Path) -> list[str]:
    path.write_text(text, encoding="utf-8")
    settings = path.with_suffix(".ini")
    settings.write_text("[mypy]\n", encoding="utf-8")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--strict", "--no-color-output", "--no-error-summary"),
            *("--config-file", str(settings), "--follow-imports", "silent"),
            *("--cache-dir", str(ROOT / ".mypy_cache" / "outside"), path.name),
        ],
        cwd=path.parent,
        env={"PATH": "", "MYPYPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert not done.stderr
    return done.stdout.splitlines()


@pytest.mark.slow
def test_a_strict_script_of_a_user_is_typed(tmp_path: Path) -> None:
    pytest.importorskip("mypy", reason="no mypy: pip install '.[dev]'")
    lines = _checked(_SCRIPT, tmp_path / "script.py")
    assert not [line for line in lines if " error: " in line]
    revealed = [
        found[1] for line in lines if (found := re.search(r'Revealed type is "(.*)"', line))
    ]
    assert [re.sub(r"\w+\.", "", said) for said in revealed] == _REVEALED


@pytest.mark.slow
def test_wrong_words_are_found_before_a_script_runs(tmp_path: Path) -> None:
    pytest.importorskip("mypy", reason="no mypy: pip install '.[dev]'")
    lines = [line for line in _checked(_WRONG, tmp_path / "wrong.py") if " error: " in line]
    found = [int(line.split(":")[1]) for line in lines]
    assert sorted(set(found)) == [5, 6, 7, 8, 9, 10]
