"""Contract: what `estimate` accepts, the search lists, or a named reason leaves it out.

Jobs and layouts are drawn with fixed seeds; PLANNER_DRAWS multiplies their number.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields, replace

import numpy as np
import pytest

from planner.choose.jobs.job_spec import JobSpec
from planner.choose.legality import legal
from planner.choose.legality.check import check_routing, check_sequence
from planner.choose.plan import Plan
from planner.choose.planning import plan
from planner.choose.preferences import preferences
from planner.choose.search import enumerate_layouts
from planner.cost.arrays import Mask
from planner.cost.estimate import estimate_layouts
from planner.cost.operators.backward import selective_frees_nothing
from planner.cost.scenario import Scenario
from planner.cost.schedules.bubble import schedule_by_name
from planner.cost.shards.layouts import Layouts
from planner.describe.catalogue import load_machine, load_model
from planner.describe.layout import OFFLOAD, RECOMPUTE, SCHEDULES, Layout, divisors
from planner.describe.workload import Workload
from planner.errors import PlannerError

DRAWS = int(os.environ.get("PLANNER_DRAWS", "1"))
FRAMEWORKS = (
    *("accelerate", "ddp", "deepspeed", "ezpz", "fsdp2", "horovod", "llm-foundry"),
    *("megatron-deepep", "megatron-deepspeed", "megatron-lm", "megatron-lm-2021"),
    *("megatron-lm-2022", "nanotron", "torchtitan"),
)
MODELS = ("gpt2", "llama-3.2-1b", "llama-3-8b", "qwen3-30b-a3b", "resnet-50", "vit-h-14")
MACHINES = ("polaris", "dgx-h100", "vsc-5", "alps", "frontier", "workstation-1x4090")
ROWS = 20_000
"""Combinations of columns drawn for a job; few of them are legal."""


def jobs(name: str, count: int) -> Iterator[tuple[Scenario, int]]:
    """Draw scenarios of one framework, and numbers of nodes."""
    draw = random.Random(name)
    for _ in range(count):
        model, machine = load_model(draw.choice(MODELS)), load_machine(draw.choice(MACHINES))
        nodes = min(draw.choice([1, 2, 3, 4]), int(machine.num_nodes.value))
        length = 1 if model.counts_samples else draw.choice([512, 1024, 4096])
        workload = Workload(
            sequence_length=length,
            global_batch=draw.choice([8, 24, 64, 192]),
            precision=draw.choice(["bf16", "fp16", "fp32"]),
        )
        try:
            job = JobSpec(model, machine, nodes=nodes, workload=workload, frameworks=name)
            check_sequence(model, workload)
            check_routing(model, workload)
        except PlannerError:
            continue
        for scenario in map(job.scenario, job.searched_frameworks()):
            if not scenario.framework.refuses(machine, workload, model):
                yield scenario, nodes


def accepted(q: Scenario, nodes: int, seed: int) -> Layouts:
    """Draw combinations of columns, and keep those that `estimate` accepts."""
    draw, batch = np.random.default_rng(seed), q.workload.global_batch
    world = nodes * q.machine.node.num_devices
    ways, ones = divisors(world), np.ones(ROWS, dtype=np.int64)

    def some(values: list[int], share: float = 1.0) -> np.ndarray:
        return np.where(draw.random(ROWS) < share, draw.choice(values, ROWS), values[0])

    columns = {axis: some(ways if axis in q.framework.axes else [1], 0.6) for axis in ("tp", "pp")}
    columns["cp"] = some(ways if "cp" in q.framework.axes else [1], 0.3)
    used = columns["tp"] * columns["pp"] * columns["cp"]
    columns["dp"] = np.maximum(world // used, 1)
    columns["micro_batch"] = draw.choice(divisors(batch), ROWS)
    share = columns["dp"] * columns["micro_batch"]
    columns["grad_accumulation"] = np.maximum(batch // share, 1)
    experts = q.model.experts.num_experts if q.model.experts else 1
    columns["ep"] = some(divisors(experts), 0.4)
    columns["etp"] = some([0, 1], 0.3) if experts > 1 else 0 * ones
    kind = q.framework.context[0]
    columns["ulysses"] = columns["cp"] if kind == "ulysses" else ones
    columns["sequence_parallel"] = draw.integers(0, 2, ROWS)
    columns["zero_stage"] = draw.integers(0, 4, ROWS)
    columns["dp_shard"] = columns["dp"]
    columns["offload"] = some(list(range(len(OFFLOAD))), 0.3)
    columns["schedule"] = np.where(columns["pp"] > 1, draw.integers(0, len(SCHEDULES), ROWS), 0)
    several = np.isin(columns["schedule"], [SCHEDULES.index(s) for s in ("none", "1f1b", "gpipe")])
    columns["vpp"] = np.where(several, 1, draw.integers(2, 5, ROWS))
    columns["recompute"] = draw.integers(0, len(RECOMPUTE), ROWS)
    layouts = Layouts.broadcast(**columns)
    fills = (layouts.world == world) & (batch % share == 0)
    layouts = layouts.take(np.flatnonzero(fills))
    mask, _ = legal(q, layouts, set(Layout.model_fields))
    return layouts.take(np.flatnonzero(mask))


def left_out(q: Scenario, x: Layouts) -> dict[str, Mask]:
    """Reasons for which the search lists no layout that is legal, and the layouts that each has."""
    limits, layers = preferences().search, q.model.depth
    largest = limits.max_samples if q.model.counts_samples else limits.max_micro_batch
    slots, offered = x.pp * x.vpp, q.framework.schedules
    dominated = [name for name in offered if schedule_by_name(name).no_better_than in offered]
    stages = q.framework.zero_stages_for(q.workload.precision)
    shortest = max(q.workload.sequence_length // int(limits.min_context_tokens.value), 1)
    named = q.framework.expert_tensor_parallel
    has_choice = q.model.experts is not None and named[0] == "tp" and "one" in named

    def ideal(chunks: int | np.ndarray) -> np.ndarray:
        return -(-layers // (x.pp * chunks)) * (x.num_microbatches * chunks + x.pp - 1)

    return {
        "preferences: max_micro_batch or max_samples": x.micro_batch > largest.value,
        "preferences: min_context_tokens": x.cp > shortest,
        "preferences: fullest_chunk": (x.vpp > 1)
        & (-(-layers // slots) * slots > limits.fullest_chunk.value * layers)
        & np.any([(n < x.vpp) & (ideal(n) <= ideal(x.vpp)) for n in (1, 2, 3)], axis=0),
        "a schedule that another one dominates": np.any(
            [x.dp < 0, *(x.uses_schedule(name) for name in dominated)], axis=0
        ),
        "selective recompute that frees nothing": x.recomputes_selectively
        & selective_frees_nothing(q),
        "ZeRO over one replica": (x.num_replicas == 1)
        & (x.zero_stage != min(stages))
        & x.keeps_states,
        "sequence parallelism is the default with tp": (x.tp > 1)
        & ~x.splits_sequence
        & (q.framework.sequence_parallel == "by-default"),
        "etp that states what ep = 1 or tp = 1 imply, or no choice of the search": (x.etp > 0)
        & ((not has_choice) | (x.tp == 1) | (x.ep == 1)),
    }


def keys(layouts: Layouts) -> set[tuple[int, ...]]:
    """Layouts as tuples of their columns."""
    columns = [np.ravel(getattr(layouts, field.name)) for field in fields(layouts)]
    return set(map(tuple, np.stack(np.broadcast_arrays(*columns), axis=-1).tolist()))


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_the_search_lists_what_estimate_accepts_or_names_a_reason(name: str) -> None:
    reasons: Counter[str] = Counter()
    drawn = 0
    for number, (q, nodes) in enumerate(jobs(name, 4 * DRAWS)):
        layouts = accepted(q, nodes, number)
        listed = keys(enumerate_layouts(q, nodes * q.machine.node.num_devices)[0])
        because = left_out(q, layouts)
        excused = np.any(list(because.values()), axis=0)
        for row in np.flatnonzero(~excused):
            one = layouts.take(slice(row, row + 1))
            assert keys(one) <= listed, f"{layouts[int(row)]}: {q.model.name} on {q.machine.name}"
        drawn += len(layouts)
        reasons.update({reason: int(np.sum(mask)) for reason, mask in because.items()})
    print(name, drawn, "accepted layouts;", dict(+reasons))
    assert drawn


def planned(q: Scenario, nodes: int) -> Plan:
    """Plan a drawn job as it was asked."""
    return plan(
        q.model, q.machine, nodes=nodes, workload=q.workload, frameworks=q.framework, exact=True
    )


def of_files(q: Scenario, layouts: Layouts) -> Mask:
    """True for layouts that the framework's configuration files can state."""
    limited = replace(q, framework=q.framework.limit_to_files(q.model, q.workload))
    return legal(limited, layouts, set(Layout.model_fields))[0]


FASTER = {
    # a larger micro-batch fills the device again that a short slice leaves idle
    "preferences: min_context_tokens": 0.15,
    # two collectives have twice the latency of one, which small messages feel
    "sequence parallelism is the default with tp": 0.25,
}
"""By how much a layout may be faster than the plan if the search leaves it out for a reason."""


@pytest.mark.slow
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_nothing_that_estimate_accepts_is_faster_than_the_plan(name: str) -> None:
    for number, (q, nodes) in enumerate(jobs(name, 2 * DRAWS)):
        layouts = accepted(q, nodes, number)
        if not len(layouts):
            continue
        answer, because = planned(q, nodes), left_out(q, layouts)
        # a larger micro-batch than any that is searched may fit and be faster
        compared = ~because["preferences: max_micro_batch or max_samples"]
        if answer.best is not None and of_files(q, Layouts.stack([answer.best.layout])).all():
            compared &= of_files(q, layouts)
        layouts = layouts.take(np.flatnonzero(compared))
        estimates, reasons = estimate_layouts(q, layouts), left_out(q, layouts)
        if np.any(estimates.fits):
            assert answer.best is not None
            allowed = np.zeros(len(layouts))
            for reason, gain in FASTER.items():
                allowed = np.maximum(allowed, gain * reasons[reason])
            gains = answer.best.step_time_s / estimates.step_time_s - 1
            row = int(np.argmax(np.where(estimates.fits, gains - allowed, -1)))
            assert gains[row] <= allowed[row] + 1e-9, (q.model.name, q.machine.name, layouts[row])


@pytest.mark.slow
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_the_recommended_layout_is_ranked(name: str) -> None:
    """In the plan's list, its records and its first data frame, in the order of step times."""
    for q, nodes in jobs(name, 2 * DRAWS):
        answer = planned(q, nodes)
        times = [each.step_time_s for each in answer.ranked]
        assert np.all(np.diff(times) >= -1e-9)
        if (best := answer.recommended) is not None:
            assert answer.ranked.count(best) == 1
            assert best.record() in answer.records()
            assert str(best.layout) in map(str, (each.layout for each in answer.ranked))


def test_gpt2_on_one_node_ranks_what_it_recommends() -> None:
    workload = Workload(global_batch=64, sequence_length=512)
    answer = plan("gpt2", "polaris", nodes=1, workload=workload, frameworks="megatron-lm")
    assert answer.recommended in answer.ranked
