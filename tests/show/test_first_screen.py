"""First screen of a plan: what to do next."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

import planner
from planner.show.first_screen import print_tables


@pytest.mark.parametrize(
    ("framework", "step"),
    [
        ("accelerate", "planner emit (its files), planner plan --explain"),
        # torchtitan builds no model with biases of queries, keys and values only
        ("torchtitan+compile", "planner plan --explain (why no files can be written"),
    ],
)
def test_the_next_step_names_files_only_where_they_can_be_written(
    framework: str, step: str
) -> None:
    workload = planner.Workload(sequence_length=4096, global_batch=16)
    plan = planner.plan("qwen2.5-7b", "polaris", nodes=4, workload=workload, frameworks=[framework])
    out = Console(file=io.StringIO(), width=160)
    print_tables(plan, out)
    assert f"Next:   {step}" in out.file.getvalue()  # type: ignore[attr-defined]
