"""Changes: each is a plan of its own."""

from __future__ import annotations

import pytest

import planner
from planner import ask
from tests.ask.jobs import SHORT


@pytest.mark.slow
def test_a_change_is_planned_anew() -> None:
    answer = ask.change("gpt2-xl", "polaris", nodes=2, workload=SHORT)
    rows = {row["change"]: row for row in answer.rows}
    now = rows["unchanged"]
    for name, override in (
        ("network twice as fast", "node.nic_bytes_per_s=50e9"),
        ("device memory twice as large", f"device.memory_bytes={2 * 39.5 * 2**30!r}"),
    ):
        machine = planner.load_machine("polaris", (override,))
        one = planner.plan("gpt2-xl", machine, nodes=2, workload=SHORT).recommended
        assert one is not None
        assert rows[name]["step_time_s"] == pytest.approx(one.step_time_s, rel=1e-6), name
        assert rows[name]["gain"] == pytest.approx(now["step_time_s"] / one.step_time_s - 1, 1e-5)
    batch = planner.plan(
        "gpt2-xl", "polaris", nodes=2, workload=SHORT.replaced(global_batch=128)
    ).recommended
    assert batch is not None
    assert rows["a batch of 128"]["tokens_per_s"] == pytest.approx(batch.tokens_per_s)


@pytest.mark.slow
def test_faster_parts_make_nothing_slower() -> None:
    answer = ask.change("gpt2-xl", "polaris", nodes=2, workload=SHORT, tolerance=0.0)
    rows = [row for row in answer.rows if row["kind"] == "machine"]
    assert len(rows) >= 6
    assert all(row["gain"] >= -1e-9 for row in rows)
    gains = [row["gain"] for row in answer.rows if row["kind"] != "now" and "gain" in row]
    assert gains == sorted(gains, reverse=True)


@pytest.mark.slow
def test_a_change_of_ones_own_and_one_that_is_none() -> None:
    answer = ask.change("gpt2", "polaris", workload=SHORT, also=("device.launch_s=9us",))
    assert "device.launch_s=9us" in [row["change"] for row in answer.rows[1:]]
    with pytest.raises(planner.PlannerError, match="not of the form"):
        ask.change("gpt2", "polaris", workload=SHORT, also=("faster",))
