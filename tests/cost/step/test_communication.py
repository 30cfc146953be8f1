"""Communication: how much each axis sends, checked through a network with round numbers."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.cost.estimate import estimate_layouts
from planner.cost.network.groups import Groups
from planner.cost.network.topology import unit_view
from planner.cost.operators.blocks import blocks_of
from planner.cost.parts import TIME_PARTS
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.cost.shards.stages import Stages
from planner.cost.shards.states import expert_share
from planner.cost.step.block_pass import block_passes
from planner.cost.step.communication.context_parallel import context_s
from planner.cost.step.communication.data_parallel import data_traffic
from planner.cost.step.communication.expert_parallel import expert_s
from planner.cost.step.communication.pipeline_p2p import (
    Transfer,
    send_stage_s,
    stage_transfer,
    transfer_wait_s,
)
from planner.cost.step.communication.tensor_parallel import repeated_tensor_s, tensor_s
from planner.describe.catalogue import load_framework, load_machine
from planner.describe.layout import Layout
from tests import descriptions

SEQUENCE = 4096


scenario = functools.partial(
    descriptions.scenario, machine="selene", sequence_length=SEQUENCE, global_batch=64
)


def seconds_per_byte(q: Scenario) -> float:
    fabric = q.machine.node.fabric
    rate = fabric.device_bytes_per_s or fabric.pair_bytes_per_s
    assert rate is not None
    return 1 / (rate.value * fabric.efficiency.value)


def test_groups_follow_the_rank_order() -> None:
    # tp fastest, then cp, dp, pp: 8 ranks a node
    layouts = Layouts.of(Layout(tp=4, cp=2, dp=4, pp=2, ep=2))
    groups = Groups.of(layouts, load_machine("selene"))
    assert (float(groups.tensor.size), float(groups.tensor.nodes)) == (4, 1)
    assert (float(groups.context.size), float(groups.context.nodes)) == (2, 1)
    assert (float(groups.data.size), float(groups.data.nodes)) == (8, 4)
    assert (float(groups.expert.size), float(groups.expert_data.size)) == (2, 4)
    assert (float(groups.pipeline.size), float(groups.pipeline.local)) == (2, 1)


def test_hybrid_sharding_gathers_inside_the_node() -> None:
    layouts = Layouts.of(Layout(dp=32, dp_shard=8, zero_stage=3))
    groups = Groups.of(layouts, load_machine("selene"))
    assert (float(groups.shard.size), float(groups.shard.nodes)) == (8, 1)
    assert (float(groups.replica.size), float(groups.replica.nodes)) == (4, 4)


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_tensor_traffic_of_a_layer(sequence_parallel: bool) -> None:
    # Shoeybi et al. 2019, arXiv:1909.08053: two all-reduces of s b h forward, two backward;
    # Korthikanti et al. 2022: the same bytes as all-gather and reduce-scatter, and one more
    # all-gather per region in backward
    q = scenario()
    layouts = Layouts.of(Layout(tp=8, micro_batch=64, sequence_parallel=sequence_parallel))
    groups = Groups.of(layouts, q.machine)
    width = q.model.hidden_size
    forward, backward = tensor_s(q, blocks_of(q)[1], layouts, groups)
    size = 2.0 * 64 * SEQUENCE * width
    region = 2 * 7 / 8 * size * seconds_per_byte(q)
    assert float(forward) == pytest.approx(2 * region, rel=0.05)
    assert float(backward) == pytest.approx((3 if sequence_parallel else 2) * region, rel=0.05)


def test_tensor_traffic_needs_a_group() -> None:
    q = scenario()
    layouts = Layouts.of(Layout())
    times = tensor_s(q, blocks_of(q)[1], layouts, Groups.of(layouts, q.machine))
    assert [float(t) for t in times] == [0, 0]


def test_ring_attention_passes_keys_and_values() -> None:
    # Liu et al. 2023, arXiv:2310.01889: cp - 1 transfers of a rank's keys and values
    q = scenario()
    layouts = Layouts.of(Layout(cp=4, micro_batch=64))
    forward, backward = context_s(q, blocks_of(q)[1], layouts, Groups.of(layouts, q.machine))
    size = 64 * SEQUENCE / 4 * 2 * (8 * 128) * 2
    assert float(forward) == pytest.approx(3 * size * seconds_per_byte(q), rel=0.05)
    assert float(backward) == 2 * float(forward)


@pytest.mark.parametrize(("tokens", "hidden"), [(4096, False), (131072, True)])
def test_keys_and_values_hide_behind_attention_alone(tokens: int, hidden: bool) -> None:
    """Attention grows with the square of the sequence, what passes around does not.

    Of four pieces of attention the last has no transfer to hide.
    """
    q = scenario(machine="polaris", sequence_length=tokens)
    layouts = Layouts.of(Layout(tp=4, cp=4, grad_accumulation=64))
    layer, work = next(
        (block, work)
        for block, work in zip(blocks_of(q), block_passes(q, blocks_of(q), layouts), strict=True)
        if block.kind == "layer"
    )
    ahead, back = (float(s) for s in context_s(q, layer, layouts, Groups.of(layouts, q.machine)))
    core = [float(work.compute.core_forward_s), float(work.compute.core_backward_s)]
    left = [max(ahead - 3 / 4 * core[0], 0), max(back - 3 / 4 * core[1], 0)]
    assert float(work.context_s) == pytest.approx(sum(left), rel=1e-9)
    assert (sum(left) == 0) == hidden
    # what is hidden leaves the node all the same
    behind = float(work.behind_forward_s + work.behind_backward_s)
    assert behind == pytest.approx(ahead + back - sum(left))


def test_what_is_gathered_at_once_hides_behind_the_first_piece() -> None:
    """torch waits for all keys and values before its second piece of attention, and for the last
    gradients to arrive."""
    q = scenario(framework="fsdp2", machine="polaris", sequence_length=65536)
    layouts = Layouts.of(Layout(tp=4, cp=4, dp=2, zero_stage=2))
    layer, work = blocks_of(q)[1], block_passes(q, blocks_of(q), layouts)[1]
    sent = [float(s) for s in context_s(q, layer, layouts, Groups.of(layouts, q.machine))]
    passed = sent[1] - sent[0]
    piece = float(work.compute.core_forward_s) / 4
    assert piece < sent[0] < float(work.compute.core_forward_s)
    assert passed < 3 / 4 * float(work.compute.core_backward_s)
    assert float(work.context_s) == pytest.approx(sent[0] - piece + passed / 4)


def test_a_ring_that_leaves_the_node_is_as_slow_as_where_it_leaves() -> None:
    """Eight context ranks on two nodes of four: six hops stay inside, two do not."""
    q = scenario(machine="polaris")
    slow = scenario(machine=load_machine("polaris", ("node.nic_bytes_per_s=1GB/s",)))
    layouts = Layouts.of(Layout(cp=8))
    inside = Layouts.of(Layout(cp=4))

    def passed(job: Scenario, these: Layouts) -> float:
        return float(context_s(job, blocks_of(job)[1], these, Groups.of(these, job.machine))[0])

    assert passed(slow, inside) == passed(q, inside)
    # one GPU sends through one interface of 25 GB/s, at 0.72 of its rate, not through both
    size = 4096 / 8 * 2 * (8 * 128) * 2
    hop = size / (25e9 * 0.72)
    waits = 160e-6  # from node to node, for 512 KiB and more
    assert passed(q, layouts) == pytest.approx(7 * (hop + waits), rel=1e-6)
    assert passed(slow, layouts) == pytest.approx(7 * (25 * hop + waits), rel=1e-6)


def test_a_stage_on_the_edge_of_a_node_has_one_neighbour_far_away() -> None:
    """Stages two by two on a node: a stage sends one way inside it, the other over the network."""
    q = scenario(machine="polaris")
    pair, four, spread = (
        Layouts.of(Layout(**degrees)) for degrees in ({"pp": 2}, {"pp": 8}, {"dp": 4, "pp": 2})
    )
    near, edge, far = (
        float(send_stage_s(q, x, Groups.of(x, q.machine))) for x in (pair, four, spread)
    )
    stream = 4096 * 4096 * 2
    assert near == pytest.approx(1.9e-6 + stream / (100e9 * 0.74))
    # each of four pipelines a node has a fourth of its interfaces; one alone has one of them
    assert far == pytest.approx(160e-6 + stream / (2 * 25e9 * 0.72 / 4))
    assert edge == pytest.approx((near + 160e-6 + stream / (25e9 * 0.72)) / 2)


def transfer_of(
    framework: str, free_s: float = 1e9, machine: str = "polaris", **degrees: Any
) -> Transfer:
    q = scenario(framework=framework, machine=machine)
    layouts = Layouts.of(Layout.described({"tp": 4, "grad_accumulation": 64, **degrees}))
    groups = Groups.of(layouts, q.machine)
    return stage_transfer(q, layouts, groups, np.asarray(free_s))


@pytest.mark.parametrize("framework", ["megatron-lm", "fsdp2"])
@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_a_stage_of_one_chunk_awaits_its_transfers(framework: str, schedule: str) -> None:
    """Megatron-LM overlaps none without interleaving, nor does torch.distributed.pipelining."""
    plain = transfer_of(framework, pp=4, schedule=schedule)
    assert float(plain.blocks_s) == float(plain.arrives_s) > 0
    assert (float(plain.fills), float(plain.behind_s)) == (3, 0)


@pytest.mark.parametrize("framework", ["megatron-lm", "fsdp2"])
def test_interleaved_transfers_run_behind_computation(framework: str) -> None:
    """But those on the first micro-batch's way through 16 chunks, and back."""
    interleaved = {"pp": 4, "vpp": 4, "schedule": "interleaved-1f1b"}
    long = transfer_of(framework, **interleaved)
    one = float(long.arrives_s)
    assert (float(long.fills), float(long.blocks_s), float(long.behind_s)) == (15, 0, one)
    # four chunks forward and back take 4 transfers' time: half of each has nothing to hide behind
    short = transfer_of(framework, free_s=4 * one, **interleaved)
    assert float(short.blocks_s) == pytest.approx(one / 2)
    assert float(short.behind_s) == pytest.approx(one / 2)


def test_a_stage_waits_for_its_neighbours_one_after_the_other() -> None:
    """Two neighbours inside a pipeline, one at its ends."""
    q = scenario(framework="nanotron", machine="h100-cluster")
    waits = []
    for pp in (2, 4, 8):
        layouts = Layouts.of(Layout(pp=pp, dp=512 // pp))
        groups = Groups.of(layouts, q.machine)
        transfer = stage_transfer(q, layouts, groups, np.asarray(1.0))
        one, wait = float(send_stage_s(q, layouts, groups)), float(transfer_wait_s(q, layouts))
        assert float(transfer.arrives_s) == pytest.approx(one + wait)
        waits.append((float(transfer.blocks_s) - one) / wait)
    assert waits == pytest.approx([1, 2, 2])


def test_experts_dispatch_and_combine() -> None:
    q = scenario("mixtral-8x7b")
    layouts = Layouts.of(Layout(dp=8, ep=8, micro_batch=64))
    groups = Groups.of(layouts, q.machine)
    forward, _ = expert_s(q, blocks_of(q)[1], layouts, groups)
    size = 64 * SEQUENCE * 4096 * 2 * 2  # two experts a token
    assert float(forward) == pytest.approx(2 * 7 / 8 * size * seconds_per_byte(q), rel=0.05)


def test_a_stage_sends_its_slice() -> None:
    # both pipelines cross from node to node; each of eight tensor ranks sends an eighth
    q = scenario()
    whole, slices = (
        Layouts.of(Layout(pp=2, micro_batch=64, **degrees)) for degrees in ({"dp": 8}, {"tp": 8})
    )
    times = [send_stage_s(q, x, Groups.of(x, q.machine)) for x in (whole, slices)]
    assert float(times[0]) == pytest.approx(8 * float(times[1]), rel=0.01)
    alone = Layouts.of(Layout())
    assert float(send_stage_s(q, alone, Groups.of(alone, q.machine))) == 0


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_zero_moves_twice_the_weights_and_stage_3_three_times(stage: int) -> None:
    # Rajbhandari et al. 2020, section 7: 2 psi for stages 0 to 2, 3 psi for stage 3 (both
    # gathers), with 2-byte gradients and weights. DeepSpeed's code all-reduces whole gradients
    # in stages 1 and 2 (stage_1_and_2.py, average_tensor): 3 psi there too
    q = scenario("ptdp-7.5b", "deepspeed", precision="fp16")
    layouts = Layouts.of(Layout(dp=8, zero_stage=stage))
    traffic = data_traffic(Stages.of(q, layouts, 0), Groups.of(layouts, q.machine))
    psi = 7 / 8 * 2.0 * q.model.num_params * seconds_per_byte(q)
    fraction = q.framework.communication.gather_fraction.value
    if stage < 3:
        moved = float(traffic.gradients_s + traffic.parameters_s)
        assert moved == pytest.approx((3 if stage else 2) * psi, rel=0.05)
    else:
        gathers = traffic.before_forward_s + traffic.before_backward_s
        moved = float(gathers + traffic.after_backward_s) * fraction
        assert moved == pytest.approx(3 * psi, rel=0.05)


def counting(layouts: Layouts) -> Groups:
    """Groups in which a collective takes one second and an all-reduce two, whatever they send."""
    one = replace(
        unit_view(2),
        network_bytes_per_s=np.asarray(np.inf),
        network_latency_s=np.asarray(2.0),
    )
    groups = Groups.unit(layouts)
    for kind in ("data", "shard", "second_shard"):
        setattr(groups, kind, one)
    return groups


@pytest.mark.parametrize("lora", [{}, {"lora_rank": 8}])
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_fsdp_gathers_and_reduces_every_layer_alone(stage: int, lora: dict[str, int]) -> None:
    """fully_shard of each of 32 layers, of the embedding and of the head: 34 collectives.

    The frozen weights of LoRA are gathered as the others are. The program counts the two ends by
    their size in layers, hence the tolerance.
    """
    q = scenario("llama-3-8b", "fsdp2", **lora)
    layouts = Layouts.of(Layout(dp=2, zero_stage=stage))
    sent = data_traffic(Stages.of(q, layouts, 0), counting(layouts))
    assert float(sent.before_forward_s) == pytest.approx(34, rel=0.1)
    assert float(sent.before_backward_s) == pytest.approx(34 if stage == 3 else 0, rel=0.1)
    assert float(sent.gradients_s + sent.after_backward_s) == pytest.approx(34, rel=0.1)
    assert float(sent.parameters_s) == 0


def test_one_buffer_is_one_collective() -> None:
    """Megatron-LM reduces in one contiguous buffer; a dense model sends nothing of experts."""
    q = scenario("llama-3-8b", "megatron-lm")
    layouts = Layouts.of(Layout(dp=2, zero_stage=1))
    sent = data_traffic(Stages.of(q, layouts, 0), counting(layouts))
    assert float(sent.gradients_s) == pytest.approx(1, rel=1e-3)
    assert float(sent.parameters_s) == pytest.approx(1, rel=1e-3)


def test_hybrid_sharding_gathers_experts_inside_its_group() -> None:
    """16 replicas sharded by fours: an expert's two shards lie in one node of eight, as do all."""
    layouts = Layouts.of(Layout(dp=16, dp_shard=4, ep=2, zero_stage=3))
    fast, slow = (
        scenario("mixtral-8x7b", "fsdp2", machine=load_machine("selene", changes))
        for changes in ((), ("node.nic_bytes_per_s=1GB/s",))
    )
    sent = [
        data_traffic(Stages.of(q, layouts, 0), Groups.of(layouts, q.machine)) for q in (fast, slow)
    ]
    assert float(sent[0].before_forward_s) == float(sent[1].before_forward_s) > 0
    # the shards are reduced between the nodes
    assert float(sent[1].after_backward_s) > 2 * float(sent[0].after_backward_s)
    # a rank gathers a half of its experts, and three quarters of the rest
    params = Stages.of(fast, layouts, 0).params
    unit = data_traffic(Stages.of(fast, layouts, 0), Groups.unit(layouts))
    share = float(expert_share(blocks_of(fast), layouts))
    part = share / 2 + (1 - share) * 3 / 4
    assert float(unit.before_forward_s) == pytest.approx(2 * part * float(params.unsharded))


def test_megatron_of_2021_hides_no_tensor_traffic() -> None:
    """Narayanan et al. 2021 ran before the overlap was written, Korthikanti et al. 2022 after."""
    job = {"model": "gpt3-175b", "precision": "fp16", "attention": "eager"}
    layouts = Layouts.of(Layout(tp=8, recompute="full"))
    sent = []
    for year in (2021, 2022):
        q = scenario(framework=f"megatron-lm-{year}", **job)
        sent.append(float(block_passes(q, blocks_of(q), layouts)[1].tensor_s))
    # of six all-reduces two are hidden, less their contention
    assert sent[1] / sent[0] == pytest.approx((4 + 2 * 0.2) / 6)


@pytest.mark.parametrize(("to_end", "halves"), [(True, 4), (False, 3)])
def test_recompute_repeats_the_last_reduction_where_it_runs_to_the_end(
    to_end: bool, halves: int
) -> None:
    """Two regions of a layer, each a gather and a reduce-scatter in forward."""
    known = load_framework("fsdp2")
    kernels = known.kernels.model_copy(update={"repeats_to_end": to_end})
    q = scenario(framework=known.model_copy(update={"kernels": kernels}))
    layouts = Layouts.of(Layout(tp=4, sequence_parallel=True, recompute="full"))
    layer = blocks_of(q)[1]
    forward, _ = tensor_s(q, layer, layouts, Groups.unit(layouts))
    again = repeated_tensor_s(q, layer, layouts, forward)
    assert float(again) == pytest.approx(halves / 4 * float(forward))


LAYOUTS = st.builds(
    Layout,
    dp=st.sampled_from([1, 2, 8, 16]),
    tp=st.sampled_from([1, 2, 8]),
    pp=st.sampled_from([1, 4]),
    cp=st.sampled_from([1, 2]),
    zero_stage=st.integers(0, 3),
    micro_batch=st.sampled_from([1, 4]),
    grad_accumulation=st.sampled_from([4, 8]),
    sequence_parallel=st.booleans(),
    schedule=st.sampled_from(["gpipe", "1f1b"]),
    recompute=st.sampled_from(["none", "full"]),
)


@pytest.mark.slow
@given(
    st.sampled_from(["llama-3-8b", "mixtral-8x7b"]),
    st.sampled_from(["megatron-lm", "fsdp2", "deepspeed", "ddp"]),
    LAYOUTS,
    st.sampled_from(
        [
            "node.nic_bytes_per_s=1GB/s",
            "network.latency_s=1ms",
            "node.fabric.efficiency=0.1",
            "node.fabric.latency_s=1ms",
        ]
    ),
)
def test_step_time_is_positive_finite_and_a_slower_link_never_faster(
    model: str, framework: str, layout: Layout, slower: str
) -> None:
    layouts = Layouts.of(layout)
    here = estimate_layouts(scenario(model, framework), layouts)[0]
    slowed = scenario(model, framework, machine=load_machine("selene", (slower,)))
    slow = estimate_layouts(slowed, layouts)[0]
    assert 0 < here.step_time_s < np.inf
    assert tuple(here.step_time_parts_s) == TIME_PARTS
    assert all(0 <= part < np.inf for part in here.step_time_parts_s.values())
    assert here.step_time_s == pytest.approx(sum(here.step_time_parts_s.values()))
    assert slow.step_time_s >= here.step_time_s * (1 - 1e-12)


@pytest.mark.slow
@given(LAYOUTS)
def test_a_pipeline_step_is_longer_than_its_stages_are_busy(layout: Layout) -> None:
    q = scenario()
    parts = estimate_layouts(q, Layouts.of(layout))[0].step_time_parts_s
    busy = parts["forward"] + parts["backward"] + parts["recompute"] + parts["tensor_parallel"]
    # what every pass waits for, the passes of other stages wait for too
    busy += parts["parameter_gathering"] + parts["gradient_reduction"]
    assert (parts["pipeline_bubble"] > 0) == (layout.pp > 1)
    if layout.pp > 1:
        # never below the bubble of equal stages
        ideal = (layout.pp - 1) / layout.grad_accumulation * busy
        assert parts["pipeline_bubble"] < 1.5 * ideal + parts["context_parallel"]
