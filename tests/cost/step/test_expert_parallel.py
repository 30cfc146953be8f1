"""Experts: how far tokens travel, and what of it runs behind another micro-batch."""

from __future__ import annotations

import numpy as np
import pytest

from planner.cost.estimate import estimate_layouts
from planner.cost.memory.in_flight import passes_in_flight
from planner.cost.network.groups import Groups, geometry
from planner.cost.operators.blocks import blocks_of
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.cost.shards.stages import Stages
from planner.cost.step.communication.bytes_per_axis import step_traffic
from planner.cost.step.communication.expert_parallel import (
    crossing_part,
    expert_s,
    exposed_experts_s,
    split_expert_s,
)
from planner.describe.catalogue import load_framework, load_model
from planner.describe.framework.framework import Framework
from planner.describe.layout import Layout
from tests.descriptions import scenario


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
    job = scenario(model, framework, machine)
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
    job = scenario("mixtral-8x7b", OVERLAPPED)
    assert float(exposed_experts_s(job, layouts, four, three)) == pytest.approx(left)
    plain = scenario("mixtral-8x7b", PLAIN)
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
        passes_in_flight(
            Stages.of_pipeline(scenario("mixtral-8x7b", framework), layout)
        ).micro_batches
        for framework in (PLAIN, OVERLAPPED)
    )
    assert (merged - plain).tolist() == [more] * layout.pp


def timed(job: Scenario, layout: Layout) -> float:
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
    job = scenario("deepseek-v3", framework, machine, global_batch=batch, precision="fp8")
    assert timed(job, layout) == pytest.approx(seconds, rel=0.2)


def test_wide_expert_parallelism_pays_with_deepep_alone() -> None:
    # DeepSeek-AI 2024, arXiv:2412.19437, section 3.2: 16 stages, experts over 64 ranks
    narrow = Layout(dp=64, pp=16, vpp=2, ep=8, grad_accumulation=64)
    layouts = (narrow.replaced(zero_stage=1, schedule="interleaved-1f1b", ep=ep) for ep in (8, 64))
    few, many = (
        [
            timed(scenario("deepseek-v3", framework, "dgx-h100", global_batch=4096), layout)
            for framework in ("megatron-lm", DEEPEP)
        ]
        for layout in layouts
    )
    assert many[0] > 1.5 * few[0]  # every copy crosses the network
    assert many[1] < 1.1 * few[1]


# --- experts apart from the layers around them --------------------------------------------------

FOLDED = Layout(dp=16, tp=4, ep=64, etp=1, sequence_parallel=True, zero_stage=1)
"""The expert mesh over the ranks of dp and tp: 64 ranks that hold different experts."""
TOGETHER = FOLDED.replaced(ep=16, etp=0)


def test_groups_of_experts_lie_over_all_ranks_of_a_stage() -> None:
    # Liu et al. 2025, arXiv:2504.14960, section 3.2: etp fastest, then ep, then replicas
    wide = FOLDED.replaced(ep=16, etp=2, pp=2)
    place = geometry(Layouts.of(wide))
    kinds = ("expert_tensor", "expert", "expert_data", "pipeline")
    assert [tuple(map(int, place[kind])) for kind in kinds] == [(2, 1), (16, 2), (2, 32), (2, 64)]
    assert [int(x) for x in geometry(Layouts.of(TOGETHER))["expert"]] == [16, 4]  # a tp group apart


@pytest.mark.parametrize("layout", [FOLDED, FOLDED.replaced(ep=8), TOGETHER])
def test_all_ranks_together_hold_every_expert_as_often_as_it_is_replicated(layout: Layout) -> None:
    job = scenario("qwen3-30b-a3b", "megatron-lm", "dgx-h100")
    stages = Stages.of_pipeline(job, layout)
    experts = sum(
        block.count * weight.num_params
        for block in stages.blocks
        for weight in block.weights
        if weight.expert
    )
    alone = Stages.of_pipeline(job, Layout(tp=4, sequence_parallel=True)).params.unsharded.item()
    mine = experts / (layout.ep * (layout.etp or layout.tp))
    assert stages.params.unsharded.item() == pytest.approx(alone - experts / 4 + mine)
    # states of experts over their replicas, those of the rest over dp
    replicas = layout.world / (layout.ep * (layout.etp or layout.tp))
    sharded = (alone - experts / 4) / layout.dp + mine / replicas
    assert stages.params.sharded.item() == pytest.approx(sharded)


def sent(layout: Layout, framework: str = "megatron-lm", **asked: object) -> tuple[float, float]:
    """Forward bytes of a layer's all-to-alls, and of what ranks that split experts gather."""
    job = scenario("mixtral-8x7b", framework, "dgx-h100", **asked)
    layouts = Layouts.of(layout).with_default_etp(job.framework)
    layer, unit = blocks_of(job)[1], Groups.unit(layouts)
    return tuple(float(f(job, layer, layouts, unit)[0]) for f in (expert_s, split_expert_s))  # type: ignore[return-value]


def test_whole_experts_need_no_gather_beside_tensor_parallelism() -> None:
    stream = 4096 * 4096 * 2
    split = Layout(dp=8, tp=4, ep=8, sequence_parallel=True)
    # a fourth of the stream twice over, 7/8 of it to others, there and back; gathered, 3/4 of all
    assert sent(split) == pytest.approx((2 * 7 / 8 * stream / 2, 2 * 3 / 4 * stream * 2))
    assert sent(split.replaced(etp=1)) == pytest.approx((2 * 7 / 8 * stream / 2, 0))
    # 8 experts over two tensor-parallel groups: what the switch to etp = 1 makes possible
    assert sent(split.replaced(dp=2, etp=1))[1] == 0


def test_the_axes_of_experts_send_what_the_step_waits_for() -> None:
    job = scenario("mixtral-8x7b", "megatron-lm", "dgx-h100", global_batch=8)
    split = Layout(dp=2, tp=4, ep=2, sequence_parallel=True, grad_accumulation=4)
    together, apart = (step_traffic(job, split.replaced(etp=etp)) for etp in (0, 1))
    assert set(together) - set(apart) == {"etp"}
    assert apart["ep"].device_bytes == pytest.approx(together["ep"].device_bytes)


def test_experts_of_other_frameworks_are_whole_or_split_unasked() -> None:
    spread = Layouts.of(Layout(dp=4, tp=2, ep=4, sequence_parallel=True))
    found = [
        spread.with_default_etp(load_framework(name)).expert_tp for name in ("megatron-lm", "fsdp2")
    ]
    assert [int(split) for split in found] == [2, 1]
    alone = Layouts.of(Layout(dp=4, tp=2, sequence_parallel=True))
    assert int(alone.with_default_etp(load_framework("fsdp2")).expert_tp) == 2


def test_narrow_experts_run_faster_whole() -> None:
    # Megatron-Core's README of MoE: etp 1 for fine-grained experts; rows of 768 split over 4
    job = scenario("qwen3-30b-a3b", "megatron-lm", "dgx-h100", global_batch=64)
    split = TOGETHER.replaced(grad_accumulation=4)
    assert timed(job, split.replaced(etp=1)) < timed(job, split)


@pytest.mark.parametrize(("batch", "seconds"), [(8192, 76.56), (8192, 81.36), (2048, 20.81)])
def test_qwen3_235b_as_nvidia_published_it(batch: int, seconds: float) -> None:
    """256 H100 with experts over 32 ranks of 16 replicas and tp 2; 26.04, 26.02 and 25.11."""
    layout = Layout(dp=16, tp=2, pp=8, vpp=4, ep=32, etp=1, grad_accumulation=batch // 16)
    layout = layout.replaced(zero_stage=1, sequence_parallel=True, schedule="interleaved-1f1b")
    job = scenario("qwen3-235b-a22b", OVERLAPPED, "dgx-h100", global_batch=batch, precision="fp8")
    assert timed(job, layout) == pytest.approx(seconds, rel=0.15)
    assert bool(estimate_layouts(job, Layouts.of(layout)).fits)


@pytest.mark.parametrize(
    ("model", "layout", "flop_per_s"),
    [
        # 64 H100, Megatron Core 0.9: 468 TFLOP/s; the mapping is that of 0.8 (its README of MoE)
        ("mixtral-8x7b", Layout(dp=16, pp=4, vpp=8, ep=8, grad_accumulation=16), 468e12),
        # MFU 49.3 % with folding: Liu et al. 2025, arXiv:2504.14960, abstract; a mapping that fits
        (
            "mixtral-8x22b",
            Layout(dp=8, tp=2, pp=8, vpp=7, ep=8, etp=1, grad_accumulation=32),
            0.493 * 989e12,
        ),
    ],
)
def test_mixtral_as_nvidia_published_it(model: str, layout: Layout, flop_per_s: float) -> None:
    layout = layout.replaced(
        zero_stage=1, schedule="interleaved-1f1b", sequence_parallel=layout.tp > 1
    )
    job = scenario(model, "megatron-lm", "dgx-h100", global_batch=256)
    found = estimate_layouts(job, Layouts.of(layout))[0]
    assert found.fits
    assert found.mfu * 989e12 == pytest.approx(flop_per_s, rel=0.15)


# --- uneven routing and capacity ----------------------------------------------------------------


def test_the_fullest_rank_sets_the_pace_and_needs_the_memory() -> None:
    layout = Layout(dp=8, ep=8, grad_accumulation=1)

    def found(layout: Layout, **asked: object) -> tuple[float, float]:
        job = scenario("mixtral-8x7b", "megatron-lm", "dgx-h100", global_batch=8, **asked)
        one = estimate_layouts(job, Layouts.of(layout))[0]
        return one.step_time_s, one.memory_bytes["activations"]

    even, uneven = found(layout), found(layout, expert_imbalance=1.5)
    assert np.all(np.array(uneven) > even)
    # what is beyond an expert's capacity is dropped; padded experts are all as full
    assert found(layout, expert_imbalance=1.5, expert_capacity=1.25)[1] < uneven[1]
    assert found(layout, expert_capacity=1.25) == even
    padded = found(layout, expert_capacity=1.5, pad_experts=True)
    assert padded == pytest.approx(uneven)
    # with all experts on every rank none is fuller than another
    alone = layout.replaced(ep=1)
    assert found(alone, expert_imbalance=1.5) == found(alone)


@pytest.mark.parametrize(
    ("job", "kept"),
    [
        ({"expert_capacity": 0.1}, 0.1),
        ({"expert_capacity": 0.1, "pad_experts": True}, 0.1),
        ({"expert_capacity": 1.25, "pad_experts": True}, 1),  # padding is no token
        # the fullest of 8 ranks drops half of its 1.5 / 8, the others 1/8 less than all of theirs
        ({"expert_capacity": 0.75, "expert_imbalance": 1.5}, 0.75),
        ({"expert_capacity": 1, "expert_imbalance": 1.5}, 1 - 0.5 / 8),
    ],
)
def test_dropped_tokens_are_no_operations(job: dict[str, float], kept: float) -> None:
    """MFU counts what experts take: 2 of 8 experts, 3 products of 4096 x 14336 in 32 layers."""
    layout = Layout(dp=32, ep=8, zero_stage=1, grad_accumulation=8)
    plain, dropping = (
        estimate_layouts(
            scenario("mixtral-8x7b", "megatron-lm", "dgx-h100", global_batch=256, **more),
            Layouts.of(layout),
        )
        for more in ({}, job)
    )
    tokens = plain.scenario.workload.tokens_per_step
    routed = 6 * tokens * 32 * 2 * 3 * 4096 * 14336
    dropped = plain.model_flop - dropping.model_flop
    assert float(dropped) == pytest.approx(routed * (1 - kept), rel=1e-6, abs=1)
    assert float(dropping.mfu) < 0.6


def test_tokens_travel_to_their_experts_in_eight_bits() -> None:
    layout = Layout(dp=8, ep=8)
    plain, narrow = (sent(layout, name)[0] for name in ("megatron-lm", "megatron-lm+fp8-dispatch"))
    # DeepSeek-AI 2024, arXiv:2412.19437, section 3.3.3: dispatch in FP8, combine in BF16
    assert narrow / plain == pytest.approx((1 + (1 + 4 / 128) / 2) / 2)


def test_deepep_is_two_switches() -> None:
    named = load_framework("megatron-lm+deepep+overlap-experts")
    assert named.communication == DEEPEP.communication
