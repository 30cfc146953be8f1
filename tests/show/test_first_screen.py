"""First screen of a plan: what to do next."""

from __future__ import annotations

import io
import re
from dataclasses import replace

import pytest
from rich.console import Console

import planner
from planner.show.first_screen import _brief_reason, print_tables


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


@pytest.mark.parametrize(
    ("times", "words"),
    [
        (1.0, "as fast"),
        (0.8, r"20 % faster, out-of-memory risk .*"),
        (1.5, r"50 % slower: .+"),
        (3.0, r"200 % slower: .+"),
    ],
)
def test_a_strategy_is_compared_with_the_recommended_layout(times: float, words: str) -> None:
    workload = planner.Workload(sequence_length=1024, global_batch=64)
    plan = planner.plan("gpt2", "polaris", nodes=2, workload=workload, frameworks="fsdp2")
    assert plan.recommended is not None
    verdict = next(each for each in plan.strategies if each.fits)
    parts = {name: value * times for name, value in plan.recommended.step_time_parts_s.items()}
    compared = replace(
        plan.recommended,
        step_time_s=times * plan.recommended.step_time_s,
        step_time_parts_s=parts,
        framework="another",
    )
    assert re.fullmatch(words, _brief_reason(plan, replace(verdict, estimate=compared)))
