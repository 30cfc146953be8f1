"""Micro-batch: a layout without one takes the fastest that is safe, or else needs the least."""

from __future__ import annotations

import pytest

import planner
from planner.choose.micro_batch import best_micro_batch
from planner.choose.preferences import preferences
from planner.cost.estimate import Estimate
from planner.describe.catalogue import load_framework, load_machine, load_model
from planner.describe.layout import Layout
from planner.describe.workload import Workload

SIZES = (1, 2, 4, 8, 16)


def estimates(model: str, framework: str, zero_stage: int, job: Workload) -> dict[int, Estimate]:
    return {
        size: planner.estimate(
            model,
            "polaris",
            Layout(dp=16, zero_stage=zero_stage, micro_batch=size, grad_accumulation=16 // size),
            workload=job,
            framework=framework,
        )
        for size in SIZES
    }


@pytest.mark.parametrize("framework", ["ddp", "deepspeed", "fsdp2"])
@pytest.mark.parametrize(
    ("model", "zero_stage", "length"),
    [("gpt2", 0, 1024), ("llama-3.2-1b", 2, 2048), ("llama-3-8b", 3, 8192)],
)
def test_the_fastest_that_is_safe(framework: str, model: str, zero_stage: int, length: int) -> None:
    if framework == "ddp" and zero_stage:
        zero_stage = 0
    job = Workload(global_batch=256, sequence_length=length)
    tried = estimates(model, framework, zero_stage, job)
    asked = Layout(dp=16, zero_stage=zero_stage, grad_accumulation=16)
    chosen = best_micro_batch(
        load_model(model), load_machine("polaris"), asked, job, load_framework(framework)
    )
    assert chosen.global_batch == 256
    safe = [x for x in tried.values() if x.out_of_memory_probability <= preferences().risk]
    fitting = [x for x in tried.values() if x.fits]
    mine = tried[chosen.micro_batch]
    if safe or fitting:
        assert mine.step_time_s == min(x.step_time_s for x in safe or fitting)
    else:
        least = min(x.memory_bytes["total"] for x in tried.values())
        assert mine.memory_bytes["total"] == least
