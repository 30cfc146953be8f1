"""Learning rate: against plans one by one, and the rules worked out by hand."""

from __future__ import annotations

import pytest

import planner
from planner import ask
from planner.errors import LayoutError
from tests.ask.jobs import SHORT

pytestmark = pytest.mark.slow


def test_rows_are_plans_of_the_batches() -> None:
    answer = ask.learning_rate(
        "gpt2", "polaris", base_batch=16, base_rate=6e-4, critical_batch=64, workload=SHORT
    )
    assert [row["global_batch"] for row in answer.rows] == [16, 32, 64]
    for row in answer.rows:
        job = SHORT.replaced(global_batch=row["global_batch"])
        one = planner.plan("gpt2", "polaris", nodes=1, workload=job).recommended
        assert one is not None
        assert row["step_time_s"] == one.step_time_s
        assert row["square_root_rate"] == pytest.approx(6e-4 * (row["global_batch"] / 16) ** 0.5)
        assert row["linear_rate"] == pytest.approx(6e-4 * row["global_batch"] / 16)
        assert row["samples_factor"] == 1 + row["global_batch"] / 64
        assert row["warm_up_steps"] is None
    assert "rate of 0.0012 for a batch of 64: 0.0006 for a batch of 16, scaled by" in answer.verdict
    assert "by the square-root rule, which is usual with adamw" in answer.verdict


def test_sgd_takes_the_linear_rule_and_its_warm_up() -> None:
    job = SHORT.replaced(optimizer="sgd-momentum", tokens=0.0, samples=6400)
    answer = ask.learning_rate("gpt2", "polaris", base_batch=32, base_rate=0.1, workload=job)
    assert "scaled by the linear rule, which is usual with sgd-momentum" in (answer.verdict)
    assert answer.verdict.endswith("Warm up over 500 steps (5 epochs).")


def test_published_trainings_of_the_model_are_named() -> None:
    answer = ask.learning_rate(
        "bert-large",
        "polaris",
        base_batch=64,
        base_rate=1e-4,
        workload=SHORT.replaced(sequence_length=512),
    )
    assert len(answer.rows) == 1
    assert sum("arXiv:1904.00962" in note for note in answer.notes) == 2


def test_a_rate_must_be_positive() -> None:
    with pytest.raises(LayoutError, match="be more than 0"):
        ask.learning_rate("gpt2", "polaris", base_batch=16, base_rate=0.0, workload=SHORT)
