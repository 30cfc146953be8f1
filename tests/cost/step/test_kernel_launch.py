"""Host: what it takes to issue a pass, and what devices wait for it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from planner.cost.estimate import estimate_layouts
from planner.cost.network.groups import Groups
from planner.cost.operators.blocks import blocks_of
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.cost.step.block_pass import block_passes
from planner.cost.step.kernel_launch import host_pass_s, host_wait_s, num_kernels
from planner.describe.catalogue import load_framework, load_machine, load_model
from planner.describe.layout import Layout
from planner.describe.model.block import Block
from planner.describe.workload import Workload
from tests.descriptions import scenario


def host_s(q: Scenario, *layouts: Layout) -> Any:
    """Of a layer's pass [s]."""
    stacked = Layouts.stack(layouts)
    return host_pass_s(q, blocks_of(q)[1], stacked, Groups.of(stacked, q.machine))


def test_tiny_work_waits_for_every_kernel() -> None:
    q = scenario("gpt2", framework="ddp", sequence_length=1, global_batch=1)
    _, layer, _ = blocks_of(q)
    device, host = q.machine.device, q.framework.host
    one = device.launch_s.value * host.dispatch_ratio.value
    time = block_passes(q, (layer,), Layouts.of(Layout()))[0]
    assert float(time.total_s) == pytest.approx(3 * num_kernels(layer, "flash") * one)
    assert float(time.host_s) > 0.9 * float(time.total_s)


def test_recompute_issues_the_forward_pass_once_more() -> None:
    q = scenario("gpt2", framework="ddp")
    plain, again = host_s(q, Layout(), Layout(recompute="full"))
    assert again / plain == pytest.approx(4 / 3)


def test_devices_with_much_to_do_wait_for_nothing() -> None:
    q = scenario("llama-3-8b", framework="fsdp2", sequence_length=8192)
    time = block_passes(q, blocks_of(q), Layouts.of(Layout(dp=8)))
    assert [float(work.host_s) for work in time] == [0, 0, 0]


def test_blocking_launches_add_the_host_s_time() -> None:
    q = scenario("llama-3-8b", sequence_length=8192)
    layouts, busy = Layouts.of(Layout()), np.asarray(1.0)
    groups, (_, layer, _) = Groups.of(layouts, q.machine), blocks_of(q)
    host = q.framework.host.replaced(awaits_kernels=True).model_dump()
    blocking = Scenario(q.model, q.machine, q.workload, q.framework.replaced(host=host))
    assert float(host_wait_s(q, layer, layouts, groups, busy)) == 0
    waited = float(host_wait_s(blocking, layer, layouts, groups, busy))
    assert waited == pytest.approx(float(host_s(q, Layout())[0]))


def test_routing_adds_the_host_s_time_unless_graphs_leave_none() -> None:
    q = scenario("mixtral-8x7b", sequence_length=8192)
    layouts, busy = Layouts.of(Layout(dp=8, ep=8)), np.asarray(1.0)
    groups, (_, layer, head) = Groups.of(layouts, q.machine), blocks_of(q)

    def waited(graphed: float, block: Block) -> float:
        part = {"value": graphed, "kind": "assumed", "source": "what if"}
        host = q.framework.host.replaced(graphed=part).model_dump()
        job = Scenario(q.model, q.machine, q.workload, q.framework.replaced(host=host))
        return float(host_wait_s(job, block, layouts, groups, busy))

    alone, half, none = (waited(part, layer) for part in (0.0, 0.5, 1.0))
    assert 1e-3 < alone < 3e-3  # 27 kernels, thrice
    assert half == pytest.approx(alone / 2)
    assert none == waited(0.0, head) == 0


def test_awaited_collectives_take_what_nanotron_s_runs_took() -> None:
    """4.3 ms a layer on one node whatever tp, as much again for each node; 7.7 ms and rising with a
    pipeline (nanotron.toml)."""
    q = scenario("llama-3-8b", machine="h100-cluster", framework="nanotron")
    two, eight, sixteen = host_s(q, *(Layout(tp=tp, sequence_parallel=True) for tp in (2, 8, 16)))
    assert two == eight == sixteen / 2 == pytest.approx(4.3e-3, rel=0.02)
    piped, wide = host_s(q, *(Layout(tp=tp, pp=2, sequence_parallel=True) for tp in (2, 8)))
    assert piped == pytest.approx(7.7e-3, rel=0.02)
    assert wide / piped == pytest.approx(4**0.65)


def test_eager_llama_1b_is_the_host_s() -> None:
    """One B200, 512 tokens: 58.8 ms eager, 18.7 compiled (stas00/ml-engineering)."""
    model, machine = load_model("llama-3.2-1b"), load_machine("dgx-b200")
    job = Workload(sequence_length=512, global_batch=1)
    layouts = Layouts.of(Layout(recompute="full"))

    def step_s(framework: str, ratio: float | None = None) -> float:
        description = load_framework(framework)
        if ratio is not None:
            host = description.host.model_dump()
            host["dispatch_ratio"]["value"] = ratio
            description = description.replaced(host=host)
        found = estimate_layouts(Scenario(model, machine, job, description), layouts)
        return float(found.step_time_s)

    assert step_s("accelerate") == pytest.approx(58.8e-3, rel=0.1)
    assert step_s("accelerate", 1.0) < 0.5 * step_s("accelerate")


def test_short_micro_batches_do_not_get_cheaper_without_end() -> None:
    """A small model takes longer with one short sequence at a time than with four."""
    q = scenario("gpt2", framework="ddp", sequence_length=512, global_batch=32)
    layouts = Layouts.stack(
        [Layout(micro_batch=1, grad_accumulation=32), Layout(micro_batch=4, grad_accumulation=8)]
    )
    one, four = estimate_layouts(q, layouts).step_time_s
    assert one > 1.5 * four
