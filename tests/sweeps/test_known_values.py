"""Known values of functions of `planner.sweeps`."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.sweeps import columns as tables
from planner.sweeps.columns import cell, columns, write_table
from planner.sweeps.definition import combinations, define_sweep
from planner.sweeps.journal import journal_of
from planner.sweeps.questions import canonical, digest, list_questions


def test_columns() -> None:
    names = list(columns("plan", ("precision", "tokens")))
    assert (names[:2], names[-1], "asked_layout" in names) == (["model", "machine"], "error", False)


def test_cell() -> None:
    assert (cell([100, 300]), cell(0.1)) == ("100+300", 0.1)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_table_is_the_same_in_batches(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"model": f"m{number}", "nodes": number} for number in range(5)]
    whole, batches = tmp_path / f"whole.{kind}", tmp_path / f"batches.{kind}"
    write_table(whole, {"model": str, "nodes": int}, rows)
    monkeypatch.setattr(tables, "_BATCH_ROWS", 2)
    write_table(batches, {"model": str, "nodes": int}, rows)
    if kind == "csv":
        assert whole.read_text() == "model,nodes\nm0,0\nm1,1\nm2,2\nm3,3\nm4,4\n"
        assert batches.read_bytes() == whole.read_bytes()
    else:
        parquet = pytest.importorskip("pyarrow.parquet")
        assert parquet.read_table(batches).to_pylist() == rows
        assert parquet.ParquetFile(batches).num_row_groups == 3


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
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical({"a": float("nan")})


def test_digest() -> None:
    assert digest("") == "e3b0c44298fc1c149afbf4c8996fb924"


def test_list_questions() -> None:
    sweep = list_questions(
        define_sweep({"models": "gpt2", "machines": "polaris", "nodes": [1, 2, 1]})
    )
    assert (len(sweep.questions), sweep.num_stated, sweep.questions[1].cells["nodes"]) == (2, 3, 2)
