"""Evaluation: forward passes of a step, and generated tokens."""

from __future__ import annotations

import pytest

import planner
from planner.cost.parts import TIME_PARTS
from planner.cost.scenario import Scenario
from planner.describe.training.training_run import Evaluation
from planner.training.steps import evaluation_s, forward_s, generated_token_s


def scenario(model: str, framework: str = "ddp", **job: int) -> Scenario:
    return Scenario(
        planner.load_model(model),
        planner.load_machine("polaris"),
        planner.Workload(**{"sequence_length": 1024, "global_batch": 64, **job}),
        planner.load_framework(framework),
    )


def test_forward_is_less_than_the_step_whatever_its_parts() -> None:
    parts = dict.fromkeys(TIME_PARTS, 1.0)
    assert 1.0 < forward_s(parts) < len(parts) / 2
    assert forward_s({"forward": 3.0, "recompute": 3.0, "optimizer": 1.0}) == 3.0


def test_wordplay_evaluates_as_long_as_its_log_says() -> None:
    # log of 2024-07-17: 43.1 to 43.4 s between steps 100 and 110 and so on; ten steps are 2.85 s
    # of it and the checkpoint 1.7 to 2.0 s
    job = scenario("wordplay-85m-char", global_batch=256)
    layout = planner.Layout(dp=4, micro_batch=64)
    one = planner.estimate(
        job.model, job.machine, layout, workload=job.workload, framework=job.framework
    )
    asked = Evaluation(sequences=2 * 200 * 64, ranks="first", generated_tokens=256)
    found = evaluation_s(job, layout, one.step_time_parts_s, asked)
    assert found == pytest.approx(43.25 - 2.85 - 1.85, rel=0.05)


def test_a_token_reads_every_weight_of_a_large_model() -> None:
    large = scenario("llama-3-70b")
    device = large.machine.device
    rate = device.memory_bytes_per_s.value * device.memory_efficiency.value
    assert generated_token_s(large) == pytest.approx(2 * large.model.num_params / rate)
    assert generated_token_s(scenario("gpt2")) > 2 * scenario("gpt2").model.num_params / rate
