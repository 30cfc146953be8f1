"""Nodes, deadlines, cost, scaling and machines, against plans made one by one."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest

import planner
from planner import Workload, ask
from planner.ask import Answer
from planner.ask.plan_point import plan_point
from planner.ask.resources.training_time import admitted_counts, late_probability, sections
from planner.ask.scan import scan
from planner.choose.jobs.job_spec import JobSpec
from planner.choose.plan import Plan
from planner.choose.preferences import preferences
from planner.choose.verdicts.answer_lines import cost_sentence
from planner.describe.machine import Machine
from planner.errors import LayoutError
from planner.units import format_amount, format_seconds
from tests.ask.jobs import SHORT, small_machine

RISK = preferences().risk

JOB = Workload(sequence_length=2048, global_batch=64, tokens=2e9)
MODEL = "llama-2-13b"


def plans(machine: Machine, most: int, **more: Any) -> dict[int, Plan]:
    """A plan for every number of nodes."""
    return {
        n: planner.plan(MODEL, machine, nodes=n, workload=JOB, **more) for n in range(1, most + 1)
    }


@pytest.fixture(scope="module")
def every() -> dict[int, Plan]:
    return plans(small_machine(), 10)


def safe(answer: Plan) -> bool:
    one = answer.recommended
    return one is not None and one.out_of_memory_probability <= RISK


def sensible(answer: Plan) -> bool:
    one = answer.recommended
    if one is None or not safe(answer):
        return False
    layout = one.layout
    return layout.offload == "none" and layout.tp <= 2 and layout.pp <= 16 and layout.cp == 1


def days_of(answer: Plan) -> float:
    """Days of the whole training, as the first page has them."""
    assert answer.training is not None
    return answer.training.days.expected


def hours_of(answer: Plan) -> float:
    """Node-hours of the whole training, as the first page has them."""
    assert answer.training is not None
    return answer.training.bill.node_hours.expected


def first(every: dict[int, Plan], holds: Any) -> int | None:
    return next((n for n, answer in every.items() if holds(answer)), None)


@pytest.mark.slow
def test_fewest_nodes_are_those_of_all_plans(every: dict[int, Plan]) -> None:
    answer = ask.nodes(MODEL, small_machine(), workload=JOB)
    assert answer.asked["fewest"] == {
        "fits": first(every, lambda plan: plan.fits),
        "safe": first(every, safe),
        "sensible": first(every, sensible),
    }
    assert answer.asked["fewest"]["sensible"] > 1


@pytest.mark.slow
def test_rows_are_the_plans(every: dict[int, Plan]) -> None:
    answer = ask.nodes(MODEL, small_machine(), workload=JOB)
    for row in answer.rows:
        plan = every[row["nodes"]]
        one = plan.recommended
        assert one is not None
        assert row["step_time_s"] == one.step_time_s
        assert row["layout"] == str(one.layout)
        assert row["node_hours"] == hours_of(plan)
        assert row["days"] == days_of(plan)


def test_where_nothing_fits_it_is_said_by_how_much() -> None:
    answer = ask.nodes("llama-3.1-405b", "vsc-5", most_nodes=2, workload=SHORT)
    assert not answer.found
    assert "fits on none of up to 2 nodes" in answer.verdict
    assert "TiB more than it holds" in answer.verdict


def test_more_nodes_than_there_are_is_refused() -> None:
    with pytest.raises(LayoutError, match="most_nodes = 99 exceeds the 10 nodes"):
        ask.nodes(MODEL, small_machine(), most_nodes=99, workload=JOB)


# --- deadlines --------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("days", [3.0, 6.0])
def test_a_deadline_is_kept_by_the_fewest_nodes(every: dict[int, Plan], days: float) -> None:
    answer = ask.deadline(MODEL, small_machine(), days=days, workload=JOB)
    inside = [n for n, plan in every.items() if plan.fits and days_of(plan) <= days]
    assert answer.asked["fewest"]["likely"] == min(inside)
    rows = {row["nodes"]: row for row in answer.rows}
    for count, row in rows.items():
        assert row["days"] == days_of(every[count])
        assert row["late_probability"] == pytest.approx(0.5) or (
            (row["days"] > days) == (row["late_probability"] > 0.5)
        )


def test_the_interval_is_the_chance_to_be_late() -> None:
    training = plan_point(JobSpec("gpt2", "polaris", workload=SHORT)).training
    assert training is not None
    days = training.days
    assert late_probability(days, days.expected) == pytest.approx(0.5)
    assert late_probability(days, days.high) == pytest.approx(0.05)
    assert late_probability(days, days.low) == pytest.approx(0.95)
    assert late_probability(days, math.inf) == 0.0
    limits = [days.expected * factor for factor in (0.5, 0.8, 1.0, 1.3, 3.0)]
    chances = [late_probability(days, limit) for limit in limits]
    assert chances == sorted(chances, reverse=True)


@pytest.mark.slow
def test_an_impossible_deadline_names_the_best(every: dict[int, Plan]) -> None:
    answer = ask.deadline(MODEL, small_machine(), days=0.5, workload=JOB)
    assert not answer.found
    assert "No node count that was planned" in answer.verdict
    fastest = min(row["days"] for row in answer.rows if row["fits"])
    assert f"takes {format_seconds(fastest * 86400)} " in answer.verdict
    assert answer.rows[-1]["nodes"] == 10


@pytest.mark.slow
def test_fewer_jobs_in_a_row_take_more_nodes_or_cannot_be(every: dict[int, Plan]) -> None:
    free = ask.deadline(MODEL, small_machine(), days=6.0, workload=JOB)
    jobs = {row["nodes"]: row["jobs"] for row in free.rows}
    taken = jobs[free.asked["fewest"]["likely"]]
    assert taken > 1
    fewer = ask.deadline(MODEL, small_machine(), days=6.0, workload=JOB, most_jobs=taken - 1)
    found = fewer.asked["fewest"]["likely"]
    assert found > free.asked["fewest"]["likely"]
    assert {row["nodes"]: row["jobs"] for row in fewer.rows}[found] < taken


@pytest.mark.slow
def test_hundreds_of_short_jobs_are_no_answer() -> None:
    """Polaris admits 5 to 9 nodes only in debug queues; 10 for three hours, 4 for a week."""
    asked: dict[str, Any] = {
        "days": 15.0,
        "most_nodes": 12,
        "frameworks": "megatron-lm",
        "workload": Workload(sequence_length=4096, global_batch=512, tokens=100e9),
    }
    found = ask.deadline("llama-3-8b", "polaris", **asked)
    rows = {row["nodes"]: row for row in found.rows}
    count = found.asked["fewest"]["sure"]
    assert count >= 10
    assert rows[count]["jobs"] <= 100
    assert "Rows that need more than 100 jobs in a row are no answer." in found.notes
    for row in found.rows:
        assert ("too many" in row["reason"]) == (row["jobs"] > 100), row["nodes"]
    more = ask.deadline("llama-3-8b", "polaris", most_jobs=1000, **asked)
    # debug queues are for trying, however many jobs may be
    assert more.asked["fewest"]["likely"] >= 10
    assert not any("debug" in row["queue"] for row in more.rows if row["queue"])
    none = ask.deadline("llama-3-8b", "polaris", **{**asked, "most_nodes": 9})
    assert not none.found
    few = ask.deadline("llama-3-8b", "polaris", most_jobs=rows[count]["jobs"] - 1, **asked)
    assert few.asked["fewest"]["sure"] != count
    cheapest = ask.cheapest("llama-3-8b", "polaris", **asked)
    place = cheapest.verdict.split(" of polaris")[0]
    [taken] = [row for row in cheapest.rows if f"{row['nodes']} nodes" == place]
    assert taken["jobs"] <= 100
    for row in cheapest.rows:
        if row["nodes"] in rows:
            assert row["days"] == rows[row["nodes"]]["days"]


@pytest.mark.slow
def test_nodes_that_a_queue_of_long_jobs_admits_are_not_passed_over() -> None:
    """7 nodes are let into a queue of long jobs; 8, a power of two, into one of an hour alone."""
    machine = small_machine(32)
    queues = [
        {"name": "long", "max_nodes": 7, "max_hours": 72.0},
        {"name": "short", "max_nodes": 32, "max_hours": 1.0},
    ]
    own = machine.replaced(scheduler={**machine.scheduler.model_dump(), "queues": queues})
    plan = planner.plan(MODEL, own, nodes=7, workload=JOB)
    assert plan.recommended is not None
    days = 1.1 * days_of(plan)
    found = ask.deadline(MODEL, own, days=days, workload=JOB, most_jobs=3)
    assert found.asked["fewest"]["likely"] <= 7
    parts = sections(own, range(1, 33))
    assert [tuple(part) for part in parts] == [tuple(range(1, 8)), tuple(range(8, 33))]


@pytest.mark.slow
def test_a_deadline_is_answered_with_the_nodes_that_keep_it(every: dict[int, Plan]) -> None:
    answer = ask.deadline(MODEL, small_machine(), days=6.0, workload=JOB)
    sure, likely = answer.asked["fewest"]["sure"], answer.asked["fewest"]["likely"]
    rows = {row["nodes"]: row for row in answer.rows}
    assert rows[sure]["late_probability"] <= 0.05
    assert answer.verdict.startswith(f"{sure} node")
    assert (f"; {likely} node" in answer.verdict) == (sure != likely)


def test_machines_are_compared_by_what_is_asked() -> None:
    job: dict[str, Any] = {"against": ("vsc-5",), "workload": SHORT}
    for by, unit in (("time", "step_time"), ("node-hours", "node_hours")):
        found = ask.machine("gpt2", "polaris", by=by, **job)
        best, second = found.rows
        end = "_s" if by == "time" else ""
        overlap = second[f"{unit}_low{end}"] < best[f"{unit}_high{end}"]
        assert ("intervals overlap" in found.verdict) == overlap, by
    assert "1 node of polaris (4 devices) takes the fewest" in found.verdict
    assert "2 nodes of vsc-5 (4 devices) take " in found.verdict
    assert not overlap


def test_as_long_as_another_is_not_a_multiple_of_it() -> None:
    twin = planner.load_machine("polaris").replaced(name="twin")
    found = ask.machine("gpt2", twin, against="polaris", workload=SHORT)
    assert found.verdict.endswith(" 1 node of polaris (4 devices) takes the same time.")


def test_only_counts_that_queues_admit_are_taken() -> None:
    counts = admitted_counts(planner.load_machine("polaris"), 560)
    assert counts[-1] == 496
    assert 497 not in counts
    assert list(admitted_counts(planner.load_machine("laptop"), 1)) == [1]


@pytest.mark.parametrize("days", [0.0, -1.0])
def test_a_deadline_in_the_past_is_refused(days: float) -> None:
    with pytest.raises(LayoutError, match=r"days = .* must be "):
        ask.deadline("gpt2", "polaris", days=days, workload=SHORT)


@pytest.mark.parametrize("late", [0.0, 60.0])
def test_a_chance_to_be_late_is_at_most_even(late: float) -> None:
    with pytest.raises(LayoutError, match=r"late = .* must lie between 0\.1 and 50"):
        ask.deadline("gpt2", "polaris", days=1, late=late, workload=SHORT)


def test_where_all_queues_are_by_request_that_is_said() -> None:
    machine = planner.load_machine("polaris")
    queues = [q.replaced(on_request=True).model_dump() for q in machine.scheduler.queues]
    closed = machine.replaced(scheduler={**machine.scheduler.model_dump(), "queues": queues})
    for answer in (
        ask.deadline("gpt2", closed, days=1, workload=SHORT),
        ask.cheapest("gpt2", closed, workload=SHORT),
    ):
        assert not answer.found
        assert answer.verdict.endswith("no queue admits any.")


def test_without_tokens_there_is_no_deadline() -> None:
    with pytest.raises(LayoutError, match=r"tokens = 0.*set tokens"):
        ask.deadline("gpt2", "polaris", days=1, workload=SHORT.replaced(tokens=0.0))


# --- cost -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_cheapest_is_that_of_all_plans(every: dict[int, Plan]) -> None:
    answer = ask.cheapest(MODEL, small_machine(), workload=JOB)
    costs = {n: hours_of(plan) for n, plan in every.items() if plan.recommended and safe(plan)}
    rows = {row["nodes"]: row["node_hours"] for row in answer.rows if row["fits"]}
    assert rows == pytest.approx({n: costs[n] for n in rows})
    assert min(rows.values()) <= 1.05 * min(costs.values())


@pytest.mark.slow
def test_nodes_that_cost_about_as_much_are_told_of() -> None:
    answer = ask.cheapest(MODEL, small_machine(), workload=JOB)
    best = min(row["node_hours"] for row in answer.rows if row["fits"])
    assert "within 5 % of it" in answer.verdict
    told = re.search(r"\. ([\d, and]+) nodes? takes? (?:up to )?\S+, within", answer.verdict)
    assert told is not None
    near = [row["nodes"] for row in answer.rows if best < row["node_hours"] <= 1.05 * best]
    assert [int(number) for number in re.findall(r"\d+", told[1])] == near
    cheapest, *_ = sorted(answer.rows, key=lambda row: row.get("node_hours", math.inf))
    fastest = min((row for row in answer.rows if row["nodes"] in near), key=lambda row: row["days"])
    assert fastest["days"] < cheapest["days"]
    first, last = (format_seconds(86400 * row["days"]) for row in (fastest, cheapest))
    more = 100 * (fastest["node_hours"] / cheapest["node_hours"] - 1)
    assert answer.verdict.endswith(
        f"; {fastest['nodes']} nodes finish in {first} instead of {last}, "
        f"for {more:.0f} % more node-hours."
    )
    alone = ask.cheapest("gpt2", "polaris", most_nodes=2, workload=SHORT)
    assert (alone.rows[1]["node_hours"] > 1.05 * alone.rows[0]["node_hours"]) == (
        "within 5 %" not in alone.verdict
    )


@pytest.mark.slow
def test_the_first_page_has_the_jobs_and_node_hours_of_the_question(
    every: dict[int, Plan],
) -> None:
    answer = ask.cheapest(MODEL, small_machine(), workload=JOB)
    for row in answer.rows:
        plan = every[row["nodes"]]
        assert plan.training is not None
        assert plan.recommended is not None
        assert (row["jobs"], row["queue"]) == (plan.training.jobs, plan.training.queue)
        cost = cost_sentence(plan, plan.recommended)
        assert f"{format_amount(row['node_hours'])} node-hours" in cost
        assert f"{format_seconds(86400 * row['days'])}, " in cost


def test_price_and_energy_are_node_hours_times_what_was_said() -> None:
    answer = ask.cheapest(
        "gpt2",
        "polaris",
        most_nodes=2,
        workload=SHORT,
        price_per_node_hour=2.5,
        node_power="1.2 kW",
    )
    for row in answer.rows:
        assert row["price"] == pytest.approx(2.5 * row["node_hours"])
        assert row["energy_kWh"] == pytest.approx(1.2 * row["node_hours"])


@pytest.mark.slow
def test_a_deadline_may_cost_node_hours() -> None:
    free = ask.cheapest(MODEL, small_machine(), workload=JOB)
    bound = ask.cheapest(MODEL, small_machine(), workload=JOB, days=2.5)
    assert bound.found
    assert "late_probability" in bound.rows[0]
    best = {
        name: min(row["node_hours"] for row in each.rows if row.get("late_probability", 0.0) <= 0.5)
        for name, each in (("free", free), ("bound", bound))
    }
    assert best["free"] <= best["bound"]
    assert not ask.cheapest(MODEL, small_machine(), workload=JOB, days=0.1).found


@pytest.mark.parametrize("power", ["0W", "-1kW", "2GB", "2.5 kB/s", "3h", "W", "nan", "inf", ""])
def test_what_is_no_power_is_refused(power: str) -> None:
    with pytest.raises(LayoutError, match=r"^node_power = .*write for example 2\.5kW"):
        ask.cheapest("gpt2", "polaris", most_nodes=1, workload=SHORT, node_power=power)


# --- scaling and machines ---------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["strong", "weak"])
def test_efficiency_is_tokens_per_second_and_node(kind: Any) -> None:
    answer = ask.scaling("gpt2", "polaris", workload=SHORT, most_nodes=32, kind=kind)
    first = answer.rows[0]
    for row in answer.rows:
        per_node = row["tokens_per_s"] / row["nodes"]
        assert row["efficiency"] == pytest.approx(per_node / first["tokens_per_s"])
        assert row["global_batch"] == 64 * (row["nodes"] if kind == "weak" else 1)


@pytest.mark.slow
def test_the_knee_is_the_last_that_is_efficient_enough() -> None:
    for percent in (20.0, 60.0, 95.0):
        answer = ask.scaling("gpt2", "polaris", workload=SHORT, most_nodes=32, efficiency=percent)
        efficient = []
        for row in answer.rows:
            if row["efficiency"] < percent / 100:
                break
            efficient.append(row["nodes"])
        assert answer.asked["knee"] == efficient[-1]


def test_no_batch_is_beyond_the_largest() -> None:
    """Weak scaling of the largest batch would be strong scaling where it stayed as it is."""
    largest = SHORT.replaced(sequence_length=128, global_batch=1_000_000)
    answer = ask.scaling("gpt2", "polaris", workload=largest, most_nodes=2, kind="weak")
    assert [row["fits"] for row in answer.rows] == [True, False]
    assert "global_batch = 2000000" in answer.rows[1]["reason"]
    assert "on 2 nodes it does not fit (" in answer.verdict
    assert answer.asked["knee"] == 1
    changed = ask.change("gpt2", "polaris", workload=largest, frameworks="ddp")
    assert {row["change"] for row in changed.rows} >= {"unchanged", "2 nodes"}
    assert not any("a batch of" in row["change"] for row in changed.rows)


@pytest.mark.slow
def test_the_best_machine_is_that_of_its_plans() -> None:
    names = ("dgx-h100", "vsc-5")
    answer = ask.machine(MODEL, "polaris", against=names, nodes=4, workload=JOB)
    for row in answer.rows:
        machine = planner.load_machine(row["machine"])
        assert row["nodes"] == -(-16 // machine.node.num_devices)
        plan = planner.plan(MODEL, machine, nodes=row["nodes"], workload=JOB)
        assert plan.recommended is not None
        assert row["step_time_s"] == plan.recommended.step_time_s
    times = [row["step_time_s"] for row in answer.rows]
    assert times == sorted(times)
    cheap = ask.machine(
        MODEL, "polaris", against=names, nodes=4, workload=JOB, by="node-hours", same="nodes"
    )
    hours = [row["node_hours"] for row in cheap.rows]
    assert hours == sorted(hours)
    assert {row["nodes"] for row in cheap.rows} == {4}


@pytest.mark.slow
def test_a_described_machine_is_compared_by_its_own_name() -> None:
    wider = planner.load_machine("polaris", ("node.nic_bytes_per_s=50GB/s",)).replaced(name="wider")
    answer = ask.machine(MODEL, "polaris", against=(wider, "vsc-5"), nodes=2, workload=JOB)
    rows = {row["machine"]: row for row in answer.rows}
    assert set(rows) == {"polaris", "wider", "vsc-5"}
    plan = planner.plan(MODEL, wider, nodes=2, workload=JOB)
    assert plan.recommended is not None
    assert rows["wider"]["step_time_s"] == plan.recommended.step_time_s
    assert answer.asked["against"] == [wider.model_dump(mode="json"), "vsc-5"]
    assert Answer.from_json(answer.to_json()) == answer
    known = ask.machine("gpt2", "polaris", against=planner.load_machine("vsc-5"), workload=SHORT)
    assert known == ask.machine("gpt2", "polaris", against="vsc-5", workload=SHORT)


def test_a_machine_without_the_precision_is_a_row_with_the_reason() -> None:
    answer = ask.machine("gpt2", "polaris", against=("vsc-4",), workload=SHORT)
    assert [row["machine"] for row in answer.rows] == ["polaris", "vsc-4"]
    assert "bf16" in answer.rows[1]["reason"]


def test_points_are_worked_out_once() -> None:
    points = scan(JobSpec("gpt2", "polaris", workload=SHORT), "nodes")
    assert points[1] is points[1]
    assert points[561].best is None
    assert "exceeds the 560 nodes" in points[561].reason
