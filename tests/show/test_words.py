"""Words: terminal and pages say the same sentences, and the sentences say what the plan says."""

from __future__ import annotations

import dataclasses
from dataclasses import replace

import pytest

import planner
from planner.choose.plan import Plan
from planner.describe.catalogue import load_machine
from planner.describe.layout import Layout
from planner.describe.workload import Workload
from planner.show import words
from planner.show.layout_words import layout_words
from planner.show.plan_report import strategies_table, verdict
from planner.units import format_seconds

_JOB = Workload(global_batch=64, sequence_length=1024, tokens=1e13)


@pytest.fixture(scope="module")
def plan() -> Plan:
    return planner.plan("gpt2", "polaris", nodes=10, workload=_JOB, top=3)


def test_the_terminal_says_what_the_pages_say(plan: Plan) -> None:
    assert plan.best is not None
    said = verdict(plan).plain
    for words_of_it in (
        words.job_sentence(plan),
        words.step_interval(plan.best),
        words.queue_sentence(plan, plan.best),
        *words.training_cost(plan, plan.best),
    ):
        assert words_of_it in said
    shown = words.metrics(plan, plan.best, load_machine("polaris").device.memory_bytes.value)
    assert words.training_cost(plan, plan.best) in shown
    assert "gpt2 fits on 10 nodes of polaris (40 devices)" in words.plan_sentence(plan)


def test_a_long_training_is_cut_into_the_longest_runs(plan: Plan) -> None:
    assert plan.best is not None
    hours = plan.duration_s(plan.best) / 3600
    # queues that one must ask for are named, but nothing is counted on them
    open_ones = [queue for queue in plan.queues if not queue.on_request]
    longest = max(open_ones, key=lambda queue: queue.max_hours)
    runs = f"at least {-(-hours // longest.max_hours):,.0f} runs in {longest.name}"
    assert runs in words.queue_sentence(plan, plan.best)
    assert "preemptable (up to 72 h, by request)" in words.queue_sentence(plan, plan.best)
    asked = replace(plan, queues=tuple(q for q in plan.queues if q.on_request))
    assert "runs in preemptable" in words.queue_sentence(asked, plan.best)
    no_queue = replace(plan, queues=())
    assert words.queue_sentence(no_queue, plan.best).startswith("No queue of polaris")
    # a workstation has none that could refuse
    assert words.queue_sentence(replace(no_queue, queued=False), plan.best) == ""
    short = replace(plan, workload=_JOB.replaced(tokens=1.0))
    assert "runs in" not in words.queue_sentence(short, plan.best)


def test_what_the_same_framework_can_do_instead_is_said(plan: Plan) -> None:
    assert plan.best is not None
    slower = replace(plan.best, step_time_s=2 * plan.best.step_time_s)
    said = words.better_layout(slower, plan.best)
    assert f"{plan.best.framework} can do {format_seconds(plan.best.step_time_s)}" in said
    assert str(plan.best.layout) in said
    assert words.better_layout(slower, None).endswith("that was searched is faster.")
    assert words.better_layout(replace(slower, fits=False), None).endswith("searched fits either.")


def test_what_comes_closest_is_said() -> None:
    answer = planner.plan("llama-3.1-405b", "vsc-5", nodes=1)
    least = min(
        (entry for entry in answer.strategies if entry.estimate is not None),
        key=lambda entry: entry.estimate.memory_bytes["total"] if entry.estimate else 0,
    )
    assert f"Closest is {least.name}: it {least.why}." in words.plan_sentence(answer)
    assert words.plan_sentence(answer) in verdict(answer).plain


@pytest.mark.slow
def test_what_helps_is_what_would() -> None:
    # DDP alone: no number of nodes helps, another framework does
    job = Workload(sequence_length=4096, global_batch=64)
    alone = planner.plan("llama-3-8b", "polaris", nodes=4, workload=job, frameworks=["ddp"])
    assert "Cheapest fix: with deepspeed: dp16 " in words.plan_sentence(alone)
    # 16 GiB of RAM do not hold a checkpoint of 15 while it is loaded: no device is short
    laptop = planner.plan("llama-3-8b", "laptop", nodes=1, workload=Workload(global_batch=8))
    assert words.plan_sentence(laptop).endswith("Take nodes of more memory or disk.")
    # 12,000 devices: the one device of a classic strategy is not what comes closest
    job = Workload(sequence_length=1024, global_batch=7)
    advised = planner.plan("gpt2", "aurora", nodes=1000, workload=job)
    assert words.plan_sentence(advised).startswith(f"Use {advised.nodes} of the 1,000 nodes")
    assert "as asked it has no layout. gpt2 fits on" in words.plan_sentence(advised)
    wide = planner.plan("gpt2", "aurora", nodes=1000, workload=job, exact=True)
    assert "cannot be laid out on 1,000 nodes" in words.plan_sentence(wide)
    assert words.plan_sentence(wide).endswith("try a global batch of 12,000.")


def test_the_fate_of_a_layout() -> None:
    machine = load_machine("polaris")
    limit, room = machine.device.memory_bytes.value, machine.node.host_memory_bytes.value
    fits = planner.estimate("gpt2", machine, Layout(dp=4, grad_accumulation=16), workload=_JOB)
    assert words.fit_sentence(fits, machine).startswith("Fits: ")

    def with_bytes(device: float, host: float) -> str:
        changed = replace(
            fits, fits=False, memory_bytes={"total": device}, host_memory_bytes={"total": host}
        )
        return words.fit_sentence(changed, machine)

    gib = 2.0**30
    assert "3.00 GiB too much per device on stage 0" in with_bytes(limit + 3 * gib, room)
    assert "2.00 GiB too much host memory per node" in with_bytes(limit, room + 2 * gib)
    assert "disk" in with_bytes(limit, room)


@pytest.fixture(scope="module")
def tight() -> Plan:
    job = Workload(global_batch=64, sequence_length=4096)
    return planner.plan("mistral-7b", "vsc-5", nodes=2, workload=job)


def test_a_layout_that_fits_by_the_estimate_alone_is_tight(tight: Plan) -> None:
    limit = load_machine("vsc-5").device.memory_bytes.value
    assert {estimate.tight for estimate in tight.ranked} == {True, False}
    for estimate in tight.ranked:
        low, high = estimate.interval_memory_bytes
        assert low < estimate.memory_bytes["total"] < high
        assert estimate.tight is (high > limit)
    best = tight.best
    assert best is not None
    assert best.tight
    forced = dataclasses.replace(tight, recommended=best)
    said = words.plan_sentence(forced)
    assert "It is tight" in said
    assert "Run it once first" in said
    assert "No layout is faster." in said
    assert "Fits, but tight" in verdict(forced).plain
    assert words.fit_sentence(best, load_machine("vsc-5")).startswith("Fits, but tight")
    fates = {row["strategy"]: row["fits"] for row in strategies_table(tight).records}
    assert {"yes", "tight", "no"} == set(fates.values())


def test_what_the_fastest_would_gain_and_cost(tight: Plan) -> None:
    best, found = tight.best, tight.recommended
    assert best is not None
    assert found is not None
    assert not found.tight
    said = words.fastest_gain(tight)
    assert str(best.layout) in said
    less = 100 * (1 - best.step_time_s / found.step_time_s)
    assert f"({less:.0f} % less)" in said
    # the rule that puts the slower one first, with its number
    risk = words.percent_chance(best.out_of_memory_probability)
    assert f"its chance of {risk} to run out of memory counts as " in said
    assert said in verdict(tight).plain
    assert words.tight_warning(found) == ""


def test_a_plan_with_intervals_is_read_back(tight: Plan) -> None:
    assert Plan.from_json(tight.to_json()) == tight


@pytest.mark.slow
def test_rows_of_a_plan_have_names_of_their_own(tight: Plan) -> None:
    job = Workload(global_batch=256, sequence_length=4096)
    usual = planner.plan("llama-3-8b", "polaris", nodes=4, workload=job)
    for answer in (usual, tight):
        names = [(estimate.framework, str(estimate.layout)) for estimate in answer.ranked]
        assert len(set(names)) == len(names)
        said = [(e.framework, layout_words(e.layout)) for e in answer.ranked]
        assert len(set(said)) == len(said)
    sharded = Layout(dp=8, dp_shard=4, zero_stage=3)
    assert layout_words(sharded) != layout_words(sharded.replaced(dp_shard=0))


@pytest.mark.slow
def test_where_nothing_fits_nodes_are_searched() -> None:
    job = Workload(global_batch=64, sequence_length=2048)
    answer = planner.plan("llama-2-13b", "vsc-5", nodes=1, workload=job, frameworks=["megatron-lm"])
    assert not answer.fits
    more = answer.enough_nodes
    assert more is not None
    assert f"It fits on {more} nodes with the same batch." in words.plan_sentence(answer)
    there = planner.plan(
        "llama-2-13b", "vsc-5", nodes=more, workload=job, frameworks=["megatron-lm"]
    )
    assert there.fits
    able = {entry.name for entry in answer.strategies if entry.nodes}
    assert able
    assert able <= {entry.name for entry in there.strategies if entry.fits}


@pytest.mark.slow
def test_where_the_batch_is_in_the_way_one_that_fits_is_named() -> None:
    job = Workload(global_batch=10, sequence_length=1024)
    answer = planner.plan("gpt2", "polaris", nodes=4, workload=job, exact=True)
    entry = next(entry for entry in answer.strategies if entry.name == "DDP")
    assert not entry.fits
    assert entry.batch == 16
    assert entry.fix == "batch 16"
    shared = planner.plan("gpt2", "polaris", nodes=4, workload=job.replaced(global_batch=16))
    assert next(entry for entry in shared.strategies if entry.name == "DDP").fits
