"""Facts: changes are plans of their own, elasticities those of estimates moved by hand."""

from __future__ import annotations

import math

import pytest

import planner
from planner import Layout, ask
from planner.ask.layouts.sensitivity import _step, facts_of, measurement_of, scaled
from planner.describe.machine import Machine
from planner.errors import LayoutError
from tests.ask.jobs import SHORT

pytestmark = pytest.mark.slow


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


def test_faster_parts_make_nothing_slower() -> None:
    answer = ask.change("gpt2-xl", "polaris", nodes=2, workload=SHORT, tolerance=0.0)
    rows = [row for row in answer.rows if row["kind"] == "machine"]
    assert len(rows) >= 6
    assert all(row["gain"] >= -1e-9 for row in rows)
    gains = [row["gain"] for row in answer.rows if row["kind"] != "now" and "gain" in row]
    assert gains == sorted(gains, reverse=True)


def test_a_change_of_ones_own_and_one_that_is_none() -> None:
    answer = ask.change("gpt2", "polaris", workload=SHORT, also=("device.launch_s=9us",))
    assert "device.launch_s=9us" in [row["change"] for row in answer.rows[1:]]
    with pytest.raises(planner.PlannerError, match="not of the form"):
        ask.change("gpt2", "polaris", workload=SHORT, also=("faster",))


@pytest.fixture(scope="module")
def found() -> planner.ask.Answer:
    return ask.sensitivity("gpt2-xl", "polaris", nodes=2, workload=SHORT, by=0.1, replan=0)


def test_an_elasticity_is_that_of_estimates(found: planner.ask.Answer) -> None:
    layout = Layout.described(found.asked["layout"])
    place = planner.load_machine("polaris")
    for name, value in (
        ("device.peak_flop_per_s.bf16", place.device.peak_flop_per_s["bf16"].value),
        ("node.fabric.efficiency", place.node.fabric.efficiency.value),
        ("node.nic_bytes_per_s", 25e9),
    ):
        times, memories = [], []
        for factor in (0.999, 1.001):
            moved = planner.load_machine("polaris", (f"{name}={factor * value!r}",))
            one = planner.estimate(
                "gpt2-xl", moved, layout, workload=SHORT, framework=found.asked["framework"]
            )
            times.append(one.step_time_s)
            memories.append(one.memory_bytes["total"])
        row = next((row for row in found.rows if row["fact"] == f"machine.{name}"), None)
        slope = math.log(times[1] / times[0]) / math.log(1.001 / 0.999)
        assert row is not None or abs(slope) < 1e-4
        if row is not None:
            assert row["step_elasticity"] == pytest.approx(slope, abs=1e-6)
            assert memories[0] == memories[1]


def test_times_scale_with_rates_and_latencies(found: planner.ask.Answer) -> None:
    """Euler: with all rates twice as high and all latencies half as long, so is a step."""
    rows = [row for row in found.rows if row["fact"].startswith("machine.")]
    rates = sum(row["step_elasticity"] for row in rows if "_per_s" in row["fact"])
    waits = sum(
        row["step_elasticity"] for row in rows if row["fact"].endswith(("launch_s", "latency_s"))
    )
    assert rates - waits == pytest.approx(-1, abs=0.02)


def test_rows_fall_and_what_is_assumed_says_what_measures_it(found: planner.ask.Answer) -> None:
    slopes = [abs(row["step_elasticity"]) for row in found.rows]
    assert slopes == sorted(slopes, reverse=True)
    for row in found.rows:
        if row["fact"].startswith("machine.") and row["kind"] == "assumed":
            assert row["measure_next"].startswith(("the ", "collectives ")), row["fact"]
        if row["kind"] != "assumed":
            assert row["measure_next"] == ""


def test_a_layout_may_be_given() -> None:
    layout = Layout(dp=4, tp=2, zero_stage=1, micro_batch=2, grad_accumulation=8)
    answer = ask.sensitivity(
        "llama-3.2-1b", "polaris", nodes=2, layout=layout, framework="megatron-lm", workload=SHORT,
        replan=0,
    )  # fmt: skip
    assert Layout.described(answer.asked["layout"]) == layout
    facts = {row["fact"] for row in answer.rows}
    assert "machine.node.fabric.efficiency" in facts


def test_another_recommendation_is_said() -> None:
    answer = ask.sensitivity("gpt2-xl", "polaris", workload=SHORT, by=50, replan=2)
    told = [row for row in answer.rows if row["recommendation"]]
    assert len(told) == 2
    now = planner.plan("gpt2-xl", "polaris", nodes=1, workload=SHORT).recommended
    for row in told:
        found = []
        for factor in (0.5, 1.5):
            changed = (f"{row['fact'].removeprefix('machine.')}={factor * row['value']!r}",)
            try:
                place = planner.load_machine("polaris", changed)
            except planner.PlannerError:
                continue  # beyond what it may be: its own value is taken
            one = planner.plan("gpt2-xl", place, nodes=1, workload=SHORT).recommended
            assert one is not None
            if now is None or (one.layout, one.framework) != (now.layout, now.framework):
                found.append(f"{one.layout} [{one.framework}]")
        assert row["recommendation"] == ("; ".join(dict.fromkeys(found)) or "the same")


def test_with_a_stated_layout_a_recommendation_is_another_than_that_of_now() -> None:
    """Not another than the layout that is stated, which nobody recommends."""
    layout = Layout(dp=8, zero_stage=3, grad_accumulation=8, recompute="full")
    stated = ask.sensitivity(
        "gpt2-xl", "polaris", nodes=2, layout=layout, framework="fsdp2", workload=SHORT, by=0.1,
        replan=1,
    )  # fmt: skip
    told = [row["recommendation"] for row in stated.rows if row["recommendation"]]
    assert told == ["the same"]
    assert "another layout would be recommended" not in stated.verdict


def test_every_quantity_of_a_machine_is_a_fact() -> None:
    machine = planner.load_machine("aurora")
    names = {fact.name for fact in facts_of(machine.model_dump())}
    assert {"device.launch_s", "network.efficiency.fraction", "node.nic_bytes_per_s"} <= names
    assert not any("scheduler" in name or "num_nodes" in name for name in names)
    assert all(measurement_of(f) == "" for f in facts_of({"layers": 3}))


@pytest.mark.parametrize("name", ["aurora", "frontier", "lumi-g", "dgx-1v", "summit"])
def test_every_wire_is_in_one_fact_that_an_override_takes(name: str) -> None:
    machine = planner.load_machine(name)
    fabric = machine.node.fabric
    facts = [fact for fact in facts_of(machine.model_dump()) if "wires" in fact.name]
    moved = planner.load_machine(name, tuple(f"{f.name}={1.5 * f.value!r}" for f in facts))
    for before, after in zip(fabric.wires, moved.node.fabric.wires, strict=True):
        assert after.bytes_per_s == pytest.approx(1.5 * before.bytes_per_s)
    for fact in facts:
        alone = planner.load_machine(name, (f"{fact.name}={1.5 * fact.value!r}",))
        assert alone == Machine.described(scaled(machine.model_dump(), fact, 1.5))
    assert fabric.device_bytes_per_s is not None
    assert {fact.kind for fact in facts} == {fabric.device_bytes_per_s.kind}


def test_the_rate_of_wires_matters_as_estimates_say() -> None:
    layout = Layout(dp=4, tp=2, zero_stage=1, micro_batch=2, grad_accumulation=8)
    answer = ask.sensitivity(
        "llama-3.2-1b", "frontier", layout=layout, framework="megatron-lm", workload=SHORT,
        by=1, replan=0,
    )  # fmt: skip
    row = next(row for row in answer.rows if row["fact"].startswith("machine.node.fabric.wires.0-"))
    fact = row["fact"].removeprefix("machine.")
    for factor, column in ((0.99, "step_change_low"), (1.01, "step_change_high")):
        machine = planner.load_machine("frontier", (f"{fact}={factor * 200}GB/s",))
        seconds = [
            planner.estimate(
                "llama-3.2-1b", one, layout, workload=SHORT, framework="megatron-lm"
            ).step_time_s
            for one in ("frontier", machine)
        ]
        assert row[column] == pytest.approx(seconds[1] / seconds[0] - 1, rel=1e-6)
    assert row["step_change_low"] > 0


@pytest.mark.parametrize("by", [0.0, 60.0])
def test_numbers_move_by_some_percent(by: float) -> None:
    with pytest.raises(LayoutError, match=r"by = .* must lie between 0\.1 and 50"):
        ask.sensitivity("gpt2", "polaris", workload=SHORT, by=by)


def test_integers_move_by_a_multiple_of_a_power_of_two() -> None:
    assert (_step(4096.0, 0.1), _step(0.5, 0.1)) == (0.125, 0.1)
