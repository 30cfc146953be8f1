"""Anatomy: the drawn step is the estimated step, for every framework."""

from __future__ import annotations

from dataclasses import replace

import pytest

import planner
from planner.choose.jobs.job_spec import JobSpec
from planner.choose.planning import plan_job
from planner.choose.plots import parallel_axes, plan_with_space, simulate_step
from planner.choose.preferences import preferences
from planner.choose.search.recommendation import setup_effort
from planner.choose.simulation.tasks import stage_work
from planner.choose.verdicts.answer_lines import short_answer
from planner.cost.estimate import Estimate
from planner.cost.network.topology import group_view
from planner.cost.scenario import Scenario
from planner.cost.schedules.bubble import schedule_by_name
from planner.cost.schedules.simulate import simulate
from planner.cost.shards.layouts import Layouts
from planner.describe.catalogue import load_framework, load_machine, load_model, names
from planner.describe.framework.framework import Framework
from planner.describe.layout import Layout
from planner.describe.workload import Workload
from planner.units import format_seconds

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
    job = JobSpec(model, machine, nodes=1, workload=workload)
    step = simulate_step(job.scenario_of(found), found)
    assert found.step_time_parts_s["host_overhead"] > 0.3 * found.step_time_s
    kinds = {event.kind for event in step.timeline.computed(0)}
    assert "host_overhead" in kinds
    works = stage_work(Scenario(model, machine, workload, framework), layout)
    free = [replace(work, blocked_s=0.0) for work in works]
    assert simulate(free, 32, "1f1b").makespan_s < step.timeline.makespan_s


JOBS = [
    ("gpt2", "polaris", 1, None),
    ("gpt2", "vsc-5", 4, 0.2),
    ("llama-3-8b", "polaris", 4, None),
    ("llama-3-8b", "polaris", 4, 0.0),
    ("llama-3-8b", "dgx-h100", 1, None),
    ("llama-3-8b", "workstation-1x4090", 1, None),
    ("llama-2-70b", "frontier", 4, None),
    ("llama-2-70b", "aurora", 4, None),
    ("llama-2-70b", "polaris", 1, None),
    ("mixtral-8x7b", "eos", 4, 0.2),
    ("deepseek-v3", "eos", 32, None),
    ("resnet-50", "polaris", 4, None),
]


@pytest.mark.slow
@pytest.mark.parametrize(("model", "machine", "nodes", "tolerance"), JOBS)
def test_choices_lead_from_the_safest_and_simplest_layout_over_the_recommended_to_the_fastest(
    model: str, machine: str, nodes: int, tolerance: float | None
) -> None:
    length = 1 if model == "resnet-50" else 1024
    workload = Workload(global_batch=256, sequence_length=length)
    job = JobSpec(model, machine, nodes=nodes, workload=workload, tolerance=tolerance)
    plan, space = plan_with_space(job, 20)
    assert plan == plan_job(job, 20)
    sentence = short_answer(plan)
    assert 6 <= len([word for word in sentence.split() if word != "x"]) <= 20, sentence
    if plan.recommended is None:
        assert (space.choices, space.num_fitting) == ((), 0)
        assert sentence.startswith("Does not fit. ")
        return
    for part in (plan.recommended.step_time_s, plan.recommended.interval_step_time_s[1]):
        assert format_seconds(part, like=plan.recommended.step_time_s).split()[0] in sentence
    # with the usual caution it is exactly the plan's, and without any its fastest
    assert plan.recommended in space.choices
    assert space.choices[-1] == plan.best
    times_s = [each.step_time_s for each in space.choices]
    assert times_s == sorted(set(times_s), reverse=True)
    first, risk = space.choices[0], plan.recommended.out_of_memory_probability
    assert first.out_of_memory_probability <= max(risk, preferences().risk)
    assert first.out_of_memory_probability < risk or _effort(first) <= _effort(plan.recommended)


def _effort(estimate: Estimate) -> float:
    effort = float(setup_effort(Layouts.of(estimate.layout)))
    return effort + load_framework(estimate.framework).effort


@pytest.mark.parametrize(("ranks", "nodes"), [(2, 1), (8, 2)])
def test_an_axis_is_as_fast_as_its_slowest_link(ranks: int, nodes: int) -> None:
    machine, model, layout = load_machine("polaris"), load_model("gpt2"), Layout(dp=ranks)
    job = Workload(sequence_length=1024, global_batch=ranks)
    step = planner.estimate(model, machine, layout, workload=job, framework="ddp")
    scenario = JobSpec(model, machine, nodes=nodes, workload=job).scenario_of(step)
    [axis], view = parallel_axes(scenario, step), group_view(machine, ranks, 1)
    inside, between = float(view.local_bytes_per_s), float(view.network_bytes_per_s)
    assert between < inside
    assert (axis.nodes, axis.bytes_per_s) == (nodes, between if nodes > 1 else inside)
