"""Words: terminal and pages say the same sentences, and the sentences say what the plan says."""

from __future__ import annotations

import dataclasses
import io
from dataclasses import replace

import pytest
from rich.console import Console

import planner
from planner.choose.plan import Plan
from planner.choose.verdicts.answer_lines import (
    answer_lines,
    closest_strategy,
    cost_sentence,
    fastest_gain,
    headline,
    percent_chance,
    training_cost,
)
from planner.choose.verdicts.layout_words import layout_words
from planner.describe.catalogue import load_machine
from planner.describe.layout import Layout
from planner.describe.workload import Workload
from planner.show import words
from planner.show.plan_report import show_plan, strategies_table
from planner.training.whole_training import Amount
from planner.units import format_seconds

_JOB = Workload(global_batch=64, sequence_length=1024, tokens=1e13)


@pytest.fixture(scope="module")
def plan() -> Plan:
    return planner.plan("gpt2", "polaris", nodes=10, workload=_JOB, top=3)


def printed(plan: Plan, width: int = 100, explained: bool = False) -> list[str]:
    """Lines of a plan in a terminal of some width."""
    out = io.StringIO()
    show_plan(plan, Console(file=out, width=width), detail="all" if explained else "screen")
    return out.getvalue().splitlines()


def joined(lines: list[str]) -> str:
    """Lines as one text with single blanks."""
    return " ".join(" ".join(lines).split())


def text_of(plan: Plan) -> dict[str, str]:
    """Texts of the answer lines by label."""
    return dict(answer_lines(plan))


def test_the_first_lines_are_the_whole_answer(plan: Plan) -> None:
    best = plan.recommended
    assert best is not None
    lines = text_of(plan)
    assert list(lines) == ["Fits", "Change", "Run", "Step", "Memory", "Cost", "Why"]
    assert lines["Fits"].startswith("gpt2 on 10 nodes of polaris (40 devices), 80 x 1,024 tokens")
    assert lines["Run"] == f"{best.framework}, {layout_words(best.layout, brief=True)}"
    high = best.interval_step_time_s[1]
    assert lines["Step"].startswith(f"{format_seconds(best.step_time_s)} (90 %: ")
    assert format_seconds(high) in lines["Step"]
    used = best.memory_bytes["total"] / 2**30
    assert f"{used:.1f} of 39.5 GiB" in lines["Memory"]
    bar = lines["Memory"].partition("]")[0]
    assert bar.count("#") == round(24 * used / 39.5)
    for part in training_cost(plan, best):
        assert part in lines["Cost"]
    text = joined(printed(plan))
    assert all(f"{label}: {' '.join(line.split())}" in text for label, line in lines.items())


def test_a_stated_price_and_emissions_follow_the_node_hours(plan: Plan) -> None:
    training, best = plan.training, plan.recommended
    assert training is not None
    assert best is not None
    assert "price" not in cost_sentence(plan, best)
    price, carbon = Amount(13_300, 12_000, 15_000), Amount(5_990, 5_000, 7_000)
    bill = replace(training.bill, price=price, carbon_kg=carbon)
    charged = replace(plan, training=replace(training, bill=bill))
    assert " node-hours, a price of 13,300, 5.99 t CO2e" in cost_sentence(charged, best)


@pytest.mark.parametrize("width", [60, 80, 100, 160])
def test_the_first_screen_is_short_and_without_codes(plan: Plan, width: int) -> None:
    lines = printed(plan, width)
    assert max(map(len, lines)) <= width
    assert not any(line.endswith(" ") for line in lines)
    text = joined(lines)
    assert not any(str(each.layout) in text for each in plan.ranked)
    assert all(verdict.name in text for verdict in plan.strategies)
    if width >= 100:
        assert len(lines) <= 40


def test_an_explained_plan_holds_everything(plan: Plan) -> None:
    text = joined(printed(plan, 160, explained=True))
    assert text.startswith(joined(printed(plan, 160)[:6]))
    for note in plan.notes:
        assert " ".join(note.split()) in text
    for reason in plan.dropped:
        assert f"{reason.reason} {reason.count:,}" in text
    assert f"{plan.num_candidates:,} layouts" in text
    # codes have their legend
    assert "mb2x32 micro-batches of 2 sequences, 32 of them per step and replica" in text


def test_a_long_training_is_cut_into_the_longest_jobs(plan: Plan) -> None:
    assert plan.best is not None
    steps = replace(plan, training=None)
    hours = plan.duration_s(plan.best) / 3600
    # queues that one must ask for are named, but nothing is counted on them
    open_ones = [queue for queue in plan.queues if not queue.on_request]
    longest = max(open_ones, key=lambda queue: queue.max_hours)
    jobs = f"at least {-(-hours // longest.max_hours):,.0f} jobs in {longest.name}"
    assert jobs in cost_sentence(steps, plan.best)
    assert (
        "preemptable (up to 72 h, by request; may be killed by demand jobs)"
        in words.queue_sentence(plan)
    )
    on_request = replace(steps, queues=tuple(q for q in plan.queues if q.on_request))
    assert "jobs in preemptable, 72 h, by request." in cost_sentence(on_request, plan.best)
    no_queue = replace(steps, queues=())
    assert words.queue_sentence(no_queue).startswith("No queue of polaris")
    assert "no queue is known to admit 10 nodes" in cost_sentence(no_queue, plan.best)
    # a workstation has none that could refuse
    assert words.queue_sentence(replace(no_queue, queued=False)) == ""
    assert "queue" not in cost_sentence(replace(no_queue, queued=False), plan.best)
    short = replace(steps, workload=_JOB.replaced(tokens=1.0))
    assert "jobs in" not in cost_sentence(short, plan.best)


def test_a_whole_training_is_the_cost(plan: Plan) -> None:
    assert plan.training is not None
    assert plan.training.jobs > 1
    cost = text_of(plan)["Cost"]
    assert format_seconds(plan.training.time.expected) in cost
    assert f"{plan.training.jobs:,} jobs in {plan.training.queue}" in cost


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
    assert f"Closest is {least.name}: it {least.why}." in closest_strategy(answer)
    assert list(text_of(answer)) == ["Does not fit", "Why"]
    assert " ".join(closest_strategy(answer).split()) in joined(printed(answer))
    assert "planner emit" not in joined(printed(answer))


@pytest.mark.slow
def test_what_helps_is_what_would() -> None:
    # DDP alone: no number of nodes helps, another framework does
    job = Workload(sequence_length=4096, global_batch=64)
    alone = planner.plan("llama-3-8b", "polaris", nodes=4, workload=job, frameworks=["ddp"])
    assert "Cheapest fix: with deepspeed: dp16 " in closest_strategy(alone)
    # 16 GiB of RAM do not hold a checkpoint of 15 while it is loaded: no device is short
    laptop = planner.plan("llama-3-8b", "laptop", nodes=1, workload=Workload(global_batch=8))
    assert closest_strategy(laptop).endswith("Take nodes of more memory or disk.")
    # 12,000 devices: the one device of a classic strategy is not what comes closest
    job = Workload(sequence_length=1024, global_batch=7)
    advised = planner.plan("gpt2", "aurora", nodes=1000, workload=job)
    assert headline(advised).startswith(f"Use {advised.nodes} of the 1,000 nodes")
    assert headline(advised).endswith("as asked it has no layout.")
    wide = planner.plan("gpt2", "aurora", nodes=1000, workload=job, exact=True)
    legal = "No strategy has a legal layout; try a global batch of 12,000."
    assert closest_strategy(wide) == legal


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
    lines = text_of(forced)
    assert "run it once first" in lines["Memory"]
    assert lines["Why"] == "No layout is faster."
    assert printed(forced)[0].startswith("Fits, but tight: ")
    assert words.fit_sentence(best, load_machine("vsc-5")).startswith("Fits, but tight")
    fates = {row["strategy"]: row["fits"] for row in strategies_table(tight).records}
    assert {"yes", "tight", "no"} == set(fates.values())


def test_what_the_fastest_would_gain_and_cost(tight: Plan) -> None:
    best, found = tight.best, tight.recommended
    assert best is not None
    assert found is not None
    assert not found.tight
    said = fastest_gain(tight)
    less = 100 * (1 - best.step_time_s / found.step_time_s)
    assert f"({less:.0f} % less)" in said
    # the rule that puts the slower one first, with its number
    risk = percent_chance(best.out_of_memory_probability)
    assert f"its out-of-memory risk of {risk} counts as " in said
    assert text_of(tight)["Why"] == said
    assert "run it once" not in text_of(tight)["Memory"]


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
    assert f"It fits on {more} nodes with the same batch." in closest_strategy(answer)
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
