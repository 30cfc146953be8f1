"""Differences: parts sum to the difference of the totals, for as many tokens."""

from __future__ import annotations

import itertools

import pytest

import planner
from planner.choose.verdicts.differences import (
    difference_sentence,
    equal_work,
    memory_changes,
    time_changes,
)
from planner.cost.estimate import Estimate
from planner.describe.layout import Layout
from planner.describe.workload import Workload


def estimated(**fields: int) -> Estimate:
    layout = Layout.described(fields)
    batch = Workload(sequence_length=4096, global_batch=layout.global_batch)
    return planner.estimate("llama-3-8b", "polaris", layout, workload=batch)


ONES = {
    "tensor": estimated(dp=4, tp=4, sequence_parallel=True, zero_stage=1, grad_accumulation=16),
    "fsdp": estimated(dp=16, zero_stage=3, grad_accumulation=4),
    "larger batch": estimated(dp=16, zero_stage=3, grad_accumulation=8),
    "more devices": estimated(dp=32, zero_stage=3, grad_accumulation=2),
}


@pytest.mark.parametrize("pair", list(itertools.permutations(ONES, 2)), ids=str)
def test_parts_sum_to_the_difference(pair: tuple[str, str]) -> None:
    before, after = (ONES[name] for name in pair)
    scale = equal_work(before, after)
    total = scale * after.step_time_s - before.step_time_s
    assert sum(each.change for each in time_changes(before, after)) == pytest.approx(total)
    tokens = [each.tokens_per_s * each.step_time_s for each in (before, after)]
    assert scale * tokens[1] == pytest.approx(tokens[0])
    memory = after.memory_bytes["total"] - before.memory_bytes["total"]
    assert sum(each.change for each in memory_changes(before, after)) == pytest.approx(memory)


def test_changes_are_reversed_with_the_pair() -> None:
    there = {each.name: each.change for each in time_changes(ONES["tensor"], ONES["fsdp"])}
    back = {each.name: each.change for each in time_changes(ONES["fsdp"], ONES["tensor"])}
    assert there == pytest.approx({name: -change for name, change in back.items()})
    assert all(each.change == 0 for each in time_changes(ONES["fsdp"], ONES["fsdp"]))


def test_a_sentence_names_the_largest_parts_and_equal_work() -> None:
    text = difference_sentence(ONES["tensor"], ONES["fsdp"], ("A", "B"))
    assert text.startswith("B against A: step ")
    assert "tensor parallel" in text
    assert "-" in text
    assert "+" in text
    twice = difference_sentence(ONES["fsdp"], ONES["larger batch"], ("A", "B"))
    assert "for as many tokens" in twice
    same = difference_sentence(ONES["fsdp"], ONES["fsdp"], ("A", "B"))
    assert same.count(" in both.") == 2
