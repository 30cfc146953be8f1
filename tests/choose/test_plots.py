"""Anatomy: the drawn step is the estimated step, for every framework."""

from __future__ import annotations

from dataclasses import replace

import pytest

import planner
from planner.choose.plots import simulate_step
from planner.choose.simulation.tasks import stage_work
from planner.cost.scenario import Scenario
from planner.cost.schedules.bubble import schedule_by_name
from planner.cost.schedules.simulate import simulate
from planner.describe.catalogue import load_framework, load_machine, load_model, names
from planner.describe.framework.framework import Framework
from planner.describe.layout import Layout
from planner.describe.workload import Workload

PIPED = [
    (name, schedule)
    for name in names("framework")
    for schedule in load_framework(name).schedules
    if schedule != "none"
]
CHUNKS = {"interleaved-1f1b": 4, "zero-bubble-v": 2, "dualpipe-v": 2}


def drawn_and_estimated(framework: Framework, layout: Layout, model: str) -> tuple[float, float]:
    """Length of the played step, and of the estimated one [s]."""
    workload = Workload(sequence_length=4096, global_batch=layout.global_batch)
    found = planner.simulate(
        model, "h100-cluster", layout, workload=workload, framework=framework.name
    )
    return found.makespan_s, found.estimate.step_time_s


def layout_of(framework: Framework, **degrees: int) -> Layout:
    """A layout of the framework with these degrees."""
    spread = Layout(dp=4, grad_accumulation=32, recompute="full", **degrees)
    split = spread.tp > 1 and framework.sequence_parallel != "never"
    stages = framework.zero_stages_with_pipeline if spread.pp > 1 else framework.zero_stages
    stage = min(set(stages) & set(framework.zero_stages_for("bf16")))
    return spread.replaced(sequence_parallel=split, zero_stage=stage)


@pytest.mark.parametrize("name", names("framework"))
def test_a_step_without_a_pipeline_lasts_as_long_as_its_parts(name: str) -> None:
    drawn, estimated = drawn_and_estimated(
        load_framework(name), layout_of(load_framework(name)), "llama-3-8b"
    )
    assert drawn == pytest.approx(estimated, rel=1e-9)


@pytest.mark.parametrize(("name", "schedule"), PIPED)
@pytest.mark.parametrize("model", ["llama-3-8b", "mixtral-8x7b"])
def test_the_drawn_pipeline_lasts_as_long_as_its_parts(
    name: str, schedule: str, model: str
) -> None:
    framework = load_framework(name)
    tp = 2 if "tp" in framework.axes else 1
    chunks = CHUNKS.get(schedule, 1)
    layout = layout_of(framework, pp=4, tp=tp, vpp=chunks).replaced(schedule=schedule)
    if schedule_by_name(schedule).defers_weight_gradients:
        # torch cannot recompute what it takes apart
        layout = layout.replaced(recompute="none")
    drawn, estimated = drawn_and_estimated(framework, layout, model)
    # where stages differ the closed form of the bubble takes each to wait for all others, and no
    # transfer to arrive while the slowest one works
    equal = framework.balance == "layers"
    within = (0.01 if chunks > 1 else 0.005) if equal else 0.02
    if framework.kernels.loss_chunks > 1:
        within = 0.03  # the stage with the head lasts a quarter longer than others
    assert drawn == pytest.approx(estimated, rel=within)


def test_waiting_for_the_host_and_blocking_transfers_are_drawn() -> None:
    """nanotron: without either the pipeline would be a third of its length."""
    framework = load_framework("nanotron")
    layout = layout_of(framework, pp=2, tp=4).replaced(schedule="1f1b")
    workload = Workload(sequence_length=4096, global_batch=layout.global_batch)
    model, machine = load_model("llama-3-8b"), load_machine("h100-cluster")
    found = planner.estimate(model, machine, layout, workload=workload, framework="nanotron")
    step = simulate_step(model, machine, workload, found)
    assert found.step_time_parts_s["host_overhead"] > 0.3 * found.step_time_s
    kinds = {event.kind for event in step.timeline.computed(0)}
    assert "host_overhead" in kinds
    works = stage_work(Scenario(model, machine, workload, framework), layout)
    free = [replace(work, blocked_s=0.0) for work in works]
    assert simulate(free, 32, "1f1b").makespan_s < step.simulated_s
