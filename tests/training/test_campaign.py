"""Whole trainings: parts that add up, steps that stay as they are, published durations."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import planner
from benchmarks.whole import trainings
from planner.cost.scenario import Scenario
from planner.describe.catalogue import load_dataset, load_framework, load_machine, load_model
from planner.errors import DescriptionError, LayoutError
from planner.training.campaign import _Campaign
from planner.training.data.input import input_time
from planner.training.whole_training import PARTS, Amount, TrainingPart, WholeTraining, sum_parts

GPT = "gpt2", "polaris", planner.Layout(dp=4, micro_batch=16)


def trained(job: dict[str, Any] | None = None, **training: Any) -> WholeTraining:
    """gpt2 on a node of Polaris, its training as stated."""
    fields = {"sequence_length": 1024, "global_batch": 64, "tokens": 1e10, **(job or {})}
    asked = planner.Training(**training)
    return planner.whole_training(*GPT, workload=planner.Workload(**fields), training=asked)


EVALUATED = planner.Evaluation(every_steps=1000, sequences=4096)


def test_wordplay_takes_as_long_as_its_log_says() -> None:
    # log of 2024-07-17: steps 110 to 210 and 210 to 310 take 68.7 and 69.1 s, steps alone 28.6
    found = trainings.wordplay()
    between_steps = sum(found.part_s(name) for name in ("steps", "evaluation", "checkpoints"))
    assert between_steps == pytest.approx(69.0, rel=0.15)
    assert found.part_s("checkpoints") == pytest.approx(1.85, abs=0.6)  # the log: 1.7 to 2.0 s


def test_bloom_takes_as_long_and_draws_as_much_as_published() -> None:
    # arXiv:2211.02001, table 1: 1,082,990 device-hours on 384 A100, 433,196 + 256,646 kWh
    found, days = trainings.bloom(), 1_082_990 / 384 / 24
    assert found.days.expected == pytest.approx(days, rel=0.15)
    assert found.days.low < days < found.days.high
    assert found.bill.energy_kwh is not None
    assert found.bill.energy_kwh.expected == pytest.approx(689_842, rel=0.25)
    assert found.bill.energy_kwh.low < 689_842 < found.bill.energy_kwh.high


def test_llama_405b_takes_as_many_hours_as_published() -> None:
    # model card of Llama 3.1: 30.84 M hours of H100; arXiv:2407.21783, table 4. Chunks are ours
    hours = 8 * trainings.llama_405b().bill.node_hours.expected
    assert hours == pytest.approx(30.84e6, rel=0.15)


@settings(max_examples=25, deadline=None)
@given(
    tokens=st.floats(1e8, 1e13),
    every=st.integers(0, 5000),
    saving=st.integers(0, 5000),
    rate=st.floats(0, 1e-3),
    asynchronous=st.booleans(),
)
def test_parts_add_up_and_steps_are_the_steps(
    tokens: float, every: int, saving: int, rate: float, asynchronous: bool
) -> None:
    found = trained(
        {"tokens": tokens},
        evaluation=planner.Evaluation(every_steps=every, sequences=4096),
        checkpoints=planner.Checkpoints(every_steps=saving, asynchronous=asynchronous),
        failures=planner.Failures(per_device_hour=rate),
    )
    assert tuple(one.name for one in found.parts) == PARTS
    total = math.fsum(one.time_s.expected for one in found.parts)
    assert found.time.expected == pytest.approx(total, rel=1e-12)
    assert found.days.expected * 86_400 == pytest.approx(total, rel=1e-12)
    assert all(one.time_s.low <= one.time_s.expected <= one.time_s.high for one in found.parts)
    assert found.time.low <= total <= found.time.high
    assert found.bill.node_hours.expected == pytest.approx(total / 3600)  # of one node
    job = planner.Workload(sequence_length=1024, global_batch=64, tokens=tokens)
    one = planner.estimate(*GPT, workload=job)
    steps = tokens / (64 * 1024) * one.step_time_s
    assert found.part_s("steps") == pytest.approx(steps, rel=1e-9)


def test_the_step_of_a_plan_is_unchanged_by_its_training() -> None:
    job = planner.Workload(sequence_length=1024, global_batch=64, tokens=1e10)
    plain = planner.plan("gpt2", "polaris", nodes=1, workload=job)
    asked = planner.Training(evaluation=EVALUATED, charges=planner.Charges(pue=1.3))
    whole = planner.plan("gpt2", "polaris", nodes=1, workload=job, training=asked)
    assert whole.ranked == plain.ranked
    assert whole.recommended == plain.recommended
    assert whole.training is not None
    assert whole.recommended is not None
    assert whole.training.part_s("steps") == whole.duration_s(whole.recommended)
    assert planner.Plan.from_json(whole.to_json()) == whole
    endless = job.replaced(tokens=0.0)
    assert planner.plan("gpt2", "polaris", nodes=1, workload=endless).training is None


def test_more_of_anything_takes_longer() -> None:
    least = trained(failures=planner.Failures(per_device_hour=0.0))
    for more in (
        trained(failures=planner.Failures(per_device_hour=1e-3)),
        trained(evaluation=EVALUATED, failures=planner.Failures(per_device_hour=0.0)),
        trained({"tokens": 2e10}, failures=planner.Failures(per_device_hour=0.0)),
        trained(
            dataset=planner.load_dataset("unet3d"),
            failures=planner.Failures(per_device_hour=0.0),
        ),
    ):
        assert more.time.expected > least.time.expected
    assert least.failures == pytest.approx(0, abs=1e-6)
    assert least.part_s("restarts") == pytest.approx(0, abs=1e-6)


def test_the_best_interval_is_the_best() -> None:
    rate = planner.Failures(per_device_hour=1e-3)
    best = trained(failures=rate)
    for steps in (100, 1_000, 10_000, 100_000):
        other = trained(failures=rate, checkpoints=planner.Checkpoints(every_steps=steps))
        # ends of jobs are known and not drawn, so that their optimum is a little off Daly's
        assert best.time.expected <= 1.002 * other.time.expected


def test_jobs_of_a_queue() -> None:
    long = {"tokens": 1e12}
    found = trained(long)
    assert found.queue == "capacity"  # the longest that is free for one node: 168 h
    assert found.jobs == math.ceil(found.time.expected / (168 * 3600))
    one = trained(long).part_s("start_up") / found.jobs
    assert trained().part_s("start_up") == pytest.approx(one)  # the short one is one job


def test_evaluation_on_one_rank_takes_as_many_times_as_long() -> None:
    both = [
        trained(evaluation=planner.Evaluation(every_steps=1000, sequences=4096, ranks=ranks))
        for ranks in ("all", "first")
    ]
    alone, shared = both[1].part_s("evaluation"), both[0].part_s("evaluation")
    assert alone == pytest.approx(4 * shared)


def test_ranges_of_parts() -> None:
    def amount(low: float, high: float) -> Amount:
        return Amount(10.0, low, high)

    together = [TrainingPart(n, amount(9, 12), True) for n in ("steps", "evaluation")]
    found = sum_parts(tuple(together))
    assert (found.low, found.high) == (18, 24)
    apart = [TrainingPart(n, amount(7, 14)) for n in ("start_up", "data")]
    found = sum_parts(tuple(apart))
    assert found.high == pytest.approx(20 + math.hypot(4, 4))


def test_charges() -> None:
    charges = planner.Charges(
        node_power_watts=2000,
        pue=1.5,
        carbon_g_per_kwh=400,
        price_per_node_hour=3,
        price_per_kwh=0.5,
    )
    bill = trained(charges=charges).bill
    hours = bill.node_hours.expected
    assert bill.energy_kwh is not None
    assert bill.carbon_kg is not None
    assert bill.price is not None
    assert bill.energy_kwh.expected == pytest.approx(hours * 3)
    assert bill.carbon_kg.expected == pytest.approx(hours * 3 * 0.4)
    assert bill.price.expected == pytest.approx(hours * (3 + 3 * 0.5))
    assert trained().bill.price is None
    assert trained().bill.carbon_kg is None


def test_what_makes_no_training_is_said() -> None:
    with pytest.raises(LayoutError, match=r"^tokens = 0: .* set tokens"):
        planner.whole_training(
            *GPT, workload=planner.Workload(global_batch=64, sequence_length=1024)
        )
    with pytest.raises(DescriptionError, match=r"give one of them$"):
        planner.Checkpoints(interval_s=600, every_steps=100)
    with pytest.raises(DescriptionError, match="pue"):
        planner.Charges(pue=0.9)


@pytest.mark.parametrize("nodes", [1, 2])
def test_loaders_run_in_the_ranks_of_a_node(nodes: int) -> None:
    layout = planner.Layout(dp=4 * nodes, micro_batch=16)
    model, machine, data = load_model("gpt2"), load_machine("polaris"), load_dataset("unet3d")
    job = planner.Workload(sequence_length=1024, global_batch=64 * nodes, tokens=1e10)
    step = planner.estimate(model, machine, layout, workload=job)
    training = planner.Training(dataset=data)
    scenario = Scenario(model, machine, job, load_framework(step.framework))
    found = _Campaign(scenario, step, nodes, training).input
    samples = data.of_sequences(1024)
    epochs = max(job.steps * job.global_batch / samples.num_samples.value, 1.0)
    sizes = (machine, nodes, 4, job.global_batch, step.step_time_s)
    assert found == input_time(*sizes, samples, training.loader, epochs)
