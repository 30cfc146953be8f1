"""Words: terminal and pages say the same sentences, and the sentences say what the plan says."""

from __future__ import annotations

from dataclasses import replace

import pytest

import planner
from planner.choose.plan import Plan
from planner.describe.catalogue import load_machine
from planner.describe.layout import Layout
from planner.describe.workload import Workload
from planner.show import words
from planner.show.report import verdict

_JOB = Workload(global_batch=64, sequence_length=1024, tokens=1e13)


@pytest.fixture(scope="module")
def plan() -> Plan:
    return planner.plan("gpt2", "polaris", nodes=10, workload=_JOB, top=3)


def test_the_terminal_says_what_the_pages_say(plan: Plan) -> None:
    assert plan.best is not None
    said = verdict(plan).plain
    for words_of_it in (
        words.job(plan),
        words.interval(plan.best),
        words.queues(plan, plan.best),
        *words.cost(plan, plan.best),
    ):
        assert words_of_it in said
    shown = words.metrics(plan, plan.best, load_machine("polaris").device.memory_bytes.value)
    assert words.cost(plan, plan.best) in shown
    assert "gpt2 fits on 10 nodes of polaris (40 devices)" in words.verdict(plan)


def test_a_long_training_is_cut_into_the_longest_runs(plan: Plan) -> None:
    assert plan.best is not None
    hours = plan.duration_s(plan.best) / 3600
    longest = max(plan.queues, key=lambda queue: queue.max_hours)
    assert f"{-(-hours // longest.max_hours):,.0f} runs in {longest.name}" in words.queues(
        plan, plan.best
    )
    no_queue = replace(plan, queues=())
    assert words.queues(no_queue, plan.best).startswith("No queue of polaris")
    short = replace(plan, workload=_JOB.replaced(tokens=1.0))
    assert "runs in" not in words.queues(short, plan.best)


def test_what_comes_closest_is_said() -> None:
    answer = planner.plan("llama-3.1-405b", "vsc-5", nodes=1)
    least = min(
        (entry for entry in answer.strategies if entry.estimate is not None),
        key=lambda entry: entry.estimate.memory_bytes["total"] if entry.estimate else 0,
    )
    assert f"Closest is {least.name}: it {least.why}." in words.verdict(answer)
    assert words.verdict(answer) in verdict(answer).plain


def test_the_fate_of_a_layout() -> None:
    machine = load_machine("polaris")
    limit, room = machine.device.memory_bytes.value, machine.node.host_memory_bytes.value
    fits = planner.estimate("gpt2", machine, Layout(dp=4, grad_accumulation=16), workload=_JOB)
    assert words.fate(fits, machine).startswith("Fits: ")

    def with_bytes(device: float, host: float) -> str:
        changed = replace(
            fits, fits=False, memory_bytes={"total": device}, host_memory_bytes={"total": host}
        )
        return words.fate(changed, machine)

    gib = 2.0**30
    assert "3.00 GiB too much per device on stage 0" in with_bytes(limit + 3 * gib, room)
    assert "2.00 GiB too much host memory per node" in with_bytes(limit, room + 2 * gib)
    assert "disk" in with_bytes(limit, room)
