"""Diagnosis: a run of a changed job is explained by that change, and others are not accepted."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

from planner.cost.estimate import Estimate, estimate_layouts
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.describe.catalogue import load_framework, load_machine, load_model
from planner.describe.layout import Layout
from planner.describe.workload import Workload
from planner.evidence.logs.diagnosis import Measured, explanations, peak_bytes

_LAYOUT = Layout(dp=8, zero_stage=3, micro_batch=2)
_SCENARIO = Scenario(
    load_model("llama-3-8b"),
    load_machine("polaris"),
    Workload(sequence_length=4096, global_batch=16),
    load_framework("fsdp2"),
)


def _estimate(scenario: Scenario, layout: Layout) -> Estimate:
    return estimate_layouts(scenario, Layouts.stack([layout]))[0]


def _run(
    layout: dict[str, Any] | None = None, workload: dict[str, Any] | None = None, **more: Any
) -> Measured:
    """Measure what the estimate of a changed job says."""
    scenario = replace(_SCENARIO, workload=_SCENARIO.workload.replaced(**(workload or {})))
    changed = _estimate(scenario, _LAYOUT.replaced(**(layout or {})))
    return Measured(changed.step_time_s, peak_bytes(changed, "reserved"), "reserved", **more)


def _diagnosis(measured: Measured) -> tuple[Any, ...]:
    return explanations(_SCENARIO, _LAYOUT, _estimate(_SCENARIO, _LAYOUT), measured)


@pytest.mark.parametrize(
    ("run", "change"),
    [
        (_run({"grad_accumulation": 5}, {"global_batch": 80}), "gradient accumulation 5 instead"),
        (_run({"grad_accumulation": 8}, {"global_batch": 128}), "16 per replica"),
        (_run({"micro_batch": 4}, {"global_batch": 32}), "micro-batch 4 instead of 2"),
        (_run({"recompute": "full"}), "activation recompute full instead of none"),
        (_run({}, {"attention": "eager"}), "attention kernel eager instead of"),
        (_run({}, {"precision": "fp32"}), "precision fp32 instead of bf16"),
    ],
)
def test_the_change_that_was_made_comes_first(run: Measured, change: str) -> None:
    first = _diagnosis(run)[0]
    assert change in first.change
    assert first.inside
    assert all(ratio == pytest.approx(1) for ratio, _ in first.gaps)


def test_a_run_in_its_intervals_needs_no_explanation() -> None:
    assert _diagnosis(_run()) == ()


def test_fewer_passes_explain_a_faster_run() -> None:
    layout = _LAYOUT.replaced(grad_accumulation=4)
    estimate = _estimate(replace(_SCENARIO, workload=_SCENARIO.workload), layout)
    run = Measured(estimate.step_time_s / 4)
    (first, *_) = explanations(_SCENARIO, layout, estimate, run)
    assert first.change.startswith("gradient accumulation 1 instead of 4")


def test_what_the_log_contradicts_comes_after_what_it_does_not() -> None:
    tokens = _SCENARIO.workload.tokens_per_step
    run = _run({"recompute": "full"})
    slow = Measured(2 * _estimate(_SCENARIO, _LAYOUT).step_time_s, tokens=tokens)
    for measured in (replace(run, tokens=tokens), slow):
        results = _diagnosis(measured)
        for inside, group in itertools.groupby(results, lambda each: each.inside):
            against = [bool(each.contradiction) for each in group]
            assert against == sorted(against), inside
    (passes,) = [e for e in _diagnosis(slow) if e.change.startswith("gradient accumulation 2 ")]
    assert passes.contradiction == f"{tokens:,.0f} tokens a step"


def test_the_printed_mfu_tells_the_batch() -> None:
    """A run of 3 passes that is 1.3 times as slow looks like one of 4."""
    run = _run({"grad_accumulation": 3}, {"global_batch": 48})
    slow = Measured(1.3 * run.step_time_s)
    by_mfu = replace(slow, mfu_tokens=3 * _SCENARIO.workload.tokens_per_step)

    def passes(measured: Measured) -> set[int]:
        return {each.layout.grad_accumulation for each in _diagnosis(measured)}

    assert 4 in passes(slow)
    assert 3 not in passes(slow)
    assert 3 in passes(by_mfu)


def test_explanations_are_sentences_that_name_the_rest() -> None:
    run = _run({"recompute": "full"})
    text = _diagnosis(run)[0].sentence(run)
    assert "the run 1.00 times that" in text
    assert "(inside the interval)" in text
    assert "\n" not in text
