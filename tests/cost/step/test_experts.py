"""Experts: how far tokens travel, and what of it runs behind another micro-batch."""

from __future__ import annotations

import numpy as np
import pytest

from planner.cost.estimate import estimate_layouts
from planner.cost.memory.in_flight import in_flight_on
from planner.cost.network.groups import Groups
from planner.cost.operators.blocks import blocks_of
from planner.cost.question import Question
from planner.cost.shards.layouts import Layouts
from planner.cost.shards.stages import Stages
from planner.cost.step.experts import crossing_part, expert_s, exposed_experts_s
from planner.describe.catalogue import load_framework, load_model
from planner.describe.framework.framework import Framework
from planner.describe.layout import Layout
from tests.descriptions import question


def exchanging(**traits: bool) -> Framework:
    """Megatron-LM with another exchange of tokens."""
    plain = load_framework("megatron-lm")
    communication = plain.communication.replaced(**traits).model_dump()
    mixed = plain.mixed.replaced(gradient_bytes=2, reduce_bytes=2).model_dump()
    return plain.replaced(communication=communication, mixed=mixed)


PLAIN = exchanging()
ONCE = exchanging(experts_once_per_node=True)
OVERLAPPED = exchanging(overlap_experts=True)
BOTH = exchanging(experts_once_per_node=True, overlap_experts=True)
DEEPEP = load_framework("megatron-deepep")


def dispatch(framework: Framework, machine: str, ep: int, model: str = "deepseek-v3") -> float:
    job = question(model, framework, machine)
    layouts = Layouts.of(Layout(dp=ep, ep=ep, micro_batch=8))
    layer = next(block for block in blocks_of(job) if block.dispatch_top_k)
    return float(expert_s(job, layer, layouts, Groups.of(layouts, job.machine))[0])


@pytest.mark.parametrize(
    ("model", "nodes", "copies"),
    [
        # DeepSeek-V3: 8 experts of 4 of 8 groups, so of at most 4 nodes, 7/8 of them others'
        ("deepseek-v3", 8, 4 * 7 / 8),
        # 16 nodes: two for every group
        ("deepseek-v3", 16, 16 * (1 - (15 / 16) ** 8) * 15 / 16),
        # DeepSeek-V2: 6 experts of 3 of 8 groups
        ("deepseek-v2", 8, 3 * 7 / 8),
        # without groups: 2 (1 - 1/2^8) nodes, half of them the other one
        ("qwen3-30b-a3b", 2, 2 * (1 - 0.5**8) / 2),
        ("mixtral-8x7b", 1, 0),
    ],
)
def test_a_token_crosses_the_network_once_per_node(model: str, nodes: int, copies: float) -> None:
    described = load_model(model)
    assert described.experts is not None
    crossing = float(crossing_part(described, nodes)) * described.experts.top_k
    assert crossing == pytest.approx(min(copies, 8 * 7 / 8))


@pytest.mark.parametrize("model", ["deepseek-v3", "qwen3-30b-a3b", "mixtral-8x7b", "gpt-oss-120b"])
def test_no_more_crosses_than_all_copies(model: str) -> None:
    nodes = np.array([1, 2, 3, 4, 8, 16, 64])
    crossing = crossing_part(load_model(model), nodes)
    assert np.all(crossing >= 0)
    assert np.all(crossing <= (nodes - 1) / nodes + 1e-12)


def test_node_limited_routing_halves_what_leaves_a_node() -> None:
    # 7 of 8 copies, or 3.5 of them: DeepSeek-AI 2024, arXiv:2412.19437, section 3.2.2
    assert dispatch(PLAIN, "dgx-h100", 64) == pytest.approx(
        2 * dispatch(ONCE, "dgx-h100", 64), rel=0.05
    )


@pytest.mark.parametrize(("machine", "ep"), [("dgx-h100", 8), ("dgx-gb200", 64)])
def test_one_nvlink_domain_forwards_nothing(machine: str, ep: int) -> None:
    assert dispatch(ONCE, machine, ep) == pytest.approx(dispatch(PLAIN, machine, ep))


@pytest.mark.parametrize(
    ("changes", "left"),
    [
        ({"grad_accumulation": 4}, 1 + 0.2 * 3),  # 4 s beside 3 s, and their contention
        ({"grad_accumulation": 1}, 4),  # no other micro-batch
        ({"grad_accumulation": 4, "recompute": "full"}, 4),
        ({"grad_accumulation": 4, "pp": 2, "schedule": "1f1b"}, 4),
        ({"grad_accumulation": 4, "pp": 2, "vpp": 2, "schedule": "interleaved-1f1b"}, 1.6),
    ],
)
def test_dispatch_hides_where_megatron_can_merge_passes(
    changes: dict[str, object], left: float
) -> None:
    # transformer_config.py @d98e8a64: overlap_moe_expert_parallel_comm and its assertions
    layouts = Layouts.of(Layout(dp=8, ep=8).replaced(**changes))
    four, three = np.asarray(4.0), np.asarray(3.0)
    job = question("mixtral-8x7b", OVERLAPPED)
    assert float(exposed_experts_s(job, layouts, four, three)) == pytest.approx(left)
    plain = question("mixtral-8x7b", PLAIN)
    assert float(exposed_experts_s(plain, layouts, four, three)) == 4


@pytest.mark.parametrize(
    ("changes", "more"),
    [
        ({}, 1),  # two micro-batches in place of one
        ({"pp": 2, "vpp": 2, "schedule": "interleaved-1f1b"}, 0.5),  # one chunk of two
        ({"recompute": "full"}, 0),
    ],
)
def test_merged_passes_hold_one_more(changes: dict[str, object], more: float) -> None:
    # Megatron-LM, schedules.py: num_warmup_microbatches + 1; combined_1f1b.py without a pipeline
    layout = Layout(dp=8, ep=8, grad_accumulation=8).replaced(**changes)
    plain, merged = (
        in_flight_on(Stages.every(question("mixtral-8x7b", framework), layout)).micro_batches
        for framework in (PLAIN, OVERLAPPED)
    )
    assert (merged - plain).tolist() == [more] * layout.pp


def timed(job: Question, layout: Layout) -> float:
    return float(estimate_layouts(job, Layouts.of(layout)).step_time_s)


@pytest.mark.parametrize(
    ("machine", "batch", "layout", "graphed", "seconds"),
    [
        # Megatron-Bridge 25.09, 1024 H100, with DeepEP and overlap: 25.26 s (38.0 without either)
        (
            "dgx-h100",
            8192,
            Layout(dp=64, tp=2, pp=8, vpp=4, ep=64, sequence_parallel=True, grad_accumulation=128),
            0,
            25.26,
        ),
        # 26.04.01, 256 B200: 19.69 s (45.9)
        ("dgx-b200", 4096, Layout(dp=32, pp=8, vpp=2, ep=32, grad_accumulation=128), 0.62, 19.69),
        # 26.08, 256 GB200, graphs of full iterations: 13.34 s (16.5)
        ("dgx-gb200", 4096, Layout(dp=64, pp=4, vpp=4, ep=64, grad_accumulation=64), 1, 13.34),
    ],
)
def test_deepseek_v3_as_nvidia_published_it(
    machine: str, batch: int, layout: Layout, graphed: float, seconds: float
) -> None:
    layout = layout.replaced(zero_stage=1, schedule="interleaved-1f1b")
    part = {"value": graphed, "kind": "datasheet", "source": "Megatron-Bridge's recipes"}
    framework = BOTH.replaced(host=BOTH.host.replaced(graphed=part).model_dump())
    job = question("deepseek-v3", framework, machine, global_batch=batch, precision="fp8")
    assert timed(job, layout) == pytest.approx(seconds, rel=0.2)


def test_wide_expert_parallelism_pays_with_deepep_alone() -> None:
    # DeepSeek-AI 2024, arXiv:2412.19437, section 3.2: 16 stages, experts over 64 ranks
    narrow = Layout(dp=64, pp=16, vpp=2, ep=8, grad_accumulation=64)
    layouts = (narrow.replaced(zero_stage=1, schedule="interleaved-1f1b", ep=ep) for ep in (8, 64))
    few, many = (
        [
            timed(question("deepseek-v3", framework, "dgx-h100", global_batch=4096), layout)
            for framework in ("megatron-lm", DEEPEP)
        ]
        for layout in layouts
    )
    assert many[0] > 1.5 * few[0]  # every copy crosses the network
    assert many[1] < 1.1 * few[1]
