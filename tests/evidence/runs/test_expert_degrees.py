"""Degrees of experts in tables of runs: stated, set by recipes, or told by the other degrees."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.evidence.runs.run import RefusedRun, Run
from planner.evidence.runs.run_files import read_runs
from tests.evidence.tables import row, write


def read_one(tmp_path: Path, **cells: object) -> Run | RefusedRun:
    """Qwen3-235B on 256 H100 as NVIDIA's performance page states it, changed by `cells`."""
    stated = {
        "system": "DGX-H100",
        "gpu": "H100-SXM",
        "model": "Qwen3-235B-A22B (MoE)",
        "params_b": 235,
        "n_gpus": 256,
        "precision": "bf16",
        "year": "25.11",
        "framework": "Megatron-Bridge (Megatron-Core)",
        "seq_len": 4096,
        "dp": 16,
        "tp": 2,
        "pp": 8,
        "vpp": 4,
        "ep": 32,
        "micro_batch": 1,
        "global_batch": 2048,
        "recompute": "none",
        "step_time_s": 20.8,
    }
    empty = dict.fromkeys(("n_layers", "hidden", "n_heads", "vocab", "activation", "zero_stage"))
    [run] = read_runs(write(tmp_path / "one.csv", [row(**empty, **{**stated, **cells})]))
    return run


@pytest.mark.parametrize(
    ("cells", "etp", "said"),
    [
        ({}, 1, "as ep = 32 does not divide dp * cp = 16"),
        ({"ep": 16}, 1, "as its recipes set it"),
        ({"ep": 16, "etp": 1}, 1, ""),
        ({"ep": 16, "etp": 2}, 0, ""),
        ({"ep": 16, "framework": "Megatron-LM"}, 0, ""),
    ],
)
def test_experts_lie_as_the_row_or_its_recipes_say(
    tmp_path: Path, cells: dict[str, object], etp: int, said: str
) -> None:
    run = read_one(tmp_path, **cells)
    assert isinstance(run, Run), run
    assert (run.layout.ep, run.layout.etp) == (cells.get("ep", 32), etp)
    assert any(said in note for note in run.assumed if "etp" in note) == bool(said)


def test_experts_that_fill_more_ranks_than_a_stage_has_are_refused(tmp_path: Path) -> None:
    run = read_one(tmp_path, etp=2)
    assert isinstance(run, RefusedRun)
    assert "ep = 32 must divide dp * cp * tp / etp = 16" in run.reason
