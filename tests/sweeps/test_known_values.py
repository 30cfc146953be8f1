"""Known values of functions of `planner.sweeps`."""

from __future__ import annotations

from pathlib import Path

from planner.sweeps.columns import cell, columns
from planner.sweeps.definition import combinations, define_sweep
from planner.sweeps.journal import journal_of
from planner.sweeps.questions import canonical, digest, list_questions


def test_columns() -> None:
    names = list(columns("plan", ("precision", "tokens")))
    assert (names[:2], names[-1], "asked_layout" in names) == (["model", "machine"], "error", False)


def test_cell() -> None:
    assert (cell([100, 300]), cell(0.1)) == ("100+300", 0.1)


def test_combinations() -> None:
    assert combinations([{"tp": [1, 2], "pp": [1]}, {"tp": [4]}]) == [
        {"tp": 1, "pp": 1},
        {"tp": 2, "pp": 1},
        {"tp": 4},
    ]


def test_define_sweep() -> None:
    first, second = define_sweep(
        {"models": "gpt2", "machines": "polaris", "rows": [{"nodes": 1}, {"nodes": [2, 4]}]}
    )
    assert (first.nodes, second.num_questions) == ((1,), 2)


def test_journal_of() -> None:
    assert journal_of(Path("results.parquet")).name == "results.parquet.journal"


def test_canonical() -> None:
    assert canonical({"b": 1, "a": [0.1]}) == '{"a":[0.1],"b":1}'


def test_digest() -> None:
    assert digest("") == "e3b0c44298fc1c149afbf4c8996fb924"


def test_list_questions() -> None:
    sweep = list_questions(
        define_sweep({"models": "gpt2", "machines": "polaris", "nodes": [1, 2, 1]})
    )
    assert (len(sweep.questions), sweep.num_stated, sweep.questions[1].cells["nodes"]) == (2, 3, 2)
