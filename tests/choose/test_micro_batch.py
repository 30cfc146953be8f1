"""Micro-batch: a layout without one takes the fastest that is safe, or else needs the least."""

from __future__ import annotations

import pytest

import planner
from planner.choose.micro_batch import micro_batch_note
from planner.choose.planning import job_of_layout
from planner.choose.preferences import preferences
from planner.choose.user_layouts import complete_layout
from planner.cost.estimate import Estimate
from planner.cost.scenario.experience import Experience
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
    chosen = complete_layout(
        load_model(model),
        load_machine("polaris"),
        nodes=4,
        layout={"zero_stage": zero_stage},
        workload={"global_batch": 256, "sequence_length": length},
        framework=framework,
        tuned=True,
    ).layout
    assert chosen.global_batch == 256
    safe = [x for x in tried.values() if x.out_of_memory_probability <= preferences().risk]
    fitting = [x for x in tried.values() if x.fits]
    mine = tried[chosen.micro_batch]
    if safe or fitting:
        assert mine.step_time_s == min(x.step_time_s for x in safe or fitting)
    else:
        least = min(x.memory_bytes["total"] for x in tried.values())
        assert mine.memory_bytes["total"] == least


@pytest.mark.parametrize(("model", "zero_stage"), [("bert-large", 0), ("llama-3-8b", 3)])
def test_a_micro_batch_that_is_assumed_is_said_with_the_best_larger_one(
    model: str, zero_stage: int
) -> None:
    layout = Layout(dp=32, zero_stage=zero_stage)
    framework = load_framework("deepspeed")
    place = load_model(model), load_machine("polaris")
    length = place[0].default_sequence_length
    own = Workload(global_batch=32, sequence_length=length)
    note = micro_batch_note(job_of_layout(*place, layout, own, framework, Experience()), layout)
    assert note.startswith("micro-batch 1, as none is stated")
    tried = {}
    for size in (1, 2, 4, 8, 16, 32, 64, 128, 256):
        larger = layout.replaced(micro_batch=size)
        job = own.replaced(global_batch=larger.global_batch)
        one = planner.estimate(*place, larger, workload=job, framework=framework)
        if one.fits and one.out_of_memory_probability <= preferences().risk:
            tried[size] = one.tokens_per_s
    best = max(tried, key=tried.__getitem__, default=1)
    if best == 1:
        assert ";" not in note
    else:
        assert f"; {best} gives {tried[best] / tried[1]:.1f} times the throughput" in note
        assert f"a step of {32 * best:,} sequences" in note
